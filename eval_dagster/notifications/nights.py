"""Sees to it that a night is told once, by whichever program finds first that it failed or was missed."""

import fcntl
from collections.abc import Callable, Sequence
from pathlib import Path

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake, read_info, read_rows
from eval_dagster.notifications.delivery import NIGHT, NoticeOutcome, folder
from eval_dagster.project import Project
from eval_dagster.versions import stable_hash

_MOST_READ = 50
"""Notices of a suite that are read, the newest first."""


def told_before(lake: Lake, suite: str, night: str) -> str | None:
    """The title of a notice that was about a night of a suite, sent or not; None if there is none."""
    for path in reversed(lake.files(folder(lake, suite))[-_MOST_READ:]):
        try:
            if read_info(path).inputs.get(NIGHT) == night:
                return str(read_rows(path, ["title"])[0]["title"])
        except (LakeError, IndexError):  # reported by `publish`
            continue
    return None


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
        if mark.stat().st_size or told_before(project.lake, suite, night) is not None:
            return None
        outcome = send()
        file.write(outcome.title)
    return outcome


def is_told(project: Project, suite: str, night: str) -> bool:
    """Whether there was a notice about a night of a suite."""
    mark = _mark(project.home, suite, night)
    return (mark.exists() and mark.stat().st_size > 0) or told_before(project.lake, suite, night) is not None


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
