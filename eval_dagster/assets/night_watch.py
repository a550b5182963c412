"""Looks from outside of Dagster whether each night that was due was judged, and says why one was not.

It reads files of the home and Dagster's storage. It needs neither a daemon nor a code location, nor an evals.yaml that can be read: the
home keeps the last one that could.
"""

import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path

import dagster as dg

from eval_dagster.assets.due_nights import Night, due_nights
from eval_dagster.assets.failed_nights import evaluation_messages, tell_untold
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.names import Names, shown_job
from eval_dagster.assets.notifications import tell_broken, tell_missed
from eval_dagster.assets.runs.skipped_nights import waiting_notice
from eval_dagster.assets.runs.suite_evaluations import SuiteEvaluation, find_evaluation
from eval_dagster.assets.workspace import code_location, workspace_file
from eval_dagster.dagster_internals.definitions import InstigatorState, InstigatorStatus, InstigatorType
from eval_dagster.dagster_internals.instances import WorkspaceFileTarget, WorkspaceProcessContext
from eval_dagster.errors import ConfigError, EvalDagsterError, StoreError
from eval_dagster.gate.results import judged_times
from eval_dagster.notifications.delivery import Told, forget, is_told, note_told, send_left, tell_once, told_nights
from eval_dagster.pages.report.writing import write_missing
from eval_dagster.project import Project
from eval_dagster.remembered import Remembered
from eval_dagster.stores.whole_files import replaced

_SCHEDULER = "SCHEDULER"
_SILENT_S = 120.0
"""A daemon that has been silent for longer has ended; it gives a sign of life every half minute."""
_BEAT_S = 30.0
"""Between two signs of life."""
_SETTLED = timedelta(minutes=10)
"""An evals.yaml that was changed less long ago may still be being edited; so long, too, has a gate to start or to send its notice."""
_MOST_NIGHTS = 100
"""Nights that are looked at for the last one that was started."""
_NONE_DUE = "evals.yaml has no suite with a cron: no night is due"
_BROKEN = "configuration"
"""The name of the notice about an evals.yaml that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A night that was not judged, or something that keeps the next one from being judged."""

    suite: str | None
    """The suite; None if it is about all."""
    night: Night | None
    cause: str
    cure: str
    notice: str | None = None
    """The outcome of its notice; None if it was told before, or has no notice."""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The findings of a look at the nights."""

    seen: Sequence[str]
    """A line for each thing that was looked at."""
    findings: Sequence[Finding]

    @property
    def is_well(self) -> bool:
        """Whether every night that was due was judged, and whatever started the last one is there for the next one."""
        return not self.findings


def watch_nights(known: Remembered, broken: ConfigError | None = None, *, now: datetime | None = None, is_patient: bool = False) -> Watch:
    """Look at each night that was due since the last look, and send a notice of each that is missing and was not told.

    Notices that were left unsent are sent, too.

    Args:
        known: The configuration, as it is or as it was last read.
        broken: Why evals.yaml cannot be read now.
        now: The time of the look.
        is_patient: Whether a notice that could not be sent waits between two tries, as it does if the look is one of many.
    """
    now, project = now or datetime.now(UTC), known.project
    scheduled = [name for name, suite in project.config.suites.items() if suite.cron]
    findings = [_told_broken(project, scheduled, known.loaded_at, broken, now)] if broken else []
    if broken is None:
        for name in scheduled:
            forget(project, name, _BROKEN)
    checked = _checked(project.home)
    is_any_due = bool(scheduled) or broken is not None
    seen = [f"{project.config_path}: {'cannot be read' if broken else 'can be read'}"] if is_any_due else [_NONE_DUE]
    try:
        with open_instance(project.home) as instance:
            daemon = _daemon_silence(instance) if is_any_due else None
            if is_any_due:
                seen.append(f"daemon: {daemon or 'alive'}")
            # What cron or a pipeline starts needs neither daemon nor schedule.
            by_daemon = {name for name in scheduled if _is_started_by_daemon(instance, project, name, known.since[name], now)}
            if daemon and by_daemon:
                findings.append(Finding(suite=None, night=None, cause=f"No daemon starts the nights: {daemon}", cure=_START_DAEMON))
            for name in scheduled:
                if is_off := _is_off(instance, project, Names.of(project).suite_schedule(name), InstigatorType.SCHEDULE):
                    seen.append(f"{name}: its schedule is switched off")
                    findings += [_off(project, name)] if name in by_daemon else []
                look = _Look(instance=instance, project=project, broken=broken, daemon=daemon, is_off=is_off, now=now)
                found, words = _of_suite(look, name, known.since[name], checked.get(name))
                seen.append(f"{name}: {words}")
                findings += found
            for name in project.config.suites:
                while untold := tell_untold(instance, project, name, judged_only=True):
                    seen += [f"a night that was judged and not told: {untold}"]
    except StoreError as error:
        seen.append("Dagster's storage: cannot be used")
        findings.append(Finding(suite=None, night=None, cause=str(error), cure="start the database, or correct the settings"))
    else:
        _note_checked(project.home, dict.fromkeys(scheduled, now))
    seen += _left(project, is_patient)
    return Watch(seen=seen, findings=findings)


def _is_started_by_daemon(instance: dg.DagsterInstance, project: Project, name: str, since: datetime, now: datetime) -> bool:
    """Whether the schedule of a suite started the last of its nights that was started at all."""
    judged = judged_times(project.lake, name)
    for night in reversed(due_nights(name, project.config.suites[name], after=since, until=now)[-_MOST_NIGHTS:]):
        if find_evaluation(instance, project, name, night.since):
            return True
        if any(night.tick <= time < night.following for time in judged):
            return False
    return False


def _left(project: Project, is_patient: bool) -> list[str]:
    """A line for each notice that was left unsent before, and is sent now or could not be."""
    return [f"{each.suite}: left unsent before: {each.title}: {each.words()}" for each in send_left(project, is_patient=is_patient)]


_START_DAEMON = "start the daemon: `eval-dagster ui`, or `dagster-daemon run` where DAGSTER_HOME is that of the instance"


@dataclass(frozen=True, kw_only=True)
class _Look:
    """The state of the nights before a suite is looked at."""

    instance: dg.DagsterInstance
    project: Project
    broken: ConfigError | None
    daemon: str | None
    """How long the daemon has been silent; None if it is alive."""
    is_off: bool
    """Whether the suite's schedule is switched off."""
    now: datetime


