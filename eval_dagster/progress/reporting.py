"""Progress reporting, independent of if it is displayed.

Work calls `track` on the reporter that it was given, or on `current_reporter()`. The reporter writes a line in a log, draws a bar on a
terminal, does both, or does nothing.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, TypeVar

from eval_dagster.progress.memory import watched
from eval_dagster.texts.figures import dollars


class Advance(Protocol):
    """Reports that `count` more units are done."""

    def __call__(self, count: int = 1) -> None:
        """Count the units just done."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A model's work so far."""

    tokens: int
    """Tokens that it has processed."""
    cost: float | None = None
    """US dollars; null if nothing has a price."""
    cost_estimated: int = 0
    """Calls whose part in `cost` is an estimate."""
    state: str = ""
    """What the model does at this moment, if that is not plain."""

    def texts(self) -> list[str]:
        """The cost and the state, as far as there are any."""
        estimated = f" ({self.cost_estimated} calls estimated)" if self.cost_estimated else ""
        return [*([] if self.cost is None else [f"{dollars(self.cost)}{estimated}"]), *([self.state] if self.state else [])]


CountWork = Callable[[], Work]
"""Counts the work of a model so far. Called from other threads, while the model works."""


class Reporter(Protocol):
    """Receives progress updates."""

    def track(
        self, description: str, *, total: int, unit: str, work: CountWork | None = None, since: float | None = None
    ) -> AbstractContextManager[Advance]:
        """Follow one piece of work: `with reporter.track("score mmlu", total=400, unit="samples") as advance: ...`.

        Args:
            description: What is done and to what, e.g. `model_outputs smollm2-135m`.
            total: Number of units. Work without units is not reported; for a single unit, only the seconds are shown.
            unit: Plural noun, e.g. `requests`.
            work: Counts the model's tokens and their cost, if given. It shows progress within units that take minutes.
            since: Start of the work by `time.monotonic`; now if not given.
        """

    def note(self, line: str) -> None:
        """Show another line than progress. May be called from other threads."""


class LogReporter:
    """Writes a line every few seconds, even without progress, and a closing line."""

    def __init__(self, log: Callable[[str], None], every_s: float = 5.0, *, least_s: float = 0.0) -> None:
        """Set where lines go.

        Args:
            log: Takes a line. It is also called from this reporter's own thread, but never from two threads at the same time.
            every_s: Seconds between two lines.
            least_s: Work that took fewer seconds has no closing line.
        """
        self._log = log
        self._every_s, self._least_s = every_s, least_s
        self._open: list[_Tally] = []
        """The pieces of work that are followed, in the order in which they began."""

    @contextmanager
    def track(
        self, description: str, *, total: int, unit: str, work: CountWork | None = None, since: float | None = None
    ) -> Iterator[Advance]:
        """Follow one piece of work by lines with its count, share, rates and remaining time."""
        if total <= 0:
            yield ignore
            return
        started = time.monotonic() if since is None else since
        tally = _Tally(description=description, total=total, unit=unit, work=work, started=started)
        self._open.append(tally)
        try:
            with _running_lines(tally, self._log, self._every_s, lambda: self._is_shown(tally)) as advance:
                yield advance
        except BaseException:
            self._log(tally.closing_line("stopped after "))
            raise
        finally:
            self._open.remove(tally)
        if time.monotonic() - tally.started >= self._least_s:
            self._log(tally.closing_line())

    def note(self, line: str) -> None:
        """Write the line."""
        self._log(line)

    def _is_shown(self, tally: "_Tally") -> bool:
        """Whether a piece of work writes lines: if none with another unit, which is a part of it, began after it."""
        later = takewhile(lambda each: each is not tally, reversed(list(self._open)))
        return all(each.unit == tally.unit for each in later)


@contextmanager
def _running_lines(tally: "_Tally", log: Callable[[str], None], every_s: float, is_shown: Callable[[], bool]) -> Iterator[Advance]:
    """Write a line whenever the last one is old enough, with or without progress, unless it is not shown at that time."""
    last_line = time.monotonic()
    lock = threading.Lock()
    is_over = threading.Event()

    def write_if_due() -> None:
        nonlocal last_line
        with lock:
            if time.monotonic() - last_line >= every_s and tally.done < tally.total and is_shown():
                last_line = time.monotonic()
                log(tally.running_line())

    def advance(count: int = 1) -> None:
        tally.done += count
        write_if_due()

    def watch() -> None:
        while not is_over.wait(every_s / 5):
            write_if_due()

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield advance
    finally:
        is_over.set()
        watcher.join()


