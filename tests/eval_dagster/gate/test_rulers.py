"""Nights in which a metric changes: older answers are scored again, so that two nights are compared by one metric."""

from pathlib import Path

import pytest
from judged_project import Nights, row

from eval_dagster.gate.records import Outcome
from eval_dagster.records.judgements import Verdict

SCORED = "float(response.completion_text == response.ground_truth)"
SCALED = f"100 * {SCORED}"
ERROR = f"1 - {SCORED}"


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


@pytest.mark.long
def test_another_scale_hides_no_fall(nights: Nights) -> None:
    nights.night(words=SCORED, metric="Words", wrong=range(4))
    result = nights.night(words=SCALED, metric="Words", wrong=range(32))
    found = row(result, metric="words")
    assert (found.verdict, found.value, found.baseline_value, found.stored_baseline_value) == (Verdict.REGRESSED, 20, 90, 0.9)
    assert "metric" in (found.cause or "")
    assert result.outcome is Outcome.REGRESSED


def test_another_scale_is_no_rise(nights: Nights) -> None:
    nights.night(words=SCORED, metric="Words", wrong=range(4))
    found = row(nights.night(words=SCALED, metric="Words", wrong=range(4)), metric="words")
    assert (found.verdict, found.difference, found.stored_baseline_value) == (Verdict.NO_CHANGE_SEEN, 0, 0.9)


@pytest.mark.long
def test_a_turned_direction_hides_no_fall(nights: Nights) -> None:
    nights.night(words=SCORED, metric="Words", wrong=range(2))
    found = row(nights.night(words=ERROR, metric="Words", wrong=range(40), higher=False), metric="words")
    assert (found.verdict, found.value, found.baseline_value) == (Verdict.REGRESSED, 1.0, 0.05)
