"""Sends notices of regressions, failures and skipped runs by apprise to the addresses of a suite.

Addresses are secrets. They are in environment variables, which only the sending program reads. A notice is a row of the relation `notices`
before it is sent. Sending is retried within a bounded time, and the outcome is recorded. What was not sent is sent by the next program that
sends a notice of the suite, or looks for such notices. A notice that cannot be sent fails no run. A night is told once, by whichever
program finds first that it failed or was missed.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.format.parquet_files import read_info
from eval_dagster.lake.tables.events import NoticeRow
from eval_dagster.notifications.outbox import (
    KIND,
    MOST_READ,
    NIGHT,
    Kind,
    Message,
    Notice,
    Status,
    Unsent,
    folder,
    is_any_marked,
    new_id,
    sending,
    settle,
    sweep,
    unsent,
    write,
)
from eval_dagster.project import Project
from eval_dagster.texts.visible_text import message_text
from eval_dagster.versions.hashes import stable_hash

if TYPE_CHECKING:
    from eval_dagster.notifications.sender import Report, Request

SENSOR_S = 40.0
"""Seconds for a notice that a sensor sends: Dagster gives up an evaluation of a sensor after a minute."""
_TIMEOUT_S = 75.0
"""Seconds for all attempts on all addresses together."""
_KILL_AFTER_S = 10.0
"""Seconds after that when the program that sends is ended."""
_NOT_TRIED = "not tried yet, as it did not take the notice before this one"
_MOST_LEFT = 10
"""Most earlier notices that are sent after a new one."""
_SENDER = Path(__file__).resolve().with_name("sender.py")
_KEPT_S = 90 * 86_400.0
"""Age at which the mark of a night that somebody was told about is deleted."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The outcome of a notice at the addresses of one environment variable."""

    variable: str | None
    """The variable's name; null if the suite names none."""
    status: Status
    attempts: int = 0
    error: str | None = None
    reached: Sequence[str] = ()
    """Marks of its addresses that took the notice, which get it no second time."""


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
        parts: list[str] = []
        for delivery in self.deliveries:
            if delivery.status == "sent":
                tries = f" at attempt {delivery.attempts}" if delivery.attempts > 1 else ""
                parts.append(f"sent to {delivery.variable}{tries}")
            else:
                variable = f" ({delivery.variable})" if delivery.variable else ""
                parts.append(f"{delivery.status}{variable}: {delivery.error}")
        return "; ".join([*parts, f"not recorded: {self.problem}"] if self.problem else parts)


def notify(
    project: Project,
    suite: str,
    *,
    title: str,
    body: str,
    kind: Kind,
    run_id: str = "",
    night: str | None = None,
    timeout_s: float | None = None,
) -> NoticeOutcome:
    """Send a notice to all addresses of a suite, and record it in the relation `notices`, as `notify_all` does."""
    return notify_all(project, suite, [Message(kind=kind, title=title, body=body)], run_id=run_id, night=night, timeout_s=timeout_s)[0]


