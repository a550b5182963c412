"""Nights that stop early: what is asked, what is judged, and what stays visible."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from judged_project import Nights, row

from eval_dagster.freshness import partition_states
from eval_dagster.gate.early_stop import ScoredLooks
from eval_dagster.gate.records import Outcome
from eval_dagster.gate.results import accept
from eval_dagster.gate.wording import asked_in_full, evidence, verdict_line
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.pages.report.summaries import markdown
from eval_dagster.records.judgements import Verdict
from eval_dagster.stages.looks import NOT_ASKED
from eval_dagster.stages.partition import StageResult

MANY = tuple(range(500))
EARLY = "stop: early"


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def _rows(nights: Nights, query: str) -> list[dict[str, Any]]:
    lake = nights.project().lake
    publish(lake)
    return read_rows(lake, query)


def _asked(nights: Nights) -> dict[str, int]:
    """The rows of `responses` of each eval."""
    return {each["eval"]: each["n"] for each in _rows(nights, "select eval, count(*) as n from responses group by eval")}


def _computed(results: Sequence[StageResult]) -> int:
    """The requests that a run sent."""
    return sum(int(each.file.info.counts["requests_computed"]) for each in results if each.stage == "model_outputs" and not each.cached)


@pytest.mark.long
def test_a_quiet_night_stops_when_it_is_proven(nights: Nights) -> None:
    first = nights.night(numbers=MANY, gate=EARLY)
    assert first.outcome is Outcome.FIRST
    assert _asked(nights)["left"] == 500
    second = nights.night(numbers=MANY, question="Please say", gate=EARLY)
    left = row(second)
    assert (left.verdict, left.is_proven, left.is_passed) == (Verdict.NOT_WORSE, True, False), "a part is no baseline"
    asked = _asked(nights)["left"]
    assert asked < 300
    assert (left.n_common, left.n_gone, left.n_not_asked, left.n_only_baseline) == (asked, 0, 500 - asked, 0)
    assert left.stop_reason == f"not worse (proven) at look {left.look} of 12"
    assert left.margin_p_value is not None
    assert left.margin_level is not None
    assert left.margin_p_value <= left.margin_level < 0.05
    assert left.remarks == (f"stopped early, {500 - asked} samples not asked: {left.stop_reason}",)
    said = "No regression seen in 2 comparisons, 1 of them proven not worse"
    unchanged = "1 with the answers of its baseline"
    assert verdict_line(second) == f"{said}; {unchanged}; 1 result stopped early, {500 - asked} samples not asked"
    assert (left.is_unchanged, row(second, "right").is_unchanged, left.whole_reason) == (False, True, None)
    (plan,) = _rows(nights, "select looks, reason, margin from night_plans where eval = 'left' and baseline_materialized_at is not null")
    assert plan["reason"] is None
    assert (plan["looks"][left.look - 1 if left.look else 0], plan["looks"][-1], plan["margin"]) == (asked, 500, 0.03)
    (shown,) = _rows(nights, "select n, n_not_asked from leaderboard where eval = 'left'")
    assert shown == {"n": asked, "n_not_asked": 500 - asked}

    again, _ = nights.evaluate(numbers=MANY, question="Please say", gate=EARLY)
    assert all(each.cached for each in again), "the suite has its answer"
    project = nights.project(gate=EARLY, baseline="last_passed")
    states = {suite: next(iter(partition_states(project, ["left"], ["one"], suite=suite))) for suite in (None, "nightly")}
    assert states["nightly"].is_fresh
    for stage in ("model_outputs", "sample_scores", "task_metrics"):
        assert (states[None].cells[stage].state, list(states[None].cells[stage].causes)) == ("stale", ["samples"]), "the other samples"
    assert states[None].is_known

    third = row(nights.night(numbers=MANY, question="Do say", gate=EARLY))
    assert third.baseline_materialized_at == left.baseline_materialized_at, "full results alone are baselines"


@pytest.mark.long
def test_a_worse_night_stops_at_once_and_in_full_says_the_same(nights: Nights, tmp_path: Path) -> None:
    nights.night(numbers=MANY, gate=EARLY)
    worse = {"wrong": tuple(range(0, 500, 10)), "numbers": MANY, "question": "Please say"}
    result = nights.night(gate=EARLY, **worse)
    left = row(result)
    assert (left.verdict, result.outcome) == (Verdict.REGRESSED, Outcome.REGRESSED)
    asked = _asked(nights)["left"]
    assert asked <= 250
    assert left.test == "sequential McNemar"
    assert left.stop_reason == f"worse than its baseline at look {left.look} of 12"
    assert left.ci_low is not None
    assert left.ci_high is not None
    assert left.ci_low < -0.1 < left.ci_high

    results, _ = nights.evaluate(**worse)  # a run of no suite asks the rest
    assert _computed(results) == 500 - asked
    full = nights.judge(baseline="last_passed", gate=EARLY)
    assert row(full).verdict is Verdict.REGRESSED
    assert row(full).n_not_asked is None

    (tmp_path / "other").mkdir()
    whole = Nights(tmp_path / "other")
    whole.evaluate(numbers=MANY)
    whole.evaluate(**worse)
    for query in (
        "select eval, sample_id, request_id, text, error from responses order by all",
        "select eval, model, sample_id, metric, value, error, cluster, subject from scores order by all",
        "select metric, eval, model, value, stderr, ci_low, ci_high, n, n_errors, n_not_asked from leaderboard order by all",
    ):
        assert _rows(nights, query) == _rows(whole, query)


@pytest.mark.long
def test_a_fall_ends_the_other_evals_which_are_not_judged_and_asked_next_time(nights: Nights) -> None:
    files = {"numbers": MANY, "right": range(1000, 1500)}
    nights.night(gate=EARLY, **files)
    files |= {"wrong": tuple(range(0, 500, 4))}
    red = nights.night(gate=EARLY, **files)
    assert row(red).verdict is Verdict.REGRESSED
    right = row(red, "right")
    assert right.verdict is Verdict.NOT_COMPARABLE, "nothing is said of what was not asked"
    assert str(right.reason).endswith("worse than its baseline at look 1 of 12; the next run of the suite asks them")
    assert "because" not in str(right.reason)
    asked = _asked(nights)
    assert asked["left"] == asked["right"] == 152
    (shown,) = _rows(nights, "select n, n_not_asked from leaderboard where eval = 'right'")
    assert shown == {"n": 152, "n_not_asked": 348}

    accept(nights.project().lake, "nightly", evals=["left"], models=[], by="a person", why="it is meant")
    results, _ = nights.evaluate(gate=EARLY, **files)
    then = nights.judge(baseline="last_passed", gate=EARLY)
    assert row(then, "right").verdict is Verdict.NOT_WORSE
    assert _computed(results) == _asked(nights)["right"] - 152
    assert then.outcome is Outcome.PASSED


@pytest.mark.long
def test_a_part_is_compared_with_an_anchor_that_is_another_state(nights: Nights) -> None:
    nights.night(numbers=MANY, gate=EARLY)
    full = nights.night(numbers=MANY, wrong=(3, 4), gate="stop: never")
    assert row(full).is_passed
    left = row(nights.night(numbers=MANY, question="Please say", gate=EARLY))
    assert (left.verdict, left.is_proven) == (Verdict.NOT_WORSE, True)
    assert left.n_not_asked
    assert left.n_not_asked > 250, "fewer than half of the anchor's samples"
    assert left.anchor_materialized_at != left.baseline_materialized_at == full.regressions[0].materialized_at


@pytest.mark.long
def test_a_margin_that_was_changed_later_is_not_proven_by_a_part(nights: Nights) -> None:
    nights.night(numbers=MANY, gate=f"{EARLY}, margin: 0.1")
    nights.evaluate(numbers=MANY, question="Please say", wrong=tuple(range(0, 500, 100)), gate=f"{EARLY}, margin: 0.1")
    assert row(nights.judge(baseline="last_passed", gate=f"{EARLY}, margin: 0.1")).verdict is Verdict.NOT_WORSE
    strict = row(nights.judge(baseline="last_passed", gate=f"{EARLY}, margin: 0.01"))
    assert (strict.verdict, strict.is_passed) == (Verdict.NOT_COMPARABLE, False)
    assert "of its samples were not asked, and the others are no verdict; ask them: eval-dagster run --eval left" in str(strict.reason)
    nights.evaluate(numbers=MANY, question="Please say", wrong=tuple(range(0, 500, 100)))
    full = row(nights.judge(baseline="last_passed", gate=f"{EARLY}, margin: 0.01"))
    assert (full.verdict, full.margin, full.margin_level) == (Verdict.NO_CHANGE_SEEN, 0.01, 0.05)


@pytest.mark.long
def test_samples_that_are_gone_are_not_hidden_by_a_part(nights: Nights) -> None:
    nights.night(numbers=MANY, gate=EARLY)
    result = nights.night(numbers=tuple(range(300, 900)), gate=EARLY)
    left = row(result)
    assert left.verdict is Verdict.NOT_COMPARABLE
    assert left.n_gone == 300


@pytest.mark.long
def test_a_night_killed_between_looks_goes_on_at_the_same_look(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.night(numbers=MANY, gate=EARLY)
    changed = {"numbers": MANY, "question": "Please say", "wrong": tuple(range(0, 500, 40))}
    seen: list[int] = []
    own = ScoredLooks.look

    def killed(self: ScoredLooks) -> Any:
        seen.append(len(self.before[0]))
        if len(seen) == 2:
            raise KeyboardInterrupt
        return own(self)

    monkeypatch.setattr(ScoredLooks, "look", killed)
    with pytest.raises(KeyboardInterrupt):
        nights.evaluate(gate=EARLY, run_id="killed", **changed)
    monkeypatch.setattr(ScoredLooks, "look", own)
    before = len(_rows(nights, "select * from night_plans"))
    results, _ = nights.evaluate(gate=EARLY, run_id="again", **changed)
    plans = _rows(nights, "select run_id, looks from night_plans where eval = 'left' order by planned_at")
    assert len(_rows(nights, "select * from night_plans")) == before
    assert plans[-1]["run_id"] == "killed", "the night keeps its plan"
    asked = _asked(nights)["left"]
    assert asked in plans[-1]["looks"]
    of_right = 40
    assert _computed(results) == asked - plans[-1]["looks"][1] + of_right, "what was answered before is not asked again"


@pytest.mark.long
def test_some_nights_are_full(nights: Nights) -> None:
    gate = "stop: early, full_every: 3"
    nights.night(numbers=MANY, gate=gate)
    asked = []
    for night in range(4):
        nights.night(numbers=MANY, question=f"Say {night}", gate=gate)
        asked.append(_asked(nights)["left"])
    assert [each == 500 for each in asked] == [False, False, True, False]
    reasons = [each["reason"] for each in _rows(nights, "select reason from night_plans where eval = 'left' order by planned_at")]
    assert reasons == ["there is no judged result to compare it with", None, None, "one of 3 results is asked in full (full_every)", None]


@pytest.mark.long
def test_a_red_eval_is_asked_in_full_until_it_is_not_red(nights: Nights) -> None:
    nights.night(numbers=MANY, gate=EARLY)
    red = nights.night(numbers=MANY, question="Please say", wrong=tuple(range(0, 500, 5)), gate=EARLY)
    assert row(red).verdict is Verdict.REGRESSED
    assert row(red).n_not_asked
    good = nights.night(numbers=MANY, question="Please say", gate=EARLY)
    assert _asked(nights)["left"] == 500
    assert row(good).verdict in (Verdict.NOT_WORSE, Verdict.NO_CHANGE_SEEN)
    assert row(good).is_passed


@pytest.mark.long
def test_a_part_that_was_accepted_is_compared_with_full_nights(nights: Nights) -> None:
    nights.night(numbers=MANY, gate=EARLY)
    wrong = tuple(range(0, 500, 5))
    red = row(nights.night(numbers=MANY, question="Please say", wrong=wrong, gate=EARLY))
    accept(nights.project().lake, "nightly", evals=["left"], models=[], by="a person", why="the task got harder")
    then = row(nights.night(numbers=MANY, question="Do say", wrong=wrong, gate=EARLY))
    assert then.baseline_materialized_at == red.materialized_at
    assert (then.verdict, then.n_not_asked, then.n_common) == (Verdict.NOT_WORSE, None, red.n_common)


@pytest.mark.long
def test_a_part_without_its_plan_is_not_judged(nights: Nights) -> None:
    nights.night(numbers=MANY, gate=EARLY)
    nights.evaluate(numbers=MANY, question="Please say", gate=EARLY)
    shutil.rmtree(nights.project().lake.root / "night_plans")
    left = row(nights.judge(baseline="last_passed", gate=EARLY))
    assert left.verdict is Verdict.NOT_COMPARABLE
    assert "of its samples were not asked, because a gate stopped it early by another plan; ask them: eval-dagster run" in str(left.reason)


@pytest.mark.long
@pytest.mark.parametrize(
    ("gate", "files", "reason"),
    [
        (f"{EARLY}, metrics: all", {}, "the suite is judged by several metrics"),
        (EARLY, {"metric": "Words"}, "words is not the share of right answers among all samples"),
        (f"{EARLY}, full_every: 1", {}, "one of 1 results is asked in full (full_every)"),
        (EARLY, {"baseline": "previous"}, "`baseline: previous` names a state only once the result is there, so that no look can compare"),
    ],
)
def test_what_cannot_stop_is_asked_in_full_with_the_reason(nights: Nights, gate: str, files: dict[str, Any], reason: str) -> None:
    nights.night(numbers=MANY[:300], gate=gate, **files)
    result = nights.night(numbers=MANY[:300], question="Please say", gate=gate, **files)
    assert _asked(nights)["left"] == 300
    assert {each.whole_reason for each in result.regressions if each.eval == "left"} == {reason}
    said = asked_in_full(result.regressions)
    assert any(reason in line for line in said)
    assert all(f"- {line}" in markdown(result).replace("\\", "").splitlines() for line in said)
    assert f"asked in full: {reason}" in evidence(next(each for each in result.regressions if each.eval == "left"))
    plans = _rows(nights, "select reason from night_plans where eval = 'left' order by planned_at")
    assert plans[-1]["reason"] == reason


@pytest.mark.long
def test_many_errors_do_not_stop_a_night(nights: Nights) -> None:
    nights.night(numbers=MANY[:300], gate=EARLY)
    raising = "if number % 4 == 0: raise ValueError('no answer')"
    result = nights.night(numbers=MANY[:300], question="Please say", raising=raising, gate=EARLY)
    assert row(result).verdict is Verdict.ERRORS
    assert _asked(nights)["left"] == 300


@pytest.mark.long
def test_an_eval_that_needs_no_proof_of_its_own_stops_at_a_fall_alone(nights: Nights) -> None:
    gate = f"{EARLY}, critical: [right]"
    nights.night(numbers=MANY, gate=gate)
    nights.night(numbers=MANY, question="Please say", gate=gate)
    assert _asked(nights)["left"] == 500
    result = nights.night(numbers=MANY, question="Do say", wrong=tuple(range(0, 500, 5)), gate=gate)
    assert row(result).verdict is Verdict.REGRESSED
    assert row(result).n_not_asked
    files, _ = nights.evaluate(numbers=MANY, question="Do say", wrong=tuple(range(0, 500, 5)), gate=gate)
    assert all(each.cached for each in files)
    assert {each.file.info.counts.get(NOT_ASKED) for each in files if each.stage == "task_metrics" and each.eval_name == "left"} != {None}


@pytest.mark.long
def test_a_fall_that_fresh_answers_have_to_confirm_stops_nothing(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval_dagster.gate.early_stop.answers_vary", lambda *_: True)
    nights.night(numbers=MANY[:300], gate=EARLY)
    nights.evaluate(numbers=MANY[:300], wrong=tuple(range(0, 300, 3)), gate=EARLY)
    assert _asked(nights)["left"] == 300
    nights.evaluate(numbers=MANY[:300], wrong=tuple(range(0, 300, 3)), question="Please say", gate=f"{EARLY}, confirm: false")
    assert _asked(nights)["left"] < 300


@pytest.mark.long
def test_a_metric_that_changed_since_the_baseline_is_asked_in_full(nights: Nights) -> None:
    nights.night(numbers=MANY[:300], gate=EARLY, metrics="Renamed, Words")
    source = nights.folder / "left.py"
    own = nights._write_files

    def changed(**files: Any) -> None:
        own(**files)
        source.write_text(source.read_text().replace('NAME = "renamed"', 'NAME = "renamed"\n    MORE = 1'))

    nights._write_files = changed
    nights.night(numbers=MANY[:300], question="Please say", gate=EARLY, metrics="Renamed, Words")
    plans = _rows(nights, "select reason from night_plans where eval = 'left' order by planned_at")
    assert plans[-1]["reason"] == "the code of the metric has changed"
    assert _asked(nights)["left"] == 300


def test_scores_that_are_neither_0_nor_1_stop_nothing(nights: Nights) -> None:
    half = {"metric": "Words", "words": "0.5"}
    nights.night(numbers=MANY[:300], gate=EARLY, metrics="Words", **half)
    nights.night(numbers=MANY[:300], question="Please say", gate=EARLY, metrics="Words", **half)
    assert _asked(nights)["left"] == 300
