# ruff: noqa: ARG002 - lighteval calls sample functions with more arguments than each needs
"""Corpus functions of lighteval's metrics, and the values that they take from each sample. Names and arguments are as in lighteval.

A function with `STATISTICS` gives its value from sums over the samples; others take all samples' items.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.metrics.translation import BLEU, TER, ChrF, SacreBLEUMetric
from eval_dagster.peers.lighteval.computations import first_highest
from eval_dagster.peers.lighteval.values import as_list
from eval_dagster.records import Completion, ModelResponse
from eval_dagster.tasks.doc import Doc


class CorpusLevelComputation:
    """Computes a metric of all samples; a subclass overrides `compute_corpus`."""

    STATISTICS: ClassVar[tuple[str, ...]] = ()
    """Names of the sums; empty if the items themselves are needed."""

    def compute_corpus(self, items: Sequence[Any]) -> Any:
        """Return the value of all samples' items."""
        raise NotImplementedError

    def statistics(self, item: Any) -> Sequence[float]:
        """The values that one sample adds to the sums."""
        raise NotImplementedError

    def aggregate(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """The value of sums; their last axis runs over the statistics."""
        raise NotImplementedError


class Texts(NamedTuple):
    """The correct and the generated texts of a sample."""

    golds: list[str]
    preds: list[str]


class Choice(NamedTuple):
    """The correct positions, or position, and the most probable one of a sample."""

    golds: Any
    preds: int


class Likelihood(NamedTuple):
    """The log-probability of a sample's text, and its number of units."""

    logprobs: float
    weights: int


class GenerativePreparator:
    """Takes the texts of a sample."""

    def prepare(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> Texts:
        """Return them."""
        return Texts(golds=list(doc.get_golds()), preds=list(model_response.final_text))


class LoglikelihoodPreparator:
    """Takes the chosen and the correct positions of a sample."""

    def __init__(self, is_single_token: bool = False) -> None:
        self.is_single_token = is_single_token

    def prepare(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> Choice:
        """Return them. If choices are single tokens, only the first correct position is returned."""
        golds = doc.gold_indices
        return Choice(golds=golds[0] if self.is_single_token else golds, preds=first_highest(model_response.logprobs))


class PerplexityPreparator:
    """Takes the log-probability of the query and its number of words or bytes."""

    def __init__(self, units_type: str) -> None:
        if units_type not in ("words", "bytes"):
            raise TaskDefinitionError(f"a perplexity has the unit {units_type!r}; expected words or bytes")
        self.units_type = units_type

    def prepare(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> Likelihood:
        """Return them for the query before its preprocessing, if the `Doc` has one."""
        return self.of_text(doc.query if doc.original_query is None else doc.original_query, model_response)

    def of_text(self, text: str, response: ModelResponse) -> Likelihood:
        """The response's log-probability with the units of a text."""
        units = len(re.split(r"\s+", text)) if self.units_type == "words" else len(text.encode("utf-8", "surrogatepass"))
        return Likelihood(logprobs=float(np.sum(response.logprobs)), weights=units)


class TargetPerplexityPreparator(PerplexityPreparator):
    """Takes the log-probability of the choices and the number of words or bytes of the correct ones."""

    def prepare(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> Likelihood:
        """Return them."""
        return self.of_text(" ".join(doc.get_golds()), model_response)


class CorpusLevelPerplexityMetric(CorpusLevelComputation):
    """A perplexity: `perplexity` of the samples' mean, `weighted_perplexity` for each unit, or `bits_per_byte`."""

    STATISTICS = ("log_probability", "units", "samples")

    def __init__(self, metric_type: str) -> None:
        if metric_type not in ("perplexity", "weighted_perplexity", "bits_per_byte"):
            raise TaskDefinitionError(f"there is no perplexity {metric_type!r}; expected perplexity, weighted_perplexity or bits_per_byte")
        self.metric_type = metric_type

    def statistics(self, item: Likelihood) -> Sequence[float]:
        """Log-probability, units, and one for the sample."""
        return item.logprobs, float(item.weights), 1.0

    def aggregate(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the perplexity; NaN if nothing is summed."""
        by = sums[..., 2 if self.metric_type == "perplexity" else 1]
        with np.errstate(all="ignore"):
            each = np.where(by > 0, -sums[..., 0] / by, np.nan)
            return np.asarray(each / np.log(2) if self.metric_type == "bits_per_byte" else np.exp(each))


class CorpusLevelTranslationMetric(CorpusLevelComputation):
    """BLEU, chrF, chrF++ or TER by sacrebleu, of the first text of each sample.

    BLEU compares with the first correct text alone, as in lighteval. chrF and TER compare each sample with all its correct texts; lighteval
    passes these lists to sacrebleu the wrong way round and scores the first sample alone.
    """

    def __init__(self, metric_type: str, lang: str = "") -> None:
        options: tuple[tuple[str, Any], ...] = ()
        if metric_type == "bleu" and lang:
            options = (("trg_lang", lang),)
        if metric_type == "chrf++":
            options = (("word_order", 2),)
        if metric_type == "ter" and lang:
            options = (("asian_support", True),)
        bases: dict[str, type[SacreBLEUMetric]] = {"bleu": BLEU, "chrf": ChrF, "chrf++": ChrF, "ter": TER}
        if metric_type not in bases:
            raise TaskDefinitionError(f"there is no metric {metric_type!r} of translations; expected one of: {', '.join(bases)}")
        base = bases[metric_type]
        self.metric_type = metric_type
        names = base.STATISTICS
        if metric_type == "chrf++":
            names = tuple(f"{kind}_{n}" for n in range(1, 9) for kind in ("total", "reference_total", "correct"))
        self.STATISTICS = names  # type: ignore[misc]
        self.metric: type[SacreBLEUMetric] = type(metric_type, (base,), {"NAME": metric_type, "OPTIONS": options, "STATISTICS": names})

    def statistics(self, item: Texts) -> Sequence[float]:
        """Return sacrebleu's statistics."""
        golds = as_list(item.golds)
        text = item.preds[0] if item.preds else ""
        completion = Completion(completion_text=text, ground_truths=golds[:1] if self.metric_type == "bleu" else golds)
        found = self.metric().calculate(completion)
        return [found[name] for name in self.STATISTICS]

    def aggregate(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the score of sums."""
        return self.metric.aggregate(sums)


class MatthewsCorrCoef(CorpusLevelComputation):
    """The correlation coefficient of Matthews, of chosen and correct positions (Gorodkin 2004, for several classes)."""

    def compute_corpus(self, items: Sequence[Choice]) -> float:
        """Return the value; 0 if one side names only one class."""
        gold, chosen = [_first(gold) for gold, _ in items], [_first(chosen) for _, chosen in items]
        labels = sorted({*gold, *chosen}, key=str)
        of_gold, of_chosen = (np.array([values.count(label) for label in labels], dtype=float) for values in (gold, chosen))
        correct, count = sum(a == b for a, b in zip(gold, chosen, strict=True)), len(items)
        spread = (count**2 - of_gold @ of_gold) * (count**2 - of_chosen @ of_chosen)
        return float((correct * count - of_gold @ of_chosen) / np.sqrt(spread)) if spread else 0.0


class CorpusLevelF1Score(CorpusLevelComputation):
    """The F1 score of classes: the macro or micro mean, or without `average` the best class's.

    With more than two classes, the mean over the classes of the score of "is this class", which is micro as a rule.
    """

    def __init__(self, average: str | None, num_classes: int = 2) -> None:
        if average not in ("macro", "micro", None):
            raise TaskDefinitionError(f"an F1 score has the average {average!r}; expected macro, micro or None")
        self.average = average
        self.num_classes = num_classes

    def compute_corpus(self, items: Sequence[Any]) -> float:
        """Return the value."""
        gold, chosen = [_first(gold) for gold, _ in items], [_first(chosen) for _, chosen in items]
        if self.num_classes == 2:
            return _f1(gold, chosen, self.average)
        scores = [
            _f1([each == label for each in gold], [each == label for each in chosen], self.average) for label in range(self.num_classes)
        ]
        return float(np.mean(scores))


def _f1(gold: Sequence[Any], chosen: Sequence[Any], average: str | None) -> float:
    pairs = list(zip(gold, chosen, strict=True))
    if average == "micro":
        return float(sum(a == b for a, b in pairs) / len(pairs))
    labels = sorted({*gold, *chosen}, key=str)
    of_class = [2 * pairs.count((label, label)) / (gold.count(label) + chosen.count(label)) for label in labels]
    return float(max(of_class) if average is None else np.mean(of_class))


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) else value
