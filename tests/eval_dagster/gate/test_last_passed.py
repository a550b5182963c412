"""Several nights of a suite against the newest state that passed: what is red stays red until it is better, accepted, or allowed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from few import few
from judged_project import Nights, row

from eval_dagster.errors import UsageError
from eval_dagster.gate.records import GateResult, Outcome
from eval_dagster.gate.results import accept
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.models import scripted
from eval_dagster.records.judgements import Verdict
from eval_dagster.results.materializations import history

REGRESSED, SAME = Verdict.REGRESSED, Verdict.NO_CHANGE_SEEN


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Change the version of every model, and nothing else, as another release of a library does."""
    return lambda name: monkeypatch.setattr(scripted, "ENGINE_VERSION", name)


def _of_left(result: GateResult) -> tuple[Verdict, float | None]:
    found = row(result)
    return found.verdict, found.baseline_value


@pytest.mark.long
def test_a_regression_stays_red_until_it_is_fixed(nights: Nights, upgrade: Callable[[str], None]) -> None:
    first = nights.night()
    assert [(each.verdict, each.is_passed) for each in first.regressions] == [(Verdict.FIRST_RESULT, True)] * 2
    assert not first.is_failed
    assert _of_left(nights.night(wrong=range(12))) == (REGRESSED, 1.0)
    upgrade("another release")
    again = nights.night(wrong=range(12))
    assert _of_left(again) == (REGRESSED, 1.0), "the same worse model under another version"
    assert again.is_failed
    assert "unchanged since" in (row(again).reason or "")
    assert row(again, "right").verdict is SAME
    for noise in (range(2, 14), range(4, 15), range(6, 17)):
        noisy = nights.night(wrong=noise)
        assert _of_left(noisy) == (REGRESSED, 1.0), "as bad, in other samples"
    assert _of_left(nights.night(wrong=range(6, 17))) == (REGRESSED, 1.0), "a night in which nothing changed"
    fixed = nights.night()
    assert _of_left(fixed) == (SAME, 1.0)
    assert not fixed.is_failed
    assert "no longer regressed" in (row(fixed).reason or "")
    assert _of_left(nights.night(wrong=range(12, 40))) == (REGRESSED, 1.0)


@pytest.mark.long
def test_a_small_regression_does_not_go_green_by_luck(nights: Nights) -> None:
    nights.night()
    assert _of_left(nights.night(wrong=range(10))) == (REGRESSED, 1.0)
    lucky = nights.night(wrong=range(3, 11))
    assert lucky.level < 0.01
    assert (row(lucky).p_adjusted or 0) > lucky.level, "eight of 40 alone would be no proof at the level of this night"
    assert _of_left(lucky) == (REGRESSED, 1.0)
    assert "not significantly better since" in (row(lucky).reason or "")


@pytest.mark.long
def test_a_part_of_the_way_back_is_green_where_it_is_significant(nights: Nights) -> None:
    nights.night(wrong=[0])
    nights.night(wrong=range(30))
    better = nights.night(wrong=range(4))
    assert _of_left(better) == (SAME, 39 / 40)
    assert row(better).is_passed


def test_what_is_as_good_as_before_within_the_smallest_difference_is_green(nights: Nights) -> None:
    nights.night(wrong=[0])
    assert row(nights.night(wrong=range(10))).verdict is REGRESSED
    assert row(nights.night(wrong=range(10), gate="smallest_difference: 0.3")).verdict is SAME, "the suite says otherwise"


