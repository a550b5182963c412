"""Border inputs: prompts at which the two likeliest first tokens are almost equally likely (border input tracking, B3IT).

One token is drawn at a small temperature T. With a gap d between the logits of the two tokens, the first one is drawn with the probability
1 / (1 + exp(-d / T)), so that a change of d by about T moves the share of a token from near 1/2 to near 0 or 1. This notices small changes
of a server that gives no log-probabilities.

The gaps of an unchanged server differ from night to night, by normal noise in this model. Its standard deviation is learned from all
nights of the epoch, and tonight's draws are judged by it: for each size of noise that the nights do not rule out, they have an exact
p-value, and the greatest of these counts. An epoch begins if the look of a later day finds the same change. A night that was noisy for once
is followed by nights that are not, and is then a part of the noise.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random

import numpy as np
from scipy.special import expit, logsumexp
from scipy.stats import binom, norm

from eval_dagster.config.models import OpenAIModel
from eval_dagster.models.served.calls.bodies import Call
from eval_dagster.models.served.canaries import canary_call

TEMPERATURE = 0.05
"""T, in logits. At 0.02 a search takes twice the calls, and less noise makes border inputs useless; at 0.08 fewer changes
are found."""
MOST_INPUTS = 20
"""Border inputs that are searched for."""
FEWEST_INPUTS = 10
"""Inputs with enough nights, below which there is no test."""
DRAWS, MORE_DRAWS = 5, 10
"""Tokens that are drawn from an input in a look, and further ones in a second look."""
QUIET_NIGHTS = 5
"""Nights from which an input has to be known before it is part of a test."""
SUSPICION, LEVEL = 1e-2, 1e-4
"""The p-value that makes a second look follow, and the one of both looks together that is a suspicion for the next day."""
FIRST_DRAWS, SECOND_DRAWS = 3, 10
"""Draws of each prompt of a search, and further ones of those that gave two tokens."""
LEAST_RARER = 2
"""Draws of the rarer token among these 13 that make a prompt a border input."""
MOST_SEARCHED, MOST_SEARCHED_A_LOOK = 600, 150
"""Prompts of a search, and its part in one look: a search that is killed loses that part."""
BATCH = 10
"""Prompts of a search that are asked together."""
_MOST_VARYING = 0.75
"""Share of them with several tokens above which the server draws at another temperature. At T it is about 0.1."""
_NAME = " (border input)"
_WORDS = tuple(
    word
    for line in (
        "time year people way day man thing woman life child world school state family student group country problem hand part",
        "place case week company system program question work number night point home water room mother area money story fact",
        "month lot right study book eye job word business issue side kind head house service friend father power hour game line",
        "end member law car city community name team minute idea body back parent face level office door health person art war",
        "history party result change morning reason research girl moment air teacher force red blue green black white north south",
        "summer winter coffee tea dog cat river mountain gold silver",
    )
    for word in line.split()
)
"""The words that prompts of a search are made of."""

_NOISES = (0.0, 0.003, 0.006, 0.01, 0.014, 0.02, 0.028, 0.04, 0.056, 0.08, 0.11, 0.16, 0.22, 0.3)
"""Sizes of the noise of a gap between nights that are compared: standard deviations, in logits."""
LEAST_NOISE = 0.014
"""Noise that is always allowed for: a server that was quiet for some nights may have it once."""
_TIMES_MORE = 100
"""Times that the draws of a night are more probable after a suspected night, from which on they show the same change."""
_TAIL = 0.01
"""Posterior probability of greater noise than the greatest that is allowed for."""
_LAPSES = 0.01
"""Share of looks at an input whose draws follow no model."""
_STEP = 0.01
"""Steps of gaps, in logits."""
_DRAWN = np.round(np.arange(-1.2, 1.2 + _STEP / 2, _STEP), 4)
"""Gaps in a night."""
_GAPS = np.round(np.arange(-0.4, 0.4 + _STEP / 2, _STEP), 4)
"""Gaps of an input, as likely as one another before the first night."""
_GRID = 10
"""Steps of a surprise by 1, to which the statistic is rounded."""
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Draws = Mapping[str, Sequence[str]]
"""The tokens that were drawn, by border input."""


def border_name(prompt: str) -> str:
    """The name of a prompt as a border input, in rows."""
    return prompt + _NAME


def is_border(name: str) -> bool:
    """Whether rows with this name are of a border input."""
    return name.endswith(_NAME)


def border_call(name: str, config: OpenAIModel, rng: Random) -> Call:
    """A call that draws one token, with a seed of its own: a server that honours seeds would draw one token again and again."""
    return canary_call(name.removesuffix(_NAME), config, drawn_at=TEMPERATURE, seed=rng.randrange(2**31))


def random_names(count: int, rng: Random) -> list[str]:
    """The names of so many random prompts of two to four common words."""
    return [border_name(" ".join(rng.sample(_WORDS, rng.choice((2, 3, 4))))) for _ in range(count)]


def is_at_border(tokens: Sequence[str]) -> bool:
    """Whether all draws of a search show two tokens, and each of them often enough."""
    return len(set(tokens)) == 2 and min(tokens.count(token) for token in set(tokens)) >= LEAST_RARER


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of one part of a search."""

    draws: Draws = field(default_factory=dict)
    """The draws of the inputs that were found."""
    n_prompts: int = 0
    """Prompts that were searched."""
    problem: str | None = None
    """The reason for which there can be no border inputs."""

    def described(self) -> str:
        """The result in words."""
        return self.problem or f"{len(self.draws)} of {self.n_prompts} prompts that were searched are border inputs"


