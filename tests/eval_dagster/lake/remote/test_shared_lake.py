"""Machines that share a lake in an object store see one lake."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path

import pyarrow as pa
import pytest
from servers.object_store import ObjectStore, unreliable
from shared_writes import MODEL, add_answers, inconsistent, names_of, write_results, written

from eval_dagster.cli.leaderboard import show_leaderboard
from eval_dagster.config.values import LAKE_VARIABLE
from eval_dagster.errors import LakeError, LakeUnreachableError, QueryError, UsageError
from eval_dagster.lake import files
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.catalog.archives import archived, files_named_by, night_lake, nights
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Configured, Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo, new_name, parquet_files
from eval_dagster.lake.records import add_attempts, read_attempts, records_of
from eval_dagster.lake.remote import mirror
from eval_dagster.lake.remote.mirror import Mirror
from eval_dagster.lake.remote.store import Store, StoredObject
from eval_dagster.lake.tables.events import Attempt

Machine = Callable[[str], Lake]
_WRITES = 5
_AHEAD = timedelta(seconds=2)


class _Clock(datetime):
    """A clock that is ahead in some threads."""

    offset = threading.local()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + getattr(cls.offset, "value", timedelta())


def _attempt(number: int) -> Attempt:
    time = datetime.fromisoformat("2026-01-31T02:00:00+00:00")
    shared = {"eval": "sums", "model": "a", "finished_at": time, "status": "ok", "stage": "task_metrics", "message": None, "cached": False}
    return Attempt(run_id=str(number), **shared)


def _samples(lake: Lake, text: str = "x") -> files.LakeFile:
    info = FileInfo(fingerprint=text, version=text, run_id=text, materialized_at=lake.next_time("samples", "sums"))
    return lake.write("samples", table_of("samples", [{"eval": "sums", "sample_id": text}]), eval_name="sums", info=info)


@pytest.mark.long
def test_six_writers_on_two_machines_lose_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "datetime", _Clock)
    is_over = threading.Event()

    def work(number: int) -> list[str]:
        _Clock.offset.value = _AHEAD * (number % 2)
        return list(write_results(machine(f"machine-{number % 2}"), f"writer-{number}", _WRITES))

    def read() -> list[object]:
        reader, found = machine("reader"), []
        while not is_over.is_set():
            found += inconsistent(reader)
        return found

    with ThreadPoolExecutor(7) as pool:
        reading = pool.submit(read)
        try:
            runs = [run for runs in pool.map(work, range(6)) for run in runs]
        finally:
            is_over.set()
        assert reading.result() == []
    lakes = [machine(name) for name in ("machine-0", "machine-1", "reader", "late")]
    assert [written(lake) for lake in lakes] == [sorted(runs)] * 4, "each result once, whoever reads"
    for lake in lakes:
        lake.pull(everything=True)
    assert len({tuple(names_of(lake)) for lake in lakes}) == 1
    current = [lake.current("metrics", "sums", MODEL) for lake in lakes]
    assert len({file.info.run_id for file in current if file is not None}) == 1, "all machines show the same result"


@pytest.mark.long
def test_a_listing_has_the_scores_of_its_metrics(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics that are written while a long listing goes on are listed with their scores, or not at all."""
    here, reader = machine("here"), machine("reader")
    listed, is_written = Store.list, threading.Event()

    def list_slowly(self: Store, folder: str) -> dict[str, StoredObject]:
        if folder == "metrics":
            is_written.wait(2)
        found = listed(self, folder)
        if folder == "scores":
            with monkeypatch.context() as patch:
                patch.setattr(Store, "list", listed)
                list(write_results(here, "a", 1))
            is_written.set()
        return found

    monkeypatch.setattr(Store, "list", list_slowly)
    assert reader.mirror is not None
    found = {name.partition("/")[0] for name in reader.mirror.listed(["samples", "scores", "metrics"])}
    assert found in (set(), {"scores"}, {"scores", "metrics"})
    assert is_written.is_set()


