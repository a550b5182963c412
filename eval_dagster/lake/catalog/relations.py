"""The relations of a catalog: first the relations over the lake's files, then those defined in `sql/`.

A relation over many files reads packs and the files that are not in a pack. Files with the same columns are read by one scan, so DuckDB
reads only the first footer before a query. The catalog itself holds the rows of small tables, with the file of each row. So a publication
replaces only the rows of changed files.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from eval_dagster.errors import QueryError
from eval_dagster.lake.catalog.aggregates import KIND, SCHEMA, aggregate_rows, current_results, definitions
from eval_dagster.lake.catalog.index import Index, Indexed, info_of
from eval_dagster.lake.catalog.packs import PACKED
from eval_dagster.lake.catalog.scanning import Changes
from eval_dagster.lake.catalog.sessions import quoted, quoted_list, url_of
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import FileInfo
from eval_dagster.lake.tables.schemas import EARLIER_REASONS, SUITE_TABLES, TABLES

_OF_AGGREGATES = "aggregate_regressions"
_MAPPING = pa.schema([pa.field("named", pa.string()), pa.field("found", pa.string())])
SQL_FOLDER = Path(__file__).resolve().parents[2] / "sql"
_NAMES = pa.schema([pa.field("kind", pa.string()), pa.field("name", pa.string())])
_PAIRS = pa.schema([pa.field("eval", pa.string()), pa.field("model", pa.string())])
NATIVE_TABLES = (
    *("metrics", "attempts", "notices", "acceptances", "human_labels", "endpoint_states", "checkpoints", "night_plans", "history_looks"),
)
"""Tables whose rows from all files are in the catalog itself, in `internal._<table>_files`."""
FORMAT = 18
"""Version of the catalog's form. A catalog of another version is made again."""
_JUDGED = """
    with stored as ({rows}),
    named as (
        select * replace (case {earlier} else verdict end as verdict) from stored
    )
    select * replace (coalesce(outcome, case
        when bool_or(verdict in ('regressed', 'errors')) over judgement then 'regressed'
        when bool_or(verdict in ('not comparable', 'not evaluated')) over judgement then 'incomplete'
        when bool_or(verdict in ('improved', 'no change seen')) over judgement then 'passed'
        else 'first results' end) as outcome)
    from named window judgement as (partition by suite, judged_at)
"""
"""Reads judgements. Earlier ones have no outcome, and one verdict for everything that was not compared."""
_EARLIER = " ".join(
    f"when outcome is null and verdict = 'not comparable' and starts_with(reason, '{each}') then '{verdict}'"
    for verdict, begins in EARLIER_REASONS.items()
    for each in begins
)
_CURRENT = "select * from internal._metrics_files {where} qualify materialized_at = max(materialized_at) over (partition by eval, model)"


def follow_rewritten_scores(connection: duckdb.DuckDBPyConnection, index: Index) -> list[tuple[str, str]]:
    """If a file named in `_metrics_files.scores_file` is gone, name a later file of the same version.

    Returns eval and model of each changed row.
    """
    named = connection.execute(
        "select distinct named_scores_file from internal._metrics_files where named_scores_file is not null"
    ).fetchall()
    existing = set(index.column("select path from files where tab = 'scores'"))
    missing = [name for (name,) in named if name not in existing]
    mapping: dict[str, str] = {}
    for name in missing:
        # The newest scores in the folder of the missing file that have a version from which its metrics were computed.
        metrics = connection.execute("select distinct _file from internal._metrics_files where named_scores_file = $1", [name]).fetchall()
        infos = [_info(index, path) for (path,) in metrics]
        versions = {info.inputs["sample_scores"] for info in infos if info is not None and "sample_scores" in info.inputs}
        query = "select path from files where folder = ? and damage is null and not is_foreign order by path desc"
        for path in index.column(query, name.rpartition("/")[0]):
            info = _info(index, path)
            if info is not None and info.version in versions:
                mapping[name] = path
                break
    rows = pa.table(
        {"named": pa.array(list(mapping), pa.string()), "found": pa.array(list(mapping.values()), pa.string())}, schema=_MAPPING
    )
    connection.register("rewritten_scores", rows)
    moved = connection.execute(
        "select f.eval, f.model, f._file, coalesce(r.found, f.named_scores_file) as scores_file from internal._metrics_files f "
        "left join rewritten_scores r on r.named = f.named_scores_file "
        "where f.scores_file is distinct from coalesce(r.found, f.named_scores_file)"
    ).fetchall()
    for _, _, file, scores_file in moved:
        connection.execute("update internal._metrics_files set scores_file = $1 where _file = $2", [scores_file, file])
    return [(eval_name, model) for eval_name, model, _, _ in moved]


