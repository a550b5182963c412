"""Progress as bars on a terminal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.table import Column
from rich.text import Text

from eval_dagster.progress.reporting import Advance, CountWork, LogReporter, Work, clock, ignore, rate_text
from eval_dagster.texts.terminal import PlainConsole


class RichReporter:
    """Draws one bar for each piece of work; if the console is not a terminal, writes lines like `LogReporter`."""

    def __init__(self, console: PlainConsole | None = None) -> None:
        self._console = console or PlainConsole(stderr=True)
        self._lines = LogReporter(lambda line: self._console.print(line, soft_wrap=True))
        self._progress: Progress | None = None
        self._followed = 0

    @contextmanager
    def track(
        self, description: str, *, total: int, unit: str, work: CountWork | None = None, since: float | None = None
    ) -> Iterator[Advance]:
        """Follow one piece of work by a bar that stays on the screen when it is full."""
        if not self._console.is_terminal:
            with self._lines.track(description, total=total, unit=unit, work=work, since=since) as log_advance:
                yield log_advance
            return
        if total <= 0:
            yield ignore
            return
        with self._shared_progress() as progress:
            task = progress.add_task(description, total=total, work=work)
            if since is not None:
                # Rich's clock is another one.
                progress.tasks[-1].start_time = progress.get_time() - (time.monotonic() - since)

            def advance(count: int = 1) -> None:
                progress.advance(task, count)

            try:
                yield advance
            finally:
                progress.stop_task(task)

    def note(self, line: str) -> None:
        """Print the line, above the bars if there are some."""
        self._console.print(line, soft_wrap=True, markup=False)

    @contextmanager
    def _shared_progress(self) -> Iterator[Progress]:
        """The console's live display, which exists while any work is followed."""
        if self._progress is None:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(None),  # takes the rest of the line
                _CountColumn(table_column=Column(no_wrap=True)),
                _ShareColumn(),
                _RateColumn(table_column=Column(no_wrap=True)),
                _TimeColumn(table_column=Column(no_wrap=True)),
            )
            self._progress = Progress(*columns, console=self._console)
            self._progress.start()
        progress = self._progress
        self._followed += 1
        try:
            yield progress
        finally:
            self._followed -= 1
            if not self._followed:
                self._progress = None
                progress.stop()


class _CountColumn(MofNCompleteColumn):
    def render(self, task: Task) -> Text:
        return Text() if task.total == 1 else super().render(task)


class _ShareColumn(TaskProgressColumn):
    def render(self, task: Task) -> Text:
        return Text() if task.total == 1 else super().render(task)


class _TimeColumn(ProgressColumn):
    """The remaining time at the rate so far; for a single step or ended work, the time taken."""

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        if task.total == 1 or task.finished or task.stop_time is not None:
            return Text(clock(elapsed), style="progress.elapsed")
        left = "-:--" if not task.completed or task.total is None else clock((task.total - task.completed) * elapsed / task.completed)
        return Text(left, style="progress.remaining")


class _RateColumn(ProgressColumn):
    """Units and tokens per second on average, since answers come in batches; what they cost, and what the model does now."""

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed
        if task.total == 1 or not elapsed:
            return Text()
        work = task.fields["work"]() if task.fields["work"] else Work(tokens=0)
        parts = [f"{rate_text(task.completed / elapsed)}/s"] if task.completed else []
        parts += [f"{rate_text(work.tokens / elapsed)} tokens/s"] if work.tokens else []
        parts += work.texts()
        return Text(" ".join(parts), style="progress.data.speed")
