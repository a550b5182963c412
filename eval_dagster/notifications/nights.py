"""Sees to it that a night is told once, by whichever program finds first that it failed or was missed."""

import fcntl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval_dagster.errors import LakeError
from eval_dagster.lake.format.file_reading import read_info
from eval_dagster.notifications.delivery import NoticeOutcome
from eval_dagster.notifications.outbox import KIND, MOST_READ, NIGHT, folder
from eval_dagster.project import Project
from eval_dagster.versions.hashes import stable_hash

_KEPT_S = 90 * 86_400.0
"""How long marks of told nights are kept."""


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
