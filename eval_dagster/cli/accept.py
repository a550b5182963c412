"""The command `accept`: a person accepts states that did not pass the gate."""

import getpass
import socket
from collections.abc import Sequence

from eval_dagster.cli.console import out, print_next
from eval_dagster.config.values import LAST_PASSED
from eval_dagster.errors import UsageError
from eval_dagster.gate.results import accept_states as record_acceptance
from eval_dagster.gate.results import acceptance_line
from eval_dagster.project import Project


def accept_states(suite: str, *, evals: Sequence[str], models: Sequence[str], why: str, by: str | None) -> None:
    """Record the acceptance of states, and print them."""
    project = Project.open()
    accepted = record_acceptance(project, suite, evals=evals, models=models, by=by or _user(), why=why)
    for each in accepted:
        out.print(f"accepted  {acceptance_line(each)}", soft_wrap=True)
    if any(each.materialized_at for each in accepted) and project.suite(suite).baseline == LAST_PASSED:
        out.print("It is the baseline and the anchor of later results.")
    if any(each.is_gap for each in accepted):
        out.print("The gap does not keep the suite from passing, until its eval and model are judged again.")
    print_next((f"run --suite {suite}", "judges the suite again"), ("sql acceptances", "all that was accepted, by whom and why"))


def _user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError) as error:  # a user id without a name, as in a container
        raise UsageError("your user name is unknown; give your name: --by NAME") from error
