"""Versions change with whatever can change a result, and with nothing else."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eval_dagster import metrics
from eval_dagster.versions import hashes, module_sources
from eval_dagster.versions.hashes import ListHash, code_version, file_hash, stable_hash


def test_equal_values_have_equal_hashes_whatever_the_order_of_keys() -> None:
    assert stable_hash({"a": 1, "b": [1, 2]}) == stable_hash({"b": [1, 2], "a": 1})
    assert stable_hash([1, 2]) != stable_hash([2, 1])
    assert stable_hash("1") != stable_hash(1)
    assert len(stable_hash("")) == 16
    assert stable_hash("é\ud800") != stable_hash("é")


@pytest.mark.parametrize("items", [[], [None], [["é\ud800", 1.5, {"b": [], "a": float("nan")}], "two", 3, [[]]]])
def test_a_list_has_its_hash_where_its_items_come_one_after_the_other(items: list[object]) -> None:
    streamed = ListHash()
    for count, item in enumerate(items):
        assert streamed.value() == stable_hash(items[:count])
        streamed.add(item)
    assert streamed.value() == stable_hash(items)


def test_a_file_is_named_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").write_bytes(b"x")
    (tmp_path / "c").write_bytes(b"y")
    assert file_hash(tmp_path / "a") == file_hash(tmp_path / "b") != file_hash(tmp_path / "c")


def test_threads_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"eval_dagster.metrics.{path.stem}" for path in Path(metrics.__file__).parent.glob("[a-z]*.py")]
    alone = [code_version(name) for name in names]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(5):
                monkeypatch.setattr(hashes, "_references", hashes.References())
                assert list(pool.map(code_version, names)) == alone
    finally:
        sys.setswitchinterval(interval)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "versioned_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "metric.py").write_text("from versioned_package.helper import double\n\nclass Metric:\n    value = double(2)\n")
    (folder / "helper.py").write_text("def double(number):\n    return 2 * number\n")
    (folder / "unrelated.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module_sources, "FIRST_PARTY", ("versioned_package",))
    for name in [name for name in sys.modules if name.startswith("versioned_package")]:
        monkeypatch.delitem(sys.modules, name)
    module_sources._file_on_path.cache_clear()
    return folder


def _version(*, new_process: bool = True) -> str:
    if new_process:
        for name in [name for name in sys.modules if name.startswith("versioned_package")]:
            del sys.modules[name]
    from versioned_package.metric import Metric  # type: ignore[import-not-found]

    return code_version(Metric)


def test_a_version_names_the_code_that_runs_not_what_the_file_says_by_now(package: Path) -> None:
    before = _version()
    (package / "helper.py").write_text("def double(number):\n    return 3 * number\n")
    assert _version(new_process=False) == before
    assert _version() != before


def test_a_module_of_the_user_counts_and_an_installed_one_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_helper.py").write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert module_sources.is_first_party("users_helper")
    assert module_sources.is_first_party("eval_dagster.metrics")
    for name in ("json", "sys", "duckdb", "pyarrow.parquet", "no_such_module"):
        assert not module_sources.is_first_party(name)


def test_a_helper_in_another_module_counts(package: Path) -> None:
    before = _version()
    (package / "helper.py").write_text("def double(number):\n    return number + number + 0\n")
    assert _version() != before


def test_comments_docstrings_and_layout_do_not_count(package: Path) -> None:
    before = _version()
    (package / "helper.py").write_text(
        '"""New."""\n\n\ndef double(number):\n    """Twice."""\n    # twice\n    return (2 *\n        number)\n'
    )
    assert _version() == before


def test_what_is_not_imported_does_not_count(package: Path) -> None:
    before = _version()
    (package / "unrelated.py").write_text("X = 2\n")
    assert _version() == before


def test_what_happens_to_be_loaded_does_not_count(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _version()
    monkeypatch.delitem(sys.modules, "versioned_package.helper")
    assert _version(new_process=False) == before


def test_code_that_is_imported_when_it_is_needed_counts_before(package: Path) -> None:
    engine = package / "models" / "engine.py"
    engine.parent.mkdir()
    (engine.parent / "__init__.py").write_text("raise RuntimeError('a version needs no module to be run')\n")
    engine.write_text("def run():\n    return 1\n")
    late = "class Metric:\n    def value(self):\n        from versioned_package.models.engine import run\n\n        return run()\n"
    (package / "metric.py").write_text(late)
    before = _version()
    engine.write_text("def run():\n    return 2\n")
    assert _version() != before


def test_packages_that_are_installed_into_any_folder_are_no_code_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = tmp_path / "libs"
    for name in ("library_a/__init__.py", "library_b.py", "users_own.py", "users_package/__init__.py"):
        (libraries / name).parent.mkdir(parents=True, exist_ok=True)
        (libraries / name).write_text("X = 1\n")
    (libraries / "library_a-1.0.dist-info").mkdir()
    record = "library_a/__init__.py,sha256=0,6\nlibrary_b.py,sha256=0,6\nlibrary_a-1.0.dist-info/RECORD,,\n"
    (libraries / "library_a-1.0.dist-info/RECORD").write_text(record)
    monkeypatch.syspath_prepend(str(libraries))
    found = [module_sources.is_first_party(name) for name in ("library_a.part", "library_b", "users_own", "users_package.part")]
    assert found == [False, False, True, True]


def test_a_folder_without_init_in_a_package_that_is_not_imported_counts(package: Path) -> None:
    (package / "parts/deeper").mkdir(parents=True)
    (package / "parts/deeper/made.py").write_text("def made():\n    return 1\n")
    late = "class Metric:\n    def value(self):\n        import versioned_package.parts.deeper.made as part\n\n        return part\n"
    (package / "metric.py").write_text(late)
    before = _version()
    (package / "parts/deeper/made.py").write_text("def made():\n    return 2\n")
    assert _version() != before
