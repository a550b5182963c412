"""Users' code at work: its place, for a process that must report how this one ended, and its ends.

A task, a metric or a model of users can end the whole process: by `os._exit`, by a fault in compiled code, by a loop without an end.
Nothing in this process can report that. So the place of the code is written to memory that another process can read: the memory of the
command, which waits for this one, or a file beside the lock of a Dagster run.
"""

import json
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType

from eval_dagster.errors import EndedError, EvalDagsterError, described

SIZE = 4096
"""Bytes of the memory."""
_HEAD = struct.Struct("<dqqii")
"""Deadline of the call in seconds of the monotonic clock, or 0; 1 + the exit status of a process that came to its end, -1 of one that was
stopped, else 0; the id of the process; bytes of the work; bytes of the call."""
_DEADLINE, _STATUS = struct.Struct("<d"), struct.Struct("<q")
_LENGTHS = struct.Struct("<ii")
_AT_STATUS, _AT_LENGTHS = 8, 24
_AT_WORK, _AT_CALL = 64, 2048
_OWN_WAYS = ("dagster", "eval_dagster")
"""Packages whose own exceptions pass through users' code, as an interruption does."""
_MOST = 1900
"""Most bytes of a work, and of a call."""
USER_MODULES = "user_files_"
"""Begins the names of modules that were loaded by path."""
CALL_LIMIT_S = 3600.0
"""Seconds that one call of users' code may take, unless a project sets another limit."""


