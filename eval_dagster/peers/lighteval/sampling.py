# ruff: noqa: ARG002 - lighteval calls sample functions with more arguments than each needs
"""Sample functions for several texts of one prompt: pass@k, maj@n, avg@n and G-Pass@k. Names and arguments are as in lighteval."""

from collections.abc import Callable, Sequence
from math import ceil, comb
from statistics import fmean
from typing import Any

import scipy  # whose parts load when first used

from eval_dagster.errors import DataError
from eval_dagster.peers.lighteval.computations import Normalizer, Response, SampleLevelComputation, golds_of, match_type, matches
from eval_dagster.peers.lighteval.values import as_list
from eval_dagster.records import ModelResponse
from eval_dagster.tasks.doc import Doc


class SamplingMetric(SampleLevelComputation):
    """Scores each of several texts by a function, by default whether it equals the correct text."""

    def __init__(
        self,
        normalize: Normalizer | None = None,
        strip_strings: bool = False,
        sample_scoring_function: Callable[..., float] | SampleLevelComputation | str | None = None,
    ) -> None:
        self.normalize = normalize
        self.strip_strings = strip_strings
        given = sample_scoring_function
        self.type_exact_match = match_type(given if isinstance(given, str) else "full")
        self.scoring = None if isinstance(given, str) else given

    def preprocess(self, text: str) -> str:
        """The text, stripped and normalized as configured."""
        text = text.strip() if self.strip_strings else text
        return self.normalize(text) if self.normalize and text else text

    def compute_score(self, doc: Doc, model_response: ModelResponse) -> float:
        """The score of a response with one text."""
        if isinstance(self.scoring, SampleLevelComputation):
            return float(self.scoring.compute(doc=doc, model_response=model_response))
        if self.scoring is not None:
            return float(self.scoring(doc, model_response))
        return float(matches(self.type_exact_match, model_response.final_text[0], doc.get_golds()[0]))

    def scores(self, doc: Doc, texts: Sequence[str]) -> list[float]:
        """The score of each text after `preprocess`, against the choices after it."""
        prepared = Doc(query=doc.query, choices=[self.preprocess(choice) for choice in doc.choices], gold_index=doc.gold_index)
        return [self.compute_score(prepared, Response(text=[self.preprocess(text)])) for text in texts]

    def num_samples(self) -> int:
        """The number of texts that it needs."""
        raise NotImplementedError


class AvgAtN(SamplingMetric):
    """The mean score of the first n texts, as they are."""

    def __init__(self, n: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n = n

    def bounds(self) -> tuple[float, float] | None:
        """The bounds of the score of one text."""
        if self.scoring is None:
            return 0.0, 1.0
        return self.scoring.bounds() if isinstance(self.scoring, SampleLevelComputation) else None

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float:
        """Return the value."""
        count = self.num_samples()
        texts = required(model_response.final_text, count, f"avg@{count}")
        return fmean(self.compute_score(doc, Response(text=[text])) for text in texts)

    def num_samples(self) -> int:
        """The number of texts that it needs."""
        return self.n or 1


class MajAtN(SamplingMetric):
    """The score of the most frequent text among the first n; of equally frequent texts, the first."""

    IS_PROPORTION = True

    def __init__(self, n: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n = n

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float:
        """Return the value.

        Raises:
            DataError: n is not set, or there are several correct answers.
        """
        if self.n is None:
            raise DataError("maj@n has no n; set it: Metrics.maj_at_n(sample_params={'n': 4})")
        gold = [self.preprocess(text) for text in golds_of(doc, "maj@n")]
        texts = [self.preprocess(text) for text in model_response.final_text[: self.n]]
        asked = Doc(query=doc.query, choices=gold, gold_index=0)
        return self.compute_score(asked, Response(text=[max(texts, key=texts.count)]))

    def num_samples(self) -> int:
        """The number of texts that it needs."""
        return self.n or 1


class PassAtK(SamplingMetric):
    """The probability that at least one of k texts is correct, estimated from n (Chen et al. 2021, arXiv:2107.03374)."""

    BEST = 1.0
    BOUNDS = (0.0, 1.0)

    def __init__(self, k: int | None = None, n: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.k = k
        self.n = n

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> float:
        """Return the value.

        Raises:
            DataError: k is not set, there are several correct answers, or fewer texts than k.
        """
        if self.k is None:
            raise DataError("pass@k has no k; set it: Metrics.pass_at_k(sample_params={'k': 1})")
        golds_of(doc, "pass@k")
        texts = model_response.final_text if self.n is None else required(model_response.final_text, self.n, "pass@k")
        correct = self.scores(doc, texts).count(1)
        return 1 - comb(len(texts) - correct, self.k) / comb(len(required(texts, self.k, "pass@k", cut=False)), self.k)

    def num_samples(self) -> int:
        """The number of texts that it needs."""
        return self.n or self.k or 1


class GPassAtK(SamplingMetric):
    """The probability that at least a share of k texts is correct, for several shares (Liu et al. 2024, arXiv:2412.13147)."""

    BOUNDS = (0.0, 1.0)

    def __init__(
        self,
        k: int | Sequence[int] | None = None,
        n: int | None = None,
        thresholds: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
        name_prefix: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.k = k
        self.n = n
        self.thresholds = thresholds
        self.name = f"{name_prefix}_g-pass@" if name_prefix else "g-pass@"

    @property
    def _ks(self) -> list[int]:
        return [k for k in as_list(self.k) if k is not None]

    @property
    def metric_names(self) -> list[str]:
        """The names of its values: one for each k and share, and the mean over the shares above one half."""
        return [name for k in self._ks for name in (*(f"{self.name}{k}_{share}" for share in self.thresholds), f"m{self.name}{k}")]

    def compute(self, doc: Doc, model_response: ModelResponse, **kwargs: Any) -> dict[str, float]:
        """Return the values by name.

        Raises:
            DataError: There are several correct answers, or fewer texts than n.
        """
        golds_of(doc, "G-Pass@k")
        texts = model_response.final_text if self.n is None else required(model_response.final_text, self.n, "G-Pass@k")
        count, correct = len(texts), int(sum(self.scores(doc, texts)))
        values = []
        for k in self._ks:
            values += [_at_least(count, correct, k, max(ceil(k * share), 1)) for share in self.thresholds]
            values.append(2 / k * sum(_at_least(count, correct, k, wanted) for wanted in range(ceil(k / 2) + 1, k + 1)))
        return dict(zip(self.metric_names, values, strict=True))

    def num_samples(self) -> int:
        """The number of texts that it needs."""
        return self.n or max(self._ks, default=1)


def required(texts: Sequence[str], count: int, metric: str, *, cut: bool = True) -> Sequence[str]:
    """The first `count` texts.

    Raises:
        DataError: There are fewer.
    """
    if len(texts) < count:
        raise DataError(f"{metric} needs {count} texts of each prompt, and there are {len(texts)}; set num_samples: {count}")
    return texts[:count] if cut else texts


def _at_least(count: int, correct: int, k: int, wanted: int) -> float:
    """The probability that at least `wanted` of k texts are correct, drawn without replacement from `count` texts."""
    if wanted > min(correct, k) or k > count:
        return 0.0
    return float(scipy.stats.hypergeom.sf(wanted - 1, count, correct, k))
