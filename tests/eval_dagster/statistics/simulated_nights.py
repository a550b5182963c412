"""Suites of ten evals that stop early: what is proven, red, asked and covered, beside other ways to look.

A share `flips` of the samples differs from the baseline though nothing has changed, half of it each way. A fall adds to the samples that
only the baseline has right. The baseline is also the anchor. All evals of a suite are asked in step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy
import scipy.signal
from numpy.typing import NDArray

from eval_dagster.statistics.noninferiority import LEVEL, exact_p_value
from eval_dagster.statistics.sequential import EAGER, PROOF_LEVEL, Counts, Design, levels_that_spend

EVALS = 10
SUITES = 2000
QUIET_SUITES = 50_000
"""Suites in which false alarms are counted, since they are rare."""
ALPHA, DAYS = 0.05, 30
FALL_LEVEL = ALPHA / DAYS / (2 * EVALS)
"""One-sided level of one night's test of one eval: half is for the anchor."""
FLIPS = (0.005, 0.02, 0.05, 0.1)
GRID = [(n, margin, flips) for n, margin in ((300, 0.03), (1000, 0.03), (2000, 0.03), (2000, 0.02)) for flips in FLIPS]
NEVER = 99
"""The number of a look that does not come."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def design(n: int, margin: float, flips: float) -> Design:
    """The design that the gate plans for ten evals of one model that are judged every night."""
    return Design.of(n, margin=margin, fall_level=FALL_LEVEL, flips=flips)


@cache
def fewest_rises(n: int, margin: float, level: float, most: int) -> Integers:
    """For each number of falls, the fewest rises that prove at `n` samples, and n + 1 at the end. At most `most` are tried."""
    found: list[int] = []
    fewest = 0
    while fewest <= most and len(found) + fewest <= n:
        if exact_p_value(n, fewest, len(found), margin) <= level:
            found.append(fewest)
        else:
            fewest += 1
    return np.array([*found, n + 1])


@dataclass(frozen=True, kw_only=True)
class Proofs:
    """The looks at which a proof is sought, and the level of each."""

    looks: tuple[int, ...]
    levels: tuple[float, ...]
    margin: float

    @classmethod
    def of(cls, plan: Design) -> "Proofs":
        """The proofs of a design."""
        return cls(looks=plan.looks, levels=plan.proof_levels, margin=plan.margin)

    @classmethod
    def spending(cls, plan: Design, kind: str) -> "Proofs":
        """The looks of a design, with the level spent as by O'Brien and Fleming or by Pocock (Lan & DeMets 1983), or at once at the end."""
        if kind == "one look":
            return cls(looks=plan.looks[-1:], levels=(LEVEL,), margin=plan.margin)
        t = np.array(plan.shares)
        spent = 2 * scipy.special.ndtr(scipy.special.ndtri(PROOF_LEVEL / 2) / np.sqrt(t))
        if kind == "Pocock":
            spent = PROOF_LEVEL * np.log1p((np.e - 1) * t)
        return cls(looks=plan.looks, levels=levels_that_spend(plan.shares, tuple(spent.tolist())), margin=plan.margin)

    def rises(self, look: int) -> Integers:
        """The fewest rises that are a proof at a look, for each number of falls."""
        n = self.looks[look]
        return fewest_rises(n, self.margin, self.levels[look], _most(n, FLIPS[-1] / 2))

    def probabilities(self, up: float, down: float) -> Floats:
        """The probability of the first proof at each look, exactly, if samples rise and fall with these probabilities."""
        most = [_most(self.looks[-1], share) for share in (down, up)]
        chances, known, found = np.ones((1, 1)), 0, []
        for look, n in enumerate(self.looks):
            chances = scipy.signal.fftconvolve(chances, _multinomial(n - known, up, down))[: most[0] + 1, : most[1] + 1]
            rises = self.rises(look)
            falls = np.arange(chances.shape[0])
            fewest = rises[np.minimum(falls, len(rises) - 1)]
            is_proof = np.arange(chances.shape[1])[np.newaxis] >= fewest[:, np.newaxis]
            found.append(float(chances[is_proof].sum()))
            chances[is_proof] = 0.0
            known = n
        return np.array(found)

    def first(self, ups: Integers, downs: Integers) -> Integers:
        """The first look at which each result is proven, of counts whose last axis is the looks of the design."""
        found = np.full(ups.shape[:-1], NEVER)
        for look in reversed(range(len(self.looks))):
            rises = self.rises(look)
            place = ups.shape[-1] - 1 if len(self.looks) == 1 else look
            found[ups[..., place] >= rises[np.minimum(downs[..., place], len(rises) - 1)]] = place
        return found


