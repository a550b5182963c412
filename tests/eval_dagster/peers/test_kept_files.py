"""Files that are kept between runs."""

from pathlib import Path

import pytest

from eval_dagster.peers.processes.registry import kept_json


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_is_kept_is_made_once(tmp_path: Path) -> None:
    assert kept_json("names", lambda: ["a"]) == ["a"]
    assert kept_json("names", lambda: ["b"]) == ["a"]
    (tmp_path / "eval_dagster/names.json").write_text("[")  # as a damaged disk leaves it
    assert kept_json("names", lambda: ["b"]) == ["b"]
    assert kept_json("names", lambda: ["c"]) == ["b"]


def test_a_folder_that_takes_no_file_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "eval_dagster").write_text("a file")
    assert kept_json("names", lambda: ["a"]) == ["a"]


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        kept_json("names", lambda: [object()])
    assert list((tmp_path / "eval_dagster").iterdir()) == []
