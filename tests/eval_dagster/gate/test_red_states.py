"""What is red stays red until it is better, whatever lies between: small steps, few samples, errors, and files that are pruned."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from judged_project import Nights, row

from eval_dagster.errors import UsageError
from eval_dagster.gate.results import accept, write_result
from eval_dagster.records.judgements import Verdict
from eval_dagster.retention import Keep, Policy, prune

REGRESSED, SAME = Verdict.REGRESSED, Verdict.NO_CHANGE_SEEN
ERRORS = 'raise ValueError("no answer")'


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def _prune(nights: Nights) -> None:
    policy = Policy(keep=Keep(count=1), catalogs=Keep(count=0))
    assert prune(nights.project(baseline="last_passed"), policy, now=datetime.now(UTC) + timedelta(days=3)).files


def _drift(nights: Nights) -> int:
    """Lose two samples a night until that is red; returns how many are lost."""
    nights.night()
    for lost in range(2, 22, 2):
        if row(nights.night(wrong=range(lost))).is_red:
            return lost
    raise AssertionError("the drift is not found")


@pytest.mark.long
@pytest.mark.parametrize("between", [{"raising": ERRORS, "wrong": range(12)}, {"function": "elsewhere"}], ids=["errors", "failed"])
def test_pruning_ends_nothing_that_is_red(nights: Nights, between: dict[str, object]) -> None:
    nights.night()
    nights.night(wrong=range(12))
    nights.night(**between)  # type: ignore[arg-type]
    nights.night(**between)  # type: ignore[arg-type]
    _prune(nights)
    worse = row(nights.night(wrong=range(1, 13)))
    assert (worse.verdict, worse.baseline_value, worse.is_passed) == (REGRESSED, 1.0, False)


@pytest.mark.long
def test_pruning_keeps_the_anchor_of_a_drift(nights: Nights) -> None:
    lost = _drift(nights)
    nights.night(wrong=range(1, lost + 1))
    _prune(nights)
    recovered = row(nights.night())
    assert (recovered.verdict, recovered.anchor_value) == (SAME, 1.0)


@pytest.mark.long
def test_small_steps_back_are_green_as_one_large_step_is(nights: Nights) -> None:
    nights.night()
    nights.night(wrong=range(12))
    assert row(nights.night(wrong=range(6))).verdict is REGRESSED
    recovered = row(nights.night(wrong=[0]))
    assert (recovered.verdict, recovered.is_passed) == (SAME, True)


@pytest.mark.long
def test_an_improvement_that_was_lost_again_stays_red_though_the_anchor_was_no_better(nights: Nights) -> None:
    nights.night(wrong=range(16))
    assert row(nights.night()).verdict is Verdict.IMPROVED
    for wrong in (range(14), range(14), range(1, 15)):
        lost = row(nights.night(wrong=wrong))
        assert (lost.verdict, lost.baseline_value) == (REGRESSED, 1.0)
        assert lost.value is not None
        assert lost.anchor_value is not None
        assert lost.value > lost.anchor_value
    assert row(nights.night(wrong=[0])).verdict is SAME


@pytest.mark.long
def test_rows_that_go_a_few_a_night_are_missed(nights: Nights) -> None:
    nights.night(numbers=range(20))
    assert row(nights.night(numbers=range(13))).verdict is SAME
    thin = row(nights.night(numbers=range(8)))
    assert (thin.verdict, thin.is_passed, thin.is_partial) == (Verdict.NOT_COMPARABLE, False, False)
    assert "only 8 of the 20 samples of the anchor" in (thin.reason or "")
    accept(nights.project().lake, "nightly", evals=[thin.eval], models=[], by="me", why="the others are gone")
    assert row(nights.night(numbers=range(8), wrong=[0])).verdict is SAME


@pytest.mark.long
def test_the_scores_of_the_baseline_end_a_drift(nights: Nights) -> None:
    lost = _drift(nights)
    again = row(nights.night(wrong=range(lost - 2)))
    assert (again.verdict, again.is_passed) == (SAME, True)


@pytest.mark.long
def test_the_reason_is_the_first_one_and_true_of_the_scores(nights: Nights) -> None:
    lost = _drift(nights)
    reasons = [row(nights.night(wrong=wrong)).reason or "" for wrong in (range(lost), *[range(1, lost - 2)] * 2, range(2, lost - 1))]
    assert ["unchanged since" in reason for reason in reasons] == [True, False, False, False]
    assert [reason.count("drifted since") for reason in reasons] == [1] * 4
    assert [reason.count("regressed in the state of") for reason in reasons] == [1] * 4


@pytest.mark.long
def test_what_regressed_on_few_samples_stays_red_until_these_are_better(nights: Nights) -> None:
    nights.night()
    found = [row(nights.night(numbers=range(13), wrong=wrong)).verdict for wrong in (range(6), range(6), range(1, 7))]
    assert found == [REGRESSED] * 3
    for wrong in ((), (0,)):
        better = row(nights.night(numbers=range(13), wrong=wrong))
        assert (better.verdict, better.is_passed) == (Verdict.NOT_COMPARABLE, False)
        assert better.reason == "only 13 of the 40 samples of the baseline have a value now; expected at least half of them"


@pytest.mark.long
def test_few_samples_end_nothing_that_was_seen_on_more(nights: Nights) -> None:
    nights.night()
    nights.night(wrong=range(12))
    assert row(nights.night(wrong=range(12), numbers=range(20, 25))).verdict is REGRESSED


@pytest.mark.long
def test_a_state_without_a_value_cannot_be_accepted(nights: Nights) -> None:
    nights.night()
    nights.night(raising=ERRORS)
    with pytest.raises(UsageError, match=r"left on one of .* has no value, since all its samples are errors"):
        accept(nights.project().lake, "nightly", evals=[], models=[], by="me", why="x")


@pytest.mark.long
def test_accept_without_names_takes_what_is_red_alone(nights: Nights) -> None:
    nights.night()
    nights.night(wrong=range(12))
    nights.evaluate(function="elsewhere")
    result = nights.judge(baseline="last_passed")
    write_result(nights.project().lake, result)
    assert row(result, "right", metric=None).is_passed is False
    accepted = accept(nights.project().lake, "nightly", evals=[], models=[], by="me", why="x")
    assert [each.eval for each in accepted] == ["left"]


@pytest.mark.long
def test_what_has_a_baseline_without_any_value_is_a_start(nights: Nights) -> None:
    nights.evaluate(raising=ERRORS)
    healthy = row(nights.night())
    assert (healthy.verdict, healthy.is_passed) == (Verdict.FIRST_RESULT, True)
    assert row(nights.night(wrong=range(12))).verdict is REGRESSED


@pytest.mark.long
@pytest.mark.parametrize("first", [{"function": "elsewhere"}, {"raising": ERRORS}], ids=["failed", "errors"])
def test_a_first_judgement_without_a_result_hides_no_earlier_one(nights: Nights, first: dict[str, object]) -> None:
    nights.evaluate()
    nights.night(**first)  # type: ignore[arg-type]
    assert row(nights.night(wrong=range(12))).verdict is REGRESSED


@pytest.mark.long
def test_a_night_of_errors_spends_no_share_of_the_false_alarms(nights: Nights) -> None:
    nights.night()
    assert nights.night(raising=ERRORS, evals=("left",)).level == 0.0


def test_each_metric_of_errors_is_reported_on_the_first_night(nights: Nights) -> None:
    result = nights.night(gate="metrics: all", words="1 / 0 if response.text else 1.0")
    assert row(result, metric="words").verdict is Verdict.ERRORS
    assert result.is_failed
