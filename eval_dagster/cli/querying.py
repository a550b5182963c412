"""Commands that read results."""

import csv
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import duckdb

from eval_dagster.cli.console import SCORE_NUMBERS, errors, out, print_table, program_name, score_table
from eval_dagster.errors import QueryError, UsageError
from eval_dagster.lake.attempts import read_attempts
from eval_dagster.lake.catalog import catalog_path, connect, read_rows, refresh
from eval_dagster.lake.files import Lake, trial_lake
from eval_dagster.lake.relations import relation_files
from eval_dagster.project import Project
from eval_dagster.suggestions import did_you_mean
from eval_dagster.visible_text import json_text, spreadsheet_text, starts_formula, storable, visible
from task_defs import TASKS

_MOST_ROWS = 50


class Format(StrEnum):
    """How rows are printed: as a table for people, as JSON or CSV for programs, or as CSV for a spreadsheet.

    JSON and CSV hold every text as it is: JSON with escapes for control characters and bidirectional marks, CSV as the characters
    themselves unless it goes to a terminal. In CSV for a spreadsheet these are escapes, and no text is a formula.
    """

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    SPREADSHEET = "spreadsheet"


def show_leaderboard(*, suite: str | None, evals: Sequence[str], models: Sequence[str], everything: bool, trial: bool) -> None:
    """Print the leaderboard.

    Args:
        suite: Its evals and models; all of evals.yaml where not given.
        evals: These instead, where given.
        models: These instead, where given.
        everything: Whether all results are shown, also those of evals and models that evals.yaml no longer has.
        trial: Whether it is that of trials.

    Raises:
        UsageError: A name is unknown, or a choice is given beside `everything`.
    """
    project = Project.open(TASKS)
    if everything and (suite or evals or models):
        raise UsageError("--all shows every result that there is; give it without --suite, --eval and --model")
    chosen = None if everything else project.select(suite=suite, evals=evals, models=models)
    lake = _trials(project) if trial else project.lake
    refresh(lake)
    if not print_leaderboard(lake, title="Trials" if trial else "Leaderboard", chosen=chosen):
        failed = bool(read_attempts(lake))
        state, command = ("every evaluation failed", "sql attempts") if failed else ("no evaluation has ended", "run")
        if (suite or evals or models) and read_rows(lake, "select 1 from leaderboard_all limit 1"):
            state = "nothing of what was asked for has been evaluated"
        out.print(f"There is no result yet: {state}. Next: {program_name()} {command}", soft_wrap=True)


def print_leaderboard(lake: Lake, *, title: str = "Leaderboard", chosen: tuple[Sequence[str], Sequence[str]] | None = None) -> bool:
    """Print the leaderboard of a lake: of the chosen evals and models, or all that there is. Says whether it has a row."""
    rows = read_rows(lake, "select * from leaderboard_all")
    if chosen is not None:
        rows = [row for row in rows if row["eval"] in chosen[0] and row["model"] in chosen[1]]
    if rows:
        print_table(title, *score_table(rows), right=SCORE_NUMBERS)
    if any(row["differs"] for row in rows):
        out.print("Without a rank: what differs from the results of the eval that are ranked.", style="dim")
    return bool(rows)


def _trials(project: Project) -> Lake:
    """The lake of trials. Raises QueryError where there was none."""
    lake = trial_lake(project.lake)
    if not catalog_path(lake).exists():
        raise QueryError(f"there is no trial to query: {catalog_path(lake)} does not exist; run `eval-dagster run --limit N` first")
    return lake


def run_query(query: str, output: Format, *, trial: bool) -> None:
    """Run a statement, or select all of a relation, and print its rows."""
    project = Project.open(TASKS)
    lake = _trials(project) if trial else project.lake
    refresh(lake)
    with connect(lake) as catalog:
        statement = f'select * from "{query}"' if _is_relation(catalog, query) else query  # noqa: S608 - a known name
        try:
            result = catalog.execute(statement)
            names = [column[0] for column in result.description or ()]
            rows = result.fetchall()
        except duckdb.Error as error:
            raise QueryError(f"the query failed: {error}") from error
    print_rows(names, rows, output)


def _is_relation(catalog: duckdb.DuckDBPyConnection, word: str) -> bool:
    """Whether a word names a relation. Raises QueryError for a single word that names none."""
    if not re.fullmatch(r"\w+", word):
        return False
    relations = {row[0] for row in catalog.execute("select table_name from information_schema.tables").fetchall()}
    if word in relations:
        return True
    file = relation_files().get(word)
    if file is not None:
        raise QueryError(f"{word} takes arguments: call it as {word}(...) in the `from` of a statement; {file} tells which")
    listed = sorted(name for name in relations | relation_files().keys() if not name.startswith("_"))
    raise QueryError(f"there is no relation {word!r}{did_you_mean(word, relations)}; there are: {', '.join(listed)}")


def print_rows(names: list[str], rows: list[tuple[Any, ...]], output: Format) -> None:
    """Print rows by their column names."""
    if output is Format.JSON:
        sys.stdout.write(json_text([dict(zip(names, row, strict=True)) for row in rows], indent=2) + "\n")
    elif output in (Format.CSV, Format.SPREADSHEET):
        _write_csv(names, rows, output)
    else:
        numbers = [name for index, name in enumerate(names) if any(isinstance(row[index], int | float) for row in rows)]
        print_table(None, names, rows[:_MOST_ROWS], right=numbers)
        shown = f"{min(len(rows), _MOST_ROWS)} of {len(rows)} rows" if len(rows) > _MOST_ROWS else f"{len(rows)} rows"
        out.print(shown + ("; --format csv or json prints all of them whole" if len(rows) > _MOST_ROWS else ""))


def _write_csv(names: list[str], rows: list[tuple[Any, ...]], output: Format) -> None:
    """Write CSV: exact for programs, visible on a terminal, and for a spreadsheet without formulas."""
    for_sheet = output is Format.SPREADSHEET
    written = spreadsheet_text if for_sheet else visible if sys.stdout.isatty() else storable
    if for_sheet:
        sys.stdout.write("\ufeff")  # by which spreadsheets know UTF-8
    plain, quoted = (csv.writer(sys.stdout, lineterminator="\n", quoting=quoting) for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    for row in (tuple(names), *rows):
        cells = [written(value) if isinstance(value, str) else value for value in row]
        # Left to itself the writer quotes no carriage return, which readers take for the end of a row.
        (quoted if any(isinstance(cell, str) and "\r" in cell for cell in cells) else plain).writerow(cells)
    formulas = sum(isinstance(value, str) and starts_formula(value) for row in rows for value in row)
    if formulas and not for_sheet:
        errors.print(
            f"note: a spreadsheet would compute {formulas} of these cells as formulas; open the rows there only as --format spreadsheet "
            "writes them",
            soft_wrap=True,
        )
