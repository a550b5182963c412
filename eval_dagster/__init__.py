"""LLM evaluation as a data pipeline.

The names of `__all__` are the Python API. All other names are private and may change with any release.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eval_dagster.wait_policy import IS_SPINNING_LIMITED

if TYPE_CHECKING:
    from eval_dagster.api.connection import connect
    from eval_dagster.api.evaluation import evaluate
    from eval_dagster.api.results import Results
    from eval_dagster.config.models import ModelSection
    from eval_dagster.errors import DataError, EvalDagsterError, ModelError, ModelNotFoundError, UsageError
    from eval_dagster.metrics.base import (
        BaseMetric,
        CompletionMetric,
        CorpusMetric,
        LoglikelihoodMetric,
        MetricResult,
        PerplexityMetric,
        RepeatedMetric,
    )
    from eval_dagster.metrics.completion import F1, AccuracyCompletion, ExactMatch, ExactNumber, NormalizedExactMatch, PrefixExactMatch
    from eval_dagster.metrics.explanations import explain
    from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
    from eval_dagster.models.base import Model, ModelBackend, ModelHandle
    from eval_dagster.models.usage import Usage
    from eval_dagster.records import (
        Completion,
        GenerationSettings,
        Loglikelihood,
        Message,
        MetricContext,
        ModelResponse,
        Request,
        ResponseType,
        Role,
        Row,
        TaskSample,
    )
    from eval_dagster.tasks.base import NO_SUBJECT, BaseTask
    from eval_dagster.tasks.doc import Doc, SamplingMethod
    from eval_dagster.tasks.doc_task import DocTask, doc_task
    from eval_dagster.tasks.idk import IDKMixin
    from eval_dagster.tasks.language import Language
    from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCCompletionStyle, MCStyle, TaskStyle
    from eval_dagster.versions import code_version, file_hash, package_versions, stable_hash

__all__ = [
    "F1",
    "IS_SPINNING_LIMITED",
    "NO_SUBJECT",
    "AccuracyCompletion",
    "AccuracyLoglikelihood",
    "AccuracyNormLoglikelihood",
    "BPBStyle",
    "BaseMetric",
    "BaseTask",
    "ClozeStyle",
    "Completion",
    "CompletionMetric",
    "CorpusMetric",
    "DataError",
    "Doc",
    "DocTask",
    "EvalDagsterError",
    "ExactMatch",
    "ExactNumber",
    "GenerationSettings",
    "IDKMixin",
    "Language",
    "Loglikelihood",
    "LoglikelihoodMetric",
    "MCCompletionStyle",
    "MCStyle",
    "Message",
    "MetricContext",
    "MetricResult",
    "Model",
    "ModelBackend",
    "ModelError",
    "ModelHandle",
    "ModelNotFoundError",
    "ModelResponse",
    "ModelSection",
    "NormalizedExactMatch",
    "PerplexityMetric",
    "PrefixExactMatch",
    "RepeatedMetric",
    "Request",
    "ResponseType",
    "Results",
    "Role",
    "Row",
    "SamplingMethod",
    "TaskSample",
    "TaskStyle",
    "Usage",
    "UsageError",
    "code_version",
    "connect",
    "doc_task",
    "evaluate",
    "explain",
    "file_hash",
    "package_versions",
    "stable_hash",
]

_PLACES = {
    "api.connection": "connect",
    "api.evaluation": "evaluate",
    "api.results": "Results",
    "config.models": "ModelSection",
    "errors": "DataError EvalDagsterError ModelError ModelNotFoundError UsageError",
    "metrics.base": "BaseMetric CompletionMetric CorpusMetric LoglikelihoodMetric MetricResult PerplexityMetric RepeatedMetric",
    "metrics.completion": "AccuracyCompletion ExactMatch ExactNumber F1 NormalizedExactMatch PrefixExactMatch",
    "metrics.explanations": "explain",
    "metrics.loglikelihood": "AccuracyLoglikelihood AccuracyNormLoglikelihood",
    "models.base": "Model ModelBackend ModelHandle",
    "models.usage": "Usage",
    "records": "Completion GenerationSettings Loglikelihood Message MetricContext ModelResponse Request ResponseType Role Row TaskSample",
    "tasks.base": "NO_SUBJECT BaseTask",
    "tasks.doc": "Doc SamplingMethod",
    "tasks.doc_task": "DocTask doc_task",
    "tasks.idk": "IDKMixin",
    "tasks.language": "Language",
    "tasks.style": "BPBStyle ClozeStyle MCCompletionStyle MCStyle TaskStyle",
    "versions": "code_version file_hash package_versions stable_hash",
}
"""Module -> the names of `__all__` that it defines. They are imported on first use, since pandas and DuckDB take a second."""
_MODULE_OF = {name: f"eval_dagster.{module}" for module, names in _PLACES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a name of the API on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    """The names of the API."""
    return sorted(__all__)
