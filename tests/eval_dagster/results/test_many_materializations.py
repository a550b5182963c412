"""Many results of an eval and a model: their rows come from the catalog, in one query."""

from pathlib import Path

import pytest
from scripted_nights import Nights

from eval_dagster.lake.catalog.catalog import metrics_by_file
from eval_dagster.lake.files import Lake, catalog_path
from eval_dagster.lake.format import parquet_files
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.lake.format.small_files import FEW_ROWS
from eval_dagster.results import materializations
from eval_dagster.results.materializations import history, with_rows


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    """No test knows the rows that another one has read."""
    materializations._known_rows.cache_clear()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    nights = Nights(tmp_path_factory.mktemp("nights"))
    for _ in range(3):
        nights.run()
    lake = nights.project().lake
    published = catalog_path(lake).read_bytes()
    nights.run()
    catalog_path(lake).unlink()
    catalog_path(lake).write_bytes(published)  # as if the last night were not published yet
    return lake


@pytest.mark.long
def test_the_catalog_has_the_rows_of_all_published_files(lake: Lake) -> None:
    points = history(lake, "arithmetic", "mine")
    assert len(points) == 4
    found = metrics_by_file(lake, "arithmetic", "mine", since=points[0].materialized_at)
    assert found == {point.metrics.path: read_rows(point.metrics.path) for point in points[:3]}
    assert list(metrics_by_file(lake, "arithmetic", "mine", since=points[1].materialized_at)) == [each.metrics.path for each in points[1:3]]


@pytest.mark.long
def test_many_results_open_no_file_for_their_rows(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    whole = parquet_files.read_table

    def read(path: Path, *rest: object) -> object:
        opened.append(path)
        return whole(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(parquet_files, "read_table", read)
    FEW_ROWS.forget()
    expected = [point.metric_rows for point in history(lake, "capitals", "mine")]
    assert len(opened) == 4
    opened.clear()
    FEW_ROWS.forget()
    monkeypatch.setattr(materializations, "_MANY", 4)
    points = with_rows(history(lake, "capitals", "mine"))
    assert [point.metric_rows for point in points] == expected
    assert opened == [points[-1].metrics.path]
    opened.clear()
    with monkeypatch.context() as patch:
        patch.setattr(materializations, "metrics_by_file", None)  # is not asked again
        again = with_rows([*history(lake, "capitals", "mine")[:3]] * 2)
    assert [point.metric_rows for point in again] == expected[:3] * 2
    assert opened == []
    monkeypatch.setattr(materializations, "_MANY", 5)
    FEW_ROWS.forget()
    assert [point.metric_rows for point in with_rows(history(lake, "capitals", "mine"))] == expected
    assert len(opened) == 4


@pytest.mark.long
def test_without_a_catalog_files_are_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materializations, "_MANY", 1)
    expected = [point.metric_rows for point in history(lake, "capitals", "mine")]
    path = catalog_path(lake)
    published = path.read_bytes()
    for content in (None, b"no database", published):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        assert [point.metric_rows for point in with_rows(history(lake, "capitals", "mine"))] == expected