def _info(index: Index, path: str) -> FileInfo | None:
    found = index.column("select info from files where path = ?", path)
    return info_of(found[0]) if found and found[0] else None


def relation_files() -> dict[str, Path]:
    """The files of `sql/` by the name of the relation or macro that they define."""
    return {path.stem: path for path in sorted(SQL_FOLDER.glob("*.sql"))}


def configured_names(lake: Lake) -> list[tuple[str, str]]:
    """Names of evals and models, each with its kind, and the definitions of aggregates as one more."""
    known = lake.configured
    if known is None:
        return []
    defined = definitions(known)
    names = [*(("eval", name) for name in known.evals), *(("model", name) for name in known.models)]
    return [*names, (KIND, defined)] if defined is not None else names


def build(connection: duckdb.DuckDBPyConnection, lake: Lake, index: Index, changes: Changes | None = None) -> None:
    """Create all relations in the current database. With `changes`, update a database that was complete before them.

    Raises:
        QueryError: A file of `sql/` does not fit the rest.
        duckdb.Error: A file is damaged, unknown to the index.
    """
    _Catalog(connection, lake, index, changes).build()


class _Catalog:
    """A catalog under construction or change."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, lake: Lake, index: Index, changes: Changes | None) -> None:
        self._connection = connection
        self._lake = lake
        self._index = index
        self._changes = changes

    def build(self) -> None:
        # For relations that only other relations read, so that `show tables` lists only those for people.
        self._connection.execute("create schema if not exists internal")
        for table in PACKED:
            if self._is_touched(table):
                self._register("hidden", pa.table({"_source": pa.array(self._index.hidden(table), pa.string())}))
                self._connection.execute(f"create or replace table internal._hidden_{table} as select * from hidden")
        for table in NATIVE_TABLES:
            if self._is_touched(table):
                self._update(table)
        for table in ("samples", "prompts", "responses", "confirmations"):
            if self._is_touched(table):
                self._create("view", table, table, self._parts(table, self._index.loose(table)))
        if self._is_touched("metrics", "scores"):
            self._create_metrics()
            self._create_scores()
        if self._is_touched(*SUITE_TABLES):
            self._create_judgements()
        if self._is_touched("attempts"):
            self._derive("attempts", "distinct * exclude (_file)", "order by finished_at, eval")
        if self._is_touched("endpoint_states"):
            self._derive("endpoint_states", "distinct * exclude (_file)", "order by looked_at, model")
        if self._is_touched("night_plans"):
            self._derive("night_plans", "distinct * exclude (_file)", "order by planned_at, eval, model")
        if self._is_touched("history_looks"):
            self._derive("history_looks", "distinct * exclude (_file, predictions, chances)", "order by chosen_at, eval, model")
        if self._is_touched("checkpoints"):
            newest = "qualify row_number() over (partition by model order by evaluated_at desc nulls last, seen_at) = 1"
            columns = "* exclude (_file) replace (min(seen_at) over (partition by model) as seen_at)"
            self._derive("checkpoints", columns, f"{newest} order by family, step")
        self._create_aggregates()
        names = pa.Table.from_pylist([{"kind": kind, "name": name} for kind, name in configured_names(self._lake)], schema=_NAMES)
        self._register("configured_names", names)
        self._connection.execute("create or replace table internal._configured as select * from configured_names")
        root = quoted(self._lake.root)
        self._connection.execute(
            f"create or replace table internal._catalog_format as select {FORMAT}::integer as version, '{root}' as lake"
        )
        damages = damages_of(self._lake, self._index)
        rows = pa.table({"path": pa.array(list(damages), pa.string()), "message": pa.array(list(damages.values()), pa.string())})
        self._register("damages", rows)
        self._connection.execute("create or replace table damaged_files as select * from damages")
        if self._changes is None:
            for table in ("acceptances", "human_labels"):
                self._connection.execute(f"create or replace view {table} as select * exclude (_file) from internal._{table}_files")
            # The last outcome of a notice counts; earlier versions gave no ids.
            self._connection.execute(
                "create or replace view notices as select * exclude (_file, reached) from internal._notices_files "
                "qualify row_number() over (partition by coalesce(notice_id, _file), variable order by _file desc) = 1"
            )
            _run_sql_folder(self._connection)

    def _is_touched(self, *tables: str) -> bool:
        return self._changes is None or not self._changes.tables.isdisjoint(tables)

    def _register(self, name: str, rows: pa.Table) -> None:
        self._connection.register(name, rows)

    def _derive(self, table: str, columns: str, order: str) -> None:
        self._connection.execute(f"create or replace table {table} as select {columns} from internal._{table}_files {order}")

    def _update(self, table: str) -> None:
        """Make a native table, or replace the rows of changed files in it."""
        name = f"internal._{table}_files"
        if self._changes is None:
            self._create("table", name, table, self._parts(table, self._index.loose(table), source="_file"), source="_file")
            if table == "metrics":
                self._connection.execute(f"alter table {name} add column named_scores_file varchar")
        else:
            changed = sorted(self._changes.gone[table] | self._changes.new[table])
            self._register("changed", pa.table({"path": pa.array(changed, pa.string())}))
            self._connection.execute(f"delete from {name} where _file in (select path from changed)")
            for part in _scans(self._lake.root, self._index.of_paths(sorted(self._changes.new[table])), source="_file"):
                self._connection.execute(f"insert into {name} by name {part}")
        if table == "metrics":
            self._connection.execute(f"update {name} set named_scores_file = scores_file where named_scores_file is null")
        elif table == "history_looks":  # a number for each sample of an eval: the lake alone has them
            self._connection.execute(f"update {name} set predictions = null, chances = null where chances is not null")

    def _create_metrics(self) -> None:
        """Create the relations of the current metrics and of all metrics. Partitions with a damaged newest file have no current metrics."""
        moved = follow_rewritten_scores(self._connection, self._index)
        lost = [_partition_of(path) for path, _, damage in self._index.newest("metrics") if damage is not None]
        self._register("lost_rows", _pairs(lost))
        if self._changes is None:
            self._connection.execute(
                "create or replace table internal._current_metrics as " + _CURRENT.format(where="anti join lost_rows using (eval, model)")
            )
            columns = "* exclude (_file, scores_file, named_scores_file, findings, variants)"
            self._connection.execute(f"create or replace view metrics as select {columns} from internal._current_metrics")
            self._connection.execute(f"create or replace view metrics_history as select {columns} from internal._metrics_files")
            return
        touched = {*moved, *map(_partition_of, self._changes.gone["metrics"] | self._changes.new["metrics"])}
        self._register("touched", _pairs(sorted(touched)))
        self._connection.execute("delete from internal._current_metrics where (eval, model) in (select (eval, model) from touched)")
        where = "semi join touched using (eval, model) anti join lost_rows using (eval, model)"
        self._connection.execute("insert into internal._current_metrics by name " + _CURRENT.format(where=where))

    def _create_aggregates(self) -> None:
        """Create the rows of models whose metrics changed, or of all if evals.yaml has other aggregates."""
        known, touched = self._lake.configured, None
        if self._changes is not None:
            before = self._connection.execute("select name from internal._configured where kind = $1", [KIND]).fetchone()
            if (before[0] if before else None) == definitions(known):
                touched = (
                    {model for (model,) in self._connection.execute("select model from touched").fetchall()}
                    if self._is_touched("metrics", "scores")
                    else set()
                )
        if touched is None:
            self._register("no_aggregates", SCHEMA.empty_table())
            self._connection.execute("create or replace table aggregates as select * from no_aggregates")
        aggregates = known.aggregates if known is not None else ()
        models = {model for each in aggregates for model in each.models if touched is None or model in touched}
        if not models:
            return
        loose = self._index.loose("scores")
        for model in sorted(models):  # one after the other, since all scores of all models take much memory
            results = current_results(self._connection, aggregates, model)
            files = {each.scores_file for each in results.values() if each.scores_file is not None}
            self._register("files_behind", pa.table({"_source": pa.array(sorted(files), pa.string())}))
            scores = self._parts("scores", [each for each in loose if each.path in files], files="semi join files_behind using (_source)")
            self._create("temporary view", "aggregated_scores", "scores", scores)
            self._register("new_aggregates", aggregate_rows(self._connection, aggregates, model, results))
            self._connection.execute("delete from aggregates where model = $1", [model])
            self._connection.execute("insert into aggregates by name select * from new_aggregates")

    def _create_scores(self) -> None:
        """Create the relations of the scores behind the current metrics, and behind all metrics ever."""
        self._connection.execute(
            "create or replace table internal._score_files as select scores_file, "
            "coalesce(scores_file in (select scores_file from internal._current_metrics), false) as is_current "
            "from (select distinct scores_file from internal._metrics_files where scores_file is not null) order by scores_file"
        )
        named: dict[str, bool] = dict(self._connection.execute("select * from internal._score_files").fetchall())
        loose = [each for each in self._index.loose("scores") if each.path in named]
        existing = set(self._index.column("select path from files where tab = 'scores'"))
        self._index["missing_scores"] = {name: is_current for name, is_current in named.items() if name not in existing}
        for name, chosen, source, where in (
            ("scores", [each for each in loose if named[each.path]], None, "where is_current"),
            ("internal._all_scores", loose, "scores_file", ""),
        ):
            files = f"semi join (select scores_file as _source from internal._score_files {where}) using (_source)"
            self._create("view", name, "scores", self._parts("scores", chosen, source=source, files=files), source=source)
        self._connection.execute(
            "create or replace view scores_history as select s.* exclude (scores_file), m.materialized_at, m.metric_version "
            "from internal._all_scores s join (select distinct scores_file, materialized_at, split_part(metric, '/', 1) as metric, "
            "metric_version, eval, model from internal._metrics_files) m on s.scores_file = m.scores_file "
            "and split_part(s.metric, '/', 1) = m.metric and s.eval = m.eval and s.model = m.model"
        )

    def _create_judgements(self) -> None:
        """Create the relations of each suite's last judgement and of all judgements. An older one does not replace a damaged last one."""
        missing: list[str] = []
        sound = [path.partition("/")[2] for path, _, damage in self._index.newest("regressions") if damage is None]
        for table in SUITE_TABLES:
            paths = [f"{table}/{rest}" for rest in sound if table != _OF_AGGREGATES or self._has_aggregates(f"regressions/{rest}")]
            known = self._index.of_paths(paths)
            missing += sorted(set(paths) - self._index.existing(paths))
            name = {"looks": "internal._looks"}.get(table, table)
            self._create("view" if table == "sample_changes" else "table", name, table, _scans(self._lake.root, known))
        self._index["missing_judgements"] = missing
        self._create("view", "regressions_history", "regressions", self._parts("regressions", self._index.loose("regressions")))
        self._create("view", f"{_OF_AGGREGATES}_history", _OF_AGGREGATES, self._parts(_OF_AGGREGATES, self._index.loose(_OF_AGGREGATES)))
        self._connection.execute(
            "create or replace table change_points as select * exclude (is_change_point) from internal._looks where is_change_point"
        )

    def _has_aggregates(self, path: str) -> bool:
        """Whether a judgement judged aggregates: only then has it a file of them."""
        info = _info(self._index, path)
        return info is not None and "aggregates" in info.inputs

    def _parts(self, table: str, loose: Sequence[Indexed], *, source: str | None = None, files: str = "") -> list[str]:
        """Queries of all rows that a relation shows. `source` names a column for a row's file, and `files` joins the chosen files."""
        renamed = f", _source as {source}" if source else ""
        parts = []
        for paths in _by_columns((each.columns, each.path) for each in self._index.packs(table)).values():
            scan = f"read_parquet({_urls(self._lake.root, paths)}, hive_partitioning = false)"
            parts.append(f"select * exclude (_source){renamed} from {scan} {files} anti join internal._hidden_{table} using (_source)")
        return [*parts, *_scans(self._lake.root, loose, source=source)]

    def _create(self, kind: str, name: str, table: str, parts: Sequence[str], *, source: str | None = None) -> None:
        """Create a relation from queries. It has all columns of the table, including those that no file has yet."""
        empty = TABLES[table].empty_table()
        self._register("no_rows", empty.append_column(source, pa.array([], pa.string())) if source else empty)
        forms = self._connection.execute("describe no_rows").fetchall()
        columns = ", ".join(f'null::{form} as "{column}"' for column, form, *_ in forms)
        rows = " union all by name ".join([f"select {columns} where false", *parts])
        query = _JUDGED.format(rows=rows, earlier=_EARLIER) if table == "regressions" else rows
        self._connection.execute(f"create or replace {kind} {name} as {query}")


