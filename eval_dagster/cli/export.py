"""The command `export`: the relations as files, one for each, that other tools read."""

from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path

import duckdb

from eval_dagster.cli.console import out, print_next, print_table
from eval_dagster.cli.sql import print_damages, queried_lake, read_again
from eval_dagster.cli.tables import require_outside, write_into
from eval_dagster.errors import LakeError, QueryError, UsageError
from eval_dagster.lake.catalog.catalog import connect, damages_listed
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.catalog.sessions import damage_in, interruptibly, plain
from eval_dagster.lake.files import Lake, catalog_path
from eval_dagster.stores.whole_files import replaced
from eval_dagster.texts.figures import did_you_mean

_HISTORY = "_history"
"""The end of the names of relations with all results that the lake keeps."""
_RELATIONS = "select table_name from information_schema.tables where not starts_with(table_name, '_') order by table_name"


class FileFormat(StrEnum):
    """The format of exported files."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


def export(folder: Path, relations: Sequence[str], form: FileFormat, *, trial: bool, url: str | None) -> None:
    """Write relations into a folder, each as one file, and print their names. All files are of one state of the results.

    By default, these are the relations of the current results. Those of all results, whose names end in `_history`, are written if they are
    named. Each file is replaced as a whole, and none before all are written.

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
    """Write the files; the number of rows of each relation. A damaged file is left out of the results, as by a query."""
    try:
        return _written_once(lake, folder, relations, form)
    except duckdb.Error as error:
        if damage_in(error) is None:
            raise LakeError(
                f"{catalog_path(lake)} cannot be exported ({plain(error)}); delete it: the next command makes it again"
            ) from error
    publish(lake, thorough=True, anew=True)
    return _written_once(lake, folder, relations, form)


def _written_once(lake: Lake, folder: Path, relations: Sequence[str], form: FileFormat) -> dict[str, int]:
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
