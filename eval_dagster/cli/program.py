"""The command `eval-dagster` as two processes: one that does the work, which users' code can end, and its parent, which tells of it.

The parent imports next to nothing, and starts the other by a fork before that imports anything. A command came to its end if its process
said so; the exit status alone says nothing, since `os._exit(0)` looks like success.
"""

import ctypes
import mmap
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from eval_dagster import users_code
from eval_dagster.cli.streams import leave_at_once
from eval_dagster.collector import look_rarely
from eval_dagster.users_code import SIZE, Death, Record, how_ended

_SERVERS = ("ui", "view")
"""Commands that a person ends, and that evaluate nothing."""
_GOES_ON = ("run", "gate")
"""Commands that go on without what a process died in: the results of the others are there, and are current."""
_MOST_DEATHS = 50
_LOOK_S = 1.0
"""Seconds between two looks at the time of users' code."""
_STOPPED_S = 3.0
"""Seconds between two looks from which on this process was stopped."""
_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
FULL_S = 20.0
"""Seconds for which the memory of a process may be at its bound (`ulimit -v`). Libraries that get none wait or try again for ever."""
_LITTLE = 36 * 2**20
"""Bytes. If less is left, the smallest buffer of OpenBLAS cannot be had."""
_SETTLE_S = 0.05
"""Seconds in which a signal to all processes of a command reaches each."""
_PR_SET_PDEATHSIG = 1
_SHOW_CURSOR = "\x1b[?25h"


def program() -> NoReturn:
    """Run the command line in a child process, again without what it died in, and end with the status that it says."""
    command = sys.argv[1] if sys.argv[1:] else ""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored, as in the background of a script
        signal.signal(signal.SIGINT, leave_at_once)
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
        code, told, why = _wait(child, record, heard)
        if record.status is not None:
            os._exit(record.status)
        if told:
            number = -code if code < 0 else told  # it ends as the child did, by a signal
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
            os.kill(os.getpid(), number)
            os._exit(128 + number)
        place = record.place()
        death = Death(place=place, how=why or how_ended(code))
        is_new = place not in [each.place for each in deaths] and len(deaths) < _MOST_DEATHS
        goes_on = command in _GOES_ON and bool(place.stage or place.call) and is_new
        _say(death.message, goes_on=goes_on)
        if not goes_on:
            os._exit(1)
        deaths.append(death)


def _work() -> NoReturn:
    """Do the work of the command in this process."""
    look_rarely()
    try:
        from eval_dagster.cli.main import program as work  # not before the fork: threads of libraries do not survive it

        work()
    except KeyboardInterrupt:
        leave_at_once()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        users_code.ended(1)
        os._exit(1)


def _wait(child: int, record: Record, heard: mmap.mmap) -> tuple[int, int, str]:
    """Pass signals on to a child until it ends, unless `heard` says that all processes got them.

    Returns its exit status, or the negative number of the signal that ended it; the last signal that told this process to end, or 0; and
    why this process ended it, in words, or an empty text.
    """
    told, begin, size = 0, time.monotonic(), 0
    deadline = over_since = stopped_s = 0.0
    looked_at = begin
    while True:
        signalled = signal.sigtimedwait(_SIGNALS, _LOOK_S)
        # If it was stopped (Ctrl-Z) for longer than it waits, Python returns a signal that never came, with any number.
        number = signalled.si_signo if signalled is not None else 0
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), told, ""
        if number in _SIGNALS and number != signal.SIGCHLD:
            told = number
            time.sleep(_SETTLE_S)
            if heard[number]:
                heard[number] = 0
            else:
                os.kill(child, number)
        now = time.monotonic()
        if record.deadline != deadline:  # another call
            deadline, over_since, stopped_s = record.deadline, 0.0, 0.0
        if now - looked_at > _STOPPED_S:  # by Ctrl-Z, as the child was: the call did not use that time
            stopped_s += now - looked_at
        looked_at = now
        if deadline and deadline + stopped_s < now and not told:
            if over_since and over_since <= now - _LOOK_S:  # the same call as a look before
                return _kill(child), 0, "when its time was over (code_timeout)"
            over_since = over_since or now
        elif (found := _size_at_bound(child)) is None or found != size:
            begin, size = time.monotonic(), found or 0
        elif time.monotonic() - begin > FULL_S:
            return _kill(child), told, "when it waited for memory"


def _kill(child: int) -> int:
    """Kill a child. Returns how it ended, as `_wait` does."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def _bound() -> int | None:
    """The bytes of memory that a process may map; None without a bound."""
    bound = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if bound == resource.RLIM_INFINITY else bound


def _size_at_bound(process: int) -> int | None:
    """The bytes of memory that a process has mapped; None without a bound, or it may map more."""
    if (bound := _bound()) is None:
        return None
    try:
        size = int(Path(f"/proc/{process}/statm").read_text().split()[0]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return None
    return size if size > bound - _LITTLE else None


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


def _say(message: str, *, goes_on: bool) -> None:
    """Print how the child ended. It may have left the terminal without a cursor."""
    cursor = _SHOW_CURSOR if os.isatty(2) else ""
    rest = "; this part of the work is set aside as failed, and the rest goes on" if goes_on else ""
    if (bound := _bound()) is not None:
        rest += f". Its memory was bounded to {bound / 1e9:.1f} GB (ulimit -v), which may be the cause: raise the bound"
    shown = "".join(letter if letter.isprintable() else "?" for letter in message)
    os.write(2, f"{cursor}error: {shown}{rest}\n".encode("utf-8", "replace"))


if __name__ == "__main__":
    program()
