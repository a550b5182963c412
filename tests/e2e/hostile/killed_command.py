"""`eval-dagster run`, or the deletion of the past, which kills itself at one of the moments at which it changes something on the disk.

Arguments: the number of the moment, then the command. With 0 it is not killed, and writes how many moments there were to the file
`MOMENTS`. `run` and `gc` are as typed; `gc` counts ages from three days later, so that there is something to delete.
"""

import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

import eval_dagster.cli.main as cli
from eval_dagster.project import Project
from eval_dagster.retention import Keep, Policy, prune

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "fcntl.flock")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
moments = 0


def pass_moment(*_: Any) -> None:
    global moments
    moments += 1
    if moments == FATAL:
        os.kill(os.getpid(), signal.SIGKILL)


def audit(name: str, arguments: tuple[Any, ...]) -> None:
    if name in CHANGES or (name == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
        pass_moment()


if __name__ == "__main__":
    FATAL = int(sys.argv.pop(1))
    sys.addaudithook(audit)
    event.listen(Engine, "after_cursor_execute", pass_moment)
    event.listen(Engine, "commit", pass_moment)
    try:
        if sys.argv[1] == "gc":
            one = Keep.parse("1", what="--keep")
            prune(Project.open(), Policy(keep=one, catalogs=one), now=datetime.now(UTC) + timedelta(days=3))
        else:
            cli._leave = sys.exit  # else the process ends before the moments are written
            cli.main()
    finally:
        if not FATAL:
            Path(os.environ["MOMENTS"]).write_text(str(moments))