def problem_of(draws: Draws, first_error: str | None) -> str | None:
    """Why a server can have no border inputs, by the first draws of some prompts; None if it can."""
    answered = [drawn for drawn in draws.values() if drawn]
    varying = sum(len(set(drawn)) > 1 for drawn in answered)
    if not answered:
        return f"no draw of one token was answered ({first_error}): texts decide"
    if len(answered) >= BATCH // 2 and varying > _MOST_VARYING * len(answered):
        seen = f"{varying} of {len(answered)} prompts gave several tokens"
        return f"{seen}, as of a server that does not draw at the temperature {TEMPERATURE:g}: texts decide"
    return None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judgement of one look at border inputs."""

    p_value: float | None
    """Null if they do not decide."""
    n_inputs: int
    """Inputs that were judged."""
    said: str
    """The findings in words."""


@dataclass(frozen=True, kw_only=True)
class Borders:
    """The border inputs of an epoch, and their draws in each of its nights."""

    tokens: Mapping[str, str] = field(default_factory=dict)
    """The commoner token in the search, by input. All others count as the other one."""
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Draws of that token among the first `DRAWS` of each night, by input."""
    suspected: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Draws of that token in a newest night that was suspected: among the first `DRAWS`, and among all. Not part of `counts` yet."""
    searched: int = 0
    """Prompts that were searched in the epoch."""
    day: str = ""
    """The last day that was learned from or suspected (ISO 8601, UTC). Several looks of one day have one noise: the first one counts."""

    @property
    def is_hopeless(self) -> bool:
        """Whether so many prompts were searched in vain that the server has no border inputs."""
        return self.searched >= MOST_SEARCHED_A_LOOK and not self.tokens

    @property
    def to_search(self) -> int:
        """Prompts that may be searched in the next look."""
        is_done = len(self.tokens) >= MOST_INPUTS or self.is_hopeless
        return 0 if is_done else min(MOST_SEARCHED_A_LOOK, max(0, MOST_SEARCHED - self.searched))

    def after(self, draws: Draws, n_prompts: int, day: str, p_value: float | None, *, is_quiet: bool = True) -> "Borders":
        """The border inputs after a look that began no epoch. Draws of unknown inputs come from a search.

        `is_quiet` says whether the canaries of the look found no change, so that its draws show noise.
        """
        new = [(name, list(drawn)) for name, drawn in draws.items() if name not in self.tokens][: MOST_INPUTS - len(self.tokens)]
        tokens = {**self.tokens, **{name: max(sorted(set(drawn)), key=drawn.count) for name, drawn in new}}
        after = replace(self, tokens=tokens, searched=self.searched + n_prompts)
        seen = {
            name: (_count(drawn[:DRAWS], self.tokens[name]), _count(drawn, self.tokens[name]))
            for name, drawn in draws.items()
            if name in self.tokens and len(drawn) >= DRAWS
        }
        is_whole = p_value is None or p_value >= SUSPICION or drawn_of_each(draws) > DRAWS
        if not seen or not is_quiet or not is_whole or day <= self.day:
            return after
        is_suspected = p_value is not None and p_value < LEVEL
        learned = [self.suspected] if is_suspected else [self.suspected, seen]
        counts = {name: (*self.counts.get(name, ()), *(night[name][0] for night in learned if name in night)) for name in self.tokens}
        return replace(after, counts=counts, suspected=seen if is_suspected else {}, day=day)

    def judge(self, draws: Draws) -> Verdict:
        """Whether the draws of a look are what the nights of the epoch let expect."""
        names = [name for name in self.tokens if len(self.counts.get(name, ())) >= QUIET_NIGHTS]
        if len(names) < FEWEST_INPUTS:
            nights = max(map(len, self.counts.values()), default=0)
            learned = f"{len(self.tokens)} border inputs are known by {self.searched} prompts and {min(nights, QUIET_NIGHTS)} nights"
            return Verdict(p_value=None, n_inputs=0, said=f"{learned}, {FEWEST_INPUTS} and {QUIET_NIGHTS} are needed: texts decide")
        typical, noise = learned_noise([self.counts[name] for name in names])
        if typical > TEMPERATURE:
            said = f"the noise of border inputs between nights is about {typical:g} logits, more than the {TEMPERATURE:g} that they can use"
            return Verdict(p_value=None, n_inputs=0, said=f"{said}: texts decide")
        drawn = drawn_of_each(draws)
        asked = [name for name in names if len(draws.get(name, ())) == drawn]
        if len(asked) < FEWEST_INPUTS:
            return Verdict(
                p_value=None, n_inputs=0, said=f"{len(asked)} border inputs were answered, {FEWEST_INPUTS} are needed: texts decide"
            )
        p_value = probability(
            [self.counts[name] for name in asked], [_count(draws[name], self.tokens[name]) for name in asked], drawn, noise
        )
        said = f"{len(asked)} border inputs, noise up to {max(noise, LEAST_NOISE):g} logits, p = {p_value:.1g}"
        return Verdict(p_value=p_value, n_inputs=len(asked), said=said)

    def confirms(self, draws: Draws, day: str, p_value: float | None) -> bool:
        """Whether a suspected look finds the change of an earlier, suspected day again.

        It does if its draws are far more probable after the draws of that day than after the other nights of the epoch, with noise of any
        size: if the noise alone has become greater, the draws of two nights differ from each other too.
        """
        if not self.suspected or p_value is None or p_value >= LEVEL or drawn_of_each(draws) <= DRAWS or day <= self.day:
            return False
        drawn = drawn_of_each(draws)
        both = [name for name in self.suspected if len(self.counts.get(name, ())) >= QUIET_NIGHTS and len(draws.get(name, ())) == drawn]
        if len(both) < FEWEST_INPUTS:
            return False
        nights = [self.counts[name] for name in both]
        size = _NOISES.index(max(LEAST_NOISE, learned_noise(nights)[1]))
        tonight = np.array([_count(draws[name], self.tokens[name]) for name in both])
        suspected = np.array([self.suspected[name][1] for name in both])
        likely = _likelihoods(drawn)[:, :, tonight]
        usual = np.log(np.einsum("sig,sgi->si", np.exp(_log_posteriors(nights)[0]), likely)).sum(axis=1)
        moved = _likelihoods(drawn)[size][:, suspected]
        again = np.log(np.einsum("gi,gi->i", moved / moved.sum(axis=0), likely[size])).sum()
        return bool(again - usual.max() > np.log(_TIMES_MORE))


def drawn_of_each(draws: Draws) -> int:
    """Draws of the inputs of a look that were all answered: `DRAWS`, or more in a second look."""
    return DRAWS + MORE_DRAWS if any(len(drawn) == DRAWS + MORE_DRAWS for drawn in draws.values()) else DRAWS


def _count(drawn: Iterable[str], token: str) -> int:
    return sum(each == token for each in drawn)


@lru_cache
def _likelihoods(draws: int) -> Array:
    """The probability of each count among so many draws: sizes of noise, gaps of the input, counts."""
    shares = (1 - _LAPSES) * binom.pmf(np.arange(draws + 1), draws, expit(_DRAWN / TEMPERATURE)[:, None]) + _LAPSES / (draws + 1)
    tables = []
    for noise in _NOISES:
        moves = _DRAWN - _GAPS[:, None]
        weights = norm.pdf(moves / noise) if noise else (np.abs(moves) < _STEP / 2).astype(float)
        tables.append(weights / weights.sum(axis=1, keepdims=True) @ shares)
    return np.array(tables)


def _log_posteriors(nights: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """By the nights of each input, the log-posteriors of its gap (sizes of noise, inputs, gaps), and of the noise of all inputs."""
    counts = np.array([np.bincount(each, minlength=DRAWS + 1) for each in nights])
    joint = np.swapaxes(np.log(_likelihoods(DRAWS)) @ counts.T, 1, 2)
    greatest = joint.max(axis=2, keepdims=True)
    evidence = greatest + np.log(np.exp(joint - greatest).sum(axis=2, keepdims=True))
    noise = evidence.sum(axis=(1, 2))
    return joint - evidence, noise - logsumexp(noise)


def learned_noise(nights: Sequence[Sequence[int]]) -> tuple[float, float]:
    """The posterior median of the standard deviation of the noise between nights, in logits, and the greatest that is not ruled out."""
    greater = np.cumsum(np.exp(_log_posteriors(nights)[1])[::-1])[::-1]
    median, greatest = (_NOISES[int(np.flatnonzero(greater > tail)[-1])] for tail in (0.5, _TAIL))
    return median, greatest


def probability(nights: Sequence[Sequence[int]], tonight: Sequence[int], draws: int, noise: float) -> float:
    """The probability of counts as surprising as tonight's among so many draws, with noise from `LEAST_NOISE` to `noise` or that alone.

    The statistic is the sum of the surprises -log p of all inputs, whose distribution is exact but for rounding. The greatest probability
    of all sizes of noise counts.
    """
    gaps = np.exp(_log_posteriors(nights)[0])
    greatest = 0.0
    for index, size in enumerate(_NOISES):
        if not LEAST_NOISE <= size <= max(noise, LEAST_NOISE):
            continue
        expected = gaps[index] @ _likelihoods(draws)[index]
        surprises = np.rint(-_GRID * np.log(expected)).astype(int)
        distribution = np.ones(1)
        for values, chances in zip(surprises, expected, strict=True):
            term = np.bincount(values, chances)
            distribution = np.convolve(distribution, term)
        seen = int(surprises[np.arange(len(tonight)), list(tonight)].sum())
        greatest = max(greatest, float(distribution[seen:].sum()))
    return min(1.0, greatest)
