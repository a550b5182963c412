"""The part of a score that the prompt makes: known by construction, by the textbook's mean squares, and by simulation."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from eval_dagster.statistics.estimates import estimate_macro, estimate_mean
from eval_dagster.statistics.prompt_effects import prompt_effect

Floats = NDArray[np.float64]


def drawn(rng: np.random.Generator, rows: int, effects: Sequence[float], *, own: float = 0.3, crossed: float = 0.2) -> Floats:
    """Scores of questions crossed with prompts: questions differ by `own`, and each with each prompt by `crossed`."""
    of_rows = rng.normal(0, own, (rows, 1))
    return np.asarray(0.5 + of_rows + np.array(effects) + rng.normal(0, crossed, (rows, len(effects))))


def right_or_wrong(rng: np.random.Generator, rows: int, shares: Sequence[float]) -> Floats:
    """Answers that are right in these shares of the questions, and agree between prompts where they can."""
    hardness = rng.uniform(0, 1, (rows, 1))
    noise = rng.uniform(0, 1, (rows, len(shares)))
    mixed = np.where(rng.uniform(0, 1, (rows, len(shares))) < 0.7, hardness, noise)
    return (mixed < np.array(shares)).astype(float)


def apart(data: Floats) -> list[int]:
    return list(range(len(data)))


def test_independent_questions_have_the_estimates_by_mean_squares() -> None:
    data = drawn(np.random.default_rng(1), 50, (0.0, 0.1, -0.2))
    n, prompts = data.shape
    mean, rows, columns = data.mean(), data.mean(axis=1, keepdims=True), data.mean(axis=0)
    of_prompts = n * ((columns - mean) ** 2).sum() / (prompts - 1)
    residual = ((data - rows - columns + mean) ** 2).sum() / ((n - 1) * (prompts - 1))
    of_rows = prompts * ((rows - mean) ** 2).sum() / (n - 1)
    between, own = (of_prompts - residual) / n, (of_rows - residual) / prompts
    found = prompt_effect(data, apart(data))
    assert found.deviation == pytest.approx(between**0.5)
    assert found.share == pytest.approx(between / (between + (own + residual) / n))
    assert found.spread == pytest.approx(np.ptp(columns))


def test_two_prompts_have_the_interval_of_a_paired_t_test() -> None:
    data = drawn(np.random.default_rng(2), 30, (0.0, 0.2))
    found, difference = prompt_effect(data, apart(data)), data[:, 1] - data[:, 0]
    estimate = estimate_mean(difference.tolist(), proportion=False)
    assert estimate.ci_low is not None
    assert estimate.ci_low > 0
    assert (found.spread_low, found.spread_high) == pytest.approx((estimate.ci_low, estimate.ci_high))


def test_clusters_and_groups_count_as_in_the_estimates_of_scores() -> None:
    rng = np.random.default_rng(3)
    half = drawn(rng, 20, (0.0, 0.3, 0.1))
    twice, clusters = np.concatenate([half, half]), [*range(20), *range(20)]
    alone, both = prompt_effect(half, apart(half)), prompt_effect(twice, clusters)
    assert both.n_clusters == 20
    for name in ("spread", "spread_low", "spread_high", "deviation", "share"):
        assert getattr(both, name) == pytest.approx(getattr(alone, name)), "a copy of each question tells nothing new"
    groups = [row % 4 // 3 for row in range(40)]
    data = drawn(np.random.default_rng(4), 40, (0.0, 0.3))
    found = prompt_effect(data, list(range(40)), groups)
    parts = [[estimate_mean(column[np.array(groups) == each].tolist(), proportion=False) for each in (0, 1)] for column in data.T]
    macro = [estimate_macro(each, proportion=False).value for each in parts]
    assert found.spread == pytest.approx(abs(macro[0] - macro[1]))  # type: ignore[operator]


def test_questions_without_a_value_are_left_out_under_all_prompts() -> None:
    data = drawn(np.random.default_rng(5), 30, (0.0, 0.1))
    holes = np.concatenate([data, [[np.nan, 0.0], [1.0, np.nan]]])
    found, whole = prompt_effect(holes, apart(holes)), prompt_effect(data, apart(data))
    assert found == whole
    assert found.n_common == 30


def test_what_tells_nothing_is_null() -> None:
    nothing = prompt_effect(np.full((3, 2), np.nan), [0, 1, 2])
    assert (nothing.n_common, nothing.spread, nothing.share) == (0, None, None)
    one = prompt_effect(np.array([[0.0, 1.0]]), [0])
    assert (one.spread, one.spread_low, one.deviation) == (1.0, None, None)
    alike = prompt_effect(np.array([[0.0, 1.0]] * 9), list(range(9)))
    assert (alike.spread, alike.spread_low, alike.share) == (1.0, None, 1.0), "all questions differ by as much: there is no error bar"
    same = prompt_effect(np.ones((9, 2)), list(range(9)))
    assert (same.spread, same.spread_high, same.share) == (0.0, None, None)
    with pytest.raises(ValueError, match="at least two columns"):
        prompt_effect(np.ones((9, 1)), list(range(9)))


CASES = {
    "two prompts, no effect": ((0.0, 0.0), None),
    "two prompts": ((0.0, 0.1), None),
    "four prompts, no effect": ((0.0,) * 4, None),
    "four prompts": ((0.0, 0.05, 0.1, -0.1), None),
    "ten prompts, one differs": ((*((0.0,) * 9), 0.2), None),
    "right or wrong, no effect": (None, (0.6, 0.6, 0.6)),
    "right or wrong": (None, (0.5, 0.6, 0.72)),
    "right or wrong, nearly all right": (None, (0.95, 0.97, 0.97)),
}


@pytest.mark.long
@pytest.mark.parametrize("rows", [30, 100, 400])
@pytest.mark.parametrize("case", CASES)
def test_the_interval_contains_the_true_spread_at_its_rate(case: str, rows: int) -> None:
    effects, shares = CASES[case]
    rng, draws = np.random.default_rng(20261127), 2000
    truth = float(np.ptp(effects if effects is not None else shares or ()))
    covered = is_zero = bounded = 0
    for _ in range(draws):
        data = drawn(rng, rows, effects) if effects is not None else right_or_wrong(rng, rows, shares or ())
        found = prompt_effect(data, apart(data))
        if found.spread_low is None or found.spread_high is None:
            continue
        bounded += 1
        covered += found.spread_low <= truth + 1e-12 and truth <= found.spread_high
        is_zero += found.spread_low == 0.0
    assert covered / bounded > 0.94, "the intervals of all pairs hold together, so that it is more for some effects"
    if truth == 0:
        assert 0.94 < is_zero / bounded < 0.97, "a spread that is chance alone is taken for one in 1 of 20 evals"


def test_the_variance_between_prompts_is_right_on_average() -> None:
    rng, effects = np.random.default_rng(7), np.array((0.0, 0.05, -0.04))
    found = [prompt_effect(data, apart(data)) for data in (drawn(rng, 60, effects.tolist()) for _ in range(2000))]
    # At least 0, so that the mean is above the truth by little.
    assert np.mean([each.deviation**2 for each in found if each.deviation is not None]) == pytest.approx(effects.var(ddof=1), rel=0.1)
    none = [prompt_effect(data, apart(data)) for data in (drawn(rng, 60, (0.0, 0.0, 0.0)) for _ in range(500))]
    assert np.median([each.share for each in none if each.share is not None]) < 0.02
