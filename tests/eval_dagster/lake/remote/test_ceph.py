"""A lake in Ceph: many processes on two machines whose clocks differ, and an outage under all of them."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.object_store import ObjectStore, unreliable
from servers.radosgw import radosgw_store
from shared_writes import SAMPLES, inconsistent, write_results, written

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake
from eval_dagster.lake.remote.mirror import mirror_lake, upload
from eval_dagster.lake.remote.store import Store, probe

pytestmark = pytest.mark.long

_PROGRAM = Path(__file__).with_name("shared_writes_program.py")
_WRITERS, _WRITES = 6, 40


@pytest.fixture(scope="module")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    pytest.importorskip("obstore", reason="object storage is not installed: pip install 'eval_dagster[s3]'")
    with radosgw_store(tmp_path_factory.mktemp("ceph")) as store:
        yield store


@pytest.fixture
def _environment(ceph: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ceph.variables.items():
        monkeypatch.setenv(name, value)


def _writers(folder: Path, url: str) -> "list[subprocess.Popen[str]]":
    """Six processes on two machines, of which one is two seconds ahead."""
    for name in ("machine-0", "machine-1"):
        mirror_lake(folder / name / "lake", url)
    commands = (
        [sys.executable, str(_PROGRAM), str(folder / f"machine-{number % 2}"), f"writer-{number}", str(_WRITES), str(2 * (number % 2))]
        for number in range(_WRITERS)
    )
    return [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands]


def _ended(writers: "list[subprocess.Popen[str]]") -> list[str]:
    """The names of all results that the writers wrote."""
    runs: list[str] = []
    for each in writers:
        output, problems = each.communicate(timeout=300)
        assert each.returncode == 0, problems
        runs += output.split()
    return sorted(runs)


@pytest.mark.usefixtures("_environment")
def test_ceph_can_hold_a_lake(ceph: ObjectStore) -> None:
    for _ in range(2):
        probe(Store(ceph.url("probed")))


@pytest.mark.usefixtures("_environment")
def test_six_processes_on_two_machines_lose_nothing(ceph: ObjectStore, tmp_path: Path) -> None:
    url = ceph.url("six")
    mirror_lake(tmp_path / "reader" / "lake", url)
    reader, reads, began = Lake(tmp_path / "reader"), 0, time.monotonic()
    writers = _writers(tmp_path, url)
    while any(each.poll() is None for each in writers):
        assert inconsistent(reader) == []
        reads += 1
    runs = _ended(writers)
    sys.stdout.write(f"{len(runs)} results in {time.monotonic() - began:.1f} s, with {reads} consistent reads\n")
    assert len(runs) == _WRITERS * _WRITES
    assert reads > 1
    for name in ("machine-0", "machine-1", "reader"):
        assert written(Lake(tmp_path / name)) == runs


@pytest.mark.usefixtures("_environment")
def test_an_outage_of_half_a_minute_costs_only_time(ceph: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = ceph.url("outage")
    with unreliable(ceph, tmp_path, share=0.05, delay_s=0.02) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
        writers = _writers(tmp_path, url)
        while not any((tmp_path / "machine-0" / "lake" / "metrics").rglob("*.parquet")):
            assert all(each.poll() is None for each in writers)
            time.sleep(0.1)
        proxy.change(is_out=True)
        time.sleep(30)
        proxy.change(is_out=False)
        runs = _ended(writers)
        assert proxy.counts()["faults"] > 100
    monkeypatch.setenv("AWS_ENDPOINT_URL", ceph.server.url)
    mirror_lake(tmp_path / "reader" / "lake", url)
    assert written(Lake(tmp_path / "reader")) == runs
    assert len(runs) == _WRITERS * _WRITES


@pytest.mark.usefixtures("_environment")
def test_a_lake_of_two_thousand_files(ceph: ObjectStore, tmp_path: Path) -> None:
    """The figures of the documentation: how long a new machine takes, and a catalog after one change."""
    local = Lake(tmp_path / "local")
    for number in range(10):
        list(write_results(local, f"model-{number}", 100))
    url = ceph.url("thousands")
    began = time.monotonic()
    upload(local.root, url)
    sys.stdout.write(f"2,000 files uploaded in {time.monotonic() - began:.1f} s\n")
    mirror_lake(tmp_path / "new" / "lake", url)
    new = Lake(tmp_path / "new")
    began = time.monotonic()
    new.pull()
    sys.stdout.write(f"2,000 files mirrored in {time.monotonic() - began:.1f} s\n")
    began = time.monotonic()
    publish(new)
    sys.stdout.write(f"published in {time.monotonic() - began:.1f} s\n")
    list(write_results(Lake(tmp_path / "local"), "model-0", 1))
    for _ in range(2):
        began = time.monotonic()
        new.pull()
        sys.stdout.write(f"one change pulled in {time.monotonic() - began:.2f} s\n")
    began = time.monotonic()
    publish(new)
    sys.stdout.write(f"one change published in {time.monotonic() - began:.2f} s\n")
    assert read_rows(new, "select count(*) as n from scores_history") == [{"n": 1001 * SAMPLES}]
