"""Scores by a part of the samples and the answers of earlier models: unbiased, as sure as stated, and worth more where models are alike."""

import numpy as np
import pytest
from numpy.typing import NDArray

from eval_dagster.statistics.borrowed import BorrowedEstimate, BorrowedLook, at_large, choose, estimate, next_end, predict

Floats = NDArray[np.float64]
N = 1_000


def relatives(count: int, *, own: float, seed: int = 0) -> Floats:
    """Right and wrong answers of models that are alike: each differs by noise of its own from what is common."""
    rng = np.random.default_rng(seed)
    common = rng.normal(0.2, 1.5, N)
    return np.array([common + rng.normal(0, own, N) > 0 for _ in range(count)], dtype=float)


def asked(history: Floats, truth: Floats, most: int, rng: np.random.Generator, *, blind: bool = False) -> tuple[list[BorrowedLook], Floats]:
    """The looks of a new model, and its answers. `blind`: predictions are not used."""
    answers, rest, looks, done = np.full(len(truth), np.nan), np.arange(len(truth)), list[BorrowedLook](), 0
    while (end := next_end(done, most, len(truth))) > done:
        predictions = np.full(len(truth), 0.5) if blind else predict(history, answers)
        looks.append(choose(rest, predictions[rest], end - done, rng))
        drawn = rest[looks[-1].drawn]
        answers[drawn] = truth[drawn]
        rest, done = np.setdiff1d(rest, drawn), end
    return looks, answers


def repeated(
    history: Floats, truth: Floats, *, most: int = 200, times: int = 60, blind: bool = False, proportion: bool = True
) -> tuple[list[BorrowedEstimate], float, float]:
    """Many estimates of one model, their mean error in standard errors of the mean, and their real factor."""
    rng = np.random.default_rng(len(truth) + most)
    found = [estimate(*asked(history, truth, most, rng, blind=blind), is_proportion=proportion) for _ in range(times)]
    errors = np.array([each.value for each in found]) - truth.mean()
    even = truth.var(ddof=1) * (1 - most / len(truth)) / most
    return found, float(errors.mean() / (errors.std(ddof=1) / np.sqrt(times))), float(even / np.mean(errors**2))


def coverage(found: list[BorrowedEstimate], truth: Floats) -> float:
    return float(np.mean([each.ci_low <= truth.mean() <= each.ci_high for each in found]))


def test_relatives_make_a_sample_worth_several() -> None:
    family = relatives(16, own=0.35)
    found, bias, factor = repeated(family[1:], family[0])
    assert abs(bias) < 3
    assert factor > 2.5
    assert np.median([each.factor for each in found]) > 2.5
    assert coverage(found, family[0]) >= 0.9
    assert not any(each.is_dropped for each in found)
    full = np.sqrt(family[0].var() / N)
    assert all(at_large(each, N)[0] > 0.95 * full for each in found), "no estimate is surer than all samples"
    _, _, without = repeated(family[1:], family[0], blind=True)
    assert without < 1.6, "the factor is the history's"


def test_wrong_predictions_cost_certainty_and_not_truth() -> None:
    """The history says that the score is 0.9; the new model has 0.3, by samples of which the others know nothing."""
    rng = np.random.default_rng(3)
    history, truth = (rng.random((8, N)) < 0.9).astype(float), (rng.random(N) < 0.3).astype(float)
    found, bias, factor = repeated(history, truth, times=150)
    assert abs(bias) < 3
    assert abs(np.mean([each.value for each in found]) - truth.mean()) < 0.01
    assert 0.6 < factor < 1.4
    assert coverage(found, truth) >= 0.9


def test_without_the_chances_the_estimate_would_be_biased() -> None:
    """The fault that dividing by the chances is for: uncertain samples are asked more often, and are wrong more often."""
    rng = np.random.default_rng(5)
    ease = np.where(np.arange(N) < N / 2, 0.97, 0.5)
    history, truth = (rng.random((20, N)) < ease).astype(float), (rng.random(N) < ease).astype(float)
    _, answers = asked(history, truth, 200, rng)
    plain = [float(np.nanmean(asked(history, truth, 200, rng)[1])) for _ in range(20)]
    assert np.mean(plain) < truth.mean() - 0.03
    found, bias, _ = repeated(history, truth)
    assert abs(bias) < 3
    assert np.isfinite(answers).sum() == 200
    assert coverage(found, truth) >= 0.85