def notify_all(
    project: Project,
    suite: str,
    messages: Sequence[Message],
    *,
    run_id: str = "",
    night: str | None = None,
    timeout_s: float | None = None,
) -> list[NoticeOutcome]:
    """Send notices to all addresses of a suite, and record them in the relation `notices`. All are recorded before the first one is sent.

    Earlier notices of the suite that did not reach an address are sent after them, if the address takes these ones. The only error is a
    suite that evals.yaml does not have.

    Args:
        project: The project, whose lake records the notices.
        suite: The suite. Its `notify` in evals.yaml names the environment variables with the addresses.
        messages: What the notices say. Mentions of people and links with other texts are shown as plain characters.
        run_id: The run that they are about.
        night: The name of the night that they are about, which the files of the notices keep.
        timeout_s: Seconds for each notice, after which no earlier ones are sent; 75, and another 75 for the earlier ones, if not given.
    """
    variables = list(dict.fromkeys(project.suite(suite).notify))
    now = datetime.now(UTC)
    notices = [
        Notice(
            suite=suite,
            notice_id=new_id(),
            kind=message.kind,
            title=message_text(" ".join(message.title.split())),
            body=message_text(message.body),
            written_at=now,
            run_id=run_id,
        )
        for message in messages
    ]
    outcomes: list[NoticeOutcome] = []
    with ExitStack() as held:
        problem = None
        try:
            if variables and messages[0].kind != "test":
                held.enter_context(sending(project.home, [notice.notice_id for notice in notices]))
                rows = [_row(notice, Delivery(variable=name, status="unsent")) for notice in notices for name in variables]
                write(project.lake, suite, rows, run_id, night)
        except Exception as error:  # a notice fails no run
            problem = f"{type(error).__name__}: {error}"
        failing: set[str] = set()
        for notice in notices:
            deliveries = [Delivery(variable=name, status="unsent", error=_NOT_TRIED) for name in variables if name in failing]
            if tried := [name for name in variables if name not in failing]:
                deliveries += _deliver(tried, notice, timeout_s or _TIMEOUT_S)
            elif not variables:
                deliveries = [Delivery(variable=None, status="no address", error="the suite has no `notify` in evals.yaml")]
            failing = {str(each.variable) for each in deliveries if variables and each.status != "sent"}
            unrecorded = _record(project, notice, deliveries, night) or problem
            outcomes.append(NoticeOutcome(suite=suite, title=notice.title, deliveries=deliveries, problem=unrecorded))
    reached = {each.variable for outcome in outcomes for each in outcome.deliveries if each.status == "sent" and each.variable}
    if reached and messages[0].kind != "test" and timeout_s is None:
        _send_each(project, suite, _quietly_unsent(project, suite)[:_MOST_LEFT], reached, timeout_s or _TIMEOUT_S)
    return outcomes


def send_left(
    project: Project,
    *,
    suites: Collection[str] | None = None,
    timeout_s: float | None = None,
    most: int | None = None,
    is_patient: bool = False,
) -> list[NoticeOutcome]:
    """Send what earlier programs left unsent: they were killed, or an address could not be reached.

    An address that fails is asked once. Nothing is raised for a lake that cannot be read.

    Args:
        project: The project.
        suites: The suites; all of evals.yaml if not given.
        timeout_s: Seconds for each notice; 75 if not given.
        most: Most notices that are sent.
        is_patient: Whether a notice that failed before waits, a minute at first and hours after several tries.
    """
    now = datetime.now(UTC)
    outcomes: list[NoticeOutcome] = []
    found: set[str] = set()
    for suite in project.config.suites if suites is None else suites:
        left = _quietly_unsent(project, suite)
        found |= {notice.notice_id for notice in left}
        due = [notice for notice in left if not is_patient or notice.is_due(now)]
        most_here = None if most is None else most - len(outcomes)
        outcomes += _send_each(project, suite, due[:most_here], set(project.suite(suite).notify), timeout_s or _TIMEOUT_S)
    if suites is None:
        sweep(project.home, found)
    return outcomes


def is_any_left(home: Path) -> bool:
    """Whether a program of this home has left a notice unsent. It reads no lake."""
    return is_any_marked(home)


