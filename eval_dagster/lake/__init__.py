"""The lake: immutable Parquet files with checksums, the response cache, and the DuckDB catalog of all results."""

from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.catalog.catalog import executed, refresh
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Configured, Lake, LakeFile, trial_lake
from eval_dagster.lake.format.parquet_files import FileInfo
from eval_dagster.lake.tables.events import Attempt

__all__ = ["Attempt", "Configured", "FileInfo", "Lake", "LakeFile", "ResponseCache", "executed", "publish", "refresh", "trial_lake"]
