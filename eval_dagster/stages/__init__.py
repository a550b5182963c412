"""The stages of an evaluation as plain functions: snapshot, prompts, outputs, scores and metrics."""

from eval_dagster.stages.partition import STAGES, Partition, StageFailure, StageResult, partition_key
from eval_dagster.stages.prompts import render_eval, rendering_of
from eval_dagster.stages.scores import headline

__all__ = ["STAGES", "Partition", "StageFailure", "StageResult", "headline", "partition_key", "render_eval", "rendering_of"]
