"""Files of a user in the environment of another package: their modules, and the content that their versions follow."""

import sys
from pathlib import Path

import pytest

from eval_dagster.peers.workers.user_files import content_of, is_user_module, module_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "own_texts.py").write_text("import json\nfrom own_words import WORD\n")
    (tmp_path / "own_words.py").write_text("WORD = 'word'\n")
    (tmp_path / "unrelated.py").write_text("raise RuntimeError\n")
    (tmp_path / "own_tasks.py").write_text("def ask():\n    import own_texts\n    return own_texts.WORD\n")
    return tmp_path / "own_tasks.py"


def test_the_version_follows_the_files_that_are_imported(file: Path) -> None:
    before = content_of(file)
    assert list(before) == ["own_tasks.py", "own_texts.py", "own_words.py"]
    (file.parent / "unrelated.py").write_text("# another task\n")
    assert content_of(file) == before
    (file.parent / "own_words.py").write_text("WORD = 'other'\n")
    after = content_of(file)
    assert [name for name in after if after[name] != before[name]] == ["own_words.py"]


def test_a_file_imports_those_beside_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    module = module_of(file)
    assert module.ask() == "word"
    assert is_user_module(module)
    assert not is_user_module(pytest)


def test_a_file_that_fails_is_imported_again(tmp_path: Path) -> None:
    file = tmp_path / "own_failing.py"
    file.write_text("raise ValueError('not yet')\n")
    with pytest.raises(ValueError, match="not yet"):
        module_of(file)
    file.write_text("READY = True\n")
    assert module_of(file).READY
