"""Sends a suite's notifications: evaluations that failed, results that got worse, nights that were skipped."""

import platform
from collections.abc import Sequence

import dagster as dg

from eval_dagster.assets.runs.run_summaries import run_messages
from eval_dagster.config.values import LAST_PASSED
from eval_dagster.gate.judgement import excused
from eval_dagster.gate.records import GateResult, Outcome
from eval_dagster.lake.records import read_attempts
from eval_dagster.notifications.delivery import SENSOR_S, NoticeOutcome, note_told, notify, notify_all
from eval_dagster.notifications.messages import (
    failed_night_notice,
    failure_notice,
    incomplete_notice,
    missed_nights_notice,
    not_evaluated_notice,
    regression_notice,
    skipped_notice,
    unproven_notice,
)
from eval_dagster.notifications.outbox import Message
from eval_dagster.pages.report.writing import Report
from eval_dagster.project import Project


def tell(
    instance: dg.DagsterInstance,
    project: Project,
    result: GateResult,
    runs: Sequence[dg.DagsterRun],
    report: Report,
    *,
    night: str | None = None,
) -> list[str]:
    """Send a notice of the results that got worse, one of the evaluations that failed, and one of those that a limit stopped.

    Failures that the suite does without, such as accepted gaps, are not told. If the suite is incomplete, one notice says so, with
    what failed and what a limit stopped. `runs` are those that evaluated the suite,
    and `instance` has their logs. `night` names the night that was judged. Returns the outcome of each notice.
    """
    places = _places(project, result, report)
    notices: list[Message] = []
    if result.red or result.red_aggregates:
        title, body = regression_notice(result, places, can_be_accepted=project.suite(result.suite).baseline == LAST_PASSED)
        notices.append(Message(kind="regression", title=title, body=body))
    messages = [run_messages(instance, run) for run in runs]
    without = excused(result, read_attempts(project.lake, run_ids=[run.run_id for run in runs]))
    failures = [message for failed, _ in messages for message in failed if message.partition(": ")[0] not in without]
    limited = [message for _, limited in messages for message in limited]
    if result.outcome is Outcome.INCOMPLETE:
        title, body = incomplete_notice(result, [*failures, *limited], places)
        notices.append(Message(kind="incomplete", title=title, body=body))
    elif result.outcome is Outcome.NOT_PROVEN:
        title, body = unproven_notice(result, places)
        notices.append(Message(kind="not proven", title=title, body=body))
    if failures and result.outcome is not Outcome.INCOMPLETE:
        title, body = failure_notice(result.suite, failures, places)
        notices.append(Message(kind="failure", title=title, body=body))
    if limited and result.outcome is not Outcome.INCOMPLETE:
        title, body = not_evaluated_notice(result.suite, limited, places)
        notices.append(Message(kind="not evaluated", title=title, body=body))
    outcomes = notify_all(project, result.suite, notices, run_id=result.run_id, night=night) if notices else []
    if night is not None and any(outcome.problem for outcome in outcomes):
        note_told(project, result.suite, [night], outcomes[0].title)  # the lake does not say it
    return [f"{outcome.title}: {outcome.words()}" for outcome in outcomes]


def _places(project: Project, result: GateResult, report: Report) -> list[str]:
    """The places of a judgement's report and pages: links to what everybody can reach, and the file with its machine."""
    addresses = project.addresses.everywhere()
    in_mlflow = report.mlflow_link if project.tracker.page(public=True) else None
    links = {**addresses.of_judgement(result.suite, result.judged_at.isoformat(), result.run_id), "Report in MLflow": in_mlflow}
    file = [f"Report: the file {report.page} on {platform.node()}"] if report.page else []
    return [*(f"{name}: {link}" for name, link in links.items() if link), *file]


def tell_skipped(project: Project, suite: str, reason: str, night: str | None) -> NoticeOutcome:
    """Send a notice of a skipped night."""
    title, body = skipped_notice(suite, reason)
    return notify(project, suite, title=title, body=body, kind="skipped", night=night, timeout_s=SENSOR_S)


def tell_failed(project: Project, suite: str, night: str, messages: Sequence[str], run_id: str, verdict: str | None) -> NoticeOutcome:
    """Send a notice of a night that failed before it was judged, or with a verdict before its own notice was sent.

    `run_id` is the run of the gate.
    """
    link = project.addresses.everywhere().dagster_run(run_id)
    title, body = failed_night_notice(suite, night, messages, [f"Run in Dagster: {link}"] if link else [], verdict=verdict)
    return notify(project, suite, title=title, body=body, kind="failure", run_id=run_id, night=night, timeout_s=SENSOR_S)


def tell_broken(project: Project, suite: str, cause: str, cure: str) -> NoticeOutcome:
    """Send a notice of an evals.yaml that cannot be read, before it costs a night."""
    return notify(project, suite, title=f"{suite}: evals.yaml cannot be read", body=f"{cause}\nNext: {cure}", kind="missed")


def tell_missed(project: Project, suite: str, nights: Sequence[str], cause: str, cure: str) -> NoticeOutcome:
    """Send a notice of nights of which no judgement came, the oldest first."""
    title, body = missed_nights_notice(suite, nights, cause, cure)
    return notify(project, suite, title=title, body=body, kind="missed", night=nights[-1])
