"""`Metrics`: the metrics that lighteval 0.13 names, and classes of this project that are made of them, one for each name of a value."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import (
    BaseMetric,
    CorpusMetric,
    Item,
    ItemMetric,
    LoglikelihoodMetric,
    PerplexityMetric,
    RepeatedMetric,
    context_field,
)
from eval_dagster.peers.lighteval.computations import (
    MRR,
    AccGoldLikelihood,
    ExactMatches,
    F1_score,
    LoglikelihoodAcc,
    Recall,
    TruthfulqaMCMetrics,
    Unavailable,
    generated,
    of_text,
    scored,
)
from eval_dagster.peers.lighteval.corpus import (
    CorpusLevelF1Score,
    CorpusLevelPerplexityMetric,
    CorpusLevelTranslationMetric,
    GenerativePreparator,
    LoglikelihoodPreparator,
    MatthewsCorrCoef,
    PerplexityPreparator,
    TargetPerplexityPreparator,
)
from eval_dagster.peers.lighteval.metric import (
    CorpusLevelMetric,
    CorpusLevelMetricGrouping,
    Metric,
    SampleLevelMetric,
    SampleLevelMetricGrouping,
)
from eval_dagster.peers.lighteval.normalizations import bigbench_normalizer
from eval_dagster.peers.lighteval.sampling import AvgAtN, GPassAtK, MajAtN, PassAtK
from eval_dagster.peers.lighteval.texts import (
    ROUGE,
    ExprExtractionConfig,
    IndicesExtractionConfig,
    JudgeLLM,
    LatexExtractionConfig,
    MultilingualExtractiveMatchMetric,
)
from eval_dagster.records import Completion, Loglikelihood, Row
from eval_dagster.tasks.doc import Doc, SamplingMethod
from eval_dagster.texts.figures import did_you_mean

_TEXT, _CHOICES, _WHOLE = SamplingMethod.GENERATIVE, SamplingMethod.LOGPROBS, SamplingMethod.PERPLEXITY
_BY_MODEL = "this metric needs another model to score by, {}, which eval_dagster does not load"
_VERSION = "2"
"""Version of the scores of these metrics. Before 2, all files of a process shared `Metrics`, so that one file could change the metrics of
another."""
DOC_INDEX = "lighteval_doc"
"""Field of the context with the position of a sample's `Doc`, if a row has several."""


def _mean(name: str, function: Any, category: SamplingMethod = _TEXT) -> SampleLevelMetric:
    return SampleLevelMetric(name, True, category, function, np.mean)


def _means(names: Sequence[str], function: Any, category: SamplingMethod = _TEXT) -> SampleLevelMetricGrouping:
    return SampleLevelMetricGrouping(list(names), dict.fromkeys(names, True), category, function, dict.fromkeys(names, np.mean))


def _translation(name: str, kind: str, higher: bool = True) -> CorpusLevelMetric:
    return CorpusLevelMetric(name, higher, _TEXT, GenerativePreparator(), CorpusLevelTranslationMetric(kind))


def _perplexity(name: str, unit: str, kind: str) -> CorpusLevelMetric:
    return CorpusLevelMetric(name, False, _WHOLE, PerplexityPreparator(unit), CorpusLevelPerplexityMetric(kind))


def _math(**settings: Any) -> MultilingualExtractiveMatchMetric:
    both = (ExprExtractionConfig(), LatexExtractionConfig())
    return MultilingualExtractiveMatchMetric(gold_extraction_target=both, pred_extraction_target=both, **settings)


def _letters(anywhere: bool) -> MultilingualExtractiveMatchMetric:
    config = [IndicesExtractionConfig(try_extract_without_anchor=anywhere)]
    return MultilingualExtractiveMatchMetric(gold_extraction_target=config, pred_extraction_target=config)


def _rouge(name: str) -> SampleLevelMetric:
    return _mean(name, ROUGE(name))


