"""Sends a suite's notifications: evaluations that failed, results that got worse, nights that were skipped."""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from eval_dagster.assets.failures import run_messages
from eval_dagster.config.values import LAST_PASSED
from eval_dagster.gate.records import GateResult
from eval_dagster.notifications.delivery import Kind, NoticeOutcome, notify
from eval_dagster.notifications.messages import failure_notice, not_evaluated_notice, regression_notice, skipped_notice
from eval_dagster.project import Project


def tell(
    instance: dg.DagsterInstance, project: Project, result: GateResult, runs: Sequence[dg.DagsterRun], report: Path | None
) -> list[str]:
    """Send a notice of the results that got worse, one of the evaluations that failed, and one of those that a limit stopped.

    `runs` are those that evaluated the suite, and `instance` has their logs. Returns the outcome of each notice.
    """
    notices: list[tuple[Kind, tuple[str, str]]] = []
    if result.red:
        notices.append(
            ("regression", regression_notice(result, report, can_be_accepted=project.suite(result.suite).baseline == LAST_PASSED))
        )
    messages = [run_messages(instance, run) for run in runs]
    if failures := [message for failed, _ in messages for message in failed]:
        notices.append(("failure", failure_notice(result.suite, failures, report)))
    if limited := [message for _, limited in messages for message in limited]:
        notices.append(("not evaluated", not_evaluated_notice(result.suite, limited, report)))
    outcomes = [notify(project, result.suite, title=title, body=body, kind=kind, run_id=result.run_id) for kind, (title, body) in notices]
    return [f"{outcome.title}: {outcome.words()}" for outcome in outcomes]


def tell_skipped(project: Project, suite: str, reason: str) -> NoticeOutcome:
    """Send a notice of a skipped night."""
    title, body = skipped_notice(suite, reason)
    return notify(project, suite, title=title, body=body, kind="skipped")
