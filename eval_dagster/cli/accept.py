"""The command `accept`: a person accepts states that did not pass the gate."""

import getpass
import socket
from collections.abc import Sequence

from eval_dagster.cli.console import out, print_next
from eval_dagster.config.values import LAST_PASSED
from eval_dagster.errors import UsageError
from eval_dagster.gate.acceptances import accept
from eval_dagster.lake.catalog import publish
from eval_dagster.project import Project


def accept_states(suite: str, *, evals: Sequence[str], models: Sequence[str], why: str, by: str | None) -> None:
    """Record the acceptance of states, and print them."""
    project = Project.open()
    baseline = project.suite(suite).baseline
    project.select(suite=suite, evals=evals, models=models)
    if baseline != LAST_PASSED:
        raise UsageError(
            f"the baseline of the suite {suite} is {baseline!r}, which acceptances do not change; expected {LAST_PASSED!r} in evals.yaml"
        )
    accepted = accept(project.lake, suite, evals=evals, models=models, by=by or _user(), why=why)
    publish(project.lake)
    for each in accepted:
        state = f"{each.eval} on {each.model} of {each.materialized_at:%Y-%m-%d %H:%M} UTC ({each.verdict.value})"
        out.print(f"accepted  {state}, by {each.accepted_by}", soft_wrap=True)
    out.print("It is the baseline and the anchor of later results.")
    print_next((f"run --suite {suite}", "judges the suite again"), ("sql acceptances", "all that was accepted, by whom and why"))


def _user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError) as error:  # a user id without a name, as in a container
        raise UsageError("your user name is unknown; give your name: --by NAME") from error