class Metrics:
    """The metrics by lighteval's names, computed by this project. A metric that cannot be computed here gives every sample the reason.

    `prediction_perplexity` is better when lower; lighteval declares the opposite.
    """

    acc_golds_likelihood = _mean("acc", AccGoldLikelihood(), _CHOICES)
    avg_at_n = _mean("avg@n", AvgAtN(strip_strings=True))
    avg_at_n_math = _mean("avg@n", AvgAtN(sample_scoring_function=_math()))
    bert_score = _means(["BERTScore-P", "BERTScore-R", "BERTScore-F"], Unavailable(_BY_MODEL.format("microsoft/deberta-large-mnli")))
    bits_per_byte = _perplexity("bits_per_byte", "bytes", "bits_per_byte")
    bleu = _translation("bleu", "bleu")
    bleu_1 = _mean("bleu_1", Unavailable("BLEU of single texts needs the tokenizer punkt_tab of nltk, which eval_dagster does not load"))
    bleu_4 = _mean("bleu_4", Unavailable("BLEU of single texts needs the tokenizer punkt_tab of nltk, which eval_dagster does not load"))
    bleurt = _mean("bleurt", Unavailable(_BY_MODEL.format("Elron/bleurt-tiny-512")))
    byte_perplexity = _perplexity("byte_perplexity", "bytes", "weighted_perplexity")
    chrf = _translation("chrf", "chrf")
    chrf_plus = _translation("chrf++", "chrf++")
    exact_match = _mean("em", ExactMatches(strip_strings=True))
    expr_gold_metric = _mean("extractive_match", _math())
    extractiveness = _means(
        ["summarization_coverage", "summarization_density", "summarization_compression"],
        Unavailable("extractiveness needs the words of a pipeline of spaCy, which eval_dagster does not load"),
    )
    f1_score = _mean("f1", F1_score())
    f1_score_macro = CorpusLevelMetric("f1", True, _TEXT, GenerativePreparator(), CorpusLevelF1Score("macro"))
    f1_score_micro = CorpusLevelMetric("f1", True, _TEXT, GenerativePreparator(), CorpusLevelF1Score("micro"))
    faithfulness = _mean("summac", Unavailable(_BY_MODEL.format("tals/albert-xlarge-vitaminc-mnli")))
    g_pass_at_k = SampleLevelMetricGrouping("g-pass@k", True, _TEXT, GPassAtK(strip_strings=True), np.mean)
    g_pass_at_k_latex = SampleLevelMetricGrouping(
        "latex-g-pass@k", True, _TEXT, GPassAtK(name_prefix="latex", strip_strings=True, sample_scoring_function=_math()), np.mean
    )
    g_pass_at_k_math = SampleLevelMetricGrouping(
        "math-g-pass@k", True, _TEXT, GPassAtK(name_prefix="math", strip_strings=True, sample_scoring_function=_math()), np.mean
    )
    gpqa_instruct_metric = _mean("extractive_match", _letters(anywhere=True))
    gpqa_instruct_pass_at_k = _mean("gpqa_pass@k", PassAtK(sample_scoring_function=_letters(anywhere=True)))
    loglikelihood_acc = _mean("acc", LoglikelihoodAcc(), _CHOICES)
    loglikelihood_f1 = CorpusLevelMetric("loglikelihood_f1", True, _CHOICES, LoglikelihoodPreparator(), CorpusLevelF1Score(None))
    maj_at_n = _mean("maj@n", MajAtN())
    mcc = CorpusLevelMetric("mcc", True, _CHOICES, LoglikelihoodPreparator(), MatthewsCorrCoef())
    mrr = _mean("mrr", MRR(), _CHOICES)
    multi_f1_numeric = CorpusLevelMetric(
        "mf1", True, _CHOICES, LoglikelihoodPreparator(is_single_token=True), CorpusLevelF1Score("micro", num_classes=3)
    )
    pass_at_k = _mean("pass@k", PassAtK(strip_strings=True))
    pass_at_k_letters = _mean("pass@k", PassAtK(sample_scoring_function=_letters(anywhere=False)))
    pass_at_k_math = _mean("pass@k", PassAtK(strip_strings=True, sample_scoring_function=_math()))
    prediction_perplexity = _perplexity("ppl", "words", "perplexity")
    recall_at_k = _mean("recall", Recall(k=1), _CHOICES)
    rouge1 = _rouge("rouge1")
    rouge2 = _rouge("rouge2")
    rougeL = _rouge("rougeL")  # noqa: N815 - lighteval's name
    rougeLsum = _rouge("rougeLsum")  # noqa: N815
    rouge_t5 = CorpusLevelMetricGrouping(
        ["rouge1", "rouge2", "rougeL", "rougeLsum"],
        dict.fromkeys(["rouge1", "rouge2", "rougeL", "rougeLsum"], True),
        _TEXT,
        ROUGE(
            ["rouge1", "rouge2", "rougeL", "rougeLsum"],
            bootstrap=True,
            normalize_gold=bigbench_normalizer,
            normalize_pred=bigbench_normalizer,
        ),
        np.mean,
    )
    simpleqa_judge = _means(["simpleqa_judge"], JudgeLLM())
    target_perplexity = SampleLevelMetric(
        "ppl", False, _CHOICES, TargetPerplexityPreparator("words"), CorpusLevelPerplexityMetric("perplexity")
    )
    ter = _translation("ter", "ter", higher=False)
    truthfulqa_mc_metrics = _means(["truthfulqa_mc1", "truthfulqa_mc2"], TruthfulqaMCMetrics(), _CHOICES)
    word_perplexity = _perplexity("word_perplexity", "words", "weighted_perplexity")


