"""A store that cannot hold a lake is refused before anything is computed, in one sentence that says what to do."""

import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from servers.object_store import ObjectStore, unreliable

from eval_dagster.config.values import wrong_lake_url
from eval_dagster.errors import LakeUnreachableError, RequirementError, UsageError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.remote import store as storing
from eval_dagster.lake.remote.store import Store, fault_of, probe

SECRET = "testtest"


def test_a_store_that_honours_conditions_can_hold_a_lake(url: str) -> None:
    for _ in range(2):
        probe(Store(url))


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({"ignores_conditions": True}, r"ignores the condition of a write .* use a store that honours conditional writes"),
        (
            {"error": "RequestTimeTooSkewed"},
            r"refuses the time of this machine \(403 RequestTimeTooSkewed\); set the clock of this machine",
        ),
        ({"error": "InvalidAccessKeyId"}, r"refuses the credentials, .*\(403 InvalidAccessKeyId\); correct AWS_ACCESS_KEY_ID"),
        ({"is_read_only": True}, r"refuses the credentials, or they may not do this \(403 AccessDenied\)"),
    ],
)
def test_each_fault_has_its_own_message(
    settings: dict[str, bool | str], seen: str, url: str, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unreliable(store, tmp_path, **settings) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
        with pytest.raises(UsageError, match=seen) as raised:
            probe(Store(url, patience_s=1))
    assert SECRET not in str(raised.value)


def test_a_bucket_that_is_not_there(store: ObjectStore) -> None:
    with pytest.raises(UsageError, match=r"there is no such bucket at 127.0.0.1:\d+ \(404 NoSuchBucket\); create it, or correct the URL"):
        probe(Store("s3://elsewhere/lake", patience_s=1))


@pytest.mark.parametrize(("off", "seen"), [(90, r"9\d s ahead of"), (-90, r"(89|90) s behind")])
def test_a_clock_that_is_off(off: int, seen: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(seconds=off)

    monkeypatch.setattr(storing, "datetime", Clock)
    with pytest.raises(UsageError, match=rf"the clock of this machine is {seen}.*expected at most 60 s"):
        probe(Store(url))


def test_an_address_that_is_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"user:{SECRET}@host")
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL holds no address; expected http://HOST:PORT") as raised:
        Store(url)
    assert SECRET not in str(raised.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(RequirementError, match=r"needs the package obstore; install it: pip install 'eval_dagster\[s3\]'"):
        Store("s3://bucket/lake")


def test_the_probe_leaves_two_small_objects(machine: Callable[[str], Lake]) -> None:
    lake = machine("here")
    lake.begin()
    names = Store(lake.mirror.store.url).list("") if lake.mirror else {}
    assert sorted(names) == [".eval_dagster/clock", ".eval_dagster/probe"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://bucket/lake", None),
        ("gs://bucket", None),
        ("az://container/a/b", None),
        ("file:///mnt/lake", None),
        ("s3://key:secret@bucket/lake", "it has credentials"),
        ("az://container/lake?sig=secret", "it has credentials"),
        ("s3:///lake", "it names no bucket"),
        ("file://host/lake", "it names no folder"),
        ("file:///", "it names no folder"),
        ("/mnt/lake", "it has no scheme"),
        ("https://bucket.example.com", "its scheme is 'https'"),
        ("s3://bucket/../other", "its path has"),
    ],
)
def test_urls(url: str, reason: str | None) -> None:
    found = wrong_lake_url(url)
    assert (found or "").startswith(reason or "")
    assert (found is None) == (reason is None)
    assert "secret" not in (found or "")


def test_a_file_that_is_too_large_is_named() -> None:
    text = (
        "Generic S3 error: Error performing PUT http://127.0.0.1:1/evals/x in 1ms - Server returned non-2xx status code: 400 Bad Request: "
        "<Error><Code>EntityTooLarge</Code></Error>"
    )
    with pytest.raises(UsageError, match=r"takes no file of this size in one write \(400 EntityTooLarge\); divide the eval"):
        raise fault_of(OSError(text), "s3://evals/lake").error("s3://evals/lake")


def test_a_full_disk_is_named() -> None:
    text = "Generic LocalFileSystem error: Unable to copy data to file: No space left on device (os error 28)\n\nDebug source:\n..."
    with pytest.raises(UsageError, match="its disk is full; free space on it"):
        raise fault_of(OSError(text), "file:///mnt/lake").error("file:///mnt/lake")


@pytest.mark.long
def test_a_conflict_of_writes_is_no_object(store: ObjectStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    with unreliable(store, tmp_path, conflicts=1) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
        Store(url).put_file("a.parquet", file)
        assert Store(url).read("a.parquet") == b"content"
        proxy.change(conflicts=3)
        probe(Store(url))  # which takes a second success for a store without conditions
        assert proxy.counts()["faults"] == 4


@pytest.mark.parametrize("address", ["http://host:99999", "http://host:port", "http://:80", "http://", "http://[::1", "http://a b:80"])
def test_an_address_that_obstore_would_die_of(address: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL holds no address; expected http://HOST:PORT"):
        Store(url)


def test_a_password_in_the_address_is_refused_unsaid(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:{SECRET}@127.0.0.1:1")
    with pytest.raises(UsageError, match="without user and password") as raised:
        Store(url)
    assert SECRET not in str(raised.value)


@pytest.mark.long
def test_a_store_that_hangs_is_given_up_in_time(store: ObjectStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "_HASTY", {"timeout": "1 second"})
    monkeypatch.setattr(storing, "_CLIENT", {"timeout": "3 seconds"})
    monkeypatch.setattr(storing, "_SLOWEST_S", 3.0)
    with unreliable(store, tmp_path, hangs=True) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
        silent = Store(url, patience_s=5)
        began = time.monotonic()
        for _ in range(4):  # as the stages of a run, of which each tries
            with pytest.raises(LakeUnreachableError, match="cannot be reached"):
                silent.list("")
        assert 5 <= time.monotonic() - began < 12
