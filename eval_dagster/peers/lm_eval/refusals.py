"""Which tasks of lm-eval are refused, before any of their code is imported."""

from collections.abc import Mapping
from typing import Any

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.lm_eval.generation import text_settings
from eval_dagster.peers.workers.fetched_code import FETCHED_CODE

_SANDBOXED = {"humaneval": "humaneval", "mbpp": "mbpp"}
"""Beginnings of the names of tasks that run code -> the task of this package that runs it in a sandbox."""


def require_supported(name: str, config: Mapping[str, Any]) -> None:
    """Check a configuration whose functions are names.

    Raises:
        TaskDefinitionError: The task runs code that a model wrote, asks about images or sound, scores with fetched code, or generates text
            in a way that eval_dagster does not support.
    """
    if config.get("unsafe_code"):
        native = next((task for beginning, task in _SANDBOXED.items() if name.startswith(beginning)), None)
        instead = f"; use `task: {native}`, which runs it in a sandbox" if native else ""
        raise TaskDefinitionError(f"lm_eval:{name} is refused: lm-eval runs code that the model wrote, in its own process{instead}")
    if "doc_to_image" in config or "doc_to_audio" in config:
        raise TaskDefinitionError(
            f"lm_eval:{name} asks about images or sound, which eval_dagster does not send to a model of lm-eval's tasks"
        )
    if config.get("output_type", "generate_until") != "generate_until" or "class" in config:
        return
    text_settings(name, config.get("generation_kwargs") or {})
    # lm-eval calls no metric if the answer is a choice, or if a function scores the row.
    if config.get("process_results") is None:
        _require_known_metrics(name, config)


def _require_known_metrics(name: str, config: Mapping[str, Any]) -> None:
    import lm_eval.api.metrics  # noqa: F401 - it fills the registry
    from lm_eval.api.registry import metric_registry

    for metric in config.get("metric_list") or ():
        given = metric.get("metric") if isinstance(metric, Mapping) else None
        is_fetched = isinstance(metric, Mapping) and metric.get("hf_evaluate")
        if is_fetched or (isinstance(given, str) and "/" not in given and given not in metric_registry):
            raise TaskDefinitionError(f"lm_eval:{name} scores by evaluate.load({given!r}), which is {FETCHED_CODE}")
