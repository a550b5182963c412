"""Versions of this project's code are computed once for one state of its files."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from eval_dagster.versions import hashes, module_sources
from eval_dagster.versions.hashes import KeptVersions

NAME = "kept_package"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "metric.py").write_text("class Metric: ...\n")
    monkeypatch.setattr(module_sources, "FIRST_PARTY", (NAME,))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_a_version_is_found_by_the_next_process(package: Path) -> None:
    KeptVersions(package).keep([f"{NAME}.metric"], "a version", installed=["json"])
    assert KeptVersions(package).find([f"{NAME}.metric"]) == "a version"
    assert KeptVersions(package).find([f"{NAME}.metric", NAME]) is None


@pytest.mark.parametrize("file", ["metric.py", "new.py"])
def test_a_change_of_any_file_ends_all_versions(package: Path, file: str) -> None:
    running = KeptVersions(package)
    running.keep([f"{NAME}.metric"], "a version", installed=[])
    (package / file).write_text("class Metric: x = 1\n")
    assert running.find([f"{NAME}.metric"]) is None, "the process that runs has the old code"
    running.keep([f"{NAME}.metric"], "of the old code", installed=[])
    assert KeptVersions(package).find([f"{NAME}.metric"]) is None


def test_a_users_module_that_hides_an_installed_one_is_seen(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptVersions(package).keep([NAME], "a version", installed=["installed_or_not"])
    assert KeptVersions(package).find([NAME]) == "a version"
    folder = tmp_path / "users"
    folder.mkdir()
    (folder / "installed_or_not.py").write_text("")
    monkeypatch.syspath_prepend(str(folder))
    for known in (module_sources._is_first_party_root, module_sources._file_on_path):
        known.cache_clear()
    try:
        assert KeptVersions(package).find([NAME]) is None
    finally:
        for known in (module_sources._is_first_party_root, module_sources._file_on_path):
            known.cache_clear()


def test_only_what_a_name_stands_for_has_a_version(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(f"{NAME}.metric")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = [type("Metric", (), {"__module__": module.__name__}) for _ in range(2)]
    vars(module)["Metric"] = made[0]
    versions = KeptVersions(package)
    for each in (*made, module, Path, "json"):
        versions.keep([each], "a version", installed=[])
    assert versions.find([made[0]]) == versions.find([module]) == "a version"
    assert [versions.find([each]) for each in (made[1], Path, "json")] == [None, None, None]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"of": 1}', '{"of": "another", "versions": {}}'])
def test_a_damaged_file_counts_as_none(package: Path, content: str) -> None:
    first = KeptVersions(package)
    first.keep([NAME], "a version", installed=[])
    first._path.write_text(content)
    assert KeptVersions(package).find([NAME]) is None


@pytest.mark.long
def test_kept_versions_equal_computed_ones(tmp_path: Path) -> None:
    program = (
        "import json, sys\n"
        "from eval_dagster.versions import hashes\n"
        "from eval_dagster.stages import outputs, scores\n"
        "from eval_dagster.metrics.completion import ExactMatch\n"
        "found = [hashes.code_version(each) for each in (outputs, scores, ExactMatch, 'eval_dagster.pages.report.page')]\n"
        "print(json.dumps([found, len(hashes._references._modules)]))\n"
    )

    def run(**environment: str) -> tuple[list[str], int]:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run([sys.executable, "-c", program], env={**inherited, **environment}, capture_output=True, text=True, check=True)
        found, modules = json.loads(done.stdout)
        return found, modules

    computed, read = run(PYTHONDONTWRITEBYTECODE="1", XDG_CACHE_HOME=str(tmp_path / "never"))
    first, _ = run(XDG_CACHE_HOME=str(tmp_path / "cache"))
    again, read_again = run(XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert computed == first == again
    assert read > 50
    assert read_again == 0
    assert not list((tmp_path / "never").rglob("*.json"))
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 1


def test_versions_of_this_package_are_those_of_its_folder() -> None:
    assert hashes._PACKAGE.name == "eval_dagster"
    assert (hashes._PACKAGE / "versions" / "hashes.py").exists()
