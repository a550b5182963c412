"""Sends notices of regressions, failures and skipped runs by apprise to the addresses of a suite.

Addresses are secrets. They are in environment variables, which only the sending program reads. Sending is retried within a bounded time,
and the outcome is recorded. A notice that cannot be sent fails no run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog import publish
from eval_dagster.lake.files import FileInfo, Lake, new_name, read_rows, table_of
from eval_dagster.project import Project
from eval_dagster.visible_text import message_text

Kind = Literal["regression", "incomplete", "failure", "not evaluated", "skipped", "missed", "test"]
"""The subject of a notice."""
NIGHT, KIND = "night", "kind"
"""The keys of a night and of the kind of its notice in the footer of a file of notices."""
Status = Literal["sent", "failed", "no address"]

_SENDER = Path(__file__).resolve().with_name("sender.py")
_TIMEOUT_S = 30.0
"""For all attempts on one address together."""
_KILL_AFTER_S = 45.0
_MOST_TITLES = 3


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The outcome of a notice at the addresses of one environment variable."""

    variable: str | None
    """The variable's name; null if the suite names none."""
    status: Status
    attempts: int = 0
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class NoticeOutcome:
    """The outcome of a notice."""

    suite: str
    title: str
    deliveries: Sequence[Delivery]
    """One for each variable of the suite."""
    problem: str | None = None
    """Why it could not be recorded in the lake."""

    @property
    def is_sent(self) -> bool:
        """Whether it reached all addresses of the suite, and there is at least one."""
        return all(delivery.status == "sent" for delivery in self.deliveries)

    def words(self) -> str:
        """The outcome, in a sentence for each variable."""
        parts = [_words(delivery) for delivery in self.deliveries]
        return "; ".join([*parts, f"not recorded: {self.problem}"] if self.problem else parts)


def notify(project: Project, suite: str, *, title: str, body: str, kind: Kind, run_id: str = "", night: str | None = None) -> NoticeOutcome:
    """Send a notice to all addresses of a suite, and record it in the relation `notices`. It takes 45 seconds at most.

    If earlier notices of the suite reached nobody, the end of this one lists them. They are in `notices`, and are not sent again. The only
    error is that of a suite that evals.yaml does not have.

    Args:
        project: The project, whose lake records the notice.
        suite: The suite. Its `notify` in evals.yaml names the environment variables with the addresses.
        title: One line.
        body: Plain text. Mentions of people and links with other texts are shown as plain characters.
        kind: Its subject.
        run_id: The run that it is about.
        night: The name of the night that it is about, which the file of the notice keeps.
    """
    variables = list(dict.fromkeys(project.suite(suite).notify))
    began = datetime.now(UTC)
    title = message_text(" ".join(title.split()))
    body = message_text("\n\n".join(filter(None, [body, _words_of_lost(_lost(project.lake, suite))])))
    deliveries = _deliver(variables, {"title": title, "body": body, "kind": kind, "timeout_s": _TIMEOUT_S})
    shared = {"suite": suite, "kind": kind, "title": title, "body": body, "attempted_at": began, "run_id": run_id}
    problem = None
    try:
        sent_at = datetime.now(UTC)
        rows = [{**shared, **asdict(each), "sent_at": sent_at if each.status == "sent" else None} for each in deliveries]
        _record(project.lake, suite, rows, run_id, night)
    except Exception as error:  # a notice fails no run
        problem = f"{type(error).__name__}: {error}"
    return NoticeOutcome(suite=suite, title=title, deliveries=deliveries, problem=problem)


def _deliver(variables: Sequence[str], notice: Mapping[str, Any]) -> list[Delivery]:
    if not variables:
        return [Delivery(variable=None, status="no address", error="the suite has no `notify` in evals.yaml")]
    there = [name for name in variables if os.environ.get(name, "").strip()]
    reports, failure = _send({**notice, "variables": there}) if there else ({}, "")
    missing = "the environment variable {} is not set, or empty, where this runs; expected one or more apprise addresses in it"
    return [
        _delivery(name, reports[name])
        if name in reports
        else Delivery(variable=name, status="failed", error=failure if name in there else missing.format(name))
        for name in variables
    ]


def _send(notice: Mapping[str, Any]) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Reports by variable; or none, and the reason. Messages of the program are not repeated, since they can contain addresses."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_SENDER)],
            input=json.dumps(notice).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_KILL_AFTER_S,
            check=True,
        )
        reports: list[dict[str, Any]] = json.loads(done.stdout)
        return {name: list(of_one) for name, of_one in groupby(reports, key=lambda report: str(report["variable"]))}, ""
    except subprocess.TimeoutExpired:
        return {}, f"not done within {_KILL_AFTER_S:g} s"
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        return {}, f"the program that sends notices failed ({type(error).__name__})"


def _delivery(variable: str, reports: Sequence[Mapping[str, Any]]) -> Delivery:
    errors = [f"{report['service'] or f'address {place}'}: {report['error']}" for place, report in enumerate(reports, 1) if report["error"]]
    attempts = max(report["attempts"] for report in reports)
    if not errors:
        return Delivery(variable=variable, status="sent", attempts=attempts)
    reached = f"{len(reports) - len(errors)} of {len(reports)} addresses reached; " if len(reports) > 1 else ""
    return Delivery(variable=variable, status="failed", attempts=attempts, error=reached + "; ".join(errors))


def _record(lake: Lake, suite: str, rows: Sequence[Mapping[str, Any]], run_id: str, night: str | None) -> None:
    now = datetime.now(UTC)
    name = new_name(run_id or "notice", now)
    info = FileInfo(
        fingerprint=name,
        version=name,
        run_id=run_id,
        materialized_at=now.isoformat(timespec="microseconds"),
        inputs={NIGHT: night, KIND: str(rows[0]["kind"])} if night else {},
    )
    lake.add(folder(lake, suite) / name, table_of("notices", rows), info)
    publish(lake)


def _lost(lake: Lake, suite: str) -> list[str]:
    """Titles of the notices that reached nobody since the last sent one, the oldest first."""
    lost: list[str] = []
    for path in reversed(lake.files(folder(lake, suite))):
        try:
            rows = read_rows(path, ["title", "kind", "status"])
        except LakeError:  # already reported by `publish`
            continue
        if any(row["status"] == "sent" for row in rows):
            break
        if rows[0]["status"] == "failed" and rows[0]["kind"] != "test":
            lost.append(rows[0]["title"])
    return lost[::-1]


def _words_of_lost(titles: Sequence[str]) -> str:
    if not titles:
        return ""
    named = "; ".join(titles[-_MOST_TITLES:])
    return f"Could not be sent before this: {len(titles)} ({named}). They are in the relation `notices`: eval-dagster sql notices"


def folder(lake: Lake, suite: str) -> Path:
    """The folder of a suite's notices."""
    return lake.root / "notices" / f"suite={suite}"


def _words(delivery: Delivery) -> str:
    if delivery.status == "sent":
        return f"sent to {delivery.variable}" + (f" at attempt {delivery.attempts}" if delivery.attempts > 1 else "")
    return f"{delivery.status}{f' ({delivery.variable})' if delivery.variable else ''}: {delivery.error}"
