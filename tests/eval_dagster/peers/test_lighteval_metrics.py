"""The metrics of lighteval by this project's classes, on answers whose values are known."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.peers.lighteval.computations import (
    AccGoldLikelihood,
    ExactMatches,
    LoglikelihoodAcc,
    NormalizedMultiChoiceProbability,
    Response,
)
from eval_dagster.peers.lighteval.corpus import Choice, CorpusLevelF1Score, CorpusLevelTranslationMetric, MatthewsCorrCoef, Texts
from eval_dagster.peers.lighteval.doc import Doc
from eval_dagster.peers.lighteval.members import Metrics
from eval_dagster.peers.lighteval.metric import Metric
from eval_dagster.peers.lighteval.normalizations import (
    LogProbCharNorm,
    LogProbPMINorm,
    LogProbTokenNorm,
    gsm8k_normalizer,
    helm_normalizer,
    math_normalizer,
)
from eval_dagster.peers.lighteval.texts import IndicesExtractionConfig, label_in


def sampled(metric: Metric, doc: Doc, response: Response) -> Any:
    """The values of a sample: of one name alone, or by name."""
    values = {name: metric.sample_value(name, doc, response) for name in metric.names}
    return next(iter(values.values())) if len(values) == 1 else values


def texts(*given: str) -> Response:
    return Response(text=list(given))


GOLD = Doc("Which?", [" Genoa", " Bari"], [0, 1])


@pytest.mark.parametrize(
    ("metric", "answer", "value"),
    [
        (Metrics.exact_match, "Bari ", 1.0),
        (Metrics.exact_match, "bari", 0.0),
        (Metrics.exact_match, "", 0.0),
        (Metrics.exact_match(sample_params={"strip_strings": False}), "Bari", 0.0),
        (Metrics.exact_match(sample_params={"type_exact_match": "prefix"}), "Bari, in Italy", 1.0),
        (Metrics.exact_match(sample_params={"type_exact_match": "suffix"}), "It is Bari", 1.0),
        (Metrics.exact_match(sample_params={"normalize_gold": str.lower, "normalize_pred": str.lower}), "bari", 1.0),
        (Metrics.f1_score, "Bari or Bonn", 0.5),
        (Metrics.f1_score, "", 0.0),
        (Metrics.rouge1, "Bari Genoa", pytest.approx(2 / 3)),
    ],
)
def test_one_text(metric: Metric, answer: str, value: float) -> None:
    assert sampled(metric, GOLD, texts(answer)) == value


def test_parameters_change_a_copy_and_its_name() -> None:
    made = Metrics.exact_match(sample_params={"normalize_pred": math_normalizer, "strip_strings": False})
    assert made.metric_name == "em:normalize_pred=math_normalizer&strip_strings=False"
    assert (Metrics.exact_match.metric_name, Metrics.exact_match.sample_level_fn.strip_strings) == ("em", True)
    assert Metrics.g_pass_at_k(sample_params={"k": [1], "thresholds": [0.5]}).names == ["g-pass@1_0.5", "mg-pass@1"]
    assert Metrics.truthfulqa_mc_metrics(sample_params={"k": 1}).names == ["truthfulqa_mc1:k=1", "truthfulqa_mc2:k=1"]
    assert Metrics.exact_match.value is Metrics.exact_match


ONE = Doc("Sum?", [" 7"], 0)


@pytest.mark.parametrize(
    ("metric", "answers", "value"),
    [
        (Metrics.pass_at_k(sample_params={"k": 2, "n": 4}), ["7", "8", "9", " 7 "], 1 - 1 / 6),
        (Metrics.pass_at_k(sample_params={"k": 2}), ["8", "9"], 0.0),
        (Metrics.maj_at_n(sample_params={"n": 3, "strip_strings": True}), ["7", "8", "7 ", "8", "8"], 1.0),
        (Metrics.avg_at_n(sample_params={"n": 2}), [" 7", "8", " 7"], 0.5),
        (Metrics.pass_at_k_math(sample_params={"k": 1, "n": 1}), [r"So $\boxed{14/2}$"], 1.0),
        (Metrics.expr_gold_metric, ["The answer is 8."], 0.0),
    ],
)
def test_several_texts(metric: Metric, answers: Sequence[str], value: float) -> None:
    assert sampled(metric, ONE, texts(*answers)) == pytest.approx(value)


def test_a_share_of_several_texts() -> None:
    metric = Metrics.g_pass_at_k(sample_params={"k": 2, "n": 4, "thresholds": [0.5, 1.0]})
    # Two of four texts are correct: of two drawn ones, one at least in 5 of 6 pairs, both in 1 of 6.
    assert sampled(metric, ONE, texts("7", "7", "8", "9")) == pytest.approx(
        {"g-pass@2_0.5": 5 / 6, "g-pass@2_1.0": 1 / 6, "mg-pass@2": 1 / 6}
    )


@pytest.mark.parametrize(
    ("metric", "answers", "message"),
    [
        (Metrics.pass_at_k, ["7"], "pass@k has no k"),
        (Metrics.maj_at_n, ["7"], "maj@n has no n"),
        (Metrics.pass_at_k(sample_params={"k": 3}), ["7"], "pass@k needs 3 texts of each prompt, and there are 1"),
        (Metrics.avg_at_n(sample_params={"n": 2}), ["7"], "avg@2 needs 2 texts of each prompt, and there are 1"),
        (Metrics.bleurt, ["7"], "needs another model to score by, Elron/bleurt-tiny-512"),
        (Metrics.simpleqa_judge, ["7"], "needs a language model as its judge"),
    ],
)
def test_what_cannot_be_computed(metric: Metric, answers: Sequence[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        sampled(metric, ONE, texts(*answers))


def test_a_kind_of_match_that_there_is_not() -> None:
    with pytest.raises(TaskDefinitionError, match="has the kind of match 'middle'; expected one of: full, prefix, suffix"):
        ExactMatches(type_exact_match="middle")


CHOICES = Doc("Which?", [" a", " bbbb", " cc"], 1)
SCORES = Response(
    logprobs=[-2.0, -3.0, -1.0],
    token_logprobs=[[-2.0], [-1.0, -1.0, -1.0], [-1.0]],
    unconditioned_logprobs=[-1.0, -5.0, -1.0],
    argmax_logits_eq_gold=[False, False, True],
)


@pytest.mark.parametrize(
    ("normalization", "value"),
    [
        (None, 0.0),
        (LogProbCharNorm(), 0.0),
        (LogProbCharNorm(ignore_first_space=True), 0.0),
        (LogProbTokenNorm(), 1.0),
        (LogProbPMINorm(), 1.0),
    ],
)
def test_accuracy_of_choices(normalization: Any, value: float) -> None:
    assert LoglikelihoodAcc(normalization).compute(CHOICES, SCORES) == value


def test_ranks_and_probabilities_of_choices() -> None:
    assert sampled(Metrics.mrr, CHOICES, SCORES) == pytest.approx(1 / 3)
    assert sampled(Metrics.recall_at_k(sample_params={"recall_depth": 2}), CHOICES, SCORES) == 0.0
    assert sampled(Metrics.recall_at_k(sample_params={"recall_depth": 3}), CHOICES, SCORES) == 1.0
    assert AccGoldLikelihood().compute(CHOICES, SCORES) == 1.0
    share = math.exp(-3) / (math.exp(-2) + math.exp(-3) + math.exp(-1))
    assert NormalizedMultiChoiceProbability().compute(CHOICES, SCORES) == pytest.approx(share)
    # By characters: -2/2, -3/5, -1/3; by the characters after the space: -2, -3/4, -1/2.
    assert LoglikelihoodAcc(LogProbCharNorm()).compute(Doc("", CHOICES.choices, 2), SCORES) == 1.0


def test_truthful_choices() -> None:
    doc = Doc("", [" a", " b", " c", " d", " e"], [0, 2, 3], specific={"len_mc1": 2})
    response = Response(logprobs=[-1.0, -2.0, math.log(0.2), math.log(0.1), math.log(0.1)])
    assert sampled(Metrics.truthfulqa_mc_metrics, doc, response) == pytest.approx({"truthfulqa_mc1": 1.0, "truthfulqa_mc2": 0.75})


def test_scores_of_classes() -> None:
    items = [Choice([gold], chosen) for gold, chosen in ((0, 0), (0, 1), (1, 1), (1, 1), (1, 0))]
    # True positives 2, false ones 1 each way; class 0: 1 and 1 each way.
    assert CorpusLevelF1Score(None).compute_corpus(items) == pytest.approx(2 / 3)
    assert CorpusLevelF1Score("macro").compute_corpus(items) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert CorpusLevelF1Score("micro").compute_corpus(items) == pytest.approx(3 / 5)
    assert MatthewsCorrCoef().compute_corpus(items) == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))
    assert MatthewsCorrCoef().compute_corpus([Choice([0], 0)] * 3) == 0.0
    with pytest.raises(TaskDefinitionError, match="average 'weighted'"):
        CorpusLevelF1Score("weighted")


def test_translations_of_the_first_text() -> None:
    item = Texts(golds=["the cat sat on the mat", "a mat"], preds=["the cat sat on the mat", "no"])
    for kind, best in (("bleu", 100.0), ("chrf", 100.0), ("chrf++", 100.0), ("ter", 0.0)):
        metric = CorpusLevelTranslationMetric(kind)
        assert float(metric.aggregate(np.array(metric.statistics(item)))) == pytest.approx(best), kind


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Answer: B", "B"),
        ("A first thought.\nThe final answer is (C). I hope it is correct.", "C"),
        ("**D**", "D"),
        ("Well,\nB. it is", "B"),
        ("so it must be C then", "C"),
        ("nothing here", None),
        ("It is E", None),
    ],
)
def test_the_label_that_a_text_names(text: str, found: str | None) -> None:
    assert label_in(text, 4, IndicesExtractionConfig(try_extract_without_anchor=True)) == found
    if "must be" in text:
        assert label_in(text, 4, IndicesExtractionConfig()) is None


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (r"thus \boxed{\dfrac12}", r"\frac{1}{2}"),
        (r"\boxed{1/2} or \boxed{0.5}", r"\frac{1}{2}"),
        (r"\boxed{x = 3\text{ cm}}", "3"),
        (r"\boxed{\sqrt3}", r"\sqrt{3}"),
        (r"\boxed 7", ""),
        (r"\boxed{50\%}", "50"),
        ("no box", ""),
        (r"\boxed{open", ""),
    ],
)
def test_a_boxed_answer_in_one_spelling(text: str, normal: str) -> None:
    assert math_normalizer(text) == normal


def test_other_normal_forms() -> None:
    assert helm_normalizer("The  well-known 1,0 Cat!") == "well known 10.0 cat"
    assert (gsm8k_normalizer("so\n#### 1,200"), gsm8k_normalizer("1200")) == ("1200", "[invalid]")
