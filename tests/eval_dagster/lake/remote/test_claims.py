"""Machines that share a lake claim what they ask: each request has one asker, also where the store fails, and where one of them dies."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from servers.object_store import ObjectStore, unreliable
from shared_writes import add_answers

from eval_dagster.lake.answers import claims
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.files import Lake
from eval_dagster.lake.remote.mirror import mirror_lake
from eval_dagster.lake.tables.rows import response_row
from eval_dagster.records import ModelResponse

Machine = Callable[[str], Lake]


def _cache(lake: Lake) -> ResponseCache:
    return ResponseCache(lake, "v1")


@pytest.fixture(params=["s3", "folder"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    """The lake as the machine of a name has it, in an object store and on a shared disk."""
    if request.param == "s3":
        opened: Machine = request.getfixturevalue("machine")
        return opened
    (tmp_path / "disk").mkdir()

    def open_folder(name: str) -> Lake:
        mirror_lake(tmp_path / name / "lake", f"file://{tmp_path / 'disk'}")
        return Lake(tmp_path / name)

    return open_folder


@pytest.mark.long
def test_a_second_machine_may_ask_what_the_first_does_not(shared: Machine) -> None:
    one, two = _cache(shared("one")), _cache(shared("two"))
    with one.claimed(set("abc"), "first-run") as first, two.claimed(set("bcd"), "second-run") as second:
        assert (first.requests, first.others) == (set("abc"), ())
        assert second.requests == {"d"}
        [other] = second.others
        assert other.requests == set("bc")
        assert "run first-ru" in other.holder
        assert other.is_held()
        add_answers(one, "abc")
    with two.claimed(set("bcd"), "second-run") as later:
        assert later.known.keys() == set("bc")
        assert (later.requests, later.others) == ({"d"}, ())


@pytest.mark.long
def test_a_silent_claim_is_taken_over(shared: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = _cache(shared("one")), _cache(shared("two"))
    monkeypatch.setattr(claims, "BEAT_S", 1000.0)  # the process is stopped, or its machine is gone
    monkeypatch.setattr(claims, "SILENT_S", 3.0)
    monkeypatch.setattr(claims, "_LOOK_S", 0.1)
    with one.claimed(set("abc"), "first") as first:
        assert first.back_up is not None
        first.back_up([response_row("c", ModelResponse(text=("c",), finish_reason=("stop",)), "v1")])
        with two.claimed(set("abc"), "second") as refused:
            assert not refused.requests
            [other] = refused.others
            deadline = time.monotonic() + 10
            while other.is_held() and time.monotonic() < deadline:
                time.sleep(0.2)
        with two.claimed(set("abc"), "second") as taken:
            assert taken.known.keys() == {"c"}, "the dead machine had its answer in no file yet"
            assert (taken.requests, taken.others) == (set("ab"), ())


@pytest.mark.long
def test_a_claim_that_beats_stays_and_one_that_was_silent_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.1)
    monkeypatch.setattr(claims, "SILENT_S", 1.0)
    (tmp_path / "disk").mkdir()
    for name in ("one", "two"):
        mirror_lake(tmp_path / name / "lake", f"file://{tmp_path / 'disk'}")
    one, two = (_cache(Lake(tmp_path / name)) for name in ("one", "two"))
    with one.claimed(set("ab"), "first") as held:
        time.sleep(1.5)
        with two.claimed(set("ab"), "second") as refused:
            assert not refused.requests
        assert not held.is_lost()
    monkeypatch.setattr(claims, "BEAT_S", 1.5)
    with one.claimed(set("ab"), "first") as silent:
        time.sleep(2)
        assert silent.is_lost(), "others may have taken its requests"


@pytest.mark.long
def test_a_killed_process_of_the_same_home_is_seen_at_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = _cache(machine("one"))
    with cache.claimed(set("ab"), "first"):
        with cache.claimed(set("ab"), "second") as refused:
            assert not refused.requests
        monkeypatch.setattr(claims, "is_held", lambda _: False)  # as the lock of a process that was killed
        with cache.claimed(set("ab"), "third") as taken:
            assert taken.requests == set("ab")


@pytest.mark.long
def test_nobody_shares_a_request_where_the_store_fails(
    store: ObjectStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {str(number) for number in range(12)}
    with unreliable(store, tmp_path, share=0.15) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
        faulty = f"{url}-faulty"
        for name in "abc":
            mirror_lake(tmp_path / name / "lake", faulty)
        caches = [_cache(Lake(tmp_path / name)) for name in "abc"]
        with ExitStack() as stack, ThreadPoolExecutor(3) as pool:

            def claim(number: int) -> frozenset[str]:
                part = {name for name in wanted if int(name) % 3 != number}
                return frozenset(stack.enter_context(caches[number].claimed(part, str(number))).requests)

            taken = list(pool.map(claim, range(3)))
        assert proxy.counts()["faults"]
    assert sum(map(len, taken)) == len(wanted)
    assert frozenset[str]().union(*taken) == wanted


def test_numbers_of_old_claims_are_removed_without_being_used_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_KEPT", 2)
    lake = machine("one")
    for _ in range(5):
        with _cache(lake).claimed({"a"}, "run") as claim:
            assert claim.requests == {"a"}
    assert lake.mirror is not None
    names = sorted(lake.mirror.store.list("claims"))
    assert [int(name.rpartition("/")[2]) for name in names] == [3, 4, 5]


def test_versions_that_nobody_asks_leave_no_file(tmp_path: Path) -> None:
    """A model that changes each night has a version each night."""
    cache_of = {name: ResponseCache(Lake(tmp_path), name) for name in ("v1", "v2", "v3")}
    with cache_of["v1"].claimed({"a"}, "first") as held:
        left = tmp_path / "locks" / "claims" / "v2"
        left.mkdir()
        (left / "of-a-killed-process").touch()
        with cache_of["v3"].claimed({"a"}, "second") as other:
            assert (held.requests, other.requests) == ({"a"}, {"a"}), "each version is asked for itself"
            assert not left.exists()
        with cache_of["v1"].claimed({"a", "b"}, "third") as third:
            assert third.requests == {"b"}
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["lock"]
