"""Metrics, one module a kind. The base classes are here."""

from eval_dagster.metrics.base import (
    BaseMetric,
    CompletionMetric,
    CorpusMetric,
    LoglikelihoodMetric,
    MetricResult,
    PerplexityMetric,
    RepeatedMetric,
)

__all__ = ["BaseMetric", "CompletionMetric", "CorpusMetric", "LoglikelihoodMetric", "MetricResult", "PerplexityMetric", "RepeatedMetric"]
