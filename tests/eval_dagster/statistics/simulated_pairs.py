"""Two runs of one model on the same 300 samples: what they differ by is chance, unless one of them is made worse."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from eval_dagster.statistics.paired import Comparison, compare_corpora, compare_means

SAMPLES = 300
Floats = NDArray[np.float64]
Generator = np.random.Generator

HELLASWAG = [0.13, 1.64, 3.02, 4.8, 6.33, 7.57, 9.7, 12.34, 14.94, 19.89, 49.58]
"""Deciles of how much likelier, in nats, SmolLM2-135M-Instruct finds the best ending than the second best one."""
MMLU = [0.02, 0.14, 0.2, 0.25, 0.28, 0.31, 0.35, 0.4, 0.47, 0.52, 0.78]
"""The same of the answers to questions about anatomy, astronomy and marketing after five examples."""


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Two runs of one model."""

    values: Floats
    """Of shape (2, samples), or (2, samples, statistics) of a corpus metric."""
    clusters: list[int] | None = None
    subjects: list[int] | None = None

    def compare(self, *, clusters_are_told: bool = True) -> Comparison:
        clusters = self.clusters if clusters_are_told else None
        if self.values.ndim == 3:
            return compare_corpora(*self.values, perplexity, clusters=clusters)
        return compare_means(*self.values, clusters=clusters, subjects=self.subjects)

    def with_drop(self, rng: Generator, drop: float) -> "Runs":
        """The first run with a mean that is lower by so much; right answers are lost by chance. A perplexity is higher."""
        first, second = self.values.copy()
        if first.ndim == 2:
            first[:, 0] += np.log1p(drop / perplexity(second.sum(axis=0))) * first[:, 1]
        elif np.isin(first, (0, 1)).all():
            first[rng.random(len(first)) < drop / second.mean()] = 0
        else:
            first -= drop
        return replace(self, values=np.stack([first, second]))


@dataclass(frozen=True, kw_only=True)
class Eval:
    """A kind of scores."""

    scores: str
    draw: Callable[[Generator], Runs]


def perplexity(sums: Floats) -> Floats:
    return np.asarray(np.exp(sums[..., 0] / sums[..., 1]))


def _choices(rng: Generator, margins: list[float], noise: float) -> Floats:
    """Answers of two runs: the best choice is correct in 0.4 and the second best in 0.25 of the questions, and noise may swap them."""
    margin = np.interp(rng.random(SAMPLES), np.linspace(0, 1, len(margins)), margins)
    correct = rng.choice(3, SAMPLES, p=[0.4, 0.25, 0.35])
    chosen = margin + rng.normal(0, noise, (2, SAMPLES)) < 0
    return (chosen == correct).astype(float)


def _hellaswag(rng: Generator) -> Runs:
    return Runs(values=_choices(rng, HELLASWAG, 2.0))


SUBJECTS = np.repeat(np.arange(6), [20, 30, 40, 50, 60, 100]).tolist()


def _mmlu(rng: Generator) -> Runs:
    return Runs(values=_choices(rng, MMLU, 0.15), subjects=SUBJECTS)


def _answers(share: float, steadiness: float) -> Callable[[Generator], Runs]:
    """Questions that are answered right with probabilities of their own: most always or never, the steadier the more."""

    def draw(rng: Generator) -> Runs:
        easy = rng.beta(share * steadiness, (1 - share) * steadiness, SAMPLES)
        return Runs(values=(rng.random((2, SAMPLES)) < easy).astype(float))

    return draw


def _sizes(rng: Generator) -> NDArray[np.intp]:
    """Clusters of 1 to 30 samples, most of them small, 300 samples together."""
    sizes = np.minimum(rng.geometric(0.2, SAMPLES), 30)
    ends = np.minimum(np.cumsum(sizes), SAMPLES)
    return np.diff(ends, prepend=0)


def _passages(*, equal: bool) -> Callable[[Generator], Runs]:
    """Questions about passages, which a run understands or does not."""

    def draw(rng: Generator) -> Runs:
        sizes = np.full(60, 5) if equal else _sizes(rng)
        passage = np.repeat(np.arange(len(sizes)), sizes)
        question, understood = rng.normal(0.4, 0.7, SAMPLES), rng.normal(0, 0.5, (2, len(sizes)))
        runs = question + understood[:, passage] + rng.normal(0, 0.3, (2, SAMPLES)) > 0
        return Runs(values=runs.astype(float), clusters=passage.tolist())

    return draw


def _overlap(rng: Generator, changed: float) -> Floats:
    """Like an F1 of words: 0 or 1 for half of the texts, and the same text in both runs unless it changed."""

    def texts() -> Floats:
        return np.where(rng.random(SAMPLES) < 0.5, (rng.random(SAMPLES) < 0.4).astype(float), rng.beta(2, 2, SAMPLES))

    first = texts()
    return np.stack([first, np.where(rng.random(SAMPLES) < changed, texts(), first)])


def _fractions(changed: float) -> Callable[[Generator], Runs]:
    return lambda rng: Runs(values=_overlap(rng, changed))


def _documents(rng: Generator) -> Runs:
    """Summaries of 40 documents in parts, where a run's words fit a document more or less."""
    document = rng.integers(0, 40, SAMPLES)
    runs = rng.normal(0.4, 0.1, SAMPLES) + rng.normal(0, 0.05, (2, 40))[:, document] + rng.normal(0, 0.05, (2, SAMPLES))
    return Runs(values=np.clip(runs, 0, 1), clusters=document.tolist())


def _perplexity(rng: Generator) -> Runs:
    words = 1.0 + rng.negative_binomial(2, 0.03, SAMPLES)
    runs = words * (rng.normal(2.5, 0.5, SAMPLES) + rng.normal(0, 0.05, (2, SAMPLES)))
    return Runs(values=np.stack([np.stack([run, words], axis=1) for run in runs]))


EVALS = [
    Eval(scores="HellaSwag", draw=_hellaswag),
    Eval(scores="MMLU, mean of subjects", draw=_mmlu),
    Eval(scores="easy questions", draw=_answers(0.9, 0.5)),
    Eval(scores="hard questions", draw=_answers(0.1, 0.2)),
    Eval(scores="passages of 5 questions", draw=_passages(equal=True)),
    Eval(scores="passages of 1 to 30 questions", draw=_passages(equal=False)),
    Eval(scores="F1, 3 in 10 texts changed", draw=_fractions(0.3)),
    Eval(scores="F1, 3 in 100 texts changed", draw=_fractions(0.03)),
    Eval(scores="ROUGE in 40 documents", draw=_documents),
    Eval(scores="word perplexity", draw=_perplexity),
]
