"""Prints tables, on a terminal a screenful of them, and writes the rows of a query to a file, a few thousand at a time."""

import csv
import json
import os
import re
import shlex
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from eval_dagster.cli.console import errors, is_wide_enough, out, print_table, program_name, say
from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog.sessions import interruptibly
from eval_dagster.stores.whole_files import replaced
from eval_dagster.texts.figures import counted
from eval_dagster.texts.visible_text import json_text, spreadsheet_text, starts_formula, storable, visible

_MOST_ROWS = 50
_MOST_COUNTED = 1_000_000
_AT_ONCE = 4096
_AROUND = 3
"""Lines of a screen that a cut table leaves to the line below it, which may be folded, and to the shell."""
_MOST_LINES = 8
"""Lines of one kind below a table that a terminal shows."""
_FEW_ALIKE = 3
"""Messages of a kind that are all printed."""
_OF_PARTITION = re.compile(r"^(?:\w+ )?(?:[^\s|:]+\|[^\s:]+|eval [^\s:]+): ")
"""The beginning of a message about an eval, or an eval and a model."""
_VARIES = re.compile(r"[\d|/'\"]")
_SUFFIXES = (".csv", ".json", ".parquet")


class Format(StrEnum):
    """The format of printed rows: a table for people, JSON or CSV for programs, or CSV for a spreadsheet.

    JSON and CSV contain exact texts. JSON escapes control characters and bidirectional marks; CSV does so only on a terminal. CSV for a
    spreadsheet escapes them always, and contains no formula.
    """

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    SPREADSHEET = "spreadsheet"


def print_result(session: duckdb.DuckDBPyConnection, output: Format) -> None:
    """Print the rows of an executed query."""
    if session.description is None:
        out.print("The statement gives no rows.")
    else:
        print_rows(_names(session), _fetched(session), output)


def print_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], output: Format) -> None:
    """Print rows by their column names."""
    if output is Format.JSON:
        _write_json(names, rows, sys.stdout)
    elif output is Format.SPREADSHEET:
        sys.stdout.write("\ufeff")  # spreadsheets detect UTF-8 by it
        _write_csv(names, rows, sys.stdout, spreadsheet_text)
    elif output is Format.CSV:
        _write_csv(names, rows, sys.stdout, visible if sys.stdout.isatty() else storable)
    else:
        remaining = iter(rows)
        shown = list(islice(remaining, _MOST_ROWS))
        numbers = [name for index, name in enumerate(names) if any(isinstance(row[index], int | float) for row in shown)]
        fitting = _fitting(None, names, shown, numbers, ())
        print_table(None, names, shown[:fitting], right=numbers)
        more = len(shown) - fitting + sum(1 for _ in islice(remaining, _MOST_COUNTED))
        shown = shown[:fitting]
        if more:
            total = f"more than {len(shown) + more:,}" if next(remaining, None) is not None else str(len(shown) + more)
            out.print(f"{len(shown)} of {total} rows; --format csv or json prints all of them whole")
        else:
            out.print(counted(len(shown), "row"))