class DiedError(EvalDagsterError):
    """An earlier process of this command died in this work, so it is left out."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The work of a process at a moment."""

    stage: str = ""
    """The stage; empty outside of one."""
    evals: tuple[str, ...] = ()
    """The evals that it worked on: all of a model's in the stage `model_outputs`."""
    model: str | None = None
    call: str = ""
    """The users' code that it called, in words; empty if it called none."""
    item: str = ""
    """The id of the sample, or of the request to a model, that the code was called for."""
    run_id: str = ""
    """The Dagster run."""

    @property
    def is_of_request(self) -> bool:
        """Whether a model answered one request, which belongs to some of the evals only."""
        return self.stage == "model_outputs" and bool(self.item)

    @property
    def part(self) -> tuple[object, ...] | None:
        """The part of the work that is left out if the process died here; None if only a smaller piece is left out."""
        if not self.stage or self.is_of_request:
            return None
        return self.stage, self.model, *(() if self.stage == "model_outputs" else self.evals)

    def words(self) -> str:
        """The place in words."""
        of = [
            f"in {self.stage}" if self.stage else "",
            f"of the eval {self.evals[0]}" if len(self.evals) == 1 else "",
            f"on the model {self.model}" if self.model else "",
        ]
        doing = f"while it called {self.call}" if self.call else "while it called no code of yours"
        item = f" for the {'request' if self.stage == 'model_outputs' else 'sample'} {self.item}" if self.item else ""
        return " ".join([doing + item, *filter(None, of)])


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of a process that ended early."""

    place: Place
    how: str
    """How it ended, in words."""

    @property
    def message(self) -> str:
        """The kind and the place of the end, and what to do."""
        cure = "correct that code" if self.place.call else "look for what ended it, such as a want of memory"
        return f"the process ended {self.how} {self.place.words()}; expected a result or an exception: {cure}, and run again"


def how_ended(code: int) -> str:
    """How a process ended, in words.

    Args:
        code: Its exit status, or the negative number of the signal that ended it.
    """
    if code >= 0:
        return f"with exit status {code}, as by os._exit({code}),"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    why = {"SIGSEGV": " (a fault in compiled code)", "SIGKILL": " (as the kernel ends processes where memory runs out)"}.get(name, "")
    return f"by {name}{why}"


class Record:
    """The place of a process, in memory that it shares with another one."""

    def __init__(self, memory: mmap.mmap) -> None:
        """Take memory of `SIZE` bytes."""
        self._memory = memory

    def begin(self, process: int) -> None:
        """Empty the record for a process."""
        self._memory[: _HEAD.size] = _HEAD.pack(0.0, 0, process, 0, 0)

    def end(self, status: int) -> None:
        """Record that the process came to its end, with this exit status."""
        self._memory[_AT_STATUS : _AT_STATUS + _STATUS.size] = _STATUS.pack(1 + status)

    @property
    def status(self) -> int | None:
        """The exit status with which the process came to its end; None if it did not."""
        found = int(_STATUS.unpack_from(self._memory, _AT_STATUS)[0])
        return found - 1 if found > 0 else None

    def stop(self) -> None:
        """Record that the process is killed because the time of its call is over."""
        self._memory[_AT_STATUS : _AT_STATUS + _STATUS.size] = _STATUS.pack(-1)

    @property
    def is_stopped(self) -> bool:
        """Whether the process was killed because the time of its call was over."""
        return bool(_STATUS.unpack_from(self._memory, _AT_STATUS)[0] == -1)

    @property
    def process(self) -> int:
        """The id of the process."""
        return int(_HEAD.unpack_from(self._memory)[2])

    @property
    def deadline(self) -> float:
        """The end of the time of the call, in seconds of the monotonic clock; 0 without one."""
        return float(_DEADLINE.unpack_from(self._memory)[0])

    def work(self, text: bytes) -> None:
        """Write the work, and that no code is being called."""
        self._memory[: _DEADLINE.size] = _DEADLINE.pack(0.0)
        self._memory[_AT_LENGTHS : _AT_LENGTHS + _LENGTHS.size] = _LENGTHS.pack(0, 0)
        self._memory[_AT_WORK : _AT_WORK + len(text)] = text
        self._memory[_AT_LENGTHS : _AT_LENGTHS + _LENGTHS.size] = _LENGTHS.pack(len(text), 0)

    def call(self, text: bytes, deadline: float) -> None:
        """Write the call and its deadline."""
        length = _LENGTHS.unpack_from(self._memory, _AT_LENGTHS)[0]
        self._memory[_AT_CALL : _AT_CALL + len(text)] = text
        self._memory[_AT_LENGTHS : _AT_LENGTHS + _LENGTHS.size] = _LENGTHS.pack(length, len(text))
        self._memory[: _DEADLINE.size] = _DEADLINE.pack(deadline)

    def place(self) -> Place:
        """The place of the process."""
        work, call = _LENGTHS.unpack_from(self._memory, _AT_LENGTHS)
        said = json.loads(bytes(self._memory[_AT_WORK : _AT_WORK + work]) or b"{}")
        words, _, item = bytes(self._memory[_AT_CALL : _AT_CALL + call]).decode("utf-8", "replace").partition("\n")
        evals = tuple(said.pop("evals", ()))
        return Place(**said, evals=evals, call=words, item=item)


@dataclass(kw_only=True)
class _State:
    """The work of this process, and the deaths of earlier ones."""

    record: Record = field(default_factory=lambda: Record(mmap.mmap(-1, SIZE)))
    is_watched: bool = False
    """Whether the command that started this process waits for it, and goes on without the work in which it died."""
    deaths: Sequence[Death] = ()
    work: Place = Place()
    call: bytes = b""
    deadline: float = 0.0
    limit_s: float | None = CALL_LIMIT_S


_state = _State()


def watched(record: Record, deaths: Sequence[Death]) -> None:
    """Write the place of this process to a record that its parent reads, and leave out the work in which earlier processes died."""
    _state.record, _state.deaths, _state.is_watched = record, tuple(deaths), True


def ended(status: int) -> None:
    """Record that this process comes to its end, with this exit status."""
    _state.record.end(status)


def is_watched() -> bool:
    """Whether the parent of this process waits for it, and reads its record."""
    return _state.is_watched


def deaths() -> Sequence[Death]:
    """The ends of earlier processes of this command."""
    return _state.deaths


@contextmanager
def recorded(file: Path, run_id: str) -> Iterator[None]:
    """Write the place within the block to a file, unless a parent watches. The file stays if the process dies within the block."""
    before, work = _state.record, _state.work
    if not _state.is_watched:
        with file.open("w+b") as opened:
            opened.truncate(SIZE)
            _state.record = Record(mmap.mmap(opened.fileno(), SIZE))
        _state.record.begin(os.getpid())
    _set_work(replace(work, run_id=run_id))
    try:
        yield
    finally:
        if not _state.is_watched:
            _state.record = before
            file.unlink(missing_ok=True)
        _set_work(work)


def record_in(file: Path) -> Record | None:
    """The record that a process left in a file; None without one."""
    try:
        with file.open("r+b") as opened:
            return Record(mmap.mmap(opened.fileno(), SIZE))
    except (OSError, ValueError):
        return None


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Let each call of users' code within the block take at most `seconds`; without a limit if None."""
    before, _state.limit_s = _state.limit_s, seconds
    try:
        yield
    finally:
        _state.limit_s = before