def _of_suite(look: _Look, name: str, since: datetime, checked: datetime | None) -> tuple[list[Finding], str]:
    """The findings about a suite's nights, whose notices are sent, and a line about the last night."""
    suite = look.project.config.suites[name]
    nights = due_nights(name, suite, after=since, until=look.now)
    told, due = told_nights(look.project, name), nights
    nights = nights[-1:] if checked is None else [night for night in nights if night.following > checked] or nights[-1:]
    # While the last night is awaited, a missing one before it keeps the suite red.
    nights = [*(night for night in due[-len(nights) - 1 : -len(nights)] if night.name in told.nights), *nights]
    if not nights:
        return [], f"no night was due since {since:%Y-%m-%d %H:%M} UTC"
    judged = judged_times(look.project.lake, name)
    findings: list[tuple[Night, tuple[str, str]]] = []
    missing: Night | None = None
    words = ""
    for night in nights:
        after = [time for time in judged if night.tick <= time and (night is nights[-1] or time < night.following)]
        at = f"due {night.tick:%Y-%m-%d %H:%M} UTC"
        if after:
            words, missing = f"{at}, judged {after[0]:%H:%M}", None
            continue
        state = _state(look, night, told)
        if isinstance(state, str):
            words = f"{at}, {state}"
        else:
            words, missing = f"{at}, not judged", night
            findings.append((night, state))
    return _told(look, told, findings, nights[-1], missing), words


def _state(look: _Look, night: Night, told: Told) -> str | tuple[str, str]:
    """The state of a night without a judgement; if it is missing, the cause and what to do."""
    waiting = next(filter(None, (waiting_notice(look.project.home, night.suite, each) for each in (night.since, night.name))), None)
    if waiting is not None and look.now - waiting[1] < _SETTLED:
        return "it was skipped, and is about to send a notice"
    if waiting is not None or told.nights.get(night.name) == "skipped":
        cause = "The night was skipped, as an earlier one was at work"
        return f"{cause}: {waiting[0]}" if waiting else cause, "let fewer nights be due, or give the suite a faster machine"
    evaluation = find_evaluation(look.instance, look.project, night.suite, night.since)
    if evaluation is None:
        if look.now < night.start_by and night.following > look.now:
            return f"its runs are awaited until {night.start_by:%H:%M}"
        return _why_not_started(look, night)
    if evaluation.gate is not None and evaluation.gate.dagster_run.is_finished:
        gate = evaluation.gate.dagster_run
        if look.now - datetime.fromtimestamp(evaluation.gate.end_time or 0.0, UTC) < _SETTLED:
            return "its gate failed, and is about to send a notice"
        messages = evaluation_messages(look.instance, look.project, night.suite, gate)
        return f"The gate failed: {'; '.join(messages)}", f"mend the cause, then: eval-dagster run --suite {night.suite}"
    if look.now < night.deadline:
        return f"{_at_work(evaluation)}; its judgement is awaited until {night.deadline:%Y-%m-%d %H:%M} UTC"
    return _why_late(look, night, evaluation)


