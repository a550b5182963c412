"""The commands `leaderboard` and `sql`."""

import re
from collections.abc import Sequence
from pathlib import Path

import duckdb
import typer

from eval_dagster.cli.console import SCORE_NUMBERS, errors, out, print_table, program_name, say, score_table
from eval_dagster.cli.tables import Format, check_output, print_result, write_rows
from eval_dagster.errors import QueryError, UsageError
from eval_dagster.lake.attempts import read_attempts
from eval_dagster.lake.catalog import catalog_path, damages_listed, executed, read_rows, refresh
from eval_dagster.lake.files import Lake, trial_lake
from eval_dagster.lake.relations import relation_files
from eval_dagster.lake.sessions import plain
from eval_dagster.project import Project
from eval_dagster.suggestions import did_you_mean

_MOST_DAMAGES = 5


def show_leaderboard(*, suite: str | None, evals: Sequence[str], models: Sequence[str], everything: bool, trial: bool) -> None:
    """Print the leaderboard of the chosen evals and models, or of all results (`everything`)."""
    project = Project.open()
    if everything and (suite or evals or models):
        raise UsageError("--all shows every result that there is; give it without --suite, --eval and --model")
    chosen = None if everything else project.select(suite=suite, evals=evals, models=models)
    lake = _trials(project) if trial else project.lake
    refresh(lake)
    has_rows = print_leaderboard(lake, title="Trials" if trial else "Leaderboard", chosen=chosen)
    damages = damages_listed(lake)
    print_damages(damages)
    if not has_rows:
        failed = bool(read_attempts(lake))
        state, command = ("every evaluation failed", "sql attempts") if failed else ("no evaluation has ended", "run")
        if damages:
            state, command = "files are damaged, and left out", "verify"
        if (suite or evals or models) and read_rows(lake, "select 1 from leaderboard_all limit 1"):
            state = "the chosen evals and models have not been evaluated"
        out.print(f"There is no result yet: {state}. Next: {program_name()} {command}", soft_wrap=True)
        if damages:
            raise typer.Exit(1)


def print_leaderboard(lake: Lake, *, title: str = "Leaderboard", chosen: tuple[Sequence[str], Sequence[str]] | None = None) -> bool:
    """Print the leaderboard of a lake, for the chosen evals and models or for all. Returns whether it has a row."""
    rows = read_rows(lake, "select * from leaderboard_all")
    if chosen is not None:
        rows = [row for row in rows if row["eval"] in chosen[0] and row["model"] in chosen[1]]
    if rows:
        print_table(title, *score_table(rows), right=SCORE_NUMBERS)
    if any(row["differs"] for row in rows):
        out.print("Without a rank: what differs from the results of the eval that are ranked.", style="dim")
    return bool(rows)


def _trials(project: Project) -> Lake:
    """The lake of trials. Raises QueryError if there was no trial."""
    lake = trial_lake(project.lake)
    if not catalog_path(lake).exists():
        raise QueryError(f"there is no trial to query: {catalog_path(lake)} does not exist; run `eval-dagster run --limit N` first")
    return lake


def run_query(query: str, output: Format | None, *, trial: bool, file: Path | None, unsafe: bool) -> None:
    """Run a statement, or select all of a relation, and print its rows, or write them to a file in the format of its suffix."""
    _check_text(query)
    project = Project.open()
    lake = _trials(project) if trial else project.lake
    if file is not None:
        if output is not None:
            raise UsageError("--format is for printed rows, and --output takes the format from the file's suffix; give one of them")
        check_output(file, project.home)
    refresh(lake)
    statement = _statement(lake, query)
    try:
        with executed(lake, statement, unsafe=unsafe) as session:
            if file is not None:
                out.print(f"{write_rows(session, file)} rows written to {file}", soft_wrap=True)
            else:
                print_result(session, output or Format.TABLE)
    except duckdb.Error as error:
        raise QueryError(_failure(error)) from error
    print_damages(damages_listed(lake))


def print_damages(damages: Sequence[str]) -> None:
    """Print the damaged files, which are left out of the results."""
    for damage in damages[:_MOST_DAMAGES]:
        say(errors, "warning", f"left out: {damage}", style="yellow")
    if len(damages) > _MOST_DAMAGES:
        say(errors, "warning", f"{len(damages) - _MOST_DAMAGES} more files are damaged: {program_name()} verify", style="yellow")


def _check_text(query: str) -> None:
    """Raise QueryError if a query is empty or no valid Unicode."""
    try:
        query.encode("utf-8")
    except UnicodeEncodeError as error:
        raise QueryError(f"the query holds a byte that is no UTF-8 (character {error.start + 1}); expected text in UTF-8") from error
    if not query.strip(" \t\r\n;"):
        raise QueryError(
            "found an empty query; expected a statement, or the name of a relation, for instance: eval-dagster sql leaderboard"
        )


def _failure(error: duckdb.Error) -> str:
    """The message for a failed query; if it tried to read or write files, with what to do instead."""
    if isinstance(error, duckdb.PermissionException) or "PermissionError" in str(error):
        return (
            f"the query needs a file, an extension or another database ({plain(error)}), but a query can only read results; write its "
            "rows with --output FILE, or give --unsafe, with which a query can read and write everything that you can"
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"the query needs more memory than there is ({plain(error)}); ask for less, or give --unsafe, with which it can use the disk"
    return f"the query failed: {str(error) if 'Traceback' not in str(error) else plain(error)}"


def _statement(lake: Lake, query: str) -> str:
    """The statement of a query: for the name of a relation, a select of all its rows. Raises QueryError for any other single word."""
    word = query.strip()
    if not re.fullmatch(r"\w+", word):
        return query
    relations = {row["table_name"] for row in read_rows(lake, "select table_name from information_schema.tables")}
    if word in relations:
        return f'select * from "{word}"'  # noqa: S608 - a known name
    file = relation_files().get(word)
    if file is not None:
        raise QueryError(f"{word} takes arguments: call it as {word}(...) in the `from` of a statement; {file} lists them")
    listed = sorted(name for name in relations | relation_files().keys() if not name.startswith("_"))
    raise QueryError(f"there is no relation {word!r}{did_you_mean(word, relations)}; there are: {', '.join(listed)}")
