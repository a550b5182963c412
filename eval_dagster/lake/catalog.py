"""`evals.duckdb`: the face of the lake that users open.

Built beside under a lock, then moved into place. Files of the lake never change, so a session sees one consistent state, the one it
opened, and blocks nobody. Scores and metrics are published together: both belong to the same materializations.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from eval_dagster.errors import QueryError
from eval_dagster.lake import schemas
from eval_dagster.lake.archives import archive
from eval_dagster.lake.files import Lake, damage_of
from eval_dagster.lake.schemas import SUITE_TABLES, TABLES
from eval_dagster.versions import file_stamp, module_version, stable_hash

SQL_FOLDER = Path(__file__).resolve().parents[2] / "sql"
_LOST = pa.schema([pa.field("eval", pa.string()), pa.field("model", pa.string())])
_NAMES = pa.schema([pa.field("kind", pa.string()), pa.field("name", pa.string())])
_TABLE_OF = {
    "_metrics_files": "metrics",
    "_all_scores": "scores",
    "regressions_history": "regressions",
    "_attempts_files": "attempts",
    "_looks": "looks",
}
"""Which table a relation has the columns of, where the names differ."""
_STORAGE_VERSION = "v1.2.0"
"""The oldest command line that may open the file: a 1.x one refuses what DuckDB 2 writes by default."""


def catalog_path(lake: Lake) -> Path:
    """Where users find the catalog."""
    return lake.home / "evals.duckdb"


def publish(lake: Lake) -> list[str]:
    """Make the catalog anew from the files that are current, and move it into place, unless today's was made of just these.

    Returns:
        A message for each damaged file; damaged files are left out, and listed in the relation `damaged_files`.
    """
    with lake.lock("catalog"):
        return publish_locked(lake, archiving=not lake.is_trial)


def publish_locked(lake: Lake, *, archiving: bool = True) -> list[str]:
    """Do what `publish` does, for a caller that holds the lock `catalog`.

    Args:
        lake: What it is made of.
        archiving: Whether the last state of a past day is kept.
    """
    path = catalog_path(lake)
    path.parent.mkdir(parents=True, exist_ok=True)
    sources = _sources(lake)
    if _is_made_of(path, sources):
        return []
    building = path.with_name(".evals.duckdb.building")
    building.unlink(missing_ok=True)
    damages: dict[str, str] = {}
    with duckdb.connect() as connection:
        connection.execute(f"attach '{_quoted(building)}' as evals (storage_version '{_STORAGE_VERSION}')")
        connection.execute("use evals")
        while True:
            try:
                _build(connection, lake, damages)
                break
            except duckdb.Error:
                found = _damages(lake, known=damages)
                if not found:
                    raise
                damages |= found
        connection.execute("use memory")
        connection.execute("detach evals")
    if archiving:
        archive(path)
    # Nobody is to write to what the next publication replaces; and a log of changes that somebody wrote all the same
    # would be replayed onto the new file, with which it has nothing to do.
    building.chmod(0o444)
    _log_of_changes(path).unlink(missing_ok=True)
    building.replace(path)
    _log_of_changes(path).unlink(missing_ok=True)
    if not damages:  # which are to be said each time
        _note(path).write_text(json.dumps([sources, file_stamp(path)]), "utf-8")
    return list(damages.values())


def connect(lake: Lake) -> duckdb.DuckDBPyConnection:
    """Open the catalog for reading.

    Raises:
        QueryError: Nothing has been evaluated yet, or somebody has the catalog open for writing.
    """
    path = catalog_path(lake)
    if not path.exists():
        raise QueryError(f"there is nothing to query yet: {path} does not exist; run `eval-dagster run` first")
    try:
        return duckdb.connect(str(path), read_only=True)
    except duckdb.Error as error:
        raise QueryError(
            f"{path} cannot be opened for reading ({str(error).splitlines()[0]}); if another session has it open for writing, close "
            "that one and open the file read-only (`duckdb -readonly`); nothing in it needs writing, it is made from the lake"
        ) from error


def refresh(lake: Lake) -> None:
    """Publish anew where evals.yaml has other evals or models than when the catalog was made; nothing where there is no catalog."""
    if not catalog_path(lake).exists():
        return
    with connect(lake) as catalog:
        try:
            known = catalog.execute("select kind, name from _configured").fetchall()
        except duckdb.CatalogException:  # a catalog of an earlier version
            known = None
    if known != _configured(lake):
        publish(lake)


def read_rows(lake: Lake, query: str) -> list[dict[str, Any]]:
    """The rows of a query on the catalog, by column name.

    Raises:
        QueryError: Nothing has been evaluated yet.
    """
    with connect(lake) as catalog:
        return rows_of(catalog.execute(query))


def rows_of(result: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """All rows of an executed query, by column name."""
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def relation_files() -> dict[str, Path]:
    """The files of `sql/` by the name of the relation or question they define."""
    return {path.stem: path for path in sorted(SQL_FOLDER.glob("*.sql"))}


def _sources(lake: Lake) -> str:
    """Hash of all that a catalog is made of."""
    stamps: list[Any] = []
    for path in (path for table in TABLES for partition in lake.partitions(table) for path in partition):
        with suppress(FileNotFoundError):  # gone since it was listed
            stamps.append([str(path), file_stamp(path)])
    questions = {name: path.read_text("utf-8") for name, path in relation_files().items()}
    return stable_hash([stamps, questions, _configured(lake), module_version(schemas, sys.modules[__name__]), duckdb.__version__])


def _configured(lake: Lake) -> list[tuple[str, str]]:
    """Names of evals and models, each with its kind."""
    known = lake.configured
    return [] if known is None else [*(("eval", name) for name in known.evals), *(("model", name) for name in known.models)]


def _is_made_of(path: Path, sources: str) -> bool:
    """Whether the catalog was made of these sources today, and nobody wrote to it since."""
    if _log_of_changes(path).exists():
        return False
    with suppress(OSError, ValueError):
        is_of_today = datetime.fromtimestamp(path.stat().st_mtime, UTC).date() == datetime.now(UTC).date()
        return is_of_today and json.loads(_note(path).read_text("utf-8")) == [sources, file_stamp(path)]
    return False


def _note(path: Path) -> Path:
    """Where it stands what the catalog was made of."""
    return path.with_name(f".{path.name}.sources")


def _build(connection: duckdb.DuckDBPyConnection, lake: Lake, damages: dict[str, str]) -> None:
    for table in ("samples", "prompts", "responses"):
        newest = [files[-1] for files in lake.partitions(table)]
        # A partition whose newest file is damaged is left out: an older one would pass for the current state.
        _create(connection, table, "view", [file for file in newest if str(file) not in damages])
    metrics = list(lake.partitions("metrics"))
    _create(connection, "_metrics_files", "table", [file for files in metrics for file in files if str(file) not in damages])
    connection.execute("update _metrics_files set aggregation = 'micro' where aggregation is null")  # before there were others
    lost = [_partition_of(files[-1]) for files in metrics if str(files[-1]) in damages]
    connection.register("lost_rows", pa.table({"eval": [name for name, _ in lost], "model": [model for _, model in lost]}, schema=_LOST))
    connection.execute("create or replace table metrics_history as select * exclude (scores_file) from _metrics_files")
    connection.execute(
        "create or replace table _current_metrics as select * from _metrics_files anti join lost_rows using (eval, model) "
        "qualify materialized_at = max(materialized_at) over (partition by eval, model)"
    )
    connection.execute("create or replace table metrics as select * exclude (scores_file) from _current_metrics")
    current, history = _score_files(connection, lake, damages)
    _create(connection, "scores", "view", current)
    _create(connection, "_all_scores", "view", history, filename=True)
    connection.execute(
        "create or replace view scores_history as select s.* exclude (filename), m.materialized_at, m.metric_version from _all_scores s "
        "join (select distinct scores_file, materialized_at, split_part(metric, '/', 1) as metric, metric_version, eval, model "
        f"from _metrics_files) m on s.filename = '{_quoted(lake.root)}/' || m.scores_file "
        "and split_part(s.metric, '/', 1) = m.metric and s.eval = m.eval and s.model = m.model"
    )
    _create_judgements(connection, lake, damages)
    attempts = [file for files in lake.partitions("attempts") for file in files if str(file) not in damages]
    _create(connection, "_attempts_files", "table", attempts)
    connection.execute("create or replace table attempts as select distinct * from _attempts_files order by finished_at, eval")
    notices = [file for files in lake.partitions("notices") for file in files if str(file) not in damages]
    _create(connection, "notices", "table", notices)
    names = pa.Table.from_pylist([{"kind": kind, "name": name} for kind, name in _configured(lake)], schema=_NAMES)
    connection.register("configured_names", names)
    connection.execute("create or replace table _configured as select * from configured_names")
    rows = pa.table({"path": pa.array(list(damages), pa.string()), "message": pa.array(list(damages.values()), pa.string())})
    connection.register("damages", rows)
    connection.execute("create or replace table damaged_files as select * from damages")
    _run_sql_folder(connection)


def _create(connection: duckdb.DuckDBPyConnection, name: str, kind: str, files: Sequence[Path], *, filename: bool = False) -> None:
    """Create a relation over files. Paths stand in the statement because a view cannot hold bound values; they are quoted.

    Columns that none of the files has, since all are from before it was introduced, are there and null.
    """
    schema = TABLES[_TABLE_OF.get(name, name)]
    empty = schema.empty_table()
    if filename:
        empty = empty.append_column("filename", pa.array([], pa.string()))
    connection.register("no_rows", empty)
    if not files:
        connection.execute(f"create or replace table {name} as select * from no_rows")
        return
    listed = ", ".join(f"'{_quoted(file)}'" for file in files)
    source = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false, filename = {str(filename).lower()})"
    columns = ", ".join(f'null::{form} as "{column}"' for column, form, *_ in connection.execute("describe no_rows").fetchall())
    connection.execute(f"create or replace {kind} {name} as select {columns} where false union all by name select * from {source}")


def _score_files(connection: duckdb.DuckDBPyConnection, lake: Lake, damages: dict[str, str]) -> tuple[list[Path], list[Path]]:
    """The score files that current metrics, and all metrics ever, were computed from."""
    statement = (
        "select distinct scores_file, scores_file in (select scores_file from _current_metrics) as current "
        "from _metrics_files order by scores_file"
    )
    found = connection.execute(statement).fetchall()
    files = [(lake.root / name, current) for name, current in found]
    for path, _ in files:
        if not path.exists():
            damages[str(path)] = f"the lake file {path} is missing; materialize sample_scores and task_metrics of its partition again"
    kept = [(path, current) for path, current in files if str(path) not in damages]
    return [path for path, current in kept if current], list(dict.fromkeys(path for path, _ in kept))


def _create_judgements(connection: duckdb.DuckDBPyConnection, lake: Lake, damages: dict[str, str]) -> None:
    """The last judgement of each suite, and all ever made. Where the last is damaged, no older one passes for it."""
    suites = list(lake.partitions("regressions"))
    for table in SUITE_TABLES:
        current = [lake.root / table / files[-1].parent.name / files[-1].name for files in suites if str(files[-1]) not in damages]
        for path in current:
            if not path.exists():
                damages[str(path)] = f"the lake file {path} is missing; judge its suite again"
        name = {"looks": "_looks"}.get(table, table)
        _create(connection, name, "view" if table == "sample_changes" else "table", [path for path in current if str(path) not in damages])
    every = [path for files in suites for path in files if str(path) not in damages]
    _create(connection, "regressions_history", "view", every)
    connection.execute("create or replace table change_points as select * exclude (is_change_point) from _looks where is_change_point")


def _partition_of(path: Path) -> tuple[str, str]:
    """Eval and model of a file, from its folders."""
    return path.parent.parent.name.removeprefix("eval="), path.parent.name.removeprefix("model=")


def _log_of_changes(path: Path) -> Path:
    return path.with_name(f"{path.name}.wal")


def _damages(lake: Lake, known: dict[str, str]) -> dict[str, str]:
    files = [path for table in TABLES for partition in lake.partitions(table) for path in partition]
    return {str(path): damage for path in files if str(path) not in known and (damage := damage_of(path))}


def _run_sql_folder(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the relations of `sql/`; one that needs another waits for it."""
    waiting = {name: path.read_text("utf-8").strip().rstrip(";") for name, path in relation_files().items()}
    while waiting:
        failed: dict[str, str] = {}
        last: duckdb.Error | None = None
        for name, text in waiting.items():
            macro = "create macro" in text
            statement = text.replace("create macro", "create or replace macro", 1) if macro else f"create or replace view {name} as {text}"
            try:
                connection.execute(statement)
            except duckdb.CatalogException as error:
                failed[name], last = text, error
        if last is not None and len(failed) == len(waiting):
            raise QueryError(f"sql/{next(iter(failed))}.sql does not fit the catalog: {last}")
        waiting = failed


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
