"""Notices of skipped nights.

A notice waits for networks and locks, but the evaluation of a tick must not. So the tick writes a small file, and a sensor sends the
notice.
"""

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from eval_dagster.assets.names import Names
from eval_dagster.assets.notifications import tell_skipped
from eval_dagster.assets.resources import ProjectFile
from eval_dagster.assets.runs.suite_evaluations import night_of
from eval_dagster.notifications.delivery import told_nights
from eval_dagster.project import Project
from eval_dagster.versions.hashes import stable_hash


def note_skipped(home: Path, suite: str, tick: str, reason: str) -> None:
    """Record that a tick of a suite's schedule was skipped; a tick is recorded once."""
    path = _file(home, suite, tick)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({"suite": suite, "tick": tick, "reason": reason}), "utf-8")
    temporary.replace(path)


def waiting_notice(home: Path, suite: str, tick: str) -> tuple[str, datetime] | None:
    """Why a tick was skipped and when that was noted, if its notice is still to be sent."""
    path = _file(home, suite, tick)
    try:
        return str(json.loads(path.read_text("utf-8"))["reason"]), datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def skipped_nights_sensor(project: Project) -> dg.SensorDefinition:
    """Send the oldest waiting notice. One for each evaluation of the sensor, since a notice can take most of a minute."""
    file = ProjectFile.of(project)

    @dg.sensor(
        name=Names.of(project).named("skipped_nights"),
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus(project.config.dagster.automation.upper()),
        description="Sends a notice of each night that a schedule left out.",
    )
    def skipped_nights(_: dg.SensorEvaluationContext) -> dg.SkipReason:
        for path in sorted(_folder(Path(file.home)).glob("*.json"), key=lambda path: path.stat().st_mtime):
            if sent := _send(path, file):
                return dg.SkipReason(sent)
        return dg.SkipReason("no notice waits")

    return skipped_nights


def _send(path: Path, project: ProjectFile) -> str | None:
    """Send a notice and remove its file; None if an earlier evaluation of the sensor is still sending it."""
    try:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            night = json.load(file)
            opened = project.open()
            if night["suite"] not in opened.config.suites:
                outcome = "evals.yaml no longer has the suite"
            elif told_nights(opened, night["suite"]).nights.get(night_of(night["tick"]) or "") == "skipped":
                outcome = "written before, by a program that was killed"
            else:
                outcome = tell_skipped(opened, night["suite"], night["reason"], night_of(night["tick"])).words()
            path.unlink(missing_ok=True)
    except (BlockingIOError, FileNotFoundError):
        return None
    return f"{night['suite']} of {night['tick']}: {outcome}"


def _file(home: Path, suite: str, tick: str) -> Path:
    return _folder(home) / f"{stable_hash([suite, tick])}.json"


def _folder(home: Path) -> Path:
    return home / "skipped_nights"
