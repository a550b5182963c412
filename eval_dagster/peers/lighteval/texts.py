# ruff: noqa: ARG002 - lighteval calls sample functions with more arguments than each needs
"""Sample functions of texts that use packages or models: ROUGE and extracted answers. Names are the same as in lighteval."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from string import ascii_uppercase
from typing import Any

import numpy as np

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import extra_module
from eval_dagster.metrics.math_equal import MathEqual
from eval_dagster.peers.lighteval.computations import Normalizer, SampleLevelComputation, Unavailable, bounds_of_shares
from eval_dagster.peers.lighteval.values import Language, as_list
from eval_dagster.records import ModelResponse
from eval_dagster.tasks.doc import Doc


class ROUGE(SampleLevelComputation):
    """The F measure of the variants of ROUGE, by Google's package rouge-score."""

    def __init__(
        self,
        methods: str | list[str],
        multiple_golds: bool = False,
        bootstrap: bool = False,
        normalize_gold: Normalizer | None = None,
        normalize_pred: Normalizer | None = None,
        aggregation_function: Callable[[list[float]], float] | None = None,
        tokenizer: object = None,
    ) -> None:
        self.methods = as_list(methods)
        self.multiple_golds = multiple_golds
        self.bootstrap = bootstrap
        self.normalize_gold = normalize_gold
        self.normalize_pred = normalize_pred
        self.aggregation_function = aggregation_function or np.mean
        self.tokenizer = tokenizer

    def bounds(self) -> tuple[float, float] | None:
        """0 and 1, or percent; unknown if another function aggregates the pairs."""
        return (0.0, 100.0) if self.bootstrap else bounds_of_shares(self.aggregation_function)

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float | dict[str, float]:
        """Return the aggregate over the pairs; by name if there are several variants.

        With `bootstrap`, each text is paired with the correct text of its position, and values are in percent. lighteval resamples these
        pairs at random and takes the middle. This is their mean, which is the same for one pair.
        """
        golds = [self.normalize_gold(text) if self.normalize_gold else text for text in doc.get_golds()]
        texts = [self.normalize_pred(text) if self.normalize_pred else text for text in model_response.final_text]
        scorer = extra_module("rouge_score.rouge_scorer", "rouge").RougeScorer(self.methods, tokenizer=self.tokenizer)
        if self.bootstrap:
            found = [scorer.score(gold, text) for gold, text in zip(golds, texts, strict=False)]
        elif self.multiple_golds:
            found = [scorer.score_multi(golds, text) for text in texts]
        else:
            found = [scorer.score(gold, text) for text in texts for gold in golds]
        whole = 100 if self.bootstrap else 1
        of_pairs: Callable[[list[float]], float] = np.mean if self.bootstrap else self.aggregation_function
        values = {name: whole * float(of_pairs([each[name].fmeasure for each in found])) for name in self.methods}
        return next(iter(values.values())) if len(values) == 1 else values


@dataclass(frozen=True)
class IndicesExtractionConfig:
    """The label of a choice is extracted."""

    prefix_for_extraction: str = "NativeLetters"
    try_extract_without_anchor: bool = False
    """Whether a label counts anywhere in the text, if none follows the word answer or begins a line."""


@dataclass(frozen=True)
class ExprExtractionConfig:
    """A number or a plain expression is extracted."""

    try_extract_without_anchor: bool = True


@dataclass(frozen=True)
class LatexExtractionConfig:
    """A formula of LaTeX is extracted."""

    try_extract_without_anchor: bool = True
    boxed_match_priority: int = 55
    normalization_config: Any = None


class MultilingualExtractiveMatchMetric(SampleLevelComputation):
    """Whether the answer in a text equals a correct one: a label of a choice, or a mathematical expression.

    A label is found by lighteval's rules for English. An expression is found and compared by math-verify, as in `MathEqual`; lighteval has
    an older form of the same code.
    """

    IS_PROPORTION = True

    def __init__(
        self,
        language: Language = Language.ENGLISH,
        gold_extraction_target: Sequence[Any] = (ExprExtractionConfig(),),
        pred_extraction_target: Sequence[Any] = (ExprExtractionConfig(), LatexExtractionConfig()),
        aggregation_function: Callable[[list[float]], float] = max,
        fallback_mode: str = "first_match",
        extraction_mode: str = "any_match",
        precision: int = 6,
        timeout_seconds: int = 5,
    ) -> None:
        self.language = language
        self.gold_extraction_target = gold_extraction_target
        self.pred_extraction_target = pred_extraction_target
        self.aggregation_function = aggregation_function
        self.fallback_mode = fallback_mode
        self.extraction_mode = extraction_mode
        self.precision = precision
        self.timeout_seconds = timeout_seconds

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float:
        """Return the aggregate over the texts.

        Raises:
            DataError: The language is not English.
        """
        if self.language.name != Language.ENGLISH.name:
            raise DataError(f"answers in {self.language.name.title()} cannot be extracted here; expected English")
        return self.aggregation_function([self._is_equal(text, doc) for text in model_response.final_text])

    def _is_equal(self, text: str, doc: Doc) -> float:
        golds, labels = doc.get_golds(), _label_config(self.pred_extraction_target)
        if labels is None:
            equal = MathEqual()
            return float(any(text.strip() == gold.strip() or equal._ask(text=text, gold=gold) for gold in golds))
        found = label_in(text, len(doc.choices), labels)
        of_gold = _label_config(self.gold_extraction_target) or labels
        return float(found is not None and any(found == (label_in(gold, len(doc.choices), of_gold) or gold.strip()) for gold in golds))


def label_in(text: str, count: int, config: IndicesExtractionConfig) -> str | None:
    """The label of one of `count` choices that a text names; None without one.

    The patterns are tried from the most to the least certain one. If a pattern matches several times, the last match counts.
    """
    for pattern in _label_patterns(count, config):
        if found := list(pattern.finditer(text)):
            last = max(found, key=lambda match: (match.end(), -match.start()))
            return last["label"].strip("()")
    return None


@cache
def _label_patterns(count: int, config: IndicesExtractionConfig) -> list[re.Pattern[str]]:
    labels = [str(each + 1) for each in range(count)] if config.prefix_for_extraction == "Numbers" else list(ascii_uppercase[:count])
    either = "|".join(rf"{each}|\({each}\)" for each in labels)
    label = f"(?P<label>{either})"
    after = r"(?:\*\*)?(?:[.,]|\s?:|\ |$)"
    alone = rf"(?:^|\ )(?:\*\*)?{label}{after}"
    patterns = [
        rf"(?i:final answer is):?\s*{label}\.?\s?I hope",
        rf"(?i:final answer.{{0,100}}?)\s+is:?\s*{label}",
        rf"(?i:answer)\s?:.{{0,50}}?{alone}",
        rf"(?i:answer).{{0,50}}?{alone}",
        rf"^(?:\*\*)?{label}{after}",
        rf"\n(?:\*\*)?{label}{after}",
        *([alone, label] if config.try_extract_without_anchor else []),
    ]
    return [re.compile(pattern) for pattern in patterns]


def _label_config(targets: Sequence[Any]) -> IndicesExtractionConfig | None:
    return next((each for each in targets if isinstance(each, IndicesExtractionConfig)), None)


class JudgeLLM(Unavailable):
    """A metric whose judge is a language model. A subclass of a task file keeps its names, and its samples have an error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("this metric needs a language model as its judge, which eval_dagster does not ask")

    @property
    def judge(self) -> Any:
        """The judge.

        Raises:
            DataError: Always.
        """
        raise DataError(self.reason)
