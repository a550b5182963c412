"""Scores drawn from known truths, and what `eval_dagster.statistics.estimates` says of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

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
    """Least and largest coverage. A higher one than 0.97, or than 0.99 below ten samples, is forced: see the page."""
    narrowest: float = 0.95
    widest: float = 1.05
    """Least and largest ratio of the standard error to the true one."""
    is_quick: bool = True
    """Whether a fifth of the draws takes a few seconds at most."""


def normal(n: int) -> Scenario:
    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for values in rng.normal(0.6, 0.2, (DRAWS, n)):
            yield estimate_mean(values.tolist(), proportion=False)

    return Scenario(scores="mean, normal", samples=f"{n}", truth=0.6, estimates=estimates)


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """Scores with bounds that are not only 0 and 1."""

    scores: str
    truth: float
    draw: Callable[[np.random.Generator, tuple[int, ...]], Floats]
    """Scores of a shape."""
    bounds: tuple[float, float] = (0.0, 1.0)
    most: tuple[float, float, float, float] = (0.99, 0.97, 0.97, 0.97)
    """Largest coverage for each of `SIZES`."""


def _nearly_zero(zeros: float) -> Callable[[np.random.Generator, tuple[int, ...]], Floats]:
    """As a token F1 of answers that are mostly wrong: the others are between 0 and 1, 0.5 on average."""
    return lambda rng, shape: np.where(rng.random(shape) < zeros, 0.0, rng.beta(2, 2, shape))


def _ternary(wrong: float, unknown: float) -> Callable[[np.random.Generator, tuple[int, ...]], Floats]:
    return lambda rng, shape: rng.choice([-1.0, 0.0, 1.0], p=[wrong, unknown, 1 - wrong - unknown], size=shape)


PASSED = np.array([1 - math.comb(10 - right, 5) / math.comb(10, 5) for right in range(11)])
"""pass@5 of ten texts, by the number of right ones."""


def _passed(unsolved: float, a: float, b: float) -> Callable[[np.random.Generator, tuple[int, ...]], Floats]:
    """Prompts that no text solves, and others that a text solves with a probability from a beta distribution."""
    return lambda rng, shape: PASSED[rng.binomial(10, np.where(rng.random(shape) < unsolved, 0.0, rng.beta(a, b, shape)))]


def _pass_at_5(a: float, b: float) -> float:
    """The expectation of `_passed` without unsolved prompts."""
    return float((stats.betabinom.pmf(np.arange(11), 10, a, b) * PASSED).sum())


SIZES = (5, 10, 30, 100)
BOUNDED = [
    Bounded(scores="F1, 95 % zeros", truth=0.025, draw=_nearly_zero(0.95), most=(0.995, 0.995, 0.99, 0.98)),
    Bounded(scores="F1, 50 % zeros", truth=0.25, draw=_nearly_zero(0.5), most=(0.99, 0.985, 0.97, 0.97)),
    Bounded(
        scores="token F1, often near 1", truth=2 / 2.7, draw=lambda rng, shape: rng.beta(2, 0.7, shape), most=(0.996, 0.99, 0.97, 0.97)
    ),
    Bounded(scores="ROUGE, 0.14 on average", truth=1 / 7, draw=lambda rng, shape: rng.beta(1, 6, shape), most=(0.995, 0.992, 0.986, 0.975)),
    Bounded(scores="mc2, at both ends", truth=0.8 / 1.4, draw=lambda rng, shape: rng.beta(0.8, 0.6, shape), most=(0.993, 0.97, 0.97, 0.97)),
    Bounded(scores="ternary score, 90 % right", truth=0.85, draw=_ternary(0.05, 0.05), bounds=(-1, 1), most=(0.995, 0.99, 0.99, 0.97)),
    Bounded(scores="ternary score, 40 % right", truth=0.1, draw=_ternary(0.3, 0.3), bounds=(-1, 1)),
    Bounded(scores="avg@4", truth=0.5, draw=lambda rng, shape: rng.binomial(4, rng.beta(0.3, 0.3, shape)) / 4),
    Bounded(
        scores="pass@5 of 10 texts, 90 % of the prompts unsolved",
        truth=_pass_at_5(1, 1) / 10,
        draw=_passed(0.9, 1, 1),
        most=(0.995, 0.992, 0.988, 0.97),
    ),
    Bounded(scores="pass@5 of 10 texts, hard and easy prompts", truth=_pass_at_5(0.3, 0.3), draw=_passed(0, 0.3, 0.3)),
    Bounded(
        scores="scores near 0.56, all between 0.4 and 0.7",
        truth=5 / 9,
        draw=lambda rng, shape: rng.beta(50, 40, shape),
        most=(1.0, 1.0, 1.0, 1.0),
    ),
]


def bounded(kind: Bounded, n: int) -> Scenario:
    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for values in kind.draw(rng, (DRAWS, n)):
            yield estimate_mean(values.tolist(), proportion=False, bounds=kind.bounds)

    return Scenario(
        scores=kind.scores,
        samples=f"{n}",
        truth=kind.truth,
        estimates=estimates,
        low=0.9 if n < 10 else 0.93,
        high=kind.most[SIZES.index(n)],
        widest=1.08,
        is_quick=n == 10,
    )


def bounded_clusters(
    sizes: Sequence[int], samples: str, zeros: float, correlation: float, *, low: float = 0.93, high: float = 0.97, widest: float = 1.05
) -> Scenario:
    """F1 of clusters that are easy or hard."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    strength = (1 - correlation) / correlation if correlation else math.inf

    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for _ in range(DRAWS):
            share = rng.beta((1 - zeros) * strength, zeros * strength, len(sizes))[labels] if correlation else 1 - zeros
            values = np.where(rng.random(len(labels)) < share, rng.beta(2, 2, len(labels)), 0.0)
            yield estimate_mean(values.tolist(), proportion=False, clusters=labels.tolist(), bounds=(0, 1))

    scores = f"F1 in clusters, {zeros:.0%} zeros, correlation {correlation:g}".replace("%", " %")
    return Scenario(
        scores=scores, samples=samples, truth=(1 - zeros) / 2, estimates=estimates, low=low, high=high, widest=widest, is_quick=zeros == 0.5
    )


