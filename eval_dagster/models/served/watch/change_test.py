"""Tests whether the answers of a server changed: by more than asking twice differs by, and in more questions than rounding can explain."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

LEVEL = 1e-4
"""Both p-values have to be below it, in a look and in a second one right after it. An unchanged model passes all that far less often."""
FLOOR = 0.05
"""Differences of log-probabilities up to this root mean square are no evidence. Restarts, batches and caches of prefixes move logits by up
to 0.06, and so the log-probabilities of 12 greedy tokens by less than this in 97 of 100 prompts."""
_MOST = -1e-9
"""A greater log-probability is taken for this one: some servers write 0 for a certain token."""
_TIES_OF_TEXTS, _TIES_OF_LOGPROBS = 0.25, 0.05
"""Share of questions whose answers an unchanged server may give in another way after a restart. Between logits that differ by rounding, a
greedy text takes the other way; measured on a model of 135M parameters, whose texts have more such ties than those of larger models."""
_TIES_OF_NOISY_TEXTS = 0.5
"""The same share, of texts with an allowance."""
_GRID = 1000
"""Steps of a difference by 1, to which statistics are rounded."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer to a question: its text, and the tokens with their log-probabilities if the server gives them."""

    text: str
    is_cut: bool = False
    """Whether the text ends because it may not be longer."""
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Natural logarithms."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The answers to one question at two times."""

    before: Sequence[Answer]
    after: Sequence[Answer]
    """Two at least, so that what asking twice differs by is known."""
    allowance: float = 0.0
    """A difference up to this is no evidence. 0 if no noise between the times is known."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """The result of comparing several questions."""

    p_value: float
    """Probability of such a difference where asking earlier and asking twice now differ alike (exact permutation test)."""
    p_ties: float
    """Probability that rounding alone changes so many answers (the tail of a sum of Bernoulli variables)."""
    n_compared: int
    n_different: int
    """Questions whose answers differ more between the times than at one time."""

    @property
    def is_significant(self) -> bool:
        """Whether the server changed, by this look."""
        return max(self.p_value, self.p_ties) < LEVEL


def differences(each: Compared) -> tuple[float, float]:
    """How much the answers to a question differ between the times, and within them.

    Of log-probabilities it is the root mean square, 1 at most; else the share of pairs with different texts.
    """
    between, within = _relabelled(each)[0]
    return (math.sqrt(between), math.sqrt(within)) if _has_logprobs(each) else (between, within)


def moved(each: Compared) -> float:
    """By how much the answers to a question differ between the times, without what they differ by within them."""
    between, within = _relabelled(each)[0]
    beyond = max(0.0, between - within)
    return math.sqrt(beyond) if _has_logprobs(each) else beyond


def find_change(questions: Sequence[Compared]) -> Change:
    """Compare the answers to several questions at two times.

    Where nothing changed, the answers to a question are exchangeable: each way to say which of them are the earlier ones is as probable.
    The statistic is the sum, over the questions, of what the times differ by beyond the noise within them and beyond the allowance.
    """
    excesses = [[round(_GRID * _excess(each, *spreads)) for spreads in _relabelled(each)] for each in questions]
    different = sum(each[0] > 0 for each in excesses)
    return Change(
        p_value=_tail([{value: each.count(value) / len(each) for value in each} for each in excesses], sum(each[0] for each in excesses)),
        p_ties=_tail([{0: 1 - share, 1: share} for share in map(_ties, questions)], different),
        n_compared=len(questions),
        n_different=different,
    )


def _tail(terms: Sequence[Mapping[int, float]], seen: int) -> float:
    """The probability that a sum of independent terms is `seen` or more, from the exact distribution of the sum."""
    distribution, least = np.ones(1), 0
    for term in terms:
        first = min(term)
        longer = np.zeros(len(distribution) + max(term) - first)
        for value, probability in term.items():
            longer[value - first : value - first + len(distribution)] += probability * distribution
        distribution, least = longer, least + first
    return min(1.0, float(distribution[max(0, seen - least) :].sum()))


def _relabelled(each: Compared) -> list[tuple[float, float]]:
    """The mean distances between and within the times, under each way to say which answers are the earlier ones; the true way first."""
    answers = [*each.before, *each.after]
    distance = _squared_distance if _has_logprobs(each) else _text_distance
    known = {(a, b): distance(answers[a], answers[b]) for a, b in combinations(range(len(answers)), 2)}
    found = []
    for earlier in combinations(range(len(answers)), len(each.before)):
        between = [value for (a, b), value in known.items() if (a in earlier) != (b in earlier)]
        within = [value for (a, b), value in known.items() if (a in earlier) == (b in earlier)]
        found.append((math.fsum(between) / len(between), math.fsum(within) / max(1, len(within))))
    return found


def _excess(each: Compared, between: float, within: float) -> float:
    """The difference of the times beyond the noise within them and beyond the allowance."""
    if _has_logprobs(each):  # variances add up, so that mean squares are compared
        return math.sqrt(max(0.0, between - within - max(FLOOR, each.allowance) ** 2))
    return max(0.0, between - within - each.allowance)


def _ties(each: Compared) -> float:
    """The probability that an unchanged server gives another answer."""
    if _has_logprobs(each):
        return _TIES_OF_LOGPROBS
    return _TIES_OF_NOISY_TEXTS if each.allowance else _TIES_OF_TEXTS


def _has_logprobs(each: Compared) -> bool:
    return all(answer.logprobs for answer in (*each.before, *each.after))


def _text_distance(a: Answer, b: Answer) -> float:
    if (a.is_cut and b.text.startswith(a.text)) or (b.is_cut and a.text.startswith(b.text)):
        return 0.0
    return float(a.text != b.text)


def _squared_distance(a: Answer, b: Answer) -> float:
    moves = list(_moves(a, b))
    return min(1.0, sum([each * each for each in moves]) / len(moves))


def _moves(a: Answer, b: Answer) -> Iterator[float]:
    """By how much log-probabilities of tokens moved, up to the first token that the texts do not have in common."""
    for token, other, first, second in zip(a.tokens, b.tokens, a.logprobs, b.logprobs, strict=False):
        if token != other:
            yield max(abs(first - second), _least_move(second, first), _least_move(first, second))
            return
        yield abs(first - second)


def _least_move(value: float, best: float) -> float:
    """The least by which a token moved that is the most probable now, where another one had the log-probability `best` before."""
    return value - math.log1p(-math.exp(min(best, _MOST)))
