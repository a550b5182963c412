"""The version of the code of each stage, which its asset and each of its materializations bear."""

from collections.abc import Mapping
from types import ModuleType

from eval_dagster.stages import metrics, outputs, prompts, scores, snapshot
from eval_dagster.versions import code_version

_CODE: Mapping[str, ModuleType] = {
    "dataset_snapshot": snapshot,
    "rendered_prompts": prompts,
    "model_outputs": outputs,
    "sample_scores": scores,
    "task_metrics": metrics,
}


def stage_code_version(stage: str) -> str:
    """The version of a stage's code. Where a materialization bears another one, Dagster calls the partition stale."""
    return code_version(_CODE[stage])