def _deliver(
    variables: Sequence[str], notice: Notice, timeout_s: float, reached: Mapping[str, Sequence[str]] | None = None
) -> list[Delivery]:
    """Send a notice to the addresses of variables, except to those whose marks are in `reached`."""
    there = [name for name in variables if _has_address(name)]
    request: Request = {
        "id": notice.notice_id,
        "kind": notice.kind,
        "title": notice.title,
        "body": f"{notice.body}\nNotice {notice.notice_id}",
        "timeout_s": timeout_s,
        "variables": there,
        "reached": reached or {},
    }
    reports, failure = _send(request) if there else ({}, "")
    missing = "the environment variable {} is not set, or empty, where this runs; expected one or more apprise addresses in it"
    deliveries: list[Delivery] = []
    for name in variables:
        if name not in reports:
            deliveries.append(Delivery(variable=name, status="failed", error=failure if name in there else missing.format(name)))
            continue
        of_one = reports[name]
        taken = [report["mark"] for report in of_one if not report["error"]]
        errors = [f"{each['service'] or f'address {place}'}: {each['error']}" for place, each in enumerate(of_one, 1) if each["error"]]
        words = f"{len(taken)} of {len(of_one)} addresses reached; " if len(of_one) > 1 else ""
        deliveries.append(
            Delivery(
                variable=name,
                status="failed" if errors else "sent",
                attempts=max(report["attempts"] for report in of_one),
                error=words + "; ".join(errors) if errors else None,
                reached=taken,
            )
        )
    return deliveries


def _send(request: "Request") -> tuple[dict[str, list["Report"]], str]:
    """Reports by variable, in the order of its addresses; and the reason for those that are missing.

    Messages of the program are not repeated, since they can contain addresses.
    """
    reports: list[Report] = []
    failure = "the program that sends notices failed"
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_SENDER)],
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=request["timeout_s"] + _KILL_AFTER_S,
            check=False,
        )
        reports = [json.loads(line) for line in done.stdout.splitlines()]
    except subprocess.TimeoutExpired:
        failure = f"not done within {request['timeout_s'] + _KILL_AFTER_S:g} s"
    except (OSError, ValueError) as error:
        failure += f" ({type(error).__name__})"
    in_order = sorted(reports, key=lambda report: report["place"])
    by_variable = {name: list(of_one) for name, of_one in groupby(in_order, key=lambda report: report["variable"])}
    return {name: found for name, found in by_variable.items() if len(found) == found[0]["of"]}, failure


def _record(project: Project, notice: Notice, deliveries: Sequence[Delivery], night: str | None) -> str | None:
    """Write the outcome of a notice, and publish it. Returns why that failed."""
    try:
        write(project.lake, notice.suite, [_row(notice, each) for each in deliveries], notice.run_id, night)
        if not any(each.notice_id == notice.notice_id for each in unsent(project, notice.suite)):
            settle(project.home, notice.notice_id)
        publish(project.lake)
    except Exception as error:  # a notice fails no run
        return f"{type(error).__name__}: {error}"
    return None


def _row(notice: Notice, delivery: Delivery) -> NoticeRow:
    now = datetime.now(UTC)
    return {
        "suite": notice.suite,
        "notice_id": notice.notice_id,
        "kind": notice.kind,
        "title": notice.title,
        "body": notice.body,
        "written_at": notice.written_at,
        "run_id": notice.run_id,
        "variable": delivery.variable,
        "status": delivery.status,
        "attempts": delivery.attempts,
        "error": delivery.error,
        "reached": list(delivery.reached),
        "attempted_at": now,
        "sent_at": now if delivery.status == "sent" else None,
    }


def _quietly_unsent(project: Project, suite: str) -> list[Unsent]:
    try:
        return unsent(project, suite)
    except Exception:  # a lake out of reach: the next program looks again
        return []


