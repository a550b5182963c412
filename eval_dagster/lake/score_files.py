"""Which file holds the scores that metrics were computed from, where the one that they name was deleted and written again."""

import duckdb
import pyarrow as pa

from eval_dagster.lake.files import FileInfo
from eval_dagster.lake.index import Index, info_of

_MAPPING = pa.schema([pa.field("named", pa.string()), pa.field("found", pa.string())])


def follow_rewritten_scores(connection: duckdb.DuckDBPyConnection, index: Index) -> list[tuple[str, str]]:
    """Let `scores_file` of `_metrics_files` name a later file of the same version where the named one is gone.

    Returns eval and model of each changed row.
    """
    named = connection.execute(
        "select distinct named_scores_file from internal._metrics_files where named_scores_file is not null"
    ).fetchall()
    existing = set(index.column("select path from files where tab = 'scores'"))
    missing = [name for (name,) in named if name not in existing]
    mapping = {name: found for name in missing if (found := _rewritten(connection, index, name)) is not None}
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


def _rewritten(connection: duckdb.DuckDBPyConnection, index: Index, name: str) -> str | None:
    """The newest scores in the folder of a missing file, of the version that its metrics were computed from."""
    metrics = connection.execute("select distinct _file from internal._metrics_files where named_scores_file = $1", [name]).fetchall()
    infos = [info for (path,) in metrics if (info := _info(index, path)) is not None]
    versions = {info.inputs["sample_scores"] for info in infos if "sample_scores" in info.inputs}
    folder = name.rpartition("/")[0]
    files = index.column("select path from files where folder = ? and damage is null and not is_foreign order by path desc", folder)
    return next((path for path in files if (info := _info(index, path)) is not None and info.version in versions), None)


def _info(index: Index, path: str) -> FileInfo | None:
    found = index.column("select info from files where path = ?", path)
    return info_of(found[0]) if found and found[0] else None
