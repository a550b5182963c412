"""The warning of a slow fall: the evidence of all states since the anchor, of a scripted model that loses answers night by night."""

from pathlib import Path

import pytest
from flipping_nights import FlippingNights

from eval_dagster.assets.regressions import result_metadata
from eval_dagster.gate.results import accept, current_result
from eval_dagster.gate.wording import Tone, tone, verdict_line
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.pages.report.summaries import markdown
from eval_dagster.pages.report.writing import report
from eval_dagster.records.judgements import SOUND
from eval_dagster.results.materializations import history

GATE = "pool: 1, smallest_difference: 0.3"
"""Nothing is red, so that the evidence alone says that a score falls."""


@pytest.mark.long
@pytest.mark.parametrize("has_versions", [False, True])
def test_a_slow_fall_is_a_warning_in_all_places(tmp_path: Path, has_versions: bool) -> None:
    """Five samples of 300 are lost each night."""
    nights = FlippingNights(tmp_path)

    def night(number: int) -> None:
        nights.night(gate=GATE, wrong=range(100, 100 + 5 * number), version=number if has_versions else 1)

    night(0)
    assert nights.row.drift_e_value is None, "there is no anchor"
    night(1)
    assert nights.row.drift_e_value is not None
    assert not nights.row.is_drifting
    for number in range(2, 14):
        night(number)
        if nights.row.is_drifting:
            break
    row, result = nights.row, nights.result
    assert row.is_drifting
    assert 4 <= number <= (10 if not has_versions else 12)
    assert row.verdict in SOUND
    assert row.is_passed, "a warning is not red"
    assert row.drift_e_limit == 40, "two results"
    assert row.drift_since is not None
    assert row.drifts is not None
    assert row.drifts.startswith(f"drift since {row.drift_since:%Y-%m-%d %H:%M} UTC: 0.9")
    assert f"1 slow fall: left on one ({row.drifts})" in verdict_line(result)
    assert result.warnings == (f"left|one: {row.drifts}",)
    assert tone(result) is Tone.WARNING
    assert row.drifts in markdown(result)
    metadata = result_metadata([result])
    assert (metadata["n_drifting"], metadata["drift"]) == (1, f"left|one: {row.drifts}")
    project = nights.nights.project(baseline="last_passed", gate=f"require: [left], {GATE}")
    page = report(project, result).page
    assert page is not None
    assert row.drifts in page.read_text("utf-8")
    publish(project.lake)
    (stored,) = read_rows(project.lake, "select drift_e_value, is_drifting from regressions where eval = 'left'")
    assert stored == {"drift_e_value": row.drift_e_value, "is_drifting": True}
    read = current_result(project.lake, "nightly")
    assert read is not None
    assert [each.drifts for each in read.drifting] == [row.drifts]
    nights.night(gate=GATE, version=99 if has_versions else 1)  # it has recovered
    assert (nights.row.is_drifting, nights.row.drift_e_value) == (False, row.drift_e_value), "the evidence stays, the warning ends"
    accept(project.lake, "nightly", evals=["left"], models=[], by="me", why="meant")
    night(number)
    assert nights.row.drift_e_value is not None
    assert nights.row.drift_e_value < min(40, row.drift_e_value), "the anchor is another one"


@pytest.mark.long
def test_a_night_that_stops_early_keeps_the_warning(tmp_path: Path) -> None:
    gate = f"{GATE}, margin: 0.3"
    nights = FlippingNights(tmp_path)
    for number in range(14):
        nights.night(gate=gate, wrong=range(100, 100 + 5 * number))
        if nights.row.is_drifting:
            break
    whole = nights.row
    assert whole.is_drifting
    early = f"{gate}, stop: early"
    nights.ask(wrong=range(100, 105 + 5 * number), version=2, gate=early)
    row = nights.judge(early)
    assert row.n_not_asked > 0
    assert (row.is_drifting, row.drift_e_value, row.drift_since) == (True, whole.drift_e_value, whole.drift_since)
    assert nights.result.warnings == (f"left|one: {row.drifts}",)
    assert row.drifts is not None
    assert row.drifts.endswith(" of 40 in the last whole night"), "a part has another difference, which may be a rise"


@pytest.mark.long
def test_a_state_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    nights = FlippingNights(tmp_path)
    for number in range(5):
        nights.night(gate=GATE, wrong=range(100, 100 + 10 * number))
    whole, lake = nights.row, nights.nights.project().lake
    states = {point.materialized_at: point for point in history(lake, "left", "one")}
    assert len(states) == 5
    first, _, middle, _, last = sorted(states)
    assert (whole.anchor_materialized_at, whole.materialized_at) == (first, last)
    scores = states[middle]._scores_path
    scores.write_bytes(scores.read_bytes()[:100])
    row = nights.judge(GATE, is_kept=False)
    assert row.verdict is whole.verdict, row
    assert row.drift_e_value is not None, "the other four states are still compared"


@pytest.mark.long
def test_quiet_nights_and_unlike_metrics_have_no_warning(tmp_path: Path) -> None:
    nights = FlippingNights(tmp_path)
    for _ in range(5):
        nights.night(gate=GATE)
        assert not nights.row.is_drifting
        assert tone(nights.result) is not Tone.WARNING or nights.result.gaps
    nights.night(gate=GATE, wrong=range(100, 160))
    assert not nights.row.is_drifting, "one night that falls is no slow fall"
    row = nights.row
    nights.judge(GATE)
    assert nights.row.drift_e_value == row.drift_e_value, "the same state counts once"
