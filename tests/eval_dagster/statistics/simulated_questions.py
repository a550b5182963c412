"""Suites of ten evals whose questions a model decides by real margins: few of them flip often, the others hardly ever.

Five evals have the margins of HellaSwag and five those of MMLU. The noise of a night is simulated: as many answers flip as a row says.
One eval falls: the margins of all its answers shift by the same amount.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
import scipy.optimize
from simulated_nights import EVALS, FALL_LEVEL, FALLS, NEVER, Floats, Integers, Proofs, design, first_falls, name_of
from simulated_pairs import HELLASWAG, MMLU

from eval_dagster.statistics.sequential import Design

GROUPS = 40
"""Draws of the questions of ten evals."""
NIGHTS = 50
"""Suites of each group. Each has a baseline of its own."""
QUIET_NIGHTS = 100
ALONE = 500
"""Nights of each group in which one eval falls by the margin, for the share that is called proven."""
HEAD = (
    "| samples | margin | flips | quiet suites of ten proven | samples asked | proven at one look | a fall of the margin called proven | "
    "suites falsely red in a night | falls by 2 points: red (full) | by 3 points | by 5 points | by 10 points | asked |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Questions that a model decides by real margins, in nats: few of them flip often, the others hardly ever."""

    margins: Floats
    """Above 0 if the right answer is the best one, below 0 if it is the second best; infinitely below otherwise."""
    noise: float
    """Standard deviation of the noise of a night, which is simulated."""

    @classmethod
    def draw(cls, n: int, deciles: Sequence[float], flips: float, rng: np.random.Generator) -> "Questions":
        """Draw questions of which so many flip, two fifths of them right."""
        sizes, sign = np.interp(rng.random(n), np.linspace(0, 1, len(deciles)), deciles), rng.choice([1, -1, -np.inf], n, p=[0.4, 0.3, 0.3])
        margins = sizes * sign

        def excess(noise: float) -> float:
            chances = cls(margins=margins, noise=noise).chances()
            return float((2 * chances * (1 - chances)).mean()) - flips

        return cls(margins=margins, noise=float(scipy.optimize.brentq(excess, 1e-6, 100)))

    def chances(self, shift: float = 0.0) -> Floats:
        """The probability of a right answer, if right answers lose so much of their margins."""
        return np.asarray(scipy.special.ndtr((self.margins - shift) / self.noise))

    def all_a_little(self, fall: float) -> Floats:
        """The probabilities after a fall of all margins by the same amount."""
        shift = scipy.optimize.brentq(lambda shift: float((self.chances() - self.chances(shift)).mean()) - fall, 0, 1000)
        return self.chances(float(shift))

    def some_for_good(self, fall: float) -> Floats:
        """The probabilities after the answers to the first questions were lost; their order is random."""
        chances = self.chances()
        lost = np.clip(fall * len(chances) - (np.cumsum(chances) - chances), 0, chances)
        return np.asarray(chances - lost)


@dataclass(frozen=True, kw_only=True)
class Looks:
    """The findings of the looks at some suites, of shape (suites, evals)."""

    proven: Integers
    """The first look at which an eval is proven."""
    fallen: Integers
    """The first look at which it is called fallen."""
    once: Integers
    """0 where it is proven by all samples at one look."""
    whole: Floats
    """One-sided p-value of the fall, by all samples."""


def look(plan: Design, tonight: Sequence[Floats], before: Sequence[Floats], nights: int, rng: np.random.Generator) -> Looks:
    """Answer all questions twice, and look. Each eval has its chances of a right answer tonight and in the baseline, in random order."""
    counts = []
    for chances in zip(tonight, before, strict=True):
        now, earlier = (rng.random((nights, len(each)), dtype=np.float32) < each for each in chances)
        changed = now.astype(np.int8) - earlier
        starts = np.array([0, *plan.looks[:-1]])
        counts.append([np.add.reduceat(changed == way, starts, axis=1, dtype=np.int64).cumsum(axis=1) for way in (1, -1)])
    ups, downs = (np.stack([each[way] for each in counts], axis=1) for way in (0, 1))
    differ = ups[..., -1] + downs[..., -1]
    return Looks(
        proven=Proofs.of(plan).first(ups, downs),
        fallen=first_falls(plan, ups, downs),
        once=Proofs.spending(plan, "one look").first(ups, downs),
        whole=np.where(downs[..., -1] > 0, scipy.special.bdtrc(downs[..., -1] - 1, differ, 0.5), 1.0),
    )


@dataclass(frozen=True, kw_only=True)
class Suites:
    """Shares of suites."""

    proven: float
    once: float
    asked: float
    """Share of the samples."""
    red: float
    in_full: float
    """Red if all samples are asked."""

    @classmethod
    def of(cls, plan: Design, seen: Looks) -> "Suites":
        """The shares, where all evals are asked in step and the first red ends the suite."""
        last = len(plan.looks) - 1
        red_at = np.where(seen.fallen <= np.minimum(seen.proven, last), seen.fallen, NEVER).min(axis=1)
        stopped = np.minimum(np.minimum(np.minimum(seen.proven, seen.fallen), last), red_at[:, np.newaxis])
        is_red = red_at <= last
        return cls(
            proven=float(((seen.proven <= stopped).all(axis=1) & ~is_red).mean()),
            once=float((seen.once != NEVER).all(axis=1).mean()),
            asked=float(np.array(plan.looks)[stopped].mean() / plan.looks[-1]),
            red=float(is_red.mean()),
            in_full=float((seen.whole <= FALL_LEVEL).any(axis=1).mean()),
        )


def real_row(n: int, margin: float, flips: float) -> str:
    """A row of the third table of nights that stop early."""
    plan, rng = design(n, margin, flips), np.random.default_rng((11, n, round(1e4 * margin), round(1e4 * flips)))
    quiet, fallen, proven = [], {fall: [] for fall in FALLS}, []
    for _ in range(GROUPS):
        evals = [Questions.draw(n, (HELLASWAG, MMLU)[place % 2], flips, rng) for place in range(EVALS)]
        chances = [each.chances() for each in evals]
        quiet.append(look(plan, chances, chances, QUIET_NIGHTS, rng))
        first = int(rng.integers(EVALS))
        for fall in FALLS:
            worse = [evals[first].all_a_little(fall), *(each for place, each in enumerate(chances) if place != first)]
            before = [chances[first], *worse[1:]]
            fallen[fall].append(Suites.of(plan, look(plan, worse, before, NIGHTS, rng)))
        alone = look(plan, [evals[first].all_a_little(margin)], [chances[first]], ALONE, rng)
        proven.append(float((alone.proven != NEVER).mean()))
    calm = [Suites.of(plan, each) for each in quiet]
    cells = [f"{_mean(calm, 'proven'):.0%}", f"{_mean(calm, 'asked'):.0%}", f"{_mean(calm, 'once'):.0%}", f"{np.mean(proven):.1%}"]
    cells += [f"{_mean(calm, 'red'):.2%}"]
    cells += [f"{_mean(of_fall, 'red'):.0%} ({_mean(of_fall, 'in_full'):.0%})" for of_fall in fallen.values()]
    cells += [f"{_mean(fallen[FALLS[-1]], 'asked'):.0%}"]
    return f"{name_of(n, margin, flips)} {' | '.join(cells)} |\n"


def _mean(suites: Sequence[Suites], name: str) -> float:
    return float(np.mean([getattr(each, name) for each in suites]))