def damages_of(lake: Lake, index: Index) -> dict[str, str]:
    """A message for each damaged file, and for each missing file named by others, by path."""
    found = {str(lake.root / path): message for path, message in index.damages().items()}
    for name, is_current in (index["missing_scores"] or {}).items():
        cure = "materialize sample_scores and task_metrics of its partition again" if is_current else "scores_history lacks its rows"
        found[str(lake.root / name)] = f"the lake file {lake.root / name} is missing; {cure}"
    for name in index["missing_judgements"] or []:
        found[str(lake.root / name)] = f"the lake file {lake.root / name} is missing; judge its suite again"
    return found


def _scans(root: Path, files: Sequence[Indexed], *, source: str | None = None) -> list[str]:
    """Queries of the rows of files, one for all files with the same columns."""
    folder, parts = f"'{quoted(root)}/'", []
    for paths in _by_columns((each.columns, each.path) for each in files).values():
        scan = f"read_parquet({_urls(root, paths)}, hive_partitioning = false, filename = {str(source is not None).lower()})"
        # The name of a file may begin with a scheme, as in held sessions.
        path = f"substring(filename, position({folder} in filename) + length({folder}))"
        renamed = f"exclude (filename), {path} as {source}" if source else ""
        parts.append(f"select * {renamed} from {scan}")
    return parts


def _by_columns(files: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for columns, path in files:
        groups.setdefault(columns, []).append(path)
    return groups


def _urls(root: Path, paths: Iterable[str]) -> str:
    return quoted_list(url_of(root / path) for path in paths)


def _pairs(pairs: Sequence[tuple[str, str]]) -> pa.Table:
    return pa.table({"eval": [name for name, _ in pairs], "model": [model for _, model in pairs]}, schema=_PAIRS)


def _partition_of(path: str) -> tuple[str, str]:
    """Eval and model of a file, from its folders."""
    folders = dict(part.split("=", 1) for part in path.split("/")[1:-1] if "=" in part)
    return folders.get("eval", ""), folders.get("model", "")


def _run_sql_folder(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the relations of `sql/`, each after the relations that it needs."""
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