def test_residuals_count_by_their_chances() -> None:
    """Samples that the history takes for certain are asked rarely, and here it is wrong about them alone."""
    rng = np.random.default_rng(6)
    is_certain = np.arange(N) < N / 2
    predictions, truth = np.where(is_certain, 0.98, 0.5), np.where(is_certain, 0.0, np.arange(N) % 2)
    looks = [choose(np.arange(N), predictions, 100, rng) for _ in range(200)]
    found = np.array(
        [estimate([look], np.where(np.isin(np.arange(N), look.drawn), truth, np.nan), is_proportion=True).value for look in looks]
    )
    assert abs(found.mean() - truth.mean()) < 4 * found.std() / np.sqrt(len(found))
    even = np.array([predictions.mean() + (truth - predictions)[look.drawn].mean() for look in looks])
    assert even.mean() > truth.mean() + 0.1, "without the chances the score would be too high"


def test_a_stranger_is_drawn_evenly_and_loses_little() -> None:
    rng = np.random.default_rng(7)
    family, truth = relatives(12, own=0.3), (rng.random(N) < 0.6).astype(float)
    looks, _ = asked(family, truth, 200, rng)
    assert any(np.ptp(look.chances) < 1e-9 for look in looks[1:]), "ridge found nothing that they have in common"
    found, _, factor = repeated(family, truth, times=100)
    assert factor > 0.7
    assert np.mean([each.is_dropped for each in found]) > 0.5
    assert all(each.factor <= 1 for each in found if each.is_dropped)


def test_values_between_0_and_1() -> None:
    rng = np.random.default_rng(11)
    common = rng.random(N)
    history, truth = np.clip(common + rng.normal(0, 0.1, (6, N)), 0, 1), np.clip(common + rng.normal(0, 0.1, N), 0, 1)
    found, bias, factor = repeated(history, truth, proportion=False)
    assert abs(bias) < 3
    assert factor > 2
    assert coverage(found, truth) >= 0.88


def test_the_mean_of_several_texts_is_no_proportion() -> None:
    """Eight texts of each prompt, right by chance: a value has an eighth of the variance of 0 or 1."""
    rng = np.random.default_rng(12)
    history, truth = rng.binomial(8, 0.5, (6, N)) / 8, rng.binomial(8, 0.5, N) / 8
    found, _, factor = repeated(history, truth, times=100)
    stated = float(np.median([each.factor for each in found]))
    assert stated == pytest.approx(factor, rel=0.35)
    assert stated <= 1
    assert coverage(found, truth) >= 0.9
    full = truth.std() / np.sqrt(N)
    assert all(full < at_large(each, N)[0] < 3.5 * full for each in found), "the error bar is by the values themselves"


def test_every_sample_has_its_chance() -> None:
    rng = np.random.default_rng(13)
    predictions = np.linspace(0.02, 0.98, 50)
    looks = [choose(np.arange(50), predictions, 30, rng) for _ in range(3_000)]
    counts = np.bincount(np.concatenate([look.drawn for look in looks]), minlength=50) / len(looks)
    assert looks[0].chances.sum() == pytest.approx(30)
    assert looks[0].chances.max() <= 1
    assert np.abs(counts - looks[0].chances).max() < 0.04
    assert {len(set(look.drawn)) for look in looks} == {30}


def test_all_samples_asked_are_the_score() -> None:
    family = relatives(5, own=0.5)
    looks, answers = asked(family[1:], family[0], N, np.random.default_rng(1))
    found = estimate(looks, answers, is_proportion=True)
    assert np.isfinite(answers).all()
    assert found.value == pytest.approx(family[0].mean(), abs=1e-9)


def test_an_error_is_no_answer() -> None:
    family = relatives(8, own=0.4)
    looks, answers = asked(family[1:], family[0], 200, np.random.default_rng(2))
    first = looks[0].rest[looks[0].drawn[:5]]
    answers[first] = np.nan
    assert estimate(looks, answers, is_proportion=True).value == pytest.approx(family[0].mean(), abs=0.12)
    with pytest.raises(ValueError, match="no asked sample has a value"):
        estimate(looks, np.full(N, np.nan), is_proportion=True)


def test_looks_grow_to_the_most_that_may_be_asked() -> None:
    ends, done = [], 0
    while (end := next_end(done, 400, 2_000)) > done:
        ends.append(end)
        done = end
    assert ends == [60, 140, 260, 400]
    assert next_end(400, 600, 2_000) == 600
    assert next_end(400, 300, 2_000) == 400
    assert next_end(0, 400, 20) == 3