def print_screenful(
    title: str | None,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    heads: Sequence[str] = (),
    spare: Sequence[str] = (),
    whole: str | None = None,
    choices: str = "",
) -> None:
    """Print rows as `print_table`; on a terminal, the first rows that fit on the screen, and the command that prints all.

    Args:
        title: As in `print_table`, like `columns`, `right` and `heads`.
        columns: Names of the columns.
        rows: Values by column, the most important rows first.
        right: Columns of numbers.
        heads: The first columns that adjacent rows share.
        spare: Columns that a terminal does without if it is too narrow and not all rows are shown; the first is left out first.
        whole: The command that prints all rows, without the program's name; by default the command that runs.
        choices: Options that choose a part of the rows, in words.
    """
    rows = list(rows)
    shown, left_out = rows, list[str]()
    if sys.stdout.isatty():
        shown = rows[: max(1, out.height)]
        fitting = _fitting(title, columns, shown, right, heads, count=len(rows))
        spared = [name for name in spare if name in columns]
        while fitting < len(rows) and spared and not is_wide_enough(columns, shown, right, heads):
            left_out.append(spared.pop(0))
            kept = [place for place, name in enumerate(columns) if name != left_out[-1]]
            columns, shown = [columns[place] for place in kept], [[row[place] for place in kept] for row in shown]
            fitting = _fitting(title, columns, shown, right, heads, count=len(rows))
        shown = rows if fitting == len(rows) and not left_out else shown[:fitting]  # `shown` lacks the columns that are left out
    print_table(title, columns, shown, right=right, heads=heads)
    if left_out or len(shown) < len(rows):
        without = f" without {', '.join(left_out)}" if left_out else ""
        part = f"; {choices} shows a part" if choices else ""
        out.print(f"{len(shown):,} of {len(rows):,} rows{without}. All: {_piped(whole)}{part}", soft_wrap=True, style="bold")


def _fitting(
    title: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    right: Sequence[str],
    heads: Sequence[str],
    *,
    count: int | None = None,
) -> int:
    """The number of rows that fit on the screen, at least one; all if standard output is not a terminal. `count` counts more than these."""
    count = len(rows) if count is None else count
    if not sys.stdout.isatty():
        return count

    def lines(number: int) -> int:
        with out.capture() as captured:
            print_table(title, columns, rows[:number], right=right, heads=heads)
        return captured.get().count("\n")

    if count <= len(rows) and lines(count) < out.height:
        return count
    low, high = 1, min(len(rows), out.height)
    while low < high:  # `low` rows fit, or are the least that is shown
        middle = (low + high + 1) // 2
        low, high = (middle, high) if lines(middle) <= out.height - _AROUND else (low, middle - 1)
    return low


def print_few(lines: Sequence[str], *, whole: str | None = None, style: str | None = None) -> None:
    """Print lines; on a terminal the first ones, and the command that prints all, as in `print_screenful`."""
    shown = lines[:_MOST_LINES] if sys.stdout.isatty() and len(lines) > _MOST_LINES + 1 else lines
    for line in shown:
        out.print(line, style=style, soft_wrap=True)
    if len(shown) < len(lines):
        out.print(f"{len(lines) - len(shown):,} more like these. All: {_piped(whole)}", soft_wrap=True, style="bold")


def _piped(whole: str | None) -> str:
    """A command, by default the one that runs, whose output is read in parts."""
    return f"{program_name()} {shlex.join(sys.argv[1:]) if whole is None else whole} | less -S"


def say_folded(messages: Iterable[str], kind: str, *, style: str, whole: str) -> None:
    """Print messages to standard error. On a terminal, messages that differ in names and numbers alone are printed once, with a count.

    Args:
        messages: The messages.
        kind: The word before each, such as `warning`.
        style: The style of the words.
        whole: The command that lists what is folded, with the program's name.
    """
    kinds: dict[str, list[str]] = {}
    for number, message in enumerate(dict.fromkeys(messages)):
        kinds.setdefault(_kind(message) if sys.stderr.isatty() else str(number), []).append(message)
    folded = 0
    for alike in kinds.values():
        shown = alike if len(alike) <= _FEW_ALIKE else alike[:1]
        folded += len(alike) - len(shown)
        for message in shown:
            more = f" [and {len(alike) - 1:,} more like this]" if len(shown) < len(alike) else ""
            say(errors, kind, f"{message}{more}", style=style)
    if folded:
        errors.print(f"{counted(folded, kind)} of the same kinds left out. All: {whole}", style="bold", soft_wrap=True)


def _kind(message: str) -> str:
    """The words of a message without its eval and model, and without words that have a digit or a mark of a name."""
    text = _OF_PARTITION.sub("", message, count=1)
    return " ".join(word for word in text.split() if not _VARIES.search(word))


