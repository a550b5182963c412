"""LLM evaluation as a data pipeline."""

from typing import TYPE_CHECKING, Any

from eval_dagster.wait_policy import IS_SPINNING_LIMITED

if TYPE_CHECKING:
    from eval_dagster.results import connect

__all__ = ["IS_SPINNING_LIMITED", "connect"]


def __getattr__(name: str) -> Any:
    """Import `connect` when it is asked for: DuckDB and Arrow take time that most parts of the package need not wait for."""
    if name == "connect":
        from eval_dagster.results import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
