# ruff: noqa: ARG002 - lighteval calls sample functions with more arguments than each needs
"""Sample functions of lighteval's metrics for texts and for choices, and the responses that they see.

Names and arguments are the same as in lighteval.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.loglikelihood import count_tie
from eval_dagster.peers.lighteval.normalizations import LogProbNormalization, normalize_log_probs
from eval_dagster.peers.lighteval.values import as_list
from eval_dagster.records import Completion, Loglikelihood, ModelResponse
from eval_dagster.tasks.doc import Doc

Aggregation = Callable[[list[float]], float]
Normalizer = Callable[[str], str]
_MATCHES: dict[str, Callable[[str, str], bool]] = {"full": str.__eq__, "prefix": str.startswith, "suffix": str.endswith}
"""Whether a text matches a correct one, by the kind of match."""


class Response(ModelResponse):
    """A response whose texts or choices can be taken one at a time: `response[0]`. Token ids are not included."""

    def __getitem__(self, index: int) -> "Response":
        """The response with one text or choice."""
        names = ("text", "text_post_processed", "reasonings", "logprobs", "token_logprobs", "argmax_logits_eq_gold")
        held = {name: values for name in (*names, "unconditioned_logprobs") if (values := getattr(self, name))}
        taken: dict[str, Any] = {name: [values[index]] for name, values in held.items()}
        return Response(input=self.input, **taken)


def generated(views: Sequence[Completion]) -> Response:
    """All texts of one prompt."""
    texts: dict[str, Any] = {
        "text": [view.raw_text or view.completion_text for view in views],
        "text_post_processed": [view.completion_text for view in views],
        "reasonings": [view.reasoning for view in views],
    }
    return Response(input=views[0].prompt, **texts)


def scored(view: Loglikelihood) -> Response:
    """The log-probabilities of all choices."""
    return Response(
        input=view.prompt,
        logprobs=list(view.loglikelihoods),
        token_logprobs=[list(each) for each in view.token_loglikelihoods],
        argmax_logits_eq_gold=list(view.is_greedy),
        unconditioned_logprobs=None if view.unconditioned_loglikelihoods is None else list(view.unconditioned_loglikelihoods),
    )


def of_text(view: Loglikelihood) -> Response:
    """The log-probability of each token of a text."""
    tokens = [list(each) for each in view.token_loglikelihoods]
    return Response(input=view.prompt, logprobs=tokens[0] if tokens else list(view.loglikelihoods), token_logprobs=tokens)


class SampleLevelComputation:
    """Computes a metric of one sample; a subclass overrides `compute`."""

    IS_PROPORTION: ClassVar[bool] = False
    """Whether every value is 0 or 1."""
    BEST: ClassVar[float | None] = None
    """The value of the correct answer, if it is known."""
    BOUNDS: ClassVar[tuple[float, float] | None] = None
    """The least and the largest possible value, if they are known."""

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> Any:
        """Return the value, or a mapping of several by name."""
        raise NotImplementedError

    def bounds(self) -> tuple[float, float] | None:
        """The bounds of its values with its parameters."""
        return self.BOUNDS


class Unavailable(SampleLevelComputation):
    """A metric that this project does not compute. Its samples have the reason as their error."""

    def __init__(self, reason: str, *args: Any, **kwargs: Any) -> None:
        self.reason = reason

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> Any:
        """Raise the reason.

        Raises:
            DataError: Always.
        """
        raise DataError(self.reason)


class ExactMatches(SampleLevelComputation):
    """Whether a text equals a correct one, begins or ends with it."""

    IS_PROPORTION = True
    BEST = 1.0

    def __init__(
        self,
        aggregation_function: Aggregation = max,
        normalize_gold: Normalizer | None = None,
        normalize_pred: Normalizer | None = None,
        strip_strings: bool = False,
        type_exact_match: str = "full",
    ) -> None:
        self.aggregation_function = aggregation_function
        self.normalize_gold = normalize_gold
        self.normalize_pred = normalize_pred
        self.strip_strings = strip_strings
        self.type_exact_match = match_type(type_exact_match)

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float:
        """Return the aggregate over all pairs of a correct text and a generated one."""
        return self.aggregation_function(
            [self.compute_one_item(gold, text) for gold in doc.get_golds() for text in model_response.final_text]
        )

    def compute_one_item(self, gold: str, pred: str) -> float:
        """Return 1 or 0 for one pair. An empty text is wrong."""
        if not pred:
            return 0.0
        if self.strip_strings:
            gold, pred = gold.strip(), pred.strip()
        gold = self.normalize_gold(gold) if self.normalize_gold else gold
        pred = self.normalize_pred(pred) if self.normalize_pred else pred
        return float(_MATCHES[self.type_exact_match](pred, gold))


class F1_score(SampleLevelComputation):  # noqa: N801 - lighteval's name
    """The F measure of the sets of words of a text and a correct one; 0 if either has no words."""

    BEST = 1.0

    def __init__(
        self,
        aggregation_function: Aggregation | None = max,
        normalize_gold: Normalizer | None = None,
        normalize_pred: Normalizer | None = None,
        strip_strings: bool = False,
    ) -> None:
        self.aggregation_function = aggregation_function or max
        self.normalize_gold = normalize_gold
        self.normalize_pred = normalize_pred
        self.strip_strings = strip_strings

    def bounds(self) -> tuple[float, float] | None:
        """0 and 1, unless another function aggregates the pairs."""
        return bounds_of_shares(self.aggregation_function)

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float:
        """Return the aggregate over all pairs of a correct text and a generated one."""
        return self.aggregation_function(
            [self.compute_one_item(gold, text) for gold in doc.get_golds() for text in model_response.final_text]
        )

    def compute_one_item(self, gold: str, pred: str) -> float:
        """Return the F measure of one pair."""
        wanted = set((self.normalize_gold(gold) if self.normalize_gold else gold).split())
        given = set((self.normalize_pred(pred) if self.normalize_pred else pred).split())
        common = len(wanted & given)
        return 2 * common / (len(wanted) + len(given)) if common else 0.0


class LoglikelihoodAcc(SampleLevelComputation):
    """Whether the most probable choice is a correct one; of equal choices, the first counts."""

    IS_PROPORTION = True
    BEST = 1.0

    def __init__(self, logprob_normalization: LogProbNormalization | None = None) -> None:
        self.logprob_normalization = logprob_normalization

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float:
        """Return 1 or 0."""
        values = normalize_log_probs(self.logprob_normalization, doc, model_response)
        return float(first_highest(values) in doc.gold_indices)


class NormalizedMultiChoiceProbability(SampleLevelComputation):
    """The correct choice's share of the probability of all choices."""

    def __init__(
        self, log_prob_normalization: LogProbNormalization | None = None, aggregation_function: Callable[[Any], float] = np.max
    ) -> None:
        self.log_prob_normalization = log_prob_normalization
        self.aggregation_function = aggregation_function

    def bounds(self) -> tuple[float, float] | None:
        """0 and 1, unless another function aggregates the choices."""
        return bounds_of_shares(self.aggregation_function)

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float:
        """Return the aggregate over the correct choices."""
        shares = np.exp(np.array(normalize_log_probs(self.log_prob_normalization, doc, model_response)))
        total = float(shares.sum())
        return float(self.aggregation_function(shares[doc.gold_indices] / total if total else np.zeros(len(doc.gold_indices))))


