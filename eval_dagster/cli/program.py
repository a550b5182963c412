"""The command `eval-dagster` as two processes: one that does the work, which users' code can end, and its parent, which tells of it.

The parent imports next to nothing, and starts the other by a fork before that imports anything. A command came to its end if its process
said so; the exit status alone says nothing, since `os._exit(0)` has that of success.
"""

import ctypes
import mmap
import os
import signal
import sys
import time
from typing import NoReturn

from eval_dagster import users_code
from eval_dagster.users_code import SIZE, Death, Record, how_ended

_SERVERS = ("ui", "view")
"""Commands that a person ends, and that evaluate nothing."""
_GOES_ON = ("run", "gate")
"""Commands that go on without what a process died in: the results of the others are there, and are current."""
_MOST_DEATHS = 50
_LOOK_S = 1.0
"""Seconds between two looks at the time of users' code."""
_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_SETTLE_S = 0.05
"""Seconds in which a signal to all processes of a command reaches each."""
_PR_SET_PDEATHSIG = 1
_SHOW_CURSOR = "\x1b[?25h"


def program() -> NoReturn:
    """Run the command line in a child process, again without what it died in, and end with the status that it says."""
    command = sys.argv[1] if sys.argv[1:] else ""
    if command in _SERVERS or not hasattr(signal, "sigtimedwait"):
        _work()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    heard = _listener()
    deaths: list[Death] = []
    while True:
        record, parent = Record(mmap.mmap(-1, SIZE)), os.getpid()
        child = os.fork()
        if not child:
            _die_with(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            record.begin(os.getpid())
            users_code.watched(record, deaths)
            _work()
        code, told, is_over = _wait(child, record, heard)
        if record.status is not None:
            os._exit(record.status)
        if told:
            _end_by(-code if code < 0 else told)
        place = record.place()
        death = Death(place=place, how="when its time was over (code_timeout)" if is_over else how_ended(code))
        is_new = place not in [each.place for each in deaths] and len(deaths) < _MOST_DEATHS
        goes_on = command in _GOES_ON and bool(place.stage or place.call) and is_new
        _say(death.message, goes_on=goes_on)
        if not goes_on:
            os._exit(1)
        deaths.append(death)


def _work() -> NoReturn:
    """Do the work of the command in this process."""
    try:
        from eval_dagster.cli.main import program as work  # not before the fork: threads of libraries do not survive it

        work()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        users_code.ended(1)
        os._exit(1)


def _wait(child: int, record: Record, heard: mmap.mmap) -> tuple[int, int, bool]:
    """Pass signals on to a child until it ends, unless `heard` says that all processes got them.

    Returns its exit status, or the negative number of the signal that ended it; the last signal that told this process to end, or 0; and
    whether the time of users' code was over.
    """
    told, over = 0, 0.0
    while True:
        signalled = signal.sigtimedwait(_SIGNALS, _LOOK_S)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), told, False
        if signalled is not None and signalled.si_signo != signal.SIGCHLD:
            told = signalled.si_signo
            time.sleep(_SETTLE_S)
            if heard[signalled.si_signo]:
                heard[signalled.si_signo] = 0
            else:
                os.kill(child, signalled.si_signo)
        elif 0 < record.deadline < time.monotonic() and not told:
            if record.deadline == over:  # the same call as at the look before
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return -signal.SIGKILL, 0, True
            over = record.deadline


def _listener() -> mmap.mmap:
    """Start a process that only notes which signals it gets. Returns its notes: a byte for each signal.

    A terminal, `timeout` and systemd send a signal to all processes of a command. What the listener got, the child has got, too; a second
    one would interrupt it while it stores what it has.
    """
    heard, parent = mmap.mmap(-1, max(map(int, _SIGNALS)) + 1), os.getpid()
    if not os.fork():
        _die_with(parent)
        while True:
            heard[signal.sigwait(_SIGNALS)] = 1
    return heard


def _die_with(parent: int) -> None:
    """Let the kernel end this process with its parent, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _end_by(number: int) -> NoReturn:
    """End as the child did, by a signal."""
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _say(message: str, *, goes_on: bool) -> None:
    """Print how the child ended. It may have left the terminal without a cursor."""
    cursor = _SHOW_CURSOR if os.isatty(2) else ""
    rest = "; this part of the work is set aside as failed, and the rest goes on" if goes_on else ""
    shown = "".join(letter if letter.isprintable() else "?" for letter in message)
    os.write(2, f"{cursor}error: {shown}{rest}\n".encode("utf-8", "replace"))


if __name__ == "__main__":
    program()
