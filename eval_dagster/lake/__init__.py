"""The lake: immutable Parquet files with checksums, the response cache, and the DuckDB catalog of all results."""

from eval_dagster.lake.attempts import Attempt
from eval_dagster.lake.catalog import executed, publish, refresh
from eval_dagster.lake.files import Configured, FileInfo, Lake, LakeFile, trial_lake
from eval_dagster.lake.responses import ResponseCache

__all__ = ["Attempt", "Configured", "FileInfo", "Lake", "LakeFile", "ResponseCache", "executed", "publish", "refresh", "trial_lake"]
