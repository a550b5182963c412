"""A disk that fills while a home is written: the disk is named, and with more room one more run gives what an undisturbed one has."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from home_states import TABLES, materialized, mlflow_runs, table_rows
from small_lakes import SAMPLES, make_home
from workplaces import Workplace

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake

SIZES = [64, 128, 192, 256, 320, 400, 500, 600, 800, 1000, 1200, 1400, 1600, 1900, 2200, 2500, 2800, 3200, 3600, 4000]
"""Room on the disk, in KiB: an undisturbed home takes more, so that each stops the run somewhere else."""
ENOUGH = "64m"


class Disk:
    """A disk in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mount(self, size: str, *, again: bool = False) -> None:
        options = f"{'remount,' if again else ''}size={size}"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"no disk may be mounted here: {done.stderr.strip()}")

    def unmount(self) -> None:
        if self.folder.is_mount():
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("to mount a small disk needs root")
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.unmount()


def test_a_full_disk_leaves_the_lake_and_its_catalog_whole(disk: Disk, tmp_path: Path) -> None:
    lake = make_home(tmp_path)
    expected = read_rows(lake, "select * from scores order by all")
    disk.mount("400k")
    small = Lake(disk.folder / "home", configured=lake.configured)
    shutil.copytree(lake.root, small.root)
    with pytest.raises((LakeError, OSError), match="No space left on device"):
        publish(small)
    assert [path.name for path in small.home.iterdir() if path.is_file()] == [], "nothing half-made is left"
    disk.mount(ENOUGH, again=True)
    publish(small)
    assert read_rows(small, "select * from scores order by all") == expected
    assert len(expected) == 2 * SAMPLES


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """An undisturbed run."""
    place = Workplace(tmp_path_factory.mktemp("calm"))
    assert place.start().wait(timeout=300) == 0, place.output()
    return place


def _materialized(home: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("DAGSTER_HOME", str(home / "dagster"))
    with dg.DagsterInstance.get() as instance:
        return materialized(instance)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
def test_a_run_goes_on_where_the_disk_was_full(
    disk: Disk, calm: Workplace, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    place = Workplace(tmp_path / "work")
    disk.mount(f"{size}k")
    home = disk.folder / "home"
    environment = {"EVAL_DAGSTER_HOME": str(home), "DAGSTER_HOME": str(home / "dagster")}
    status = place.start(more=environment).wait(timeout=300)
    assert status in (1, 2), place.output()
    assert "Traceback" not in place.output()
    assert f"the disk at {disk.folder} is full" in place.output()
    disk.mount(ENOUGH, again=True)
    assert place.start(more=environment).wait(timeout=300) == 0, place.output()
    for name in TABLES:
        assert table_rows(home, name) == table_rows(calm.folder / "home", name), name
    assert mlflow_runs(home) == mlflow_runs(calm.folder / "home")
    assert _materialized(home, monkeypatch) == _materialized(calm.folder / "home", monkeypatch)