def _why_not_started(look: _Look, night: Night) -> tuple[str, str]:
    """Why no run of a night was started, by what can be seen now."""
    if look.daemon:
        return f"No run was started, and no daemon is there: {look.daemon}", _START_DAEMON
    if look.is_off:
        off = _off(look.project, night.suite)
        return off.cause, off.cure
    if look.broken is not None:
        return (
            f"No run was started: evals.yaml cannot be read: {look.broken}",
            "correct evals.yaml, then reload the code location in Dagster",
        )
    if problem := _location_problem(look):
        return f"No run was started: the code location cannot be loaded: {problem}", "mend that, then reload the code location in Dagster"
    state = _schedule(look.instance, look.project, Names.of(look.project).suite_schedule(night.suite), InstigatorType.SCHEDULE)
    if state is not None:
        ticks = look.instance.get_ticks(state.instigator_origin_id, state.selector_id, after=night.tick.timestamp() - 1, limit=200)
        tick = next((tick for tick in ticks if abs(tick.timestamp - night.tick.timestamp()) < 1), None)
        if tick is not None and tick.error is not None:
            return (
                f"The schedule failed at this tick: {tick.error.message.strip()}",
                "mend the cause; Dagster's page of the schedule has its ticks",
            )
    return (
        "No run was started: the daemon is alive now, and was not, or could not load the code location, when the night was due",
        f"if the night is wanted, start it: eval-dagster run --suite {night.suite}",
    )


def _why_late(look: _Look, night: Night, evaluation: SuiteEvaluation) -> tuple[str, str]:
    """Why a night that was started was not judged by its deadline."""
    late = f"Not judged by {night.deadline:%Y-%m-%d %H:%M} UTC: {_at_work(evaluation)}"
    if look.daemon:
        return f"{late}. No daemon is there: {look.daemon}", _START_DAEMON
    if evaluation.is_over and _is_off(look.instance, look.project, Names.of(look.project).named("suite_gates"), InstigatorType.SENSOR):
        return f"{late}. The sensor `suite_gates` is switched off, so that no gate starts", "switch it on in Dagster (Automation)"
    if evaluation.is_over:
        return (
            f"{late}. No gate was started",
            f"look at the sensor `suite_gates` in Dagster, or judge: eval-dagster run --suite {night.suite}",
        )
    return late, "look whether the run is stuck, and terminate it in Dagster; if nights take so long, raise `deadline_hours` of the suite"


def _at_work(evaluation: SuiteEvaluation) -> str:
    """The runs of an evaluation that have not ended, with what they wait for."""
    runs = [*evaluation.records, *([evaluation.gate] if evaluation.gate else [])]
    waiting = [record for record in runs if not record.dagster_run.is_finished]
    if not waiting:
        return f"all {len(evaluation.records)} runs have ended"
    named = (
        f"{shown_job(record.dagster_run.job_name)} {record.dagster_run.run_id[:8]} ({record.dagster_run.status.value.lower()} "
        f"for {_ago(datetime.now(UTC) - record.create_timestamp)})"
        for record in waiting
    )
    return f"{len(waiting)} of {max(evaluation.planned, len(runs))} runs have not ended: {', '.join(named)}"


def _told(look: _Look, told: Told, findings: Sequence[tuple[Night, tuple[str, str]]], last: Night, missing: Night | None) -> list[Finding]:
    """Send one notice for all nights with the same cause, and return the findings.

    A night that has a notice already is not a finding, with one exception: `missing`, the last night without a judgement, if no later night
    has one.
    """
    found: list[Finding] = []
    name = last.suite
    for (cause, cure), group in groupby(findings, key=lambda pair: pair[1]):
        nights = [night for night, _ in group]
        untold = [night for night in nights if not is_told(look.project, name, night.name, told)]
        notice = None
        if untold:
            if last in untold:
                write_missing(look.project, name, last.tick, cause, cure)
            names = [night.name for night in untold]
            outcome = tell_once(look.project, name, names[-1], partial(tell_missed, look.project, name, names, cause, cure))
            if outcome:
                note_told(look.project, name, names[:-1], outcome.title)
            notice = outcome.words() if outcome else None
        found += [
            Finding(suite=name, night=night, cause=cause, cure=cure, notice=notice if night in untold else None)
            for night in nights
            if night in untold or night is missing
        ]
    return found


