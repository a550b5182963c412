"""Output of the command line: results to standard output, everything else to standard error."""

import logging
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from eval_dagster.texts.terminal import PlainConsole
from eval_dagster.texts.visible_text import one_line

_MOST_CHARACTERS = 200
_LEAST, _MOST_LINES = 14, 6
"""Of folded texts in a table the least width, and the most lines."""
_PIPE_WIDTH = 160
"""Columns if the output is no terminal."""

out = PlainConsole(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
errors = PlainConsole(stderr=True, width=None if sys.stderr.isatty() else _PIPE_WIDTH)


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


def print_table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = (), heads: Sequence[str] = ()
) -> None:
    """Print rows as a table.

    If it is too wide for the terminal, long texts are folded. If that is not enough, the columns named in `heads` become a line above
    their rows; without them, the rows are printed one below the other.

    Args:
        title: Stands above the table.
        columns: Names of the columns.
        rows: Values by column.
        right: Columns of numbers, which are never folded.
        heads: The first columns that adjacent rows share: eval and metric, for instance.
    """
    texts = [[cell(value) for value in row] for row in rows]
    folded = _folded(columns, texts, right)
    if folded is not None:
        out.print(_table(title, columns, folded, right))
        return
    shared = [place for place, column in enumerate(columns) if column in heads]
    kept = [place for place, column in enumerate(columns) if column not in heads]
    names = [columns[place] for place in kept]
    inner = _folded(names, [[row[place] for place in kept] for row in texts], right) if shared else None
    if inner is None:
        print_records(title, columns, texts)
        return
    if title:
        out.print(title, style="italic")
    widths = [max(map(_width, [name, *cells])) for name, *cells in zip(names, *inner, strict=True)]
    for shown, group in groupby(
        zip(texts, inner, strict=True), key=lambda row: " · ".join(filter(None, (row[0][place] for place in shared)))
    ):
        out.print(shown, style="bold", overflow="fold")
        out.print(_table(None, names, [cells for _, cells in group], right, widths))


def is_wide_enough(columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str], heads: Sequence[str]) -> bool:
    """Whether `print_table` prints these rows as a table, instead of one below the other."""
    texts = [[cell(value) for value in row] for row in rows]
    kept = [place for place, column in enumerate(columns) if column not in heads]
    inner = [columns[place] for place in kept], [[row[place] for place in kept] for row in texts]
    return _folded(columns, texts, right) is not None or (len(kept) < len(columns) and _folded(*inner, right) is not None)


def _table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str], widths: Sequence[int] | None = None
) -> Table:
    rows = list(rows)
    are_folded = any("\n" in text for row in rows for text in row)
    table = Table(title=title, title_justify="left", header_style="bold", show_lines=are_folded)
    for place, column in enumerate(columns):
        table.add_column(
            column, justify="right" if column in right else "left", no_wrap=True, min_width=None if widths is None else widths[place]
        )
    for row in rows:
        table.add_row(*row)
    return table


def _folded(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> list[list[str]] | None:
    """The cells of a table that fits into the terminal, long texts on several lines; None if they would be too narrow to read."""
    widths = [max(map(_width, [column, *cells])) for column, *cells in zip(columns, *rows, strict=True)]
    room = out.width - 1 - 3 * len(columns)
    open_ = [place for place, column in enumerate(columns) if column not in right and widths[place] > _LEAST]
    while sum(widths) > room and open_:
        widest = max(open_, key=lambda place: widths[place])
        if widths[widest] <= _LEAST:
            return None
        widths[widest] -= 1
    if sum(widths) > room:
        return None
    cells = [[_lines(text, width) for text, width in zip(row, widths, strict=True)] for row in rows]
    return None if any(text.count("\n") >= _MOST_LINES for row in cells for text in row) else cells


def _lines(text: str, width: int) -> str:
    """A text on lines of at most this width, broken after a mark between words if there is one."""
    lines = [""]
    for part in re.split(r"(?<=[-_.:/|·, ])", text):
        if _width(lines[-1] + part) > width and lines[-1]:
            lines.append("")
        for character in part:
            if _width(lines[-1] + character) > width:
                lines.append("")
            lines[-1] += character
    return "\n".join(line.rstrip() for line in lines)


def _width(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def print_records(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows one below the other, each column on a line of its own: for texts that are too long for a table."""
    if title:
        out.print(title)
    widest = max(len(column) for column in columns)
    for position, row in enumerate(rows, 1):
        out.rule(f"{position}", align="left")
        for column, text in zip(columns, row, strict=True):
            out.print(Text.assemble((column.ljust(widest), "bold"), f"  {text}"), soft_wrap=True)


def cell(value: object) -> str:
    """A value as a table cell: short, on one line, and empty for null."""
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return one_line(text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…")
