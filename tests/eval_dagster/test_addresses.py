"""Links lead to addresses that are published, or that a running server has noted, and nowhere else."""

import json
import multiprocessing
import os
import platform
import signal
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from eval_dagster.addresses import Addresses, noted, shown_address, without_secrets

HERE = {"dagster": "http://127.0.0.1:3017", "mlflow": "http://127.0.0.1:5017"}


def _serve(home: Path, is_there: Event) -> None:
    with noted(home, {"dagster": "http://127.0.0.1:3018"}, os.getpid()):
        is_there.set()
        time.sleep(60)


def test_without_a_server_and_without_a_public_address_there_is_no_link(tmp_path: Path) -> None:
    found = Addresses(home=tmp_path)
    assert (found.of("dagster"), found.of("mlflow"), found.of("pages")) == (None, None, None)
    assert (found.dagster_run("a-run"), found.night("nightly", "2026-01-31T02:00:00+00:00")) == (None, None)


def test_servers_are_known_as_long_as_they_run(tmp_path: Path) -> None:
    found = Addresses(home=tmp_path)
    with noted(tmp_path, HERE, os.getpid()):
        assert found.dagster_run("a-run") == "http://127.0.0.1:3017/runs/a-run"
        assert found.of("mlflow") == HERE["mlflow"]
        assert found.of("pages") is None
        assert found.everywhere().of("dagster") is None, "who reads a notice is elsewhere"
    assert found.of("dagster") is None
    assert list((tmp_path / "addresses").iterdir()) == []


def test_a_server_that_was_killed_is_not_linked_to(tmp_path: Path) -> None:
    is_there = multiprocessing.get_context("spawn").Event()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(tmp_path, is_there))
    server.start()
    assert server.pid is not None
    assert is_there.wait(60)
    assert Addresses(home=tmp_path).of("dagster") == "http://127.0.0.1:3018"
    os.kill(server.pid, signal.SIGKILL)
    server.join(60)
    assert len(list((tmp_path / "addresses").iterdir())) == 2, "its note is left behind"
    assert Addresses(home=tmp_path).of("dagster") is None


def test_a_server_of_another_machine_is_not_linked_to(tmp_path: Path) -> None:
    with noted(tmp_path, HERE, os.getpid()):
        [note] = (tmp_path / "addresses").glob("dagster-*.json")
        note.write_text(json.dumps({"url": HERE["dagster"], "machine": f"not-{platform.node()}"}))
        assert Addresses(home=tmp_path).of("dagster") is None


def test_a_public_address_comes_first(tmp_path: Path) -> None:
    found = Addresses(home=tmp_path, public={"dagster": "https://evals.example/dagster/", "pages": "https://evals.example/view"})
    with noted(tmp_path, HERE, os.getpid()):
        assert found.dagster_run("a-run") == "https://evals.example/dagster/runs/a-run"
        assert found.of("mlflow") == HERE["mlflow"]
    night = "https://evals.example/view/night?suite=my%20suite&at=2026-01-31T02%3A00%3A00%2B00%3A00"
    assert found.everywhere().night("my suite", "2026-01-31T02:00:00+00:00") == night


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://host:5000", "http://host:5000"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("http://host/team@work", "http://host/team@work"),
        ("http://me:secret@host:5000/x", "http://***@host:5000/x"),
        ("http://[::1]:5000/x", "http://[::1]:5000/x"),
        ("postgresql://me:se@cr@et@db:5432/evals", "postgresql://***@db:5432/evals"),
        ("postgresql://me:se/cret@db/evals", "postgresql://***@db/evals"),
        ("postgresql:///evals?host=db&user=me&password=secret", "postgresql:///evals?host=db&user=me&password=***"),
        ("http://host/x?sslmode=require&api_token=secret&a=b", "http://host/x?sslmode=require&api_token=***&a=b"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address: str, shown: str) -> None:
    assert shown_address(address) == shown
    assert without_secrets(f"cannot open {address}: refused", address) == f"cannot open {shown}: refused"


def test_a_secret_is_hidden_where_an_error_repeats_it_alone() -> None:
    address = "postgresql://me:se%40cret@db/evals?sslpassword=another"
    assert without_secrets("wrong password 'se@cret' (se%40cret), another", address) == "wrong password '***' (***), ***"
