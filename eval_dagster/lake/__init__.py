"""The lake: immutable Parquet files with checksums, the response cache, and the DuckDB catalog of all results."""
