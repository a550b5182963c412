"""The commands `sql` and `export`: results as rows, printed or in files."""

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import duckdb
import typer

from eval_dagster.cli.console import errors, out, print_next, print_table, program_name, say
from eval_dagster.cli.options import FORMAT, LakeURL, Trial
from eval_dagster.cli.tables import Format, check_output, print_result, require_outside, write_into, write_rows
from eval_dagster.config.values import LAKE_URLS, LAKE_VARIABLE, wrong_lake_url
from eval_dagster.errors import LakeError, QueryError, UsageError
from eval_dagster.lake.catalog.archives import night_lake, past_catalog
from eval_dagster.lake.catalog.catalog import connect, damages_listed, executed, read_rows, refresh
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.catalog.relations import relation_files
from eval_dagster.lake.catalog.sessions import damage_in, interruptibly, plain
from eval_dagster.lake.files import Lake, catalog_path, trial_lake
from eval_dagster.lake.remote.mirror import reading_home
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.progress.reporting import LogReporter, use_reporter
from eval_dagster.project import Project, default_config_path
from eval_dagster.stores.whole_files import replaced
from eval_dagster.texts.figures import counted, did_you_mean

_MOST_DAMAGES = 5
_HISTORY = "_history"
"""The end of the names of relations with all results that the lake keeps."""
_RELATIONS = "select table_name from information_schema.tables where not starts_with(table_name, '_') order by table_name"