@pytest.mark.long
@pytest.mark.parametrize(
    "between",
    [
        {"function": "elsewhere"},
        {"raising": 'raise ValueError("no answer")'},
        {"wrong": range(10), "numbers": range(3)},
        {"wrong": range(10), "numbers": range(200, 240)},
    ],
    ids=["failed", "errors", "trial", "other data"],
)
@few("is_red", [True, False], kept=1, ids=["worse", "healthy"])
def test_a_night_that_says_nothing_forgets_nothing(nights: Nights, between: dict[str, object], *, is_red: bool) -> None:
    nights.night()
    if is_red:
        assert _of_left(nights.night(wrong=range(10))) == (REGRESSED, 1.0)
    nights.night(**between)  # type: ignore[arg-type]
    if is_red:
        assert _of_left(nights.night(wrong=range(1, 11))) == (REGRESSED, 1.0)
    else:
        assert row(nights.night(wrong=range(12))).verdict is REGRESSED


@pytest.mark.long
def test_a_regression_stays_red_while_its_evaluation_fails(nights: Nights) -> None:
    nights.night()
    nights.night(wrong=range(10))
    failed = nights.night(function="elsewhere")
    found = row(failed)
    assert (found.verdict, found.is_passed) == (REGRESSED, False)
    assert "failed at" in (found.reason or "")
    assert row(failed, "right", metric=None).verdict is Verdict.NOT_EVALUATED, "what was healthy is not called worse"


@pytest.mark.long
def test_other_rows_begin_a_history_of_their_own_once_they_are_accepted(nights: Nights) -> None:
    nights.night()
    start = nights.night(numbers=range(200, 240))
    assert (row(start).verdict, row(start).is_passed, start.outcome) == (Verdict.NOT_COMPARABLE, False, Outcome.INCOMPLETE)
    (accepted,) = accept(nights.project().lake, "nightly", evals=["left"], models=[], by="me", why="new data")
    assert (accepted.verdict, accepted.metric, accepted.materialized_at) == (
        Verdict.NOT_COMPARABLE, "exact_match", row(start).materialized_at
    )  # fmt: skip
    worse = nights.night(numbers=range(200, 240), wrong=range(200, 215))
    assert _of_left(worse) == (REGRESSED, 1.0)
    again = nights.night(numbers=range(300, 340))
    assert row(again).verdict is REGRESSED, "nothing shows that it is better"
    assert row(nights.night(numbers=range(200, 240))).verdict is SAME


@pytest.mark.long
def test_a_regression_outlives_a_renamed_metric(nights: Nights) -> None:
    nights.night()
    nights.night(wrong=range(10))
    worse = nights.night(wrong=range(1, 11), metric="Renamed")
    assert [row(worse, metric=metric).verdict for metric in ("renamed", "exact_match")] == [REGRESSED] * 2
    better = nights.night(metric="Renamed")
    assert row(better, metric="renamed").verdict is SAME, "the answers of the last good state are scored by the new name"
    assert row(better).verdict is REGRESSED, "nothing shows that it is better by the old one"
    accept(nights.project().lake, "nightly", evals=["left"], models=[], by="me", why="looked at")
    renamed = nights.night(wrong=range(1), metric="Renamed")
    assert row(renamed, metric="renamed").verdict is SAME
    assert [each.metric for each in renamed.regressions if each.eval == "left"] == ["renamed"], "the old name is gone with the acceptance"
    assert row(nights.night(wrong=range(12), metric="Renamed"), metric="renamed").verdict is REGRESSED


@pytest.mark.long
def test_a_trial_becomes_no_baseline(nights: Nights) -> None:
    nights.night()
    trial = nights.night(numbers=range(5), wrong=range(1))
    assert (row(trial).n_common, row(trial).is_passed) == (5, False)
    assert _of_left(nights.night(wrong=range(12))) == (REGRESSED, 1.0)
    assert row(nights.night(wrong=range(12))).n_common == 40