class Recall(SampleLevelComputation):
    """Whether a correct choice is among the k most probable ones."""

    IS_PROPORTION = True
    BEST = 1.0

    def __init__(self, k: int) -> None:
        self.recall_depth = k

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float:
        """Return 1 or 0."""
        values = list(model_response.logprobs)
        best = [first_highest(values)] if self.recall_depth == 1 else np.argsort(values)[::-1][: self.recall_depth].tolist()
        return float(any(index in doc.gold_indices for index in best))


class MRR(SampleLevelComputation):
    """One divided by the rank of the best correct choice."""

    BEST = 1.0
    BOUNDS = (0.0, 1.0)

    def __init__(self, length_normalization: bool = False) -> None:
        self.length_normalization = length_normalization

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float:
        """Return the value; above 0, at most 1."""
        values = list(model_response.logprobs)
        if self.length_normalization:
            values = [value / len(choice) for value, choice in zip(values, doc.choices, strict=True)]
        best = max(values[index] for index in doc.gold_indices)
        return 1 / (1 + sum(value > best for value in values))


class AccGoldLikelihood(SampleLevelComputation):
    """Whether every token of some choice is the most probable one."""

    IS_PROPORTION = True

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float:
        """Return 1 or 0."""
        return float(any(model_response.argmax_logits_eq_gold))


class TruthfulqaMCMetrics(SampleLevelComputation):
    """MC1 and MC2 of TruthfulQA (Lin et al. 2021, arXiv:2109.07958). A `Doc` holds the choices of both, one after the other.

    `specific["len_mc1"]` is the number of choices of the first question, whose first choice is correct. In the second question, the correct
    choices are those up to the first gap among the gold positions, as in lighteval.
    """

    BOUNDS = (0.0, 1.0)

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> dict[str, float]:
        """Return both values."""
        count = (doc.specific or {})["len_mc1"]
        values = list(model_response.logprobs)
        first, second = values[:count], np.exp(np.array(values[count:]))
        gold = doc.gold_indices[1:]
        run = 1
        while run < len(gold) and gold[run] == gold[run - 1] + 1:
            run += 1
        true = second[: gold[run - 1] - count + 1]
        return {"truthfulqa_mc1": float(first_highest(first) == 0), "truthfulqa_mc2": float(true.sum() / second.sum())}


def first_highest(values: Sequence[float]) -> int:
    """The position of the highest value; of equal values the first, as in lighteval. A tie is counted."""
    count_tie(np.flatnonzero(np.equal(values, np.max(values))).tolist())
    return int(np.argmax(values))


def bounds_of_shares(aggregation: object) -> tuple[float, float] | None:
    """The bounds of an aggregate of values between 0 and 1: the same for a maximum, a minimum or a mean, unknown for others."""
    return (0.0, 1.0) if any(aggregation is each for each in (max, min, np.max, np.min, np.mean)) else None


def match_type(given: str) -> str:
    """The kind of a match.

    Raises:
        TaskDefinitionError: The kind is unknown.
    """
    if given not in _MATCHES:
        raise TaskDefinitionError(f"a metric has the kind of match {given!r}; expected one of: {', '.join(_MATCHES)}")
    return given


def matches(kind: str, text: str, gold: str) -> bool:
    """Whether a text matches a correct one."""
    return _MATCHES[kind](text, gold)


def golds_of(doc: Doc, metric: str) -> Sequence[str]:
    """The only correct text of a `Doc`, as a list.

    Raises:
        DataError: There are several.
    """
    golds = as_list(doc.get_golds())
    if len(golds) > 1:
        raise DataError(f"{metric} cannot be computed with the correct answers {golds}; expected one")
    return golds
