"""The relations of a catalog: first those over the lake's files, then those of `sql/`."""

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from eval_dagster.errors import QueryError
from eval_dagster.lake.file_system import url_of
from eval_dagster.lake.files import Lake, read_head, read_info
from eval_dagster.lake.schemas import SUITE_TABLES, TABLES

SQL_FOLDER = Path(__file__).resolve().parents[1] / "sql"
_LOST = pa.schema([pa.field("eval", pa.string()), pa.field("model", pa.string())])
_NAMES = pa.schema([pa.field("kind", pa.string()), pa.field("name", pa.string())])
_TABLE_OF = {
    "_metrics_files": "metrics",
    "_all_scores": "scores",
    "regressions_history": "regressions",
    "_attempts_files": "attempts",
    "_looks": "looks",
}
"""The table whose columns a relation has, where the names differ."""
NATIVE_TABLES = ("metrics", "attempts", "notices", "acceptances", "regressions", "looks")
"""Tables whose rows the catalog itself holds. The rows of the others are read from the lake by each query."""
FORMAT = 2
"""Version of the catalog's form. A catalog of another form is made again."""


def relation_files() -> dict[str, Path]:
    """The files of `sql/` by the name of the relation or macro that they define."""
    return {path.stem: path for path in sorted(SQL_FOLDER.glob("*.sql"))}


def configured_names(lake: Lake) -> list[tuple[str, str]]:
    """Names of evals and models, each with its kind."""
    known = lake.configured
    return [] if known is None else [*(("eval", name) for name in known.evals), *(("model", name) for name in known.models)]


def build(connection: duckdb.DuckDBPyConnection, lake: Lake, damages: dict[str, str]) -> None:
    """Create every relation in the database that is in use.

    `damages` has a message for each damaged file, by path. These files are left out. Files that are found to be missing are added.

    Raises:
        QueryError: A file of `sql/` does not fit the rest.
        duckdb.Error: A file is damaged that is not among `damages`.
    """
    for table in ("samples", "prompts", "responses"):
        newest = [files[-1] for files in lake.partitions(table)]
        # A partition whose newest file is damaged is left out, since an older file would be shown as the current state.
        _create(connection, table, "view", [file for file in newest if str(file) not in damages])
    metrics = list(lake.partitions("metrics"))
    _create(connection, "_metrics_files", "table", [file for files in metrics for file in files if str(file) not in damages])
    _follow_rewritten_scores(connection, lake, metrics, damages)
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
        f"from _metrics_files) m on replace(s.filename, 'file://', '') = '{quoted(lake.root)}/' || m.scores_file "
        "and split_part(s.metric, '/', 1) = m.metric and s.eval = m.eval and s.model = m.model"
    )
    _create_judgements(connection, lake, damages)
    for name, table in (("_attempts_files", "attempts"), ("notices", "notices"), ("acceptances", "acceptances")):
        files = [file for partition in lake.partitions(table) for file in partition if str(file) not in damages]
        _create(connection, name, "table", files)
    connection.execute("create or replace table attempts as select distinct * from _attempts_files order by finished_at, eval")
    names = pa.Table.from_pylist([{"kind": kind, "name": name} for kind, name in configured_names(lake)], schema=_NAMES)
    connection.register("configured_names", names)
    connection.execute("create or replace table _configured as select * from configured_names")
    connection.execute(f"create or replace table _catalog_format as select {FORMAT}::integer as version, '{quoted(lake.root)}' as lake")
    rows = pa.table({"path": pa.array(list(damages), pa.string()), "message": pa.array(list(damages.values()), pa.string())})
    connection.register("damages", rows)
    connection.execute("create or replace table damaged_files as select * from damages")
    _run_sql_folder(connection)


def _create(connection: duckdb.DuckDBPyConnection, name: str, kind: str, files: Sequence[Path], *, filename: bool = False) -> None:
    """Create a relation over files, also where there are none.

    The statement holds the quoted paths, because a view cannot hold bound values. A column that is newer than all files is null. With
    `filename` each row has the path of its file.
    """
    empty = TABLES[_TABLE_OF.get(name, name)].empty_table()
    connection.register("no_rows", empty.append_column("filename", pa.array([], pa.string())) if filename else empty)
    if not files:
        connection.execute(f"create or replace table {name} as select * from no_rows")
        return
    listed = ", ".join(f"'{quoted(url_of(file))}'" for file in files)
    source = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false, filename = {str(filename).lower()})"
    columns = ", ".join(f'null::{form} as "{column}"' for column, form, *_ in connection.execute("describe no_rows").fetchall())
    connection.execute(f"create or replace {kind} {name} as select {columns} where false union all by name select * from {source}")


def _follow_rewritten_scores(
    connection: duckdb.DuckDBPyConnection, lake: Lake, metrics: Sequence[Sequence[Path]], damages: dict[str, str]
) -> None:
    """Let metrics name the new file of scores where their scores were deleted and written again."""
    named = connection.execute("select distinct scores_file from _metrics_files").fetchall()
    missing = {name for (name,) in named if not (lake.root / name).exists()}
    if not missing:
        return
    for path in (file for files in metrics for file in files if str(file) not in damages):
        for row in read_head(path, 1, ["scores_file"]):
            if row["scores_file"] in missing:
                found = lake.scores_of(row["scores_file"], read_info(path).inputs.get("sample_scores"))
                values = [str(found.relative_to(lake.root)), row["scores_file"]]
                connection.execute("update _metrics_files set scores_file = $1 where scores_file = $2", values)


def _score_files(connection: duckdb.DuckDBPyConnection, lake: Lake, damages: dict[str, str]) -> tuple[list[Path], list[Path]]:
    """The score files that current metrics, and all metrics ever, were computed from."""
    statement = (
        "select distinct scores_file, scores_file in (select scores_file from _current_metrics) as current "
        "from _metrics_files order by scores_file"
    )
    found = connection.execute(statement).fetchall()
    files = [(lake.root / name, current) for name, current in found]
    for path, current in files:
        if not path.exists():
            cure = "materialize sample_scores and task_metrics of its partition again" if current else "scores_history lacks its rows"
            damages[str(path)] = f"the lake file {path} is missing; {cure}"
    kept = [(path, current) for path, current in files if str(path) not in damages]
    return [path for path, current in kept if current], list(dict.fromkeys(path for path, _ in kept))


def _create_judgements(connection: duckdb.DuckDBPyConnection, lake: Lake, damages: dict[str, str]) -> None:
    """Relations of the last judgement of each suite and of all judgements. A damaged last judgement is not replaced by an older one."""
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


def _run_sql_folder(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the relations of `sql/`. One that needs another is created after it."""
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


def quoted(path: Path | str) -> str:
    """A path or URL for a place between single quotes in SQL."""
    return str(path).replace("'", "''")