@pytest.mark.long
def test_ten_nights_of_a_slow_fall_are_found(nights: Nights) -> None:
    nights.night()
    verdicts = []
    for lost in range(2, 22, 2):
        result = nights.night(wrong=range(lost))
        verdicts.append(row(result).verdict)
        if row(result).is_red:
            break
    assert verdicts[0] is SAME
    assert verdicts[-1] is REGRESSED
    found = row(result)
    assert found.against == "anchor"
    assert found.baseline_value == pytest.approx(1 - (lost - 2) / 40)
    assert (found.anchor_value, found.drift) == (1.0, pytest.approx(-lost / 40))
    assert (found.reason or "").startswith("drifted since one@")
    assert row(nights.night(wrong=range(1, lost + 1))).against == "anchor", "and it stays red"
    recovered = nights.night()
    assert row(recovered).verdict is SAME


@pytest.mark.long
def test_an_improvement_that_is_accepted_moves_the_anchor(nights: Nights) -> None:
    nights.night(wrong=range(20))
    improved = nights.night()
    assert row(improved).verdict is Verdict.IMPROVED
    accept(nights.project().lake, "nightly", evals=["left"], models=[], by="me", why="better data")
    nights.night(wrong=range(6))
    fallen = row(nights.night(wrong=range(14)))
    assert (fallen.verdict, fallen.against, fallen.anchor_value) == (REGRESSED, "anchor", 1.0)


@pytest.mark.long
def test_an_acceptance_makes_a_state_the_baseline_and_the_anchor(nights: Nights) -> None:
    lake = nights.project().lake
    with pytest.raises(UsageError, match="the suite nightly was never judged"):
        accept(lake, "nightly", evals=[], models=[], by="me", why="because")
    nights.night()
    with pytest.raises(UsageError, match="nothing is red, or it is accepted"):
        accept(lake, "nightly", evals=[], models=[], by="me", why="because")
    nights.night(wrong=range(12))
    with pytest.raises(UsageError, match="found an empty `why`"):
        accept(lake, "nightly", evals=[], models=[], by="me", why=" ")
    with pytest.raises(UsageError, match="it has no result of centre"):
        accept(lake, "nightly", evals=["centre"], models=[], by="me", why="because")
    (accepted,) = accept(lake, "nightly", evals=[], models=[], by="me", why="the tokenizer is the right one now")
    assert (accepted.eval, accepted.model, accepted.verdict) == ("left", "one", REGRESSED)
    assert accepted.materialized_at == history(lake, "left", "one")[-1].materialized_at
    with pytest.raises(UsageError, match="nothing is red, or it is accepted"):
        accept(lake, "nightly", evals=[], models=[], by="me", why="once more")
    publish(lake)
    (kept,) = read_rows(lake, "select * from acceptances")
    assert (kept["suite"], kept["verdict"], kept["accepted_by"], kept["why"]) == (
        "nightly", "regressed", "me", "the tokenizer is the right one now"
    )  # fmt: skip
    assert _of_left(nights.night(wrong=range(12))) == (SAME, 28 / 40)
    assert _of_left(nights.night(wrong=range(10))) == (SAME, 28 / 40)
    worse = row(nights.night(wrong=range(24)))
    assert (worse.verdict, worse.baseline_value, worse.anchor_value) == (REGRESSED, 30 / 40, 28 / 40)


@pytest.mark.long
def test_a_green_result_that_is_named_becomes_the_anchor(nights: Nights) -> None:
    nights.night()
    nights.night(wrong=range(4))
    (accepted,) = accept(nights.project().lake, "nightly", evals=["left"], models=["one"], by="me", why="it is meant to be so")
    assert accepted.verdict is SAME
    nights.night(wrong=range(5))
    assert row(nights.night(wrong=range(6))).anchor_value == 36 / 40


@pytest.mark.long
def test_a_damaged_judgement_is_passed_over(nights: Nights) -> None:
    nights.night()
    nights.night(wrong=range(12))
    nights.night(wrong=range(1, 13))
    files = nights.project().lake.history("regressions", "nightly")
    files[-1].path.write_bytes(b"PAR1")
    assert _of_left(nights.night(wrong=range(2, 14))) == (REGRESSED, 1.0)