def _told_broken(project: Project, scheduled: Sequence[str], loaded_at: datetime, broken: ConfigError, now: datetime) -> Finding:
    """The finding of an evals.yaml that cannot be read. Suites with the same addresses get one notice, as long as it stays so."""
    cause = f"evals.yaml cannot be read, so that the next night will fail (it was last read {loaded_at:%Y-%m-%d %H:%M} UTC): {broken}"
    cure = "correct the file; `eval-dagster check-nights` says whether it can be read"
    try:
        is_settled = now - datetime.fromtimestamp(project.config_path.stat().st_mtime, UTC) >= _SETTLED
    except OSError:
        is_settled = True
    told: list[str] = []
    addressed: set[tuple[str, ...]] = set()
    for name in scheduled if is_settled else ():
        suite = project.config.suites[name]
        if suite.notify in addressed:
            continue
        addressed.add(suite.notify)
        if outcome := tell_once(project, name, _BROKEN, partial(tell_broken, project, name, cause, cure)):
            told.append(f"{name}: {outcome.words()}")
    return Finding(suite=None, night=None, cause=cause, cure=cure, notice="; ".join(told) or None)


def _off(project: Project, suite: str) -> Finding:
    cause = f"The schedule `{Names.of(project).suite_schedule(suite)}` is switched off"
    cure = "switch it on in Dagster (Automation), or remove `cron` from the suite"
    return Finding(suite=suite, night=None, cause=cause, cure=cure)


def _daemon_silence(instance: dg.DagsterInstance) -> str | None:
    """How long the daemon that evaluates schedules has been silent; None if it is alive."""
    heartbeat = instance.get_daemon_heartbeats().get(_SCHEDULER)
    if heartbeat is None:
        return "none has ever run"
    silent_s = time.time() - heartbeat.timestamp
    return f"the last sign of life was {_ago(timedelta(seconds=silent_s))} ago" if silent_s > _SILENT_S else None


def daemon_since(home: Path, time_s: float) -> str | None:
    """The sign of life that a daemon of the instance has given lately, and after a time in seconds; None if there is none."""
    with open_instance(home) as instance:
        heartbeat = instance.get_daemon_heartbeats().get(_SCHEDULER)
    if heartbeat is None or heartbeat.timestamp < time_s + _BEAT_S or time.time() - heartbeat.timestamp > 2 * _BEAT_S:
        return None
    return f"its last sign of life was {_ago(timedelta(seconds=time.time() - heartbeat.timestamp))} ago"


def _is_off(instance: dg.DagsterInstance, project: Project, name: str, kind: InstigatorType) -> bool:
    state = _schedule(instance, project, name, kind)
    return state is not None and state.status is InstigatorStatus.STOPPED


def _schedule(instance: dg.DagsterInstance, project: Project, name: str, kind: InstigatorType) -> InstigatorState | None:
    """Dagster's record of a schedule or sensor; None if it was neither switched nor evaluated yet."""
    try:
        location = code_location(project)
    except EvalDagsterError:
        location = None
    found = [state for state in instance.all_instigator_state(instigator_type=kind) if state.instigator_name == name]
    own = [state for state in found if location and state.repository_selector.location_name == location.location_name]
    return next(iter(own or found), None)


def _location_problem(look: _Look) -> str | None:
    """The error of the code location as it is loaded now; None if it can be loaded. It takes some seconds."""
    try:
        origin, path = code_location(look.project), workspace_file(look.project)
    except EvalDagsterError as error:
        return str(error)
    if origin is None:
        return f"the workspace {path} names no code location"
    target = WorkspaceFileTarget(paths=[str(path)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the error is returned, too
        context = WorkspaceProcessContext(look.instance, target, code_server_log_level="critical")
    with context:
        found = context.create_request_context().get_code_location_error(origin.location_name)
        return None if found is None else (found.message.strip() or "no message").splitlines()[0]


def _checked(home: Path) -> dict[str, datetime]:
    """When each suite was last looked at."""
    try:
        kept = json.loads(_checked_file(home).read_text("utf-8"))
        return {name: datetime.fromisoformat(time) for name, time in kept.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _note_checked(home: Path, checked: dict[str, datetime]) -> None:
    _checked_file(home).parent.mkdir(parents=True, exist_ok=True)
    with replaced(_checked_file(home)) as temporary:
        temporary.write_text(json.dumps({name: time.isoformat() for name, time in checked.items()}), "utf-8")


def _checked_file(home: Path) -> Path:
    return home / "watch" / "checked.json"


def _ago(time: timedelta) -> str:
    """A length of time in its two largest units."""
    minutes = int(time.total_seconds()) // 60
    days, hours, rest = minutes // 1440, minutes % 1440 // 60, minutes % 60
    parts = [f"{count} {unit}" for count, unit in ((days, "d"), (hours, "h"), (rest, "min")) if count]
    return " ".join(parts[:2]) or f"{int(time.total_seconds())} s"