@pytest.mark.long
def test_a_file_is_called_missing_when_it_is_missing_twice(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    here, reader = machine("here"), machine("reader")
    list(write_results(here, "a", 1))
    listed, times = Store.list, []

    def list_without_scores(self: Store, folder: str) -> dict[str, StoredObject]:
        if folder == "scores":
            times.append(folder)
        return {} if folder == "scores" and len(times) == 1 else listed(self, folder)

    monkeypatch.setattr(Store, "list", list_without_scores)
    assert written(reader) == ["a-0"]
    [scores] = [name for name in names_of(here) if name.startswith("scores/")]
    here.delete(here.root / scores)
    del times[:]
    [message] = publish(reader)
    assert "is missing; materialize sample_scores" in message
    assert len(times) == 2
    publish(reader)
    assert len(times) == 3, "it is known to be missing"


def test_a_later_result_is_newer_even_if_its_clock_is_behind(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "datetime", _Clock)
    with ThreadPoolExecutor(1) as ahead:
        ahead.submit(lambda: (setattr(_Clock.offset, "value", _AHEAD), _samples(machine("a"), "first"))).result()
    _samples(machine("b"), "second")
    current = machine("c").current("samples", "sums")
    assert current is not None
    assert current.info.run_id == "second"


def test_what_one_machine_deletes_leaves_the_others(machine: Machine) -> None:
    here, there = machine("here"), machine("there")
    old, new = _samples(here, "old"), _samples(here, "new")
    assert [file.info.version for file in there.history("samples", "sums")] == ["old", "new"]
    here.delete(old.path)
    assert [file.info.version for file in there.history("samples", "sums")] == ["new"]
    assert names_of(there) == [new.path.relative_to(here.root).as_posix()]


def test_a_worker_fetches_the_partitions_that_it_reads_alone(machine: Machine) -> None:
    here, worker, reader = machine("here"), machine("worker"), machine("reader")
    list(write_results(here, "a", 1))
    list(write_results(here, "b", 1))
    _samples(here, "old")
    newest = _samples(here, "new")
    assert worker.current("metrics", "sums", "a") is not None
    assert [name.split("/")[:3] for name in names_of(worker)] == [["metrics", "eval=sums", "model=a"]]
    assert worker.file(names_of(here)[-1]).exists(), "a file that another one names"
    reader.pull()
    assert [name for name in names_of(reader) if name.startswith("samples")] == [newest.path.relative_to(here.root).as_posix()]


def test_older_files_are_fetched_when_they_are_read(machine: Machine) -> None:
    here = machine("here")
    versions = ["first", "second", "third"]
    files_here = [_samples(here, version).path.relative_to(here.root).as_posix() for version in versions]
    worker = machine("worker")
    assert worker.current("samples", "sums") is not None
    assert names_of(worker) == files_here[2:]
    found = worker.of_version("samples", "second", "sums")
    assert found is not None
    assert names_of(worker) == files_here[1:], "the oldest is not read"

    other = machine("other")
    folder = other.folder("samples", "sums")
    with other.steady([folder]):
        assert names_of(other) == files_here[2:]
        here.delete(here.root / files_here[0])
        added = _samples(other, "fourth").path.relative_to(other.root).as_posix()
        assert other.of_version("samples", "first", "sums") is None, "it was deleted"
        assert [path.relative_to(other.root).as_posix() for path in other.files(folder)] == [*files_here[1:], added]
        assert other.of_version("samples", "fifth", "sums") is None
    assert [file.info.version for file in other.history("samples", "sums")] == ["second", "third", "fourth"]


def test_a_file_outside_of_the_lake_is_never_fetched(machine: Machine, url: str, tmp_path: Path) -> None:
    lake = machine("here")
    Store(url.rpartition("/")[0]).put_new("outside.parquet", b"content")
    for name in ("../outside.parquet", f"{tmp_path}/absolute.parquet", "scores/../../../outside.parquet"):
        assert not lake.file(name).exists()
    assert not (tmp_path / "here" / "outside.parquet").exists()


def test_a_lake_that_was_emptied_takes_no_results_along(machine: Machine) -> None:
    here, there = machine("here"), machine("there")
    file = _samples(here)
    there.pull()
    here.delete(file.path)
    with pytest.raises(LakeUnreachableError, match=r"has no file, but .*there/lake has 1 files of it; if it was emptied on purpose"):
        there.pull()
    assert len(names_of(there)) == 1


def test_a_run_keeps_the_copies_of_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    disk, root = tmp_path / "disk", tmp_path / "here" / "lake"
    disk.mkdir()
    url = disk.as_uri()
    mirror.mirror_lake(root, url)
    lake = Lake(tmp_path / "here")
    _samples(lake)
    disk.rename(tmp_path / "elsewhere")
    disk.mkdir()
    lake.mirror = Mirror(root, Store(url))
    for read_or_begin in (lambda: lake.current("samples", "sums"), lake.begin, lake.pull):
        with pytest.raises(LakeUnreachableError, match="has no file, but"):
            read_or_begin()
    assert list(disk.iterdir()) == []
    disk.rmdir()
    (tmp_path / "elsewhere").rename(disk)
    lake.begin()
    assert lake.current("samples", "sums") is not None


def test_a_result_within_a_run_is_newer_than_those_of_other_machines(machine: Machine) -> None:
    here, there = machine("here"), machine("there")
    _samples(here, "before")
    with here.steady([here.folder("samples", "sums")]):
        later = (datetime.now(UTC) + timedelta(seconds=50)).isoformat(timespec="microseconds")
        info = FileInfo(fingerprint="x", version="x", run_id="ahead", materialized_at=later)
        there.write("samples", table_of("samples", [{"eval": "sums", "sample_id": "x"}]), eval_name="sums", info=info)
        assert here.next_time("samples", "sums") > later


def test_records_that_another_process_removes_are_read_where_they_were_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path)
    for number in range(3):
        add_attempts(lake, [_attempt(number)])
    listed = Lake.files

    def merged_after_the_listing(self: Lake, folder: Path) -> list[Path]:
        paths = listed(self, folder)
        if len(paths) == 3:
            add_attempts(Lake(tmp_path), [_attempt(number) for number in range(3)])
            for path in paths:
                path.unlink()
        return paths

    monkeypatch.setattr(Lake, "files", merged_after_the_listing)
    assert sorted(row["run_id"] for row in records_of(lake, "attempts")) == ["0", "1", "2"]