def own_metrics() -> type[Metrics]:
    """`Metrics` for one file, which may add members and change existing ones."""
    copied = {name: deepcopy(value) for name, value in vars(Metrics).items() if not name.startswith("__")}
    return type(Metrics.__name__, (Metrics,), {**copied, "__module__": Metrics.__module__, "__qualname__": Metrics.__qualname__})


@dataclass(frozen=True)
class Origin:
    """The parts of a metric class."""

    metric: Metric
    name: str
    docs: Callable[[Row], Sequence[Doc]]
    """Makes the `Doc`s of a row."""

    def value(self, view: Completion | Loglikelihood, response: Any) -> Any:
        """The result of the sample function, of any type."""
        doc = self.docs(view.row)[context_field(view, DOC_INDEX) or 0]
        return self.metric.sample_value(self.name, doc, response)

    def number(self, view: Completion | Loglikelihood, response: Any) -> float:
        """The result of the sample function as a number.

        Raises:
            DataError: It is not a number.
        """
        value = self.value(view, response)
        if not isinstance(value, SupportsFloat):
            raise DataError(f"the sample function of the metric {self.name} gave {value!r}; expected a number")
        return float(value)


class GenerativeMetric(RepeatedMetric):
    """A mean over the samples, of the texts of each."""

    ORIGIN: ClassVar[Origin]

    def calculate_all(self, responses: Sequence[Completion]) -> float:
        """Return the sample function's value of all texts of a prompt."""
        return self.ORIGIN.number(responses[0], generated(responses))


class ChoiceMetric(LoglikelihoodMetric):
    """A mean over the samples, of the choices' log-probabilities."""

    ORIGIN: ClassVar[Origin]

    def calculate(self, response: Loglikelihood) -> float:
        """Return the sample function's value."""
        return self.ORIGIN.number(response, scored(response))


class WholeTextMetric(PerplexityMetric):
    """A mean over the samples, of the log-probabilities of a text's tokens."""

    SCORES_CHOICES = False
    ORIGIN: ClassVar[Origin]

    def calculate(self, response: Loglikelihood) -> float:
        """Return the sample function's value."""
        return self.ORIGIN.number(response, of_text(response))


