"""The command `accept`: a person accepts states that did not pass the gate."""

import getpass
import socket
from collections.abc import Sequence

from eval_dagster.cli.console import out, print_next
from eval_dagster.config.values import LAST_PASSED
from eval_dagster.errors import UsageError
from eval_dagster.gate.acceptances import accept
from eval_dagster.gate.records import minute
from eval_dagster.lake.catalog import publish
from eval_dagster.project import Project


def accept_states(suite: str, *, evals: Sequence[str], models: Sequence[str], why: str, by: str | None) -> None:
    """Record the acceptance of states, and print them."""
    project = Project.open()
    baseline = project.suite(suite).baseline
    project.select(suite=suite, evals=evals, models=models)
    is_named = baseline != LAST_PASSED
    if is_named and not (evals or models):
        raise UsageError(
            f"the baseline of the suite {suite} is {baseline!r}, which acceptances do not change; expected {LAST_PASSED!r} in evals.yaml, "
            "or a result that was not judged, named by --eval and --model"
        )
    accepted = accept(project.lake, suite, evals=evals, models=models, by=by or _user(), why=why, gaps_alone=is_named)
    publish(project.lake)
    for each in accepted:
        state = "" if each.materialized_at is None else f" of {minute(each.materialized_at)}"
        metric = f" ({each.metric})" if each.metric else ""
        out.print(f"accepted  {each.eval} on {each.model}{metric}{state}: {each.verdict.value}, by {each.accepted_by}", soft_wrap=True)
    if any(each.materialized_at for each in accepted) and not is_named:
        out.print("It is the baseline and the anchor of later results.")
    if any(each.is_gap for each in accepted):
        out.print("The gap does not keep the suite from passing, until its eval and model are judged again.")
    print_next((f"run --suite {suite}", "judges the suite again"), ("sql acceptances", "all that was accepted, by whom and why"))


def _user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError) as error:  # a user id without a name, as in a container
        raise UsageError("your user name is unknown; give your name: --by NAME") from error
