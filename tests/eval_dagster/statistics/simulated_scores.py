"""Scores drawn from known truths, and what `eval_dagster.statistics.estimates` says of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval_dagster.statistics.estimates import Estimate, covariance_of_groups, estimate_corpus, estimate_macro, estimate_mean

DRAWS = 2000
BLEU = 22.34
"""Of the translations below: by forty million of them."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A kind of scores with a known truth."""

    scores: str
    samples: str
    truth: float
    estimates: Callable[[np.random.Generator], Iterator[Estimate]]
    """An estimate for each of `DRAWS` drawn evals."""
    low: float = 0.93
    high: float = 0.97


def normal(n: int) -> Scenario:
    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for values in rng.normal(0.6, 0.2, (DRAWS, n)):
            yield estimate_mean(values.tolist(), proportion=False)

    return Scenario(scores="mean, normal", samples=f"{n}", truth=0.6, estimates=estimates)


def bounded(n: int) -> Scenario:
    """As a token F1 is: between 0 and 1, and often near 1."""

    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for values in rng.beta(2.0, 0.7, (DRAWS, n)):
            yield estimate_mean(values.tolist(), proportion=False)

    return Scenario(scores="mean, skewed between 0 and 1", samples=f"{n}", truth=2 / 2.7, estimates=estimates)


def answers(n: int, share: float) -> Scenario:
    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for values in (rng.random((DRAWS, n)) < share).astype(float):
            yield estimate_mean(values.tolist(), proportion=True)

    return Scenario(scores=f"proportion {share:g}", samples=f"{n}", truth=share, estimates=estimates)


def _sizes(rng: np.random.Generator, clusters: int, *, equal: bool) -> NDArray[np.intp]:
    """Five samples a cluster, always or on average: from 1 to 30, most of them few."""
    return np.full(clusters, 5) if equal else np.minimum(rng.geometric(0.2, clusters), 30)


def _shape(clusters: int, *, equal: bool) -> str:
    return f"{clusters} clusters of {'5' if equal else '1 to 30'}"


def clustered_numbers(clusters: int, correlation: float, *, equal: bool) -> Scenario:
    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for _ in range(DRAWS):
            labels = np.repeat(np.arange(clusters), _sizes(rng, clusters, equal=equal))
            common = rng.normal(0, correlation**0.5, clusters)[labels]
            values = common + rng.normal(0, (1 - correlation) ** 0.5, len(labels))
            yield estimate_mean(values.tolist(), proportion=False, clusters=labels.tolist())

    return Scenario(
        scores=f"mean in clusters, correlation {correlation:g}", samples=_shape(clusters, equal=equal), truth=0.0, estimates=estimates
    )


def clustered_answers(
    clusters: int, share: float, correlation: float, *, equal: bool, is_told: bool = True, low: float = 0.93, high: float = 0.97
) -> Scenario:
    strength = (1 - correlation) / correlation

    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for _ in range(DRAWS):
            labels = np.repeat(np.arange(clusters), _sizes(rng, clusters, equal=equal))
            easy = rng.beta(share * strength, (1 - share) * strength, clusters)[labels]
            values = (rng.random(len(labels)) < easy).astype(float).tolist()
            yield estimate_mean(values, proportion=True, clusters=labels.tolist() if is_told else None)

    scores = f"proportion {share:g} in clusters, correlation {correlation:g}"
    return Scenario(
        scores=scores if is_told else f"{scores}, taken as independent",
        samples=_shape(clusters, equal=equal),
        truth=share,
        estimates=estimates,
        low=low,
        high=high,
    )


def macro_numbers(sizes: Sequence[int]) -> Scenario:
    """Subjects of their own mean and their own spread."""
    means, spreads = np.arange(len(sizes)), 1 + np.arange(len(sizes)) % 3

    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for _ in range(DRAWS):
            drawn = [rng.normal(mean, spread, n) for mean, spread, n in zip(means, spreads, sizes, strict=True)]
            yield estimate_macro([estimate_mean(values.tolist(), proportion=False) for values in drawn], proportion=False)

    samples = f"{len(sizes)} subjects of {min(sizes)} to {max(sizes)}"
    return Scenario(scores="macro mean", samples=samples, truth=float(means.mean()), estimates=estimates)


def macro_answers(subjects: int, n: int, low: float, high: float) -> Scenario:
    shares = np.linspace(low, high, subjects)

    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for drawn in (rng.random((DRAWS, subjects, n)) < shares[:, np.newaxis]).astype(float):
            yield estimate_macro([estimate_mean(values.tolist(), proportion=True) for values in drawn], proportion=True)

    scores = f"macro proportion, subjects {low:g} to {high:g}" if low < high else f"macro proportion, subjects {low:g}"
    return Scenario(scores=scores, samples=f"{subjects} subjects of {n}", truth=float(shares.mean()), estimates=estimates)


def macro_shared(passages: int, subjects: int, share: float, correlation: float, *, low: float = 0.93, high: float = 0.97) -> Scenario:
    """Every subject asks about the same passages, as Belebele does in each language."""
    passage = np.tile(np.arange(passages), subjects)
    subject = np.repeat(np.arange(subjects), passages)
    strength = (1 - correlation) / correlation

    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for _ in range(DRAWS):
            easy = rng.beta(share * strength, (1 - share) * strength, passages)[passage]
            values = (rng.random(len(passage)) < easy).astype(float)
            groups = [estimate_mean(values[subject == each].tolist(), proportion=True) for each in range(subjects)]
            shared = covariance_of_groups(values.tolist(), subject.tolist(), passage.tolist())
            yield estimate_macro(groups, proportion=True, covariance=shared, n_clusters=passages)

    return Scenario(
        scores=f"macro proportion {share:g}, correlation {correlation:g}",
        samples=f"{subjects} subjects of the same {passages} passages",
        truth=share,
        estimates=estimates,
        low=low,
        high=high,
    )


