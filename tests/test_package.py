"""What the wheel and the source archive hold."""

import email
import importlib.metadata
import sys
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from contextlib import suppress
from pathlib import Path

import pytest
from fresh_environment import REPOSITORY, build, run
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
METADATA = f"eval_dagster-{PROJECT['version']}.dist-info"
FOLDERS = {"assets": ".py", "task_defs": ".py", "sql": ".sql"}
"""Packages of eval_dagster that the top of the checkout links to, with the suffix of their files."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build(tmp_path_factory.mktemp("wheel")))


def tracked() -> set[str]:
    """The files of the package in the checkout, by their path in the wheel."""
    package = REPOSITORY / "eval_dagster"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    return {str(path.relative_to(REPOSITORY)) for path in files}


@pytest.mark.long
def test_the_wheel_holds_every_file_of_the_package_once_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert len(names) == len(set(names))
    held = {name for name in names if ".dist-info/" not in name}
    assert held == tracked()
    assert {name.split("/")[0] for name in names} == {"eval_dagster", METADATA}


@pytest.mark.long
@pytest.mark.parametrize(("folder", "suffix"), FOLDERS.items())
def test_the_folders_at_the_top_lead_to_packages(wheel: zipfile.ZipFile, folder: str, suffix: str) -> None:
    assert (REPOSITORY / folder).resolve() == REPOSITORY / "eval_dagster" / folder
    expected = {f"eval_dagster/{folder}/{path.name}" for path in (REPOSITORY / folder).glob(f"*{suffix}")}
    assert len(expected) > 5
    assert expected <= set(wheel.namelist())


@pytest.mark.long
def test_a_checkout_without_symbolic_links_holds_the_package(tmp_path: Path) -> None:
    """So does Git on Windows, unless it is told otherwise: a link is a file that holds its target."""
    run(["git", "clone", "--quiet", "--config", "core.symlinks=false", str(REPOSITORY), str(tmp_path / "checkout")], tmp_path)
    checkout = tmp_path / "checkout"
    assert all((checkout / folder).is_file() for folder in FOLDERS)
    modules = "eval_dagster.assets.definitions, eval_dagster.task_defs, eval_dagster.cli.app"
    printed = run([sys.executable, "-c", f"import {modules}; print(eval_dagster.__file__)"], checkout).stdout
    assert printed.strip() == str(checkout / "eval_dagster" / "__init__.py")
    assert len(list((checkout / "eval_dagster" / "sql").glob("*.sql"))) > 5


@pytest.mark.long
def test_files_that_are_no_modules_are_held(wheel: zipfile.ZipFile) -> None:
    for name in (
        "py.typed",
        "pages/report/templates/report.html",
        "pages/report/templates/style.css",
        "sql/leaderboard.sql",
        "templates/project/evals.yaml",
        "templates/project/gitignore",
        "templates/project/workflow.yml",
    ):
        assert wheel.read(f"eval_dagster/{name}") == (REPOSITORY / "eval_dagster" / name).read_bytes()


def test_the_metadata_is_that_of_the_project(wheel: zipfile.ZipFile) -> None:
    metadata = email.message_from_bytes(wheel.read(f"{METADATA}/METADATA"))
    assert (metadata["Name"], set(metadata["Requires-Python"].split(","))) == ("eval_dagster", {">=3.11", "!=3.13.0"})
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    required = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert len(required) == len(PROJECT["dependencies"])
    names = {name.split(">")[0].split("[")[0] for name in PROJECT["dependencies"]}
    for extra, packages in PROJECT["optional-dependencies"].items():
        again = {name.split(">")[0] for name in packages} & names
        assert not again, f"the extra {extra} names {again}, which is required anyway"
    entries = ConfigParser(delimiters="=")
    entries.read_string(wheel.read(f"{METADATA}/entry_points.txt").decode())
    declared = {"console_scripts": PROJECT["scripts"], **PROJECT["entry-points"]}
    assert {group: dict(entries[group]) for group in entries.sections()} == declared


@pytest.mark.long
def test_a_wheel_of_the_source_archive_is_the_same(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    archive_path = build(tmp_path, sdist=True)
    with tarfile.open(archive_path) as archive:
        names = {name.partition("/")[2]: archive.getmember(name) for name in archive.getnames()}
    assert tracked() | {"pyproject.toml", "README.md", "LICENSE"} <= set(names)
    assert not [name for name, member in names.items() if member.islnk() or member.issym()]
    assert not {name.split("/")[0] for name in names} & set(FOLDERS)
    run([sys.executable, "-m", "pip", "wheel", str(archive_path), "--no-deps", "--no-build-isolation"], tmp_path)
    [path] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as other:
        assert {each.filename: each.CRC for each in other.infolist()} == {each.filename: each.CRC for each in wheel.infolist()}


# ---- the locks


def _locked(name: str) -> dict[str, Requirement]:
    lines = (REPOSITORY / name).read_text().splitlines()
    return {canonicalize_name(each.name): each for each in (Requirement(line) for line in lines if line and not line.startswith("#"))}


def _needed(*requirements: str) -> set[str]:
    """The packages of this environment that requirements lead to. One that is not installed leads nowhere."""
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    open_ = [Requirement(each) for each in requirements]
    while open_:
        each = open_.pop()
        if (key := (canonicalize_name(each.name), frozenset(each.extras))) in seen:
            continue
        seen.add(key)
        with suppress(importlib.metadata.PackageNotFoundError):
            asked = map(Requirement, importlib.metadata.requires(each.name) or ())
            open_ += [
                one for one in asked if one.marker is None or any(one.marker.evaluate({"extra": name}) for name in ("", *each.extras))
            ]
            found.add(key[0])
    return found - {"eval-dagster", "setuptools"}


def test_each_lock_has_what_its_target_of_make_needs() -> None:
    run, test, docs = (_locked(name) for name in ("requirements.lock", "tests/requirements.lock", "docs/requirements.lock"))
    demo = _needed("eval_dagster[grammar,metrics,transformers]")
    assert len(demo) > 100
    # torch for CUDA needs packages of its own, which the lock leaves to torch.
    assert {name for name in demo - set(run) if not name.startswith(("nvidia-", "cuda-", "triton"))} == set()
    assert set(run) <= demo, "nobody waits for more than the demo needs"
    assert not set(run) & set(test)
    assert not set(run) & set(docs)
    for name in set(test) & set(docs):
        assert str(test[name]) == str(docs[name])


@pytest.mark.long
@pytest.mark.parametrize("name", ["requirements.lock", "tests/requirements.lock", "docs/requirements.lock"])
def test_what_is_locked_runs_on_the_oldest_python(name: str) -> None:
    oldest = PROJECT["requires-python"].partition(">=")[2].partition(",")[0] + ".0"
    known = 0
    for package, requirement in _locked(name).items():
        with suppress(importlib.metadata.PackageNotFoundError):
            found = importlib.metadata.distribution(package)
            if found.version in requirement.specifier:
                known += 1
                assert oldest in SpecifierSet(found.metadata.get("Requires-Python", "")), f"{package} {found.version}"
    assert known or name == "docs/requirements.lock", "no package of the lock is installed in its version"