def _dominated(share: float, others: int, size: int) -> tuple[list[int], str]:
    """Sizes of clusters of which the first holds a share of all samples."""
    return [round(share / (1 - share) * others * size), *[size] * others], f"one cluster of {share:.0%}, {others} of {size}".replace(
        "%", " %"
    )


def dominated_answers(share: float, others: int, size: int, correlation: float, *, high: float = 0.97, widest: float = 1.05) -> Scenario:
    sizes, samples = _dominated(share, others, size)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    strength = (1 - correlation) / correlation if correlation else math.inf

    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for _ in range(DRAWS):
            easy = rng.beta(0.7 * strength, 0.3 * strength, len(sizes))[labels] if correlation else 0.7
            yield estimate_mean((rng.random(len(labels)) < easy).astype(float).tolist(), proportion=True, clusters=labels.tolist())

    scores = f"proportion 0.7 in clusters, correlation {correlation:g}"
    return Scenario(scores=scores, samples=samples, truth=0.7, estimates=estimates, high=high, widest=widest)


def dominated_numbers(share: float, others: int, size: int, correlation: float, *, high: float = 0.97, widest: float = 1.05) -> Scenario:
    sizes, samples = _dominated(share, others, size)
    labels = np.repeat(np.arange(len(sizes)), sizes)

    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for _ in range(DRAWS):
            values = rng.normal(0, correlation**0.5, len(sizes))[labels] + rng.normal(0, (1 - correlation) ** 0.5, len(labels))
            yield estimate_mean(values.tolist(), proportion=False, clusters=labels.tolist())

    scores = f"mean in clusters, correlation {correlation:g}"
    return Scenario(scores=scores, samples=samples, truth=0.0, estimates=estimates, high=high, widest=widest)