def _corpus(
    scores: str,
    n: int,
    draw: Callable[[np.random.Generator], Floats],
    aggregate: Callable[[Floats], Floats],
    *,
    truth: float,
    together: int = 1,
) -> Scenario:
    """Corpora of n samples, of which always `together` are one cluster."""

    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        labels = np.repeat(np.arange(n // together), together).tolist()
        for _ in range(DRAWS):
            yield estimate_corpus(draw(rng), aggregate, clusters=labels)

    samples = f"{n}" if together == 1 else f"{n // together} clusters of {together}"
    return Scenario(scores=scores, samples=samples, truth=truth, estimates=estimates)


def perplexity(n: int, *, together: int = 1) -> Scenario:
    """Texts of very different lengths, long ones no harder than short ones, some authors harder than others."""

    def draw(rng: np.random.Generator) -> Floats:
        words = 1.0 + rng.negative_binomial(2, 0.03, n)
        author = np.repeat(rng.normal(2.5, 0.5, n // together), together)
        return np.stack([words * (author + rng.normal(0, 0.4, n)), words], axis=1)

    def aggregate(sums: Floats) -> Floats:
        return np.asarray(np.exp(sums[..., 0] / sums[..., 1]))

    return _corpus("corpus: word perplexity", n, draw, aggregate, truth=math.exp(2.5), together=together)


def macro_perplexity(n: int, subjects: int, *, together: bool) -> Scenario:
    """Subjects that differ, about the same texts or each about its own: some are harder than others."""
    means = 2 + np.arange(subjects) / 2
    subject = np.repeat(np.arange(subjects), n)
    labels = np.tile(np.arange(n), subjects) if together else np.arange(n * subjects)

    def aggregate(sums: Floats) -> Floats:
        return np.asarray(np.exp(sums[..., 0] / sums[..., 1]))

    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for _ in range(DRAWS):
            words = 1.0 + rng.negative_binomial(2, 0.03, labels.max() + 1)[labels]
            hard = rng.normal(0, 0.4, labels.max() + 1)[labels] + rng.normal(0, 0.3, len(labels))
            data = np.stack([words * (means[subject] + hard), words], axis=1)
            yield estimate_corpus(data, aggregate, clusters=labels.tolist(), groups=subject.tolist())

    samples = f"{subjects} subjects of {'the same ' if together else ''}{n}"
    return Scenario(scores="macro corpus: word perplexity", samples=samples, truth=float(np.exp(means).mean()), estimates=estimates)


def bleu(n: int) -> Scenario:
    """Translations of varying quality, a little too short: matches and n-grams of 1 to 4, length of translation and reference."""

    def draw(rng: np.random.Generator, count: int = n) -> Floats:
        reference = 3 + rng.poisson(rng.gamma(3, 6, count))
        length = np.maximum(1, np.round(reference * rng.normal(0.95, 0.15, count))).astype(int)
        quality = rng.beta(2, 2, count)
        grams = [np.maximum(length - order, 0) for order in range(4)]
        matches = [rng.binomial(grams[0], quality)]
        for order in range(1, 4):
            matches.append(rng.binomial(np.minimum(grams[order], matches[-1]), 0.9 * quality))
        return np.stack([*matches, *grams, length, reference], axis=1).astype(float)

    def aggregate(sums: Floats) -> Floats:
        precision = np.log(sums[..., 0:4] / sums[..., 4:8]).mean(axis=-1)
        return np.asarray(100 * np.exp(precision + np.minimum(0, 1 - sums[..., 9] / sums[..., 8])))

    return _corpus("corpus: BLEU", n, draw, aggregate, truth=BLEU)


SCENARIOS = [
    normal(30),
    bounded(100),
    answers(50, 0.7),
    answers(100, 0.02),
    answers(160, 0.02),
    answers(100, 0.98),
    clustered_numbers(30, 0.4, equal=True),
    clustered_numbers(40, 0.4, equal=False),
    clustered_answers(30, 0.7, 0.3, equal=True),
    clustered_answers(40, 0.7, 0.3, equal=False),
    clustered_answers(40, 0.7, 0.3, equal=False, is_told=False, low=0.0, high=0.9),
    clustered_answers(100, 0.95, 0.2, equal=True),
    clustered_answers(100, 0.05, 0.2, equal=False),
    clustered_answers(100, 0.02, 0.5, equal=True, low=0.88),  # 10 wrong answers in 2 or 3 clusters: too few to know
    macro_numbers([5, 10, 20, 40, 80, 10]),
    macro_answers(20, 30, 0.3, 0.95),
    macro_answers(5, 100, 0.98, 0.98),
    macro_shared(60, 5, 0.7, 0.2),
    macro_shared(10, 3, 0.85, 0.9, high=1.0),  # one wrong passage more or less is a tenth: too few to be exact
    macro_shared(15, 5, 0.9, 0.9),
    macro_shared(40, 55, 0.95, 0.2, low=0.92),  # passages of very different difficulty
    macro_shared(40, 55, 0.95, 0.9, low=0.88),  # 2 wrong passages
    perplexity(100),
    perplexity(300, together=3),
    bleu(200),
    macro_perplexity(100, 4, together=False),
    macro_perplexity(100, 4, together=True),
]
