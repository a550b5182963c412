"""How long work tells how far it is, without knowing who looks.

The one that works calls `track` on the reporter it was given, or on `current_reporter()`; who looks decides what becomes of it: a line
in a log, a bar on a terminal, both, or nothing.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text


class Advance(Protocol):
    """Says that `count` more units are done."""

    def __call__(self, count: int = 1) -> None:
        """Count the units just done."""


CountTokens = Callable[[], int]
"""Tells how many tokens went through a model so far. Asked from other threads, while the model works."""


class Reporter(Protocol):
    """Somebody who wants to know how far work is."""

    def track(self, description: str, *, total: int, unit: str, tokens: CountTokens | None = None) -> AbstractContextManager[Advance]:
        """Follow one piece of work: `with reporter.track("score mmlu", total=400, unit="samples") as advance: ...`.

        Args:
            description: What is done and to what, e.g. `model_outputs smollm2-135m`.
            total: Units to do; work with none is not reported at all.
            unit: Plural noun, e.g. `requests`.
            tokens: What counts the model's tokens, if there is any: they move where a unit takes minutes.
        """


class SilentReporter:
    """Tells nobody."""

    @contextmanager
    def track(self, description: str, *, total: int, unit: str, tokens: CountTokens | None = None) -> Iterator[Advance]:  # noqa: ARG002
        """Follow nothing."""
        yield _ignore


class LogReporter:
    """Writes lines: one every few seconds, also while nothing gets done, and a closing one."""

    def __init__(self, log: Callable[[str], None], every_s: float = 5.0) -> None:
        """`log` is called from threads of this reporter's own, too, though never from two at a time."""
        self._log = log
        self._every_s = every_s

    @contextmanager
    def track(self, description: str, *, total: int, unit: str, tokens: CountTokens | None = None) -> Iterator[Advance]:
        """Follow one piece of work by lines with its count, share, rates and remaining time."""
        if total <= 0:
            yield _ignore
            return
        tally = _Tally(description=description, total=total, unit=unit, tokens=tokens, started=time.monotonic())
        try:
            with _running_lines(tally, self._log, self._every_s) as advance:
                yield advance
        except BaseException:
            self._log(tally.closing_line("stopped after "))
            raise
        self._log(tally.closing_line())


@contextmanager
def _running_lines(tally: "_Tally", log: Callable[[str], None], every_s: float) -> Iterator[Advance]:
    """Write a line whenever the last one is old enough, whether something was done or not."""
    last_line = tally.started
    lock = threading.Lock()
    is_over = threading.Event()

    def write_if_due() -> None:
        nonlocal last_line
        with lock:
            if time.monotonic() - last_line >= every_s and tally.done < tally.total:
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


class RichReporter:
    """Draws one bar for each piece of work; where the console is not a terminal, writes lines like `LogReporter`."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._progress: Progress | None = None

    @contextmanager
    def track(self, description: str, *, total: int, unit: str, tokens: CountTokens | None = None) -> Iterator[Advance]:
        """Follow one piece of work by a bar that stays on the screen when it is full."""
        if not self._console.is_terminal:
            with LogReporter(self._print_line).track(description, total=total, unit=unit, tokens=tokens) as log_advance:
                yield log_advance
            return
        if total <= 0:
            yield _ignore
            return
        with self._shared_progress() as progress:
            task = progress.add_task(description, total=total, tokens=tokens)

            def advance(count: int = 1) -> None:
                progress.advance(task, count)

            try:
                yield advance
            finally:
                progress.stop_task(task)

    def _print_line(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def _shared_progress(self) -> Iterator[Progress]:
        # A console takes one live display at a time: work inside other work adds its bar to the display that is already there.
        if self._progress is not None:
            yield self._progress
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(None),  # takes what the figures leave of the line
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TaskProgressColumn(),
            _RateColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
        )
        with Progress(*columns, console=self._console) as progress:
            self._progress = progress
            try:
                yield progress
            finally:
                self._progress = None


class CombinedReporter:
    """Tells several reporters."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    @contextmanager
    def track(self, description: str, *, total: int, unit: str, tokens: CountTokens | None = None) -> Iterator[Advance]:
        """Follow one piece of work by all reporters."""
        with ExitStack() as stack:
            advances = [
                stack.enter_context(reporter.track(description, total=total, unit=unit, tokens=tokens)) for reporter in self._reporters
            ]

            def advance(count: int = 1) -> None:
                for each in advances:
                    each(count)

            yield advance


_current: ContextVar[Reporter] = ContextVar("eval_dagster_reporter")


def current_reporter() -> Reporter:
    """The reporter that the caller's caller chose by `use_reporter`; a silent one where nobody did."""
    return _current.get(_SILENT)


@contextmanager
def use_reporter(reporter: Reporter) -> Iterator[None]:
    """Make a reporter the current one for the code inside the block; threads that it starts do not see it."""
    token = _current.set(reporter)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(kw_only=True)
class _Tally:
    description: str
    total: int
    unit: str
    tokens: CountTokens | None
    done: int = 0
    started: float

    def running_line(self) -> str:
        elapsed = time.monotonic() - self.started
        rate = self._rate(elapsed)
        left = f"{_clock((self.total - self.done) / rate)} left" if rate else f"{_clock(elapsed)} so far"
        parts = [f"{self.done}/{self.total} {self.unit} ({self.done / self.total:.0%})", *self._rates(elapsed), left]
        return f"{self.description}: {', '.join(parts)}"

    def closing_line(self, how: str = "") -> str:
        elapsed = time.monotonic() - self.started
        count = f"{self.done}" if self.done == self.total else f"{self.done}/{self.total}"
        rates = f" ({', '.join(rates)})" if (rates := self._rates(elapsed)) else ""
        return f"{self.description}: {how}{count} {self.unit} in {elapsed:.1f} s{rates}"

    def _rates(self, elapsed: float) -> list[str]:
        rate, tokens = self._rate(elapsed), self.tokens() if self.tokens else 0
        return [*([f"{_rate_text(rate)}/s"] if rate else []), *([f"{_rate_text(tokens / elapsed)} tokens/s"] if tokens and elapsed else [])]

    def _rate(self, elapsed: float) -> float:
        return self.done / elapsed if elapsed > 0 else 0.0


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed, count, elapsed = task.finished_speed or task.speed, task.fields["tokens"], task.elapsed
        tokens = count() if count else 0
        parts = [f"{_rate_text(speed)}/s"] if speed else []
        parts += [f"{_rate_text(tokens / elapsed)} tokens/s"] if tokens and elapsed else []
        return Text(" ".join(parts), style="progress.data.speed")


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _ignore(count: int = 1) -> None:
    """Advance nothing."""


_SILENT = SilentReporter()