def check_output(file: Path, home: Path) -> None:
    """Raise `UsageError` if a file has an unknown suffix, cannot be written, or lies in the home."""
    if file.suffix not in _SUFFIXES:
        raise UsageError(f"found --output {file}; expected a file whose name ends in {', '.join(_SUFFIXES)}")
    require_writable("--output", file)
    require_outside("--output", file, home)


def require_outside(option: str, file: Path, home: Path) -> None:
    """Raise `UsageError` if the file of an option lies in the home."""
    if file.resolve().is_relative_to(home.resolve()):
        raise UsageError(f"{option} {file} is in {home}, which contains the results; name a file elsewhere")


def require_writable(option: str, file: Path) -> None:
    """Raise `UsageError` if the file of an option cannot be written."""
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise UsageError(f"{option} {file} cannot be written; expected a file in an existing folder with write permission")


def write_rows(session: duckdb.DuckDBPyConnection, file: Path) -> int:
    """Write the rows of an executed query: the whole file or none. Returns the number of rows."""
    if session.description is None:
        raise UsageError("the statement gives no rows, so that there is nothing to write")
    with replaced(file) as temporary:
        return write_into(session, temporary, file.suffix)


def write_into(session: duckdb.DuckDBPyConnection, path: Path, suffix: str) -> int:
    """Write the rows of an executed query into a file, in the format of a suffix. Returns the number of rows."""
    if suffix == ".parquet":
        return _write_parquet(session, path)
    write = _write_csv if suffix == ".csv" else _write_json
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as opened:
        return write(_names(session), _fetched(session), opened)


def _write_parquet(session: duckdb.DuckDBPyConnection, path: Path) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a copy of the rows
        batches: Any = interruptibly(session, lambda: session.to_arrow_reader(_AT_ONCE))
    count = 0
    try:
        with pq.ParquetWriter(path, batches.schema, compression="zstd") as writer:
            while (batch := interruptibly(session, lambda: next(batches, None))) is not None:
                writer.write_batch(batch)
                count += batch.num_rows
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise UsageError(f"the rows cannot be written as Parquet ({error}); cast the column to text, or write a .csv or .json") from error
    return count


def _write_csv(names: Sequence[str], rows: Iterable[Sequence[Any]], file: TextIO, written: Callable[[str], str] = storable) -> int:
    """Write CSV: exact for programs, visible on a terminal, and for a spreadsheet without formulas."""
    plain, quoted = (csv.writer(file, lineterminator="\n", quoting=quoting) for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    formulas = count = 0
    for count, row in enumerate(chain([tuple(names)], rows)):
        cells = [written(value) if isinstance(value, str) else value for value in row]
        # The writer does not quote carriage returns, which readers take for the end of a row.
        (quoted if any(isinstance(cell, str) and "\r" in cell for cell in cells) else plain).writerow(cells)
        formulas += sum(isinstance(value, str) and starts_formula(value) for value in row) if count else 0
    if formulas and written is not spreadsheet_text:
        errors.print(
            f"note: a spreadsheet would compute {formulas} of these cells as formulas; open the rows there only as --format spreadsheet "
            "writes them",
            soft_wrap=True,
        )
    return count


def _write_json(names: Sequence[str], rows: Iterable[Sequence[Any]], file: TextIO) -> int:
    """Write a list of objects, indented like the output of `json.dumps`."""
    is_unicode = (file.encoding or "").lower().startswith("utf")
    count = 0
    for row in rows:
        text = textwrap.indent(json_text(dict(zip(names, row, strict=True)), indent=2), "  ")
        file.write(",\n" if count else "[\n")
        file.write(text if is_unicode else "".join(each if each.isascii() else json.dumps(each)[1:-1] for each in text))
        count += 1
    file.write("\n]\n" if count else "[]\n")
    return count


def _names(session: duckdb.DuckDBPyConnection) -> list[str]:
    return [column[0] for column in session.description or ()]


def _fetched(session: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    return chain.from_iterable(iter(lambda: interruptibly(session, lambda: session.fetchmany(_AT_ONCE)), []))
