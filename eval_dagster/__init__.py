"""LLM evaluation as a data pipeline."""

from eval_dagster.wait_policy import limit_spinning

IS_SPINNING_LIMITED = limit_spinning()
"""Whether torch's OpenMP threads wait without long spinning in this process: false where torch was imported before this package."""
