"""Output of the command line: results to standard output, everything else to standard error."""

import logging
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from eval_dagster.terminal import PlainConsole
from eval_dagster.visible_text import one_line

_MOST_CHARACTERS = 200
_WIDEST = 10_000
_PIPE_WIDTH = 160
"""Columns if the output is no terminal."""

out = PlainConsole(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
errors = PlainConsole(stderr=True)


class WarningHandler(logging.Handler):
    """Prints logged warnings and errors, above any progress that the console draws."""

    def __init__(self, console: PlainConsole) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        say(self._console, record.levelname.lower(), self.format(record), style="yellow")


def say(console: PlainConsole, kind: str, message: str, *, style: str) -> None:
    """Print a message after its kind, such as `warning`. Further lines are indented, so that none looks like another message."""
    console.print(f"{kind}: " + message.replace("\n", "\n  "), style=style, soft_wrap=True)


def program_name() -> str:
    """The command that starts this program here; outside an activated environment, its path."""
    if shutil.which("eval-dagster"):
        return "eval-dagster"
    script = Path(sys.executable).with_name("eval-dagster")
    return os.path.relpath(script) if script.exists() else f"{os.path.relpath(sys.executable)} -m eval_dagster.cli.main"


def print_next(*commands: tuple[str, str]) -> None:
    """Print the commands to go on with, once each: given without the program's name, and with what it shows."""
    once: dict[str, str] = {}
    for command, purpose in commands:
        once.setdefault(command, purpose)
    width = max(map(len, once))
    lines = [f"  {program_name()} {command:<{width}}  {purpose}" for command, purpose in once.items()]
    out.print("\n".join(["\nNext", *lines]), soft_wrap=True)


def print_table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """Print rows as a table, or one below the other if the table is too wide. Columns named in `right` are numbers."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    texts = [[cell(value) for value in row] for row in rows]
    for row in texts:
        table.add_row(*row)
    if table.__rich_measure__(out, out.options.update(max_width=_WIDEST)).maximum <= out.width:
        out.print(table)
    else:
        print_records(title, columns, texts)


def print_records(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows one below the other, each column on a line of its own: for texts that are too long for a table."""
    if title:
        out.print(title)
    widest = max(len(column) for column in columns)
    for number, row in enumerate(rows, 1):
        out.rule(f"{number}", align="left")
        for column, text in zip(columns, row, strict=True):
            out.print(Text.assemble((column.ljust(widest), "bold"), f"  {text}"), soft_wrap=True)


def cell(value: Any) -> str:
    """A value as a table cell: short, on one line, and empty for null."""
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return one_line(text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…")


def score_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Columns and cells of rows of the relation `leaderboard`. The column `differs` is shown if a row has no rank."""
    more = ["differs"] if any(row["differs"] for row in rows) else []
    return [*_SCORE_COLUMNS, *more], [[*_score_row(row), *(row[name] for name in more)] for row in rows]


def _score_row(row: Mapping[str, Any]) -> list[Any]:
    figures = [number(row["value"]), number(row["stderr"]), interval(row["ci_low"], row["ci_high"])]
    return [row["eval"], row["rank"], row["model"], row["metric"], *figures, row["n"], row["n_errors"]]


def number(value: float | None, sign: str = "") -> str:
    """A score or a difference as a table cell; empty for null."""
    return "" if value is None else f"{value:{sign}.3f}"


def interval(low: float | None, high: float | None, sign: str = "") -> str:
    """A confidence interval as a table cell; empty for null."""
    return "" if low is None else f"{number(low, sign)} – {number(high, sign)}"


def dollars(cost: float) -> str:
    """A cost, with as many digits as a small one needs."""
    return f"${cost:,.2f}" if cost >= 100 else f"${cost:.4f}" if cost >= 0.01 or not cost else f"${cost:.6f}"


_SCORE_COLUMNS = ("eval", "rank", "model", "metric", "score", "± stderr", "95 % interval", "samples", "errors")
SCORE_NUMBERS = ("rank", "score", "± stderr", "samples", "errors")