class _Summed(CorpusMetric[Any]):
    """A value of sums over the samples."""

    ORIGIN: ClassVar[Origin]

    def calculate(self, response: Any) -> Mapping[str, float]:
        """Return what the sample adds to the sums."""
        seen = _response_of(self.ORIGIN.metric, response)
        statistics = self.ORIGIN.metric.aggregation(self.ORIGIN.name).statistics(self.ORIGIN.value(response, seen))
        return dict(zip(self.STATISTICS, map(float, statistics), strict=True))

    @classmethod
    def aggregate(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the corpus function's value of sums."""
        return np.asarray(cls.ORIGIN.metric.aggregation(cls.ORIGIN.name).aggregate(sums))


class SummedGenerativeMetric(_Summed, CorpusMetric[Completion]):
    """A value of sums over the samples, of generated texts."""


class SummedChoiceMetric(_Summed, CorpusMetric[Loglikelihood], LoglikelihoodMetric):
    """A value of sums over the samples, of the choices' log-probabilities."""


class SummedWholeTextMetric(_Summed, CorpusMetric[Loglikelihood], PerplexityMetric):
    """A value of sums over the samples, of texts' log-probabilities."""

    SCORES_CHOICES = False


class _OfItems(ItemMetric[Any]):
    """A value of the items of all samples."""

    ORIGIN: ClassVar[Origin]

    def calculate(self, response: Any) -> Item:
        """Return the result of the sample function."""
        return self.ORIGIN.value(response, _response_of(self.ORIGIN.metric, response))

    @classmethod
    def aggregate(cls, items: Sequence[Item]) -> float:
        """Return the corpus function's result for all items."""
        function = cls.ORIGIN.metric.aggregation(cls.ORIGIN.name)
        found = getattr(function, "compute_corpus", function)(items)
        return float(found[cls.ORIGIN.name] if isinstance(found, Mapping) else found)


class GenerativeItemMetric(_OfItems, ItemMetric[Completion]):
    """A value of the items of all samples, of generated texts."""


class ChoiceItemMetric(_OfItems, ItemMetric[Loglikelihood], LoglikelihoodMetric):
    """A value of the items of all samples, of the choices' log-probabilities."""


class WholeTextItemMetric(_OfItems, ItemMetric[Loglikelihood], PerplexityMetric):
    """A value of the items of all samples, of texts' log-probabilities."""

    SCORES_CHOICES = False


_MEANS: Mapping[SamplingMethod, type[BaseMetric]] = {
    SamplingMethod.GENERATIVE: GenerativeMetric,
    SamplingMethod.LOGPROBS: ChoiceMetric,
    SamplingMethod.PERPLEXITY: WholeTextMetric,
}
_SUMS: Mapping[SamplingMethod, type[BaseMetric]] = {
    SamplingMethod.GENERATIVE: SummedGenerativeMetric,
    SamplingMethod.LOGPROBS: SummedChoiceMetric,
    SamplingMethod.PERPLEXITY: SummedWholeTextMetric,
}

_ITEMS: Mapping[SamplingMethod, type[BaseMetric]] = {
    SamplingMethod.GENERATIVE: GenerativeItemMetric,
    SamplingMethod.LOGPROBS: ChoiceItemMetric,
    SamplingMethod.PERPLEXITY: WholeTextItemMetric,
}


def known_metric(given: Any, task: str, metrics: type[Metrics] = Metrics) -> Metric | type[BaseMetric]:
    """The metric that a configuration means.

    Args:
        given: A metric of lighteval, the name of a member of `Metrics`, or a metric class of this project.
        task: The task's name, for messages.
        metrics: `Metrics` as the task's file left it.

    Raises:
        TaskDefinitionError: It is something else.
    """
    found = given
    if isinstance(given, str):
        members = [name for name in vars(metrics) if not name.startswith("_")]
        found = vars(metrics).get(given)
        if found is None:
            raise TaskDefinitionError(f"the LightevalTaskConfig {task!r} has the metric {given!r}{did_you_mean(given, members)}")
    if isinstance(found, Metric) or (isinstance(found, type) and issubclass(found, BaseMetric)):
        return found
    raise TaskDefinitionError(
        f"the LightevalTaskConfig {task!r} has {given!r} among its metrics; expected a member of Metrics, a SampleLevelMetric, a "
        "CorpusLevelMetric, a grouping of these, or a metric class of eval_dagster"
    )


def metric_classes(metric: Metric, docs: Callable[[Row], Sequence[Doc]], module: str) -> list[type[BaseMetric]]:
    """The metric classes of a metric of lighteval.

    Args:
        metric: The metric.
        docs: Makes the `Doc`s of a row.
        module: The module of the task file, which belongs to the version of the classes.
    """
    return [_metric_class(Origin(metric=metric, name=name, docs=docs), module) for name in metric.names]


def _metric_class(origin: Origin, module: str) -> type[BaseMetric]:
    metric, function = origin.metric, origin.metric.sample_level_fn
    aggregation = metric.aggregation(origin.name)
    attributes: dict[str, object] = {
        "NAME": origin.name.replace("/", "_"),
        "ORIGIN": origin,
        "HIGHER_IS_BETTER": metric.is_higher_better(origin.name),
        "BEST": None,
        "VERSION": _VERSION,
        # A class within a function: its version is that of the task file as a whole, which holds what it is made of.
        "__module__": module,
        "__qualname__": f"LightevalMetric.<locals>.{origin.name}",
        "__doc__": type(function).__doc__ if aggregation is None else type(aggregation).__doc__,
    }
    if aggregation is None:
        attributes |= {"IS_PROPORTION": getattr(function, "IS_PROPORTION", False), "BEST": getattr(function, "BEST", None)}
        # A subclass in a task file may compute values outside of the inherited bounds.
        is_own = type(function).__module__.startswith("eval_dagster.")
        attributes["BOUNDS"] = function.bounds() if is_own else vars(type(function)).get("BOUNDS")
        return type(origin.name, (_MEANS[metric.category],), attributes)
    if statistics := getattr(aggregation, "STATISTICS", ()):
        attributes["STATISTICS"] = tuple(statistics)
        return type(origin.name, (_SUMS[metric.category],), attributes)
    return type(origin.name, (_ITEMS[metric.category],), attributes)


def _response_of(metric: Metric, view: Any) -> Any:
    if metric.category is SamplingMethod.GENERATIVE:
        return generated([view])
    return scored(view) if metric.category is SamplingMethod.LOGPROBS else of_text(view)
