"""The generated pages are current, the links lead somewhere, and the site can be built."""

import importlib.util
import pkgutil
import re
import shutil
import subprocess
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import typer
import yaml
from documents import DOCS, PAGES, ROOT, name_of
from few import few
from needs import require

import eval_dagster.metrics
from eval_dagster.cli.app import app
from eval_dagster.metrics.base import BaseMetric

DOCUMENTS = [*PAGES, *sorted(ROOT.glob("*.md"))]


# ---- generated pages


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["configuration.md", "cli.md", "relations.md", "python.md", "tasks.md", "metrics.md"])
def test_the_generated_pages_are_current(generator: ModuleType, name: str) -> None:
    assert (DOCS / "reference" / name).read_text() == generator.written(name), "run `make docs`"


def test_every_metric_is_public_and_has_a_row(generator: ModuleType) -> None:
    """The names of a guide are imported from the package, and found on one page."""
    modules = [importlib.import_module(f"eval_dagster.metrics.{each.name}") for each in pkgutil.iter_modules(eval_dagster.metrics.__path__)]
    found = {
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseMetric) and value.__module__ == module.__name__ and hasattr(value, "NAME")
    }
    assert len(found) > 50
    assert {"ConfidenceWeightedAccuracy", "ProbabilityMass", "TernaryScore"} < found <= set(eval_dagster.__all__)
    assert set(re.findall(r"^\| `(\w+)` \| `", generator.written("metrics.md"), re.MULTILINE)) == found


def test_every_meaning_is_of_a_column_that_exists(generator: ModuleType) -> None:
    shown = set(re.findall(r"^\| `(\w+)` \|", generator.written("relations.md"), re.MULTILINE))
    assert {name.rpartition(".")[2] for name in generator.TEXTS["columns"]} <= shown


# ---- links


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?://)([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        there = (document.parent / path).resolve() if path else document
        assert there.exists(), target
        if anchor and not anchor.startswith("eval_dagster."):  # mkdocstrings makes those; the build of the site checks them
            assert anchor in _anchors(there), target


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for document in DOCUMENTS for target in re.findall(r"(?:`|^)make ([a-z-]+)", document.read_text(), re.MULTILINE)}
    assert {"docs", "test", "check", "goldens"} <= named <= targets


def test_every_command_that_is_named_exists() -> None:
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    named = {
        name for document in DOCUMENTS for name in re.findall(r"(?:`|^|&& )eval-dagster ([a-z][a-z-]*)", document.read_text(), re.MULTILINE)
    }
    # test_readme.py tries `init`, or shows that it is skipped.
    assert commands <= named <= commands | {"init"}


def test_the_paths_of_the_changelog_exist() -> None:
    moved = re.findall(r"^\| `([\w.*]+)` \| `([\w.*]+)` \|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert len(moved) > 10
    for _, now in moved:
        assert find_spec(now.removesuffix(".*")), now


def test_ci_runs_what_developers_run() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands[-1] == ".ci/run"
    assert not [command for command in commands[:-1] if "make " in command.replace("git make", "")], "the rest installs git and make"
    assert re.findall(r"^make .*$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE) == [
        "make .venv/.ready-docs",
        "make --jobs 3 docs check test",
    ]
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(form.read_text()), form


# ---- the site


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder in which the site can be built."""
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    (tmp_path / "eval_dagster").symlink_to(ROOT / "eval_dagster")
    return tmp_path


def _build(folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [require("zensical"), "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.long
def test_the_site_is_built_without_a_warning(site: Path) -> None:
    done = _build(site)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {str(path.relative_to(site / "build" / "docs").with_suffix(".md")) for path in (site / "build" / "docs").rglob("*.html")}
    assert built - {"404.md"} == {str(page.relative_to(DOCS)) for page in PAGES}
    assert not list((site / "build").rglob("generate*"))
    python = (site / "build" / "docs" / "reference" / "python.html").read_text()
    assert 'id="eval_dagster.tasks.base.BaseTask._get_ground_truth"' in python


@pytest.mark.long
@few("wrong", ["[gone](gone.md)", "[gone](index.md#gone)", "[gone][eval_dagster.gone]", "::: eval_dagster.gone"], kept=1)
def test_a_broken_link_or_reference_fails_the_build(site: Path, wrong: str) -> None:
    page = site / "docs" / "tutorial.md"
    page.write_text(f"{page.read_text()}\n{wrong}\n")
    done = _build(site)
    assert done.returncode != 0
    assert "gone" in re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)


def test_the_navigation_has_every_page() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(_leaves(nav)) == [str(page.relative_to(DOCS)) for page in PAGES]


def _leaves(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [leaf for each in (nav.values() if isinstance(nav, dict) else nav) for leaf in _leaves(each)]  # type: ignore[attr-defined]
