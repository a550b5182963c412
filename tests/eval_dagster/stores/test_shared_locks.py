"""Locks in a real PostgreSQL: held by one, freed when the holder is killed, and never lost in silence."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.postgres import Postgres, running_postgres

from eval_dagster.errors import LockLostError, RequirementError, StoreError
from eval_dagster.stores.locks import _PATIENCE_S, SharedLocks, repeated

HOLDER = """
import sys, time
from pathlib import Path
from eval_dagster.stores.locks import SharedLocks

with SharedLocks(Path(sys.argv[1]), sys.argv[2]).hold("night", file="unused"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def locks(postgres: Postgres, tmp_path: Path) -> SharedLocks:
    return SharedLocks(tmp_path, postgres.url())


@pytest.mark.long
def test_a_lock_of_a_killed_process_is_free_at_once(postgres: Postgres, locks: SharedLocks, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), postgres.url()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        taken = threading.Event()

        def take() -> None:
            with locks.hold("night", file="unused"):
                taken.set()

        waiting = threading.Thread(target=take)
        waiting.start()
        with locks.hold("another", file="unused"):
            assert not taken.wait(1.0)
        holder.kill()
        killed_at = time.monotonic()
        assert taken.wait(30)
        assert time.monotonic() - killed_at < 5, "the longest wait between two trials is a second"
        waiting.join()


def test_threads_of_a_process_exclude_each_other(locks: SharedLocks) -> None:
    seen: list[int] = []
    inside = 0

    def work() -> None:
        nonlocal inside
        for _ in range(5):
            with locks.hold("night", file="unused"):
                inside += 1
                seen.append(inside)
                time.sleep(0.002)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 15


def test_a_lock_that_is_lost_within_the_block_is_noticed(postgres: Postgres, locks: SharedLocks) -> None:
    with (
        pytest.raises(LockLostError, match=rf"'night' in PostgreSQL at 127.0.0.1:{postgres.port}/postgres was lost") as raised,
        locks.hold("night", file="unused"),
    ):
        postgres.restart()
    assert postgres.password not in str(raised.value)


def test_a_lost_lock_is_taken_again_before_work_that_needs_it(postgres: Postgres, locks: SharedLocks) -> None:
    with locks.hold("night", file="unused") as hold:
        assert not hold.regain()
        postgres.restart()
        assert hold.regain()
        assert not hold.regain()
        held = "select count(*) from pg_locks where locktype = 'advisory'"
        assert postgres.query(held) == [(1,)]


def test_the_error_of_the_block_is_the_one_that_is_raised(postgres: Postgres, locks: SharedLocks) -> None:
    with pytest.raises(ZeroDivisionError), locks.hold("night", file="unused"):
        raise ZeroDivisionError
    assert postgres.query("select count(*) from pg_locks where locktype = 'advisory'") == [(0,)]


def test_work_whose_lock_was_lost_is_done_once_more(postgres: Postgres, locks: SharedLocks) -> None:
    trials: list[int] = []

    def work() -> str:
        with locks.hold("night", file="unused"):
            trials.append(1)
            if len(trials) == 1:
                postgres.restart()
            return "done"

    assert repeated(work) == "done"
    assert len(trials) == 2


@pytest.mark.long
def test_a_restart_is_waited_for(postgres: Postgres, locks: SharedLocks) -> None:
    postgres.stop()
    starting = threading.Timer(1.0, postgres.start)
    starting.start()
    with locks.hold("night", file="unused") as hold:
        assert not hold.regain()
    starting.join()


def test_a_database_that_stays_down_is_named(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval_dagster.stores.locks._PATIENCE_S", 0.5)
    postgres.stop()
    try:
        named = rf"PostgreSQL at 127.0.0.1:{postgres.port}/postgres, .*Connection refused"
        with pytest.raises(StoreError, match=named) as raised, SharedLocks(tmp_path, postgres.url()).hold("night", file="unused"):
            pass
        assert postgres.password not in str(raised.value)
    finally:
        postgres.start()


def test_a_wrong_password_is_said_at_once(postgres: Postgres, tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        pytest.raises(StoreError, match="password authentication failed"),
        SharedLocks(tmp_path, postgres.url().replace(postgres.password, "wrong")).hold("night", file="unused"),
    ):
        pass
    assert time.monotonic() - began < _PATIENCE_S / 4


def test_without_the_driver_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with (
        pytest.raises(RequirementError, match=r"pip install 'eval_dagster\[postgres\]'"),
        SharedLocks(tmp_path, "postgresql://127.0.0.1:1/none").hold("night", file="unused"),
    ):
        pass


def test_without_a_database_a_lock_is_a_file(tmp_path: Path) -> None:
    locks = SharedLocks(tmp_path)
    assert not locks.across_machines
    with locks.hold("night", file="locks/night") as hold:
        assert not hold.regain()
        assert (tmp_path / "locks" / "night").exists()
