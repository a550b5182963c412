"""Catalogs of past days: which days keep theirs."""

import os
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from eval_dagster.lake.catalog.archives import archive, archives_folder


def _archive(home: Path, day: date) -> None:
    """Archive what the first publication after a day archives."""
    catalog = home / "evals.duckdb"
    catalog.write_text("a catalog")
    time = datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()
    os.utime(catalog, (time, time))
    archive(catalog)


def _kept(home: Path) -> list[date]:
    return sorted(date.fromisoformat(path.stem) for path in archives_folder(home).glob("2*.duckdb"))


def test_a_year_of_days_leaves_days_weeks_and_months(tmp_path: Path) -> None:
    first = date(2024, 1, 1)
    own = archives_folder(tmp_path) / "before-the-move.duckdb"
    own.parent.mkdir()
    own.write_text("a copy of a user's")
    for number in range(500):
        day = first + timedelta(days=number)
        _archive(tmp_path, day)
        kept = _kept(tmp_path)
        assert kept[-1] == day
        assert kept[-14:] == [day - timedelta(days=back) for back in reversed(range(min(14, number + 1)))]
        for each in kept[:-14]:
            age = (day - each).days
            assert each.isoweekday() == 7, "the last of its week"
            assert age < 70 or (each + timedelta(days=7)).month != each.month, "the last of its month"
    ages = [(kept[-1] - each).days for each in kept]
    assert sum(14 <= age < 70 for age in ages) == 8
    assert sum(age >= 70 for age in ages) == 14
    assert len({(each.year, each.month) for each in kept}) == 17, "no month is without one"
    assert own.exists()


def test_few_days_with_results_keep_theirs(tmp_path: Path) -> None:
    """The copies of a home that has a night a month are fewer than the months."""
    days = [date(2024, month, 3) for month in range(1, 13)]
    for day in days:
        _archive(tmp_path, day)
    assert _kept(tmp_path) == days
