"""Frozen records that the stages pass on, with the names of eval-framework and lighteval."""

from eval_dagster.records.answers import (
    OUTPUT_CHECKS,
    PROMPT_CHECKS,
    Check,
    Completion,
    Finding,
    ItemScore,
    Loglikelihood,
    RepeatedScore,
    Score,
    Status,
)
from eval_dagster.records.requests import GenerationSettings, ModelResponse, Request, ServerReport, settings_fields
from eval_dagster.records.samples import DatasetSource, Grammar, Message, MetricContext, ResponseType, Role, Row, Sample, TaskSample

__all__ = [
    "OUTPUT_CHECKS",
    "PROMPT_CHECKS",
    "Check",
    "Completion",
    "DatasetSource",
    "Finding",
    "GenerationSettings",
    "Grammar",
    "ItemScore",
    "Loglikelihood",
    "Message",
    "MetricContext",
    "ModelResponse",
    "RepeatedScore",
    "Request",
    "ResponseType",
    "Role",
    "Row",
    "Sample",
    "Score",
    "ServerReport",
    "Status",
    "TaskSample",
    "settings_fields",
]