class CombinedReporter:
    """Passes updates to several reporters."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    @contextmanager
    def track(
        self, description: str, *, total: int, unit: str, work: CountWork | None = None, since: float | None = None
    ) -> Iterator[Advance]:
        """Follow one piece of work by all reporters."""
        with ExitStack() as stack:
            advances = [
                stack.enter_context(reporter.track(description, total=total, unit=unit, work=work, since=since))
                for reporter in self._reporters
            ]

            def advance(count: int = 1) -> None:
                for each in advances:
                    each(count)

            yield advance

    def note(self, line: str) -> None:
        """Show the line by all reporters."""
        for reporter in self._reporters:
            reporter.note(line)


class SilentReporter(CombinedReporter):
    """Discards progress updates."""

    def __init__(self) -> None:
        super().__init__()


T = TypeVar("T")
_TOGETHER, _LATEST_S = 100, 0.5
"""Rows that are reported together, since a bar takes longer than most rows, and seconds after which fewer are reported."""
Making = Callable[[str, str, str | None], None]
"""Takes the stage, eval and model (null for a dataset) of a file that is about to be made."""
_current: ContextVar[Reporter] = ContextVar("eval_dagster_reporter")
_making: ContextVar[Making | None] = ContextVar("eval_dagster_making", default=None)


def making(stage: str, eval_name: str, model: str | None = None) -> None:
    """Say that a stage makes a new file, to whom `tell_making` names."""
    told = _making.get()
    if told is not None:
        told(stage, eval_name, model)


@contextmanager
def tell_making(told: Making) -> Iterator[None]:
    """Have a function called within the block before each file that is made. New threads do not have it."""
    token = _making.set(told)
    try:
        yield
    finally:
        _making.reset(token)


def following(rows: Iterable[T], description: str, *, total: int, unit: str, least: int = 2000) -> Iterator[T]:
    """Pass on rows, and report to the current reporter how many have been taken. Watches the memory, as `watched` does.

    Args:
        rows: The rows.
        description: As in `Reporter.track`.
        total: Their number, or what is expected.
        unit: As in `Reporter.track`.
        least: Fewer rows are not reported.
    """
    rows = watched(rows, description)
    if total < least:
        yield from rows
        return
    with current_reporter().track(description, total=total, unit=unit) as advance:
        waiting, reported = 0, time.monotonic()
        for row in rows:
            yield row
            waiting += 1
            if waiting == _TOGETHER or time.monotonic() - reported >= _LATEST_S:
                advance(waiting)
                waiting, reported = 0, time.monotonic()
        advance(waiting)


def current_reporter() -> Reporter:
    """The reporter that `use_reporter` has set; a silent one by default."""
    return _current.get(_SILENT)


def tell(line: str) -> None:
    """Show another line than progress: by the reporter that `use_reporter` has set, else on standard error."""
    reporter = _current.get(None)
    if reporter is not None:
        reporter.note(line)
    elif sys.stderr is not None:
        with suppress(OSError, ValueError):  # it may be closed
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


@contextmanager
def use_reporter(reporter: Reporter) -> Iterator[None]:
    """Make a reporter the current one within the block. New threads do not have it."""
    token = _current.set(reporter)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(kw_only=True, eq=False)
class _Tally:
    description: str
    total: int
    unit: str
    work: CountWork | None
    done: int = 0
    started: float

    def running_line(self) -> str:
        elapsed = time.monotonic() - self.started
        if self.total == 1:
            return f"{self.description}: {clock(elapsed)} so far"
        rate = self._rate(elapsed)
        left = f"{clock((self.total - self.done) / rate)} left" if rate else f"{clock(elapsed)} so far"
        parts = [f"{self.done}/{self.total} {self.unit} ({self.done / self.total:.0%})", *self._figures(elapsed), left]
        return f"{self.description}: {', '.join(parts)}"

    def closing_line(self, how: str = "") -> str:
        elapsed = time.monotonic() - self.started
        if self.total == 1:
            return f"{self.description}: {how}{elapsed:.1f} s"
        count = f"{self.done}" if self.done == self.total else f"{self.done}/{self.total}"
        rates = f" ({', '.join(rates)})" if (rates := self._figures(elapsed)) else ""
        return f"{self.description}: {how}{count} {self.unit} in {elapsed:.1f} s{rates}"

    def _figures(self, elapsed: float) -> list[str]:
        rate, work = self._rate(elapsed), self.work() if self.work else Work(tokens=0)
        tokens = [f"{rate_text(work.tokens / elapsed)} tokens/s"] if work.tokens and elapsed else []
        return [*([f"{rate_text(rate)}/s"] if rate else []), *tokens, *work.texts()]

    def _rate(self, elapsed: float) -> float:
        return self.done / elapsed if elapsed > 0 else 0.0


def rate_text(rate: float) -> str:
    """A rate, short."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def clock(seconds: float) -> str:
    """A time in minutes and seconds, or in hours."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def ignore(count: int = 1) -> None:
    """Advance nothing."""


_SILENT = SilentReporter()
