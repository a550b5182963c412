"""Imports the packages of the extra `metrics`, which a few metrics need."""

from importlib import import_module
from typing import Any

from eval_dagster.errors import RequirementError


def extra_module(name: str, metric: str) -> Any:
    """Import a module of the extra.

    Args:
        name: The module, `sacrebleu` for instance.
        metric: The `NAME` of the metric that needs it.

    Raises:
        RequirementError: Its package is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        raise RequirementError(
            f"the metric {metric} needs the Python package of {name!r}, which cannot be imported ({problem}); install what such metrics "
            "need: pip install 'eval_dagster[metrics]'"
        ) from problem