def _send_each(project: Project, suite: str, notices: Sequence[Unsent], variables: set[str], timeout_s: float) -> list[NoticeOutcome]:
    """Send notices that were left to these variables, the oldest first. A variable whose addresses fail is left out from then on."""
    outcomes: list[NoticeOutcome] = []
    deadline = time.monotonic() + timeout_s
    there = {name for name in variables if _has_address(name)}
    for left in notices:
        if not there or time.monotonic() >= deadline:
            break
        if there.isdisjoint(left.variables):
            continue
        with suppress(Exception), sending(project.home, [left.notice_id]) as is_free:  # as above
            # Another program may have sent it since it was read.
            now = next((each for each in unsent(project, suite) if each.notice_id == left.notice_id), None) if is_free else None
            rows = [row for row in now.rows if row["variable"] in there] if now else []
            if not rows:
                continue
            first, reached = rows[0], {str(row["variable"]): row["reached"] or [] for row in rows}
            notice = Notice(
                suite=suite,
                notice_id=left.notice_id,
                kind=first["kind"],
                title=first["title"],
                body=first["body"],
                written_at=first["written_at"],
                run_id=first["run_id"] or "",
            )
            late = f"Written {notice.written_at:%Y-%m-%d %H:%M} UTC, and not sent before"
            late += f": {first['error']}" if first["error"] else ""
            deliveries = _deliver(list(reached), replace(notice, body=f"{notice.body}\n{late}"), timeout_s, reached)
            there -= {str(each.variable) for each in deliveries if each.status != "sent"}
            earlier = {row["variable"]: row["attempts"] or 0 for row in rows}
            counted = [replace(each, attempts=each.attempts + earlier[each.variable]) for each in deliveries]
            problem = _record(project, notice, counted, None)
            outcomes.append(NoticeOutcome(suite=suite, title=notice.title, deliveries=counted, problem=problem))
    return outcomes


def _has_address(variable: str) -> bool:
    return bool(os.environ.get(variable, "").strip())


@dataclass(frozen=True, kw_only=True)
class Told:
    """The subjects of a suite's notices in the lake, sent or not."""

    nights: dict[str, str]
    """The kind of notice by the name of its night."""
    run_ids: frozenset[str]
    """The runs that notices were about: those of earlier versions of this package name no night."""


def told_nights(project: Project, suite: str) -> Told:
    """The subjects of the last notices of a suite."""
    nights: dict[str, str] = {}
    run_ids: set[str] = set()
    for path in project.lake.readable_files(folder(project.lake, suite))[-MOST_READ:]:
        try:
            info = read_info(path)
        except LakeError:  # reported by `publish`
            continue
        run_ids.add(info.run_id)
        if NIGHT in info.inputs:
            nights[info.inputs[NIGHT]] = info.inputs.get(KIND, "")
    return Told(nights=nights, run_ids=frozenset(run_ids) - {""})


def is_told(project: Project, suite: str, night: str, told: Told, run_id: str = "") -> bool:
    """Whether there was a notice about a night of a suite, or about the run that judged it."""
    mark = _mark(project.home, suite, night)
    return night in told.nights or run_id in told.run_ids or (mark.exists() and mark.stat().st_size > 0)


def tell_once(project: Project, suite: str, night: str, send: Callable[[], NoticeOutcome]) -> NoticeOutcome | None:
    """Send a notice about a night of a suite, unless a program of any machine has sent one, or one of this machine is about to.

    A file in the home has its mark, so that a lake that cannot be written to does not make it repeat.

    Args:
        project: The project of the suite.
        suite: The suite.
        night: What identifies the night, such as the time of its tick in UTC.
        send: Sends it.
    """
    mark = _mark(project.home, suite, night)
    mark.parent.mkdir(parents=True, exist_ok=True)
    with mark.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if is_told(project, suite, night, told_nights(project, suite)):
            return None
        outcome = send()
        file.write(outcome.title)
    for old in mark.parent.iterdir():
        if time.time() - old.stat().st_mtime > _KEPT_S:
            old.unlink(missing_ok=True)
    return outcome


def note_told(project: Project, suite: str, nights: Sequence[str], title: str) -> None:
    """Note that a notice of another night was about these nights, too."""
    for night in nights:
        mark = _mark(project.home, suite, night)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(title, "utf-8")


def forget(project: Project, suite: str, night: str) -> None:
    """Let the next notice with this name be sent. It has no effect on notices of other machines."""
    _mark(project.home, suite, night).unlink(missing_ok=True)


def _mark(home: Path, suite: str, night: str) -> Path:
    return home / "watch" / "told" / stable_hash([suite, night])