class FileFormat(StrEnum):
    """The format of exported files."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


def queried_lake(url: str | None, *, trial: bool = False) -> Lake:
    """The lake of a URL, read through a copy in the user's cache; by default the project's, or without a project the environment's.

    Raises:
        QueryError: Nothing has been evaluated as a trial yet.
        UsageError: The URL is wrong, or cannot go with `trial`.
    """
    if not reads_url(url):
        project = Project.open()
        lake = trial_lake(project.lake) if trial else project.lake
        if trial and not catalog_path(lake).exists():
            raise QueryError(f"there is no trial to query: {catalog_path(lake)} does not exist; run `eval-dagster run --limit N` first")
        return lake
    if trial:
        raise UsageError("trials are never in a lake that machines share; give --trial without --lake, in the folder of the project")
    asked = url or os.environ.get(LAKE_VARIABLE) or ""
    if (reason := wrong_lake_url(asked)) is not None:  # not repeated in the message, since it can hold a secret
        raise UsageError(f"the URL of the lake ({'--lake' if url else LAKE_VARIABLE}) is wrong: {reason}; expected {LAKE_URLS}")
    return Lake(reading_home(asked))


def reads_url(url: str | None) -> bool:
    """Whether the lake of a URL is read: from `--lake` or, in a folder without a project, from the environment."""
    return url is not None or bool(os.environ.get(LAKE_VARIABLE) and not default_config_path().exists())


def read_again(lake: Lake) -> None:
    """Bring the catalog up to date, and print lines of progress while many files are fetched."""
    with use_reporter(LogReporter(lambda line: errors.print(line, style="dim", soft_wrap=True))):
        refresh(lake)
    if lake.mirror is not None and lake.configured is None and not any(True for table in TABLES for _ in lake.partitions(table)):
        raise QueryError(f"the lake {lake.mirror.store.url} has no results; correct the URL, or run with it: `lake:` in evals.yaml")


def print_damages(damages: Sequence[str]) -> None:
    """Print the damaged files, which are left out of the results."""
    for damage in damages[:_MOST_DAMAGES]:
        say(errors, "warning", f"left out: {damage}", style="yellow")
    if len(damages) > _MOST_DAMAGES:
        say(errors, "warning", f"{len(damages) - _MOST_DAMAGES} more files are damaged: {program_name()} verify", style="yellow")


def run_query(
    query: Annotated[str, typer.Argument(help="A statement, or the name of a relation or of a file in sql/.")],
    output: Annotated[Format | None, FORMAT] = None,
    file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write all rows to a .csv, .json or .parquet instead.")
    ] = None,
    *,
    trial: Trial = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Let the statement read and write files, and load extensions.")] = False,
    url: LakeURL = None,
    night: Annotated[
        datetime | None,
        typer.Option(metavar="DATE", formats=["%Y-%m-%d"], help="Query the state at the end of that past day (UTC)."),
    ] = None,
) -> None:
    """Run a statement, or select all of a relation, and print its rows, or write them to a file in the format of its suffix."""
    try:
        query.encode("utf-8")
    except UnicodeEncodeError as error:
        raise QueryError(f"the query holds a byte that is no UTF-8 (character {error.start + 1}); expected text in UTF-8") from error
    if not query.strip(" \t\r\n;"):
        raise QueryError(
            "found an empty query; expected a statement, or the name of a relation, for instance: eval-dagster sql leaderboard"
        )
    lake = queried_lake(url, trial=trial)
    if file is not None:
        if output is not None:
            raise UsageError("--format is for printed rows, and --output takes the format from the file's suffix; give one of them")
        check_output(file, lake.home)
    past = past_catalog(lake, night.date()) if night is not None and lake.mirror is None else None
    if night is not None and past is None:
        lake = night_lake(lake, night.date())
    if past is None:
        read_again(lake)
    statement = _statement(lake, query, past)
    try:
        with executed(lake, statement, unsafe=unsafe, past=past) as session:
            if file is not None:
                out.print(f"{counted(write_rows(session, file), 'row')} written to {file}", soft_wrap=True)
            else:
                print_result(session, output or Format.TABLE)
    except duckdb.Error as error:
        message = f"the query failed: {str(error) if 'Traceback' not in str(error) else plain(error)}"
        if isinstance(error, duckdb.PermissionException) or "PermissionError" in str(error):
            message = (
                f"the query needs a file, an extension or another database ({plain(error)}), but a query can only read results; write its "
                "rows with --output FILE, or give --unsafe, with which a query can read and write everything that you can"
            )
        elif isinstance(error, duckdb.OutOfMemoryException):
            message = (
                f"the query needs more memory than there is ({plain(error)}); ask for less, or give --unsafe, "
                "with which it can use the disk"
            )
        raise QueryError(message) from error
    print_damages(damages_listed(lake, past=past))


def _statement(lake: Lake, query: str, past: Path | None) -> str:
    """The statement of a query: for the name of a relation, a select of all its rows. Raises QueryError for any other single word."""
    word = query.strip()
    if not re.fullmatch(r"\w+", word):
        return query
    found = read_rows(lake, "select table_name from information_schema.tables where table_schema = 'main'", past=past)
    relations = {name for row in found for name in row.values()}
    if word in relations:
        return f'select * from "{word}"'  # noqa: S608 - a known name
    file = relation_files().get(word)
    if file is not None:
        raise QueryError(f"{word} takes arguments: call it as {word}(...) in the `from` of a statement; {file} lists them")
    listed = sorted(name for name in relations | relation_files().keys() if not name.startswith("_"))
    raise QueryError(f"there is no relation {word!r}{did_you_mean(word, relations)}; there are: {', '.join(listed)}")


def export(
    folder: Annotated[Path, typer.Argument(help="Folder of the files; created if it does not exist.")],
    *,
    relations: Annotated[
        list[str],
        typer.Option(
            "--relation",
            metavar="NAME",
            help="Only this relation; may be repeated. By default all of the current results.",
            default_factory=list,
            show_default=False,
        ),
    ],
    form: Annotated[FileFormat, typer.Option("--format", help="Format of the files.")] = FileFormat.PARQUET,
    trial: Trial = False,
    url: LakeURL = None,
) -> None:
    """Write relations into a folder, each as one file, and print their names. All files are of one state of the results.

    Relations of all results, whose names end in `_history`, are written if they are named. Each file is replaced as a whole, and none
    before all are written. A damaged file of the lake is left out of the results, as by a query.

    Raises:
        QueryError: Nothing has been evaluated yet, or a relation is unknown.
        UsageError: The folder cannot be made or written, or is in the home.
    """
    lake = queried_lake(url, trial=trial)
    require_outside("FOLDER", folder, lake.home)
    read_again(lake)
    if not catalog_path(lake).exists():
        raise QueryError(f"there is nothing to export yet: {catalog_path(lake)} does not exist; run `eval-dagster run` first")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            counts = _written(lake, folder, relations, form)
        except duckdb.Error as error:
            if damage_in(error) is None:
                raise LakeError(
                    f"{catalog_path(lake)} cannot be exported ({plain(error)}); delete it: the next command makes it again"
                ) from error
            publish(lake, thorough=True, anew=True)
            counts = _written(lake, folder, relations, form)
    except OSError as error:
        raise UsageError(f"FOLDER {folder} cannot be written ({error}); expected a folder with write permission, and room") from error
    rows = [(f"{name}.{form}", f"{count:,}") for name, count in counts.items()]
    print_table(f"Written to {folder}", ("file", "rows"), rows, right=("rows",))
    out.print(f"These are the current results. Run the command again for those of a later run: {folder} does not follow them.")
    print_damages(damages_listed(lake))
    print_next(
        ("sql leaderboard", "the same rows, without a file"),
        (f"export {folder} --relation scores_history", "the scores of all results that the lake keeps, with their times"),
    )


def _written(lake: Lake, folder: Path, relations: Sequence[str], form: FileFormat) -> dict[str, int]:
    """Write the files; the number of rows of each relation."""
    session = connect(lake)
    try:
        known = [name for (name,) in session.execute(_RELATIONS).fetchall()]
        if unknown := next((name for name in relations if name not in known), None):
            raise QueryError(f"there is no relation {unknown!r}{did_you_mean(unknown, known)}; there are: {', '.join(known)}")
        chosen = list(dict.fromkeys(relations)) or [name for name in known if not name.endswith(_HISTORY)]
        counts: dict[str, int] = {}
        with ExitStack() as files:  # at its end all files are moved into place, or none
            for name in chosen:
                file = folder / f"{name}.{form}"
                temporary = files.enter_context(replaced(file))
                query = f'select * from "{name}"'  # noqa: S608 - a known name
                interruptibly(session, partial(session.execute, query))
                counts[name] = write_into(session, temporary, file.suffix)
        return counts
    finally:
        session.close()
