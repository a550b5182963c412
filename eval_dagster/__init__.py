"""LLM evaluation as a data pipeline.

The names of `__all__` are the Python API. All other names are private and may change with any release.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eval_dagster.wait_policy import IS_SPINNING_LIMITED

if TYPE_CHECKING:
    from eval_dagster.api.evaluation import evaluate
    from eval_dagster.api.results import Results, connect
    from eval_dagster.assets.component import EvalsComponent
    from eval_dagster.config.models import ModelSection
    from eval_dagster.episodes.sandbox_folder import SandboxFolder
    from eval_dagster.errors import DataError, EvalDagsterError, ModelError, ModelNotFoundError, UsageError
    from eval_dagster.metrics.base import (
        BaseMetric,
        CompletionMetric,
        CorpusMetric,
        LoglikelihoodMetric,
        MetricResult,
        PerplexityMetric,
        RepeatedMetric,
        RowMetric,
    )
    from eval_dagster.metrics.code_execution import CodeExecutionPassAtOne
    from eval_dagster.metrics.completion import (
        F1,
        AccuracyCompletion,
        ChoiceLetter,
        DropExactMatch,
        DropF1,
        ExactMatch,
        ExactNumber,
        NormalizedExactMatch,
        PrefixExactMatch,
        PrefixQuasiExactMatch,
        QuasiExactMatch,
    )
    from eval_dagster.metrics.explanations import explain
    from eval_dagster.metrics.ifeval import InstLevelLooseAcc, InstLevelStrictAcc, PromptLevelLooseAcc, PromptLevelStrictAcc
    from eval_dagster.metrics.json_format import JSONSchemaValid, JSONValid
    from eval_dagster.metrics.loglikelihood import (
        AccuracyBytesLoglikelihood,
        AccuracyLoglikelihood,
        AccuracyNormLoglikelihood,
        AccuracyPMILoglikelihood,
        AccuracyTokensLoglikelihood,
        BrierScore,
        ConfidenceWeightedAccuracy,
        DistributionalCorrectnessScore,
        ExpectedCalibrationError,
        ProbabilityMass,
        ProbabilityMassNorm,
        TernaryScore,
    )
    from eval_dagster.metrics.math_equal import MathEqual
    from eval_dagster.metrics.perplexity import (
        BitsPerByte,
        BitsPerByteLoglikelihood,
        BytePerplexity,
        GreedyAccuracy,
        TargetPerplexity,
        TokenPerplexity,
        WordPerplexity,
    )
    from eval_dagster.metrics.repeated import avg_at_k, maj_at_k, pass_at_k
    from eval_dagster.metrics.rouge import Rouge1, Rouge2, RougeL
    from eval_dagster.metrics.translation import BLEU, TER, ChrF
    from eval_dagster.metrics.truthfulqa import (
        MC1,
        MC2,
        BLEUAccuracy,
        BLEUDifference,
        BLEUMaximum,
        Rouge1Accuracy,
        Rouge1Difference,
        Rouge1Maximum,
        Rouge2Accuracy,
        Rouge2Difference,
        Rouge2Maximum,
        RougeLAccuracy,
        RougeLDifference,
        RougeLMaximum,
    )
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
        ToolCall,
        Turn,
    )
    from eval_dagster.tasks.base import NO_SUBJECT, BaseTask, IDKMixin
    from eval_dagster.tasks.doc import Doc, DocTask, SamplingMethod, doc_task
    from eval_dagster.tasks.episodes import AnswerError, EpisodeSample, EpisodeTask, Reply, Roles, Toolbox, Tools, effect
    from eval_dagster.tasks.language import Language
    from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCCompletionStyle, MCStyle, TaskStyle
    from eval_dagster.versions.hashes import code_version, file_hash, package_versions, stable_hash

__all__ = [
    "BLEU",
    "F1",
    "IS_SPINNING_LIMITED",
    "MC1",
    "MC2",
    "NO_SUBJECT",
    "TER",
    "AccuracyBytesLoglikelihood",
    "AccuracyCompletion",
    "AccuracyLoglikelihood",
    "AccuracyNormLoglikelihood",
    "AccuracyPMILoglikelihood",
    "AccuracyTokensLoglikelihood",
    "AnswerError",
    "BLEUAccuracy",
    "BLEUDifference",
    "BLEUMaximum",
    "BPBStyle",
    "BaseMetric",
    "BaseTask",
    "BitsPerByte",
    "BitsPerByteLoglikelihood",
    "BrierScore",
    "BytePerplexity",
    "ChoiceLetter",
    "ChrF",
    "ClozeStyle",
    "CodeExecutionPassAtOne",
    "Completion",
    "CompletionMetric",
    "ConfidenceWeightedAccuracy",
    "CorpusMetric",
    "DataError",
    "DistributionalCorrectnessScore",
    "Doc",
    "DocTask",
    "DropExactMatch",
    "DropF1",
    "EpisodeSample",
    "EpisodeTask",
    "EvalDagsterError",
    "EvalsComponent",
    "ExactMatch",
    "ExactNumber",
    "ExpectedCalibrationError",
    "GenerationSettings",
    "GreedyAccuracy",
    "IDKMixin",
    "InstLevelLooseAcc",
    "InstLevelStrictAcc",
    "JSONSchemaValid",
    "JSONValid",
    "Language",
    "Loglikelihood",
    "LoglikelihoodMetric",
    "MCCompletionStyle",
    "MCStyle",
    "MathEqual",
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
    "PrefixQuasiExactMatch",
    "ProbabilityMass",
    "ProbabilityMassNorm",
    "PromptLevelLooseAcc",
    "PromptLevelStrictAcc",
    "QuasiExactMatch",
    "RepeatedMetric",
    "Reply",
    "Request",
    "ResponseType",
    "Results",
    "Role",
    "Roles",
    "Rouge1",
    "Rouge1Accuracy",
    "Rouge1Difference",
    "Rouge1Maximum",
    "Rouge2",
    "Rouge2Accuracy",
    "Rouge2Difference",
    "Rouge2Maximum",
    "RougeL",
    "RougeLAccuracy",
    "RougeLDifference",
    "RougeLMaximum",
    "Row",
    "RowMetric",
    "SamplingMethod",
    "SandboxFolder",
    "TargetPerplexity",
    "TaskSample",
    "TaskStyle",
    "TernaryScore",
    "TokenPerplexity",
    "ToolCall",
    "Toolbox",
    "Tools",
    "Turn",
    "Usage",
    "UsageError",
    "WordPerplexity",
    "avg_at_k",
    "code_version",
    "connect",
    "doc_task",
    "effect",
    "evaluate",
    "explain",
    "file_hash",
    "maj_at_k",
    "package_versions",
    "pass_at_k",
    "stable_hash",
]

_PLACES = {
    "api.evaluation": "evaluate",
    "api.results": "Results connect",
    "assets.component": "EvalsComponent",
    "config.models": "ModelSection",
    "episodes.sandbox_folder": "SandboxFolder",
    "errors": "DataError EvalDagsterError ModelError ModelNotFoundError UsageError",
    "metrics.base": "BaseMetric CompletionMetric CorpusMetric LoglikelihoodMetric MetricResult PerplexityMetric RepeatedMetric RowMetric",
    "metrics.code_execution": "CodeExecutionPassAtOne",
    "metrics.completion": "AccuracyCompletion ChoiceLetter DropExactMatch DropF1 ExactMatch ExactNumber F1 NormalizedExactMatch "
    "PrefixExactMatch PrefixQuasiExactMatch QuasiExactMatch",
    "metrics.explanations": "explain",
    "metrics.ifeval": "InstLevelLooseAcc InstLevelStrictAcc PromptLevelLooseAcc PromptLevelStrictAcc",
    "metrics.json_format": "JSONSchemaValid JSONValid",
    "metrics.loglikelihood": "AccuracyBytesLoglikelihood AccuracyLoglikelihood AccuracyNormLoglikelihood AccuracyPMILoglikelihood "
    "AccuracyTokensLoglikelihood BrierScore ConfidenceWeightedAccuracy DistributionalCorrectnessScore ExpectedCalibrationError "
    "ProbabilityMass ProbabilityMassNorm TernaryScore",
    "metrics.math_equal": "MathEqual",
    "metrics.perplexity": "BitsPerByte BitsPerByteLoglikelihood BytePerplexity GreedyAccuracy TargetPerplexity TokenPerplexity "
    "WordPerplexity",
    "metrics.repeated": "avg_at_k maj_at_k pass_at_k",
    "metrics.rouge": "Rouge1 Rouge2 RougeL",
    "metrics.translation": "BLEU ChrF TER",
    "metrics.truthfulqa": "BLEUAccuracy BLEUDifference BLEUMaximum MC1 MC2 Rouge1Accuracy Rouge1Difference Rouge1Maximum Rouge2Accuracy "
    "Rouge2Difference Rouge2Maximum RougeLAccuracy RougeLDifference RougeLMaximum",
    "models.base": "Model ModelBackend ModelHandle",
    "models.usage": "Usage",
    "records": "Completion GenerationSettings Loglikelihood Message MetricContext ModelResponse Request ResponseType Role Row "
    "TaskSample ToolCall Turn",
    "tasks.base": "NO_SUBJECT BaseTask IDKMixin",
    "tasks.doc": "Doc DocTask SamplingMethod doc_task",
    "tasks.episodes": "AnswerError EpisodeSample EpisodeTask Reply Roles Toolbox Tools effect",
    "tasks.language": "Language",
    "tasks.style": "BPBStyle ClozeStyle MCCompletionStyle MCStyle TaskStyle",
    "versions.hashes": "code_version file_hash package_versions stable_hash",
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