def call_limit() -> float | None:
    """Seconds that a call of users' code may take; None without a limit."""
    return _state.limit_s


@contextmanager
def doing(stage: str, evals: Iterable[str] = (), model: str | None = None) -> Iterator[None]:
    """Do a part of the work, whose failure does not end other parts.

    Raises:
        DiedError: An earlier process of this command died in the same part.
        EndedError: The block raised an exception that is meant to end the process.
    """
    before = _state.work
    place = Place(stage=stage, evals=tuple(evals), model=model, run_id=before.run_id)
    for death in _state.deaths:
        if death.place.part == place.part:
            raise DiedError(death.message)
    _set_work(place)
    try:
        yield
    except BaseException as error:
        _raise_if_ending(error)
        raise
    finally:
        _set_work(before)


def death_for(model: str, requests: Iterable[str]) -> Death | None:
    """The end of an earlier process while a model answered one of these requests."""
    found = {each.place.item: each for each in _state.deaths if each.place.is_of_request and each.place.model == model}
    return next((found[each] for each in requests if each in found), None) if found else None


class calling:  # noqa: N801 - a block, as those of `contextlib`
    """A block that calls users' code.

    Raises:
        DiedError: An earlier process of this command died in the same call outside of all stages, such as the import of a file.
        EndedError: The code raised an exception that is meant to end the process.
    """

    __slots__ = ("_before", "_is_limited", "_text")

    def __init__(self, call: str, item: str = "", *, is_limited: bool = True) -> None:
        """Take the code in words, and the id of the sample or request that it is called for."""
        self._text = f"{call}\n{item}".encode("utf-8", "replace")[:_MOST]
        self._is_limited = is_limited

    def __enter__(self) -> None:
        for death in _state.deaths:
            if not death.place.stage and f"{death.place.call}\n".encode("utf-8", "replace") == self._text:
                raise DiedError(death.message)
        self._before = _state.call, _state.deadline
        limit = _state.limit_s if self._is_limited else None
        _state.call, _state.deadline = self._text, 0.0 if limit is None else time.monotonic() + limit
        _state.record.call(_state.call, _state.deadline)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _state.call, _state.deadline = self._before
        _state.record.call(_state.call, _state.deadline)
        if error is not None:
            _raise_if_ending(error)


def raised_at(error: BaseException) -> str:
    """The file and line of users' code from which an exception comes, in brackets; empty if it did not pass through their files."""
    cause = error.__cause__ if isinstance(error, EndedError) else None
    found, trace = "", (cause or error).__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).startswith(USER_MODULES):
            found = f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found


def _set_work(place: Place) -> None:
    _state.work, _state.call, _state.deadline = place, b"", 0.0
    said = {name: value for name, value in asdict(place).items() if value and name not in ("call", "item")}
    text = json.dumps(said).encode()
    _state.record.work(text if len(text) <= _MOST else json.dumps(said | {"evals": []}).encode()[:_MOST])


def _raise_if_ending(error: BaseException) -> None:
    """Raise an `EndedError` for an exception that is meant to end the process, unless a person, Dagster or this package ends it."""
    if isinstance(error, Exception | KeyboardInterrupt | GeneratorExit) or type(error).__module__.partition(".")[0] in _OWN_WAYS:
        return
    raise EndedError(described(error)) from error