def macro_bounded(scores: str, sizes: Sequence[int], zeros: Sequence[float], *, low: float = 0.93, high: float = 0.97) -> Scenario:
    """F1 of subjects with their own shares of zeros."""

    def estimates(rng: np.random.Generator) -> Iterator[Estimate]:
        for _ in range(DRAWS):
            drawn = [_nearly_zero(share)(rng, (n,)).tolist() for n, share in zip(sizes, zeros, strict=True)]
            groups = [estimate_mean(values, proportion=False, bounds=(0, 1)) for values in drawn]
            yield estimate_macro(groups, proportion=False, bounds=(0, 1), members=drawn)

    samples = f"{len(sizes)} subjects of {min(sizes)}" + (f" to {max(sizes)}" if min(sizes) < max(sizes) else "")
    truth = float(np.mean([(1 - share) / 2 for share in zeros]))
    return Scenario(scores=scores, samples=samples, truth=truth, estimates=estimates, low=low, high=high, is_quick=len(sizes) < 20)


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
        is_quick=subjects < 20,
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


def perplexity(n: int, *, together: int = 1, low: float = 0.93) -> Scenario:
    """Texts of very different lengths, long ones no harder than short ones, some authors harder than others."""

    def draw(rng: np.random.Generator) -> Floats:
        words = 1.0 + rng.negative_binomial(2, 0.03, n)
        author = np.repeat(rng.normal(2.5, 0.5, n // together), together)
        return np.stack([words * (author + rng.normal(0, 0.4, n)), words], axis=1)

    def aggregate(sums: Floats) -> Floats:
        return np.asarray(np.exp(sums[..., 0] / sums[..., 1]))

    return replace(_corpus("corpus: word perplexity", n, draw, aggregate, truth=math.exp(2.5), together=together), low=low, narrowest=0.88)


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
    *(bounded(kind, n) for kind in BOUNDED for n in SIZES),
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
    dominated_answers(0.2, 40, 5, 0.3),
    dominated_answers(0.5, 50, 4, 0.3, high=0.99),
    dominated_answers(0.5, 50, 4, 0.0, high=1.0, widest=1.3),  # taken as correlated
    dominated_numbers(0.2, 40, 5, 0.4),
    dominated_numbers(0.5, 50, 4, 0.4, high=0.98),
    dominated_numbers(0.5, 50, 4, 0.0, high=0.99, widest=1.3),
    bounded_clusters([5] * 30, "30 clusters of 5", 0.5, 0.2),
    bounded_clusters([1, 2, 3, 4, 5, 8, 12, 30] * 5, "40 clusters of 1 to 30", 0.5, 0.2),
    bounded_clusters(*_dominated(0.5, 50, 4), 0.5, 0.2, high=0.98),
    bounded_clusters([3] * 100, "100 clusters of 3", 0.95, 0.2),
    bounded_clusters([5] * 30, "30 clusters of 5", 0.95, 0.6, low=0.88),  # 2 clusters that are not 0
    macro_numbers([5, 10, 20, 40, 80, 10]),
    macro_bounded("macro F1, subjects 50 % zeros", [5, 10, 20, 40, 80, 10], [0.5] * 6),
    macro_bounded("macro F1, subjects 20 to 99 % zeros", [10] * 10, np.linspace(0.2, 0.99, 10).tolist()),
    macro_bounded("macro F1, subjects 95 % zeros", [5] * 20, [0.95] * 20, high=0.99),
    macro_answers(20, 30, 0.3, 0.95),
    macro_answers(5, 100, 0.98, 0.98),
    macro_shared(60, 5, 0.7, 0.2),
    macro_shared(10, 3, 0.85, 0.9, high=1.0),  # one wrong passage more or less is a tenth: too few to be exact
    macro_shared(15, 5, 0.9, 0.9),
    macro_shared(40, 55, 0.95, 0.2, low=0.92),  # passages of very different difficulty
    macro_shared(40, 55, 0.95, 0.9, low=0.88),  # 2 wrong passages
    perplexity(5, low=0.9),
    perplexity(10),
    perplexity(30),
    perplexity(100),
    perplexity(300, together=3),
    bleu(200),
    macro_perplexity(100, 4, together=False),
    macro_perplexity(100, 4, together=True),
]