@pytest.mark.long
def test_merged_answers_are_found_on_every_machine(machine: Machine) -> None:
    caches = [ResponseCache(machine(name), "v1") for name in ("a", "b")]
    names = "abcdefghijklmnopqrstuvwxyz"
    for number, name in enumerate(names):
        add_answers(caches[number % 2], name)
    assert all(cache.find(names).keys() == set(names) for cache in caches)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda cache: cache.merge("merge"), caches))
    assert all(cache.find(names).keys() == set(names) for cache in (*caches, ResponseCache(machine("c"), "v1")))
    assert len(parquet_files(caches[0].folder)) <= 2, "one file, or one of each machine"


@pytest.mark.long
def test_records_are_merged_once_for_all_machines(machine: Machine) -> None:
    lakes = [machine(name) for name in ("a", "b")]
    for number in range(34):
        add_attempts(lakes[number % 2], [_attempt(number)])
    assert [len(read_attempts(lake)) for lake in (*lakes, machine("c"))] == [34] * 3
    assert len(names_of(machine("c"))) < 10


def test_a_damaged_object_is_reported_as_a_damaged_file(machine: Machine, url: str) -> None:
    name = f"samples/eval=sums/{new_name('bad')}"
    Store(url).put_new(name, b"PAR1 damaged")
    with pytest.raises(LakeError, match="is damaged"):
        machine("here").current("samples", "sums")
    assert names_of(machine("here")) == [name]


def test_a_cut_copy_is_fetched_again(machine: Machine) -> None:
    lake = machine("here")
    file = _samples(lake)
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:100])
    assert lake.current("samples", "sums") is not None
    assert file.path.read_bytes() == whole


def test_a_file_that_cannot_be_put_waits_for_the_next_run(machine: Machine, store: ObjectStore, url: str, tmp_path: Path) -> None:
    lake = machine("here")
    lake.begin()
    with unreliable(store, tmp_path) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
        lake.mirror = Mirror(lake.root, Store(url, patience_s=1))
        lake.begin()
        proxy.change(is_out=True)
        with pytest.raises(LakeUnreachableError, match=r"503 ServiceUnavailable, for \d s .*\n?.*until then the file is kept in") as raised:
            lake.add(lake.folder("samples", "sums") / new_name("paid"), table_of("samples", [{"eval": "sums", "sample_id": "paid"}]))
    assert "testtest" not in str(raised.value)
    assert names_of(lake) == []
    next_run = machine("here")
    next_run.begin()
    assert len(names_of(next_run)) == 1
    assert names_of(next_run) == _names_after_pull(machine("there"))


def _names_after_pull(lake: Lake) -> list[str]:
    lake.pull(everything=True)
    return names_of(lake)


