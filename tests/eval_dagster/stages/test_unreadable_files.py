"""A file that the system cannot read costs its own rows: the evals, the catalog and the gate go on, and it is named."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from few import few
from running_stages import run_all

from eval_dagster.gate.judgement import judge
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.format import damage
from eval_dagster.project import Project

CONFIG = """
    models:
      alpha: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, num_fewshot: 1, limit: 2}
      names: {task: capitals_completion, limit: 2}
    suites:
      nightly: {evals: [sums, names], models: [alpha]}
"""
PARTITIONS = [("sums", "alpha"), ("names", "alpha")]
OF_RESULTS = ["scores/eval=sums/model=alpha", "metrics/eval=sums/model=alpha", "responses/eval=sums/model=alpha", "samples/eval=sums"]
OF_RECORDS = ["notices", "attempts", "acceptances", "regressions/suite=nightly"]
METRICS = "select eval, metric, subject, value, n from metrics order by all"


@pytest.mark.long
@pytest.mark.parametrize("folders", [OF_RESULTS, OF_RECORDS], ids=["results", "records"])
@few("year", [2099, 2001], kept=1)
def test_a_loop_of_links(folders: list[str], year: int, open_project: Callable[..., Project]) -> None:
    project = open_project(CONFIG)
    run_all(project, PARTITIONS)
    before = read_rows(project.lake, METRICS)
    name = f"{year}0101T000000000000Z-aaaaaaaa-bbbbbbbb.parquet"
    for folder in folders:
        loop = project.lake.root / folder / name
        loop.parent.mkdir(parents=True, exist_ok=True)
        loop.symlink_to(name)
    project = open_project(CONFIG)
    _, failures = run_all(project, PARTITIONS)
    assert not failures
    damages = publish(project.lake)
    assert len(damages) == len(folders)
    assert all("cannot be read (Too many levels of symbolic links)" in str(each) for each in damages)
    assert read_rows(project.lake, METRICS) == before
    assert len(judge(project, "nightly", run_id="gate").regressions) == 2


@pytest.mark.long
@pytest.mark.parametrize("fault", ["loop", "file"])
@few(
    "folder",
    [*OF_RESULTS, *OF_RECORDS, "scores/eval=sums", "metrics/eval=sums", "looks", "sample_changes"],
    kept=[OF_RESULTS[0], OF_RECORDS[1]],
)
def test_a_folder_that_cannot_be_listed(folder: str, fault: str, open_project: Callable[..., Project]) -> None:
    project = open_project(CONFIG)
    run_all(project, PARTITIONS)
    judge(project, "nightly", run_id="gate")
    publish(project.lake)
    before = read_rows(project.lake, METRICS)
    place = project.lake.root / folder
    place.mkdir(parents=True, exist_ok=True)
    place.rename(aside := project.lake.home / "aside")
    place.symlink_to(place.name) if fault == "loop" else place.write_text("")

    project = open_project(CONFIG)
    _, failures = run_all(project, PARTITIONS)
    assert all("sums" in str(failure) for failure in failures), "the other eval has its results"
    [message] = [each for each in publish(project.lake) if "lake folder" in each]  # beside files that others name
    reason = "Too many levels of symbolic links" if fault == "loop" else "Not a directory"
    assert message.startswith(f"the lake folder {place} cannot be listed ({reason}), and its files are left out; expected a folder")
    names = [row for row in before if row["eval"] == "names"]
    assert [row for row in read_rows(project.lake, METRICS) if row["eval"] == "names"] == names
    if not folder.startswith("regressions"):
        assert {each.eval for each in judge(project, "nightly", run_id="gate2").regressions} >= {"names"}

    place.unlink()
    aside.rename(place)
    assert publish(project.lake) == []
    assert read_rows(project.lake, METRICS) == before


def test_a_disk_that_fails(open_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> None:
    project = open_project(CONFIG)
    run_all(project, PARTITIONS)
    bad = project.lake.root / "notices" / "20200101T000000000000Z-aaaaaaaa-bbbbbbbb.parquet"
    bad.parent.mkdir()
    bad.touch()
    verified = damage.verify_file

    def verify_file(path: Path) -> str | None:
        if path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return verified(path)

    monkeypatch.setattr(damage, "verify_file", verify_file)
    project = open_project(CONFIG)
    _, failures = run_all(project, PARTITIONS)
    assert not failures
    assert ["cannot be read (Input/output error)" in str(each) for each in publish(project.lake)] == [True]
    assert len(judge(project, "nightly", run_id="gate").regressions) == 2
