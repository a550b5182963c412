"""Night after night: a night costs as much as an early one, and `gc --stores` leaves a small home that shows the same."""

import statistics
from pathlib import Path

import pytest
from benchmarks.many_nights import ManyNights

NIGHTS = 60


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_late_night_costs_as_much_as_an_early_one_and_gc_leaves_a_small_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nights = ManyNights(tmp_path)
    nights.go_on(NIGHTS)
    costs = [night.processor_s for night in nights.nights]
    early, late = statistics.median(costs[5:15]), statistics.median(costs[-10:])
    assert late < 1.1 * early, costs
    assert len(list((nights.home / "catalogs").iterdir())) <= 14 + 8
    monkeypatch.setenv("DAGSTER_HOME", str(nights.home / "dagster"))
    before, shown = nights.size(), nights.state()
    nights.collect(5)
    after = nights.size()
    assert nights.state() == shown
    for part in ("dagster", "mlartifacts"):
        assert after[part] < before[part] / 3, (before, after)
    assert sum(after.values()) < 60e6
    nights.go_on(NIGHTS + 1)
