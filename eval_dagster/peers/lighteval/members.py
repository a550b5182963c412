"""`Metrics`: the metrics that lighteval 0.13 names."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from eval_dagster.peers.lighteval.computations import (
    MRR,
    AccGoldLikelihood,
    ExactMatches,
    F1_score,
    LoglikelihoodAcc,
    Recall,
    TruthfulqaMCMetrics,
    Unavailable,
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
from eval_dagster.tasks.doc import SamplingMethod

_TEXT, _CHOICES, _WHOLE = SamplingMethod.GENERATIVE, SamplingMethod.LOGPROBS, SamplingMethod.PERPLEXITY
_BY_MODEL = "this metric needs another model to score by, {}, which eval_dagster does not load"


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