def test_an_outage_is_no_damage(machine: Machine, store: ObjectStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = machine("here")
    _samples(lake)
    with unreliable(store, tmp_path, is_out=True) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
        lake.mirror = Mirror(lake.root, Store(url, patience_s=0.5))
        with pytest.raises(LakeUnreachableError):
            lake.current("samples", "sums")
        calls = proxy.counts()["faults"]
        with pytest.raises(LakeUnreachableError, match="503 ServiceUnavailable"):
            lake.current("samples", "sums")
        assert proxy.counts()["faults"] == calls + 1, "one try, since the store gave up before"
        proxy.change(is_out=False)
        assert lake.current("samples", "sums") is not None
        proxy.change(is_out=True)
        with pytest.raises(LakeUnreachableError):
            lake.current("samples", "sums")
        assert proxy.counts()["faults"] > calls + 2, "several tries, since it answered in between"
    assert not issubclass(LakeUnreachableError, LakeError), "stages take damage for a reason to compute again"


def _yesterday(work: Callable[[], object]) -> None:
    """Do work by a clock of yesterday."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (setattr(_Clock.offset, "value", timedelta(days=-1)), work())).result()


@pytest.mark.long
def test_a_past_night_can_be_queried_on_every_machine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "datetime", _Clock)
    here, there = machine("here"), machine("there")
    here.configured = there.configured = Configured(evals=("sums",), models=("a",))
    _yesterday(lambda: list(write_results(here, "a", 3)))
    list(write_results(here, "b", 4))
    for lake in (here, there):
        publish(lake)
    day = (datetime.now(UTC) - timedelta(days=1)).date()

    def other_disk(path: Path, link: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", other_disk)
        night = night_lake(there, day)
    assert sorted(written(night)) == ["a-0", "a-1", "a-2"]
    assert len(written(there)) == 7
    with pytest.raises(QueryError, match=f"no list of the files of 2020-01-01: .*; the nearest there is: {day}$"):
        night_lake(here, date(2020, 1, 1))
    with pytest.raises(QueryError, match="is not over"):
        night_lake(here, datetime.now(UTC).date())
    assert [path.name for path in archived(here)] == [f"{day}.parquet"]
    kept = files_named_by(archived(here)[0])
    assert len(kept) == 6
    assert kept < set(names_of(here))


def test_the_nearest_nights_are_named(machine: Machine) -> None:
    lake = machine("here")
    with pytest.raises(QueryError, match="there is none of any day, since the first publication after it keeps it"):
        night_lake(lake, date(2020, 1, 1))
    for day in ("2020-01-01", "2020-01-03", "2020-01-09", "2020-01-10"):
        lake.add(lake.root / "nights" / f"{day}.parquet", pa.table({"file": pa.array([], pa.string())}))
    with pytest.raises(QueryError, match=r"the nearest there is: 2020-01-03 and 2020-01-09$"):
        night_lake(lake, date(2020, 1, 5))


@pytest.mark.long
def test_a_machine_that_may_only_read_leaves_the_night_to_others(
    machine: Machine, store: ObjectStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "datetime", _Clock)
    here, there = machine("here"), machine("there")
    _yesterday(lambda: list(write_results(here, "a", 1)))
    there.configured = Configured(evals=("sums",), models=("a",))
    with unreliable(store, tmp_path, is_read_only=True) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
        there.mirror = Mirror(there.root, Store(url))
        assert written(there) == ["a-0"]
        assert proxy.counts()["faults"] > 0
    assert nights(here) == []


@pytest.mark.long
def test_a_laptop_queries_with_the_url_alone(machine: Machine, store: ObjectStore, url: str, tmp_path: Path) -> None:
    list(write_results(machine("here"), "a", 2))
    empty = tmp_path / "laptop"
    empty.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVAL_DAGSTER")}
    with unreliable(store, tmp_path, is_read_only=True) as proxy:
        done = subprocess.run(
            [sys.executable, "-m", "eval_dagster.cli", "sql", "--lake", url, "--format", "json", "select model, n from leaderboard"],
            env={**environment, "AWS_ENDPOINT_URL": proxy.server.url, "XDG_CACHE_HOME": str(tmp_path / "cache")},
            cwd=empty,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert proxy.counts()["faults"] == 0, "nothing is written"
    assert done.returncode == 0, done.stderr
    assert sorted((row["model"], row["n"]) for row in json.loads(done.stdout)) == [("a", 3), (MODEL, 3)]
    assert list(empty.iterdir()) == []


@pytest.mark.long
def test_the_leaderboard_of_the_lake_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("obstore")
    disk, empty = tmp_path / "disk", tmp_path / "laptop"
    disk.mkdir()
    empty.mkdir()
    mirror.mirror_lake(tmp_path / "here" / "lake", disk.as_uri())
    list(write_results(Lake(tmp_path / "here"), "a", 1))
    monkeypatch.chdir(empty)
    monkeypatch.delenv("EVAL_DAGSTER_CONFIG", raising=False)
    monkeypatch.setenv(LAKE_VARIABLE, disk.as_uri())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shown = {"suite": None, "evals": [], "everything": False, "trial": False, "costs": False}
    show_leaderboard(**shown, models=[])
    assert "sums" in capsys.readouterr().out
    with pytest.raises(UsageError, match=f"{LAKE_VARIABLE} shows every result of that lake; give it without --suite"):
        show_leaderboard(**shown, models=["a"])
