"""A DuckDB connection that can only read the results of a home."""

from pathlib import Path

import duckdb

from eval_dagster.lake.catalog import catalog
from eval_dagster.lake.files import Lake
from eval_dagster.project import Project, default_config_path, default_home


def connect(home: Path | str | Project | None = None) -> duckdb.DuckDBPyConnection:
    """Open the results: the relations that `eval-dagster sql` queries.

    The connection can only read the results of the home, so that it is safe for statements of other people: no statement writes a file,
    reads another one, loads an extension, opens a network connection or changes a setting. Tables that a statement creates are temporary.
    A damaged file of the lake raises `duckdb.Error`, whose message names the file.

    Args:
        home: The folder of the results, or an open project; by default `EVAL_DAGSTER_HOME`, or `.eval_dagster` beside
            evals.yaml (`EVAL_DAGSTER_CONFIG`, or in the current folder).

    Raises:
        QueryError: Nothing has been evaluated there yet, or the catalog cannot be read.
    """
    if isinstance(home, Project):
        catalog.refresh(home.lake)
        return catalog.connect(home.lake)
    folder = Path(home) if home is not None else default_home(default_config_path())
    return catalog.connect(Lake(folder.resolve()))