def _most(n: int, share: float) -> int:
    return min(n, int(n * share + 9 * np.sqrt(n * share) + 12))


def _multinomial(n: int, up: float, down: float) -> Floats:
    """The probabilities of numbers of falls (rows) and of rises among `n` samples."""
    falls, rises = np.arange(_most(n, down) + 1)[:, np.newaxis], np.arange(_most(n, up) + 1)[np.newaxis]
    left = np.maximum(n - falls - rises, 0)
    gammas = scipy.special.gammaln
    logs = gammas(n + 1) - gammas(falls + 1) - gammas(rises + 1) - gammas(left + 1)
    logs = logs + scipy.special.xlogy(falls, down) + scipy.special.xlogy(rises, up) + scipy.special.xlogy(left, 1 - up - down)
    return np.where(falls + rises <= n, np.exp(logs), 0.0)


def draw(looks: Sequence[int], flips: float, falls: Floats, suites: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Samples that rose and fell up to each look, of shape (suites, evals, looks), for the fall of each eval."""
    ups, downs = [], []
    for more in np.diff([0, *looks]):
        down = flips / 2 + falls
        fell = rng.binomial(more, down, size=(suites, len(falls)))
        downs.append(fell)
        ups.append(rng.binomial(more - fell, flips / 2 / (1 - down)))
    return np.cumsum(ups, axis=0).transpose(1, 2, 0), np.cumsum(downs, axis=0).transpose(1, 2, 0)


def first_falls(plan: Design, ups: Integers, downs: Integers) -> Integers:
    """The first look at which each result is called fallen."""
    found = np.full(ups.shape[:-1], NEVER)
    differ, shares = ups + downs, np.array(plan.shares)
    # A fall has at most this p-value of the binomial distribution; the costly test is left out for all others.
    may_be = scipy.special.bdtrc(downs - 1, differ, 0.5) <= plan.fall_level * shares**3 * (1 + 1e-9)
    may_be &= downs > 0
    for place in zip(*np.nonzero(may_be.any(axis=-1)), strict=True):
        counts = [Counts(n=n, up=int(up), down=int(down)) for n, up, down in zip(plan.looks, ups[place], downs[place], strict=True)]
        for look in np.nonzero(may_be[place])[0].tolist():
            if plan.fall(counts[: look + 1]).is_fallen:
                found[place] = look
                break
    return found


@dataclass(frozen=True, kw_only=True)
class Nights:
    """Shares of simulated suites whose first eval falls."""

    is_suite_proven: float
    is_proven: float
    """Whether the first eval is called proven."""
    is_red: float
    is_red_in_full: float
    """Whether the suite is red if all samples are asked."""
    asked: float
    """Share of the samples."""
    covers: float
    """Whether the interval at the stop covers the difference, of the first eval, or of all if none falls."""
    bias: float
    """Mean of the estimate at the stop minus the difference, of the same evals."""


def simulate(n: int, margin: float, flips: float, fall: float, *, suites: int = SUITES, proofs: str | None = None, seed: int = 0) -> Nights:
    """Simulate suites. `proofs` names other ways to spend the level of a proof: those of `Proofs.spending`."""
    plan = design(n, margin, flips)
    sought = Proofs.of(plan) if proofs is None else Proofs.spending(plan, proofs)
    rng = np.random.default_rng((20251129, n, round(1e4 * margin), round(1e4 * flips), round(1e4 * fall), seed))
    falls = np.array([fall, *[0.0] * (EVALS - 1)])
    ups, downs = draw(plan.looks, flips, falls, suites, rng)
    last = len(plan.looks) - 1
    proven, fallen = sought.first(ups, downs), first_falls(plan, ups, downs)
    is_red_alone = fallen <= np.minimum(proven, last)
    red_at = np.where(is_red_alone, fallen, NEVER).min(axis=1)
    stopped = np.minimum(np.minimum(np.minimum(proven, fallen), last), red_at[:, np.newaxis])
    is_red, is_proven = red_at <= last, (proven <= stopped) & ~(fallen <= stopped)
    of_whole = scipy.special.bdtrc(downs[..., -1] - 1, ups[..., -1] + downs[..., -1], 0.5) <= FALL_LEVEL
    looks, which = np.array(plan.looks), slice(0, 1 if fall else EVALS)
    up, down = (np.take_along_axis(each, stopped[..., np.newaxis], axis=-1)[..., 0][:, which] for each in (ups, downs))
    at, widths = looks[stopped[:, which]], np.array([plan.width_at(look) for look in range(len(looks))])[stopped[:, which]]
    low, high = intervals(at, up, down, widths)
    truth = -falls[which]
    return Nights(
        is_suite_proven=float((is_proven.all(axis=1) & ~is_red).mean()),
        is_proven=float(is_proven[:, 0].mean()),
        is_red=float(is_red.mean()),
        is_red_in_full=float((of_whole & (downs[..., -1] > 0)).any(axis=1).mean()),
        asked=float(looks[stopped].mean() / n),
        covers=float(((low <= truth) & (high >= truth)).mean()),
        bias=float(((up - down) / at - truth).mean()),
    )


def intervals(n: Integers, up: Integers, down: Integers, widths: Floats) -> tuple[Floats, Floats]:
    """Bonett and Price's intervals of 95 %, as in `paired.compare_means`, made wider around the difference."""
    more, fewer = (up + 1) / (n + 2), (down + 1) / (n + 2)
    half = 1.959963984540054 * np.sqrt((more + fewer - (more - fewer) ** 2) / (n + 2))
    seen = (up - down) / n
    return seen + widths * (more - fewer - half - seen), seen + widths * (more - fewer + half - seen)


def false_alarms(n: int, margin: float, flips: float, *, suites: int = QUIET_SUITES) -> float:
    """The share of quiet suites that are red in one night."""
    plan, red, rng = design(n, margin, flips), 0, np.random.default_rng((7, n, round(1e4 * flips)))
    proofs = Proofs.of(plan)
    for start in range(0, suites, 5000):
        ups, downs = draw(plan.looks, flips, np.zeros(EVALS), min(5000, suites - start), rng)
        fallen = first_falls(plan, ups, downs)
        red += int((fallen <= np.minimum(proofs.first(ups, downs), NEVER - 1)).any(axis=1).sum())
    return red / suites


OTHERS = ("one look", "O'Brien and Fleming", "Pocock")
FALLS = (0.02, 0.03, 0.05, 0.1)
QUIET = (
    "| samples | margin | flips | level is spent | quiet suites of ten proven | samples asked | proven at one look | "
    "O'Brien and Fleming: proven, asked | Pocock: proven, asked | a fall of the margin called proven | "
    "suites falsely red in a night | in 30 nights, at most |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)
FALLEN = (
    "| samples | margin | flips | falls by 2 points: proven | red (full) | by 3 points: red (full) | by 5 points: red (full) | "
    "by 10 points: red (full) | asked | intervals cover | bias, in points |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
)


def name_of(n: int, margin: float, flips: float) -> str:
    """The first columns of a row."""
    return f"| {n:,} | {margin * 100:.0f} points | {flips:.1%} |"


def quiet_row(n: int, margin: float, flips: float, *, others: Sequence[str] = OTHERS, suites: int = QUIET_SUITES) -> str:
    """A row of the first table. All but the false alarms is exact, without the few suites that are falsely red."""
    plan = design(n, margin, flips)
    own = Proofs.of(plan)
    shown = {}
    for name, sought in [("own", own), *((name, Proofs.spending(plan, name)) for name in others)]:
        chances = sought.probabilities(flips / 2, flips / 2)
        asked = float((chances * np.array(sought.looks)).sum() / n + 1 - chances.sum())
        shown[name] = f"{chances.sum() ** EVALS:.0%}", f"{asked:.0%}"
    one_look, *losers = [shown.get(name, ("", "")) for name in OTHERS]
    size = own.probabilities(flips / 2, flips / 2 + margin).sum()
    red = false_alarms(n, margin, flips, suites=suites)
    cells = ["early" if plan.proof_power == EAGER else "late", *shown["own"], one_look[0], *(", ".join(each) for each in losers)]
    return f"{name_of(n, margin, flips)} {' | '.join([*cells, f'{size:.1%}', f'{red:.2%}', f'{DAYS * red:.1%}'])} |\n"


def fallen_row(n: int, margin: float, flips: float, *, suites: int = SUITES) -> str:
    """A row of the second table. `intervals cover` and `bias` are the worst over the falls, and no fall."""
    quiet = simulate(n, margin, flips, 0.0, suites=suites)
    small, middle, large, huge = [simulate(n, margin, flips, fall, suites=suites) for fall in FALLS]
    is_margin = FALLS[0] == margin
    proven = Proofs.of(design(n, margin, flips)).probabilities(flips / 2, flips / 2 + margin).sum() if is_margin else small.is_proven
    cells = [f"{proven:.1%}", _red(small), _red(middle), _red(large), _red(huge), f"{huge.asked:.0%}"]
    every = [quiet, small, middle, large, huge]
    bias = max((each.bias for each in every), key=abs)
    cells += [f"{min(each.covers for each in every):.1%}", f"{bias * 100:+.1f}"]
    return f"{name_of(n, margin, flips)} {' | '.join(cells)} |\n"


def _red(nights: Nights) -> str:
    return f"{nights.is_red:.0%} ({nights.is_red_in_full:.0%})"


TWO_STATES = "| samples | margin | flips | quiet suites of ten proven | samples asked | proven at one look |\n|---|---|---|---|---|---|\n"


def two_states_row(n: int, margin: float, flips: float, *, nights: int = 40_000) -> str:
    """Quiet suites whose anchor is another state than their baseline, so that both proofs are needed at one look.

    A share 2 * `flips` of the samples is right in half of all states, and the others never change.
    """
    plan, rng = design(n, margin, flips), np.random.default_rng(0)
    shares = np.append(np.full(8, flips / 4), 1 - 2 * flips)
    added = [rng.multinomial(more, shares, size=nights)[:, :8] for more in np.diff([0, *plan.looks])]
    counts = np.cumsum(added, axis=0).reshape(-1, nights, 2, 2, 2).transpose(1, 0, 2, 3, 4)  # right tonight, in the baseline, in the anchor
    flipped = [
        (counts[:, :, 1, 0].sum(axis=2), counts[:, :, 0, 1].sum(axis=2)),
        (counts[:, :, 1, :, 0].sum(axis=2), counts[:, :, 0, :, 1].sum(axis=2)),
    ]

    def proven(looks: Proofs) -> Integers:
        first = np.full(nights, NEVER)
        for place, asked in reversed(list(enumerate(looks.looks))):
            at, rises = plan.looks.index(asked), looks.rises(place)
            of_each = [ups[:, at] >= rises[np.minimum(downs[:, at], len(rises) - 1)] for ups, downs in flipped]
            first[of_each[0] & of_each[1]] = at
        return first

    first, once = proven(Proofs.of(plan)), proven(Proofs.spending(plan, "one look"))
    asked = np.array(plan.looks)[np.minimum(first, len(plan.looks) - 1)].mean() / n
    suites, suites_once = (np.mean(each != NEVER) ** EVALS for each in (first, once))
    return f"{name_of(n, margin, flips)} {suites:.0%} | {asked:.0%} | {suites_once:.0%} |\n"
