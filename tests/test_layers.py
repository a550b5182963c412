"""Imports point one way: each package imports packages below it, and only those that are named here."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ARROWS = {
    "errors": "",
    "reasoning": "",
    "suggestions": "",
    "user_cache": "",
    "visible_text": "",
    "wait_policy": "",
    "whole_files": "",
    "users_code": "errors",
    "code_versions": "user_cache users_code whole_files",
    "terminal": "visible_text",
    "progress": "terminal",
    "locks": "progress",
    "shared_locks": "errors locks progress",
    "statistics": "",
    "records": "reasoning",
    "rendered_prompt": "records",
    "versions": "code_versions",
    "sandbox": "errors",
    "sqlite_files": "errors",
    "addresses": "locks",
    "config": "errors reasoning suggestions users_code visible_text",
    "metrics": "errors records sandbox",
    "tasks": "errors metrics records rendered_prompt versions visible_text",
    "task_defs": "metrics records tasks versions",
    "templates": "",
    "compat": "code_versions errors metrics records rendered_prompt sandbox suggestions tasks versions",
    "task_files": "code_versions compat errors metrics records suggestions tasks users_code",
    "datasets": "code_versions errors locks records suggestions tasks users_code versions",
    "lake": "errors locks progress records rendered_prompt user_cache versions visible_text whole_files",
    "tracking": "addresses errors locks records shared_locks sqlite_files visible_text",
    "models": "code_versions config errors records users_code versions whole_files",
    "models.transformers.weights": "config errors locks progress versions whole_files",
    "models.transformers.encoding": "errors models.transformers.weights records",
    "models.transformers.network": "errors records wait_policy",
    "models.transformers.scoring": "errors models models.transformers.encoding models.transformers.network progress records",
    "models.transformers.generation": "errors models models.transformers.encoding models.transformers.network progress records versions",
    "models.transformers": "config errors models models.transformers.encoding models.transformers.generation models.transformers.network "
    "models.transformers.scoring models.transformers.weights progress records versions",
    "models.vllm": "config errors models models.transformers.encoding models.transformers.generation models.transformers.network "
    "models.transformers.scoring models.transformers.weights progress records versions",
    "models.pooled": "config errors models models.transformers.network progress records",
    "models.served": "config errors lake locks models models.pooled models.transformers.encoding models.transformers.weights progress "
    "records sqlite_files suggestions versions whole_files",
    "bridges.workers": "",
    "bridges.kept_files": "user_cache whole_files",
    "bridges.processes": "bridges.kept_files bridges.workers errors records tasks versions",
    "bridges": "bridges.kept_files bridges.processes bridges.workers errors metrics records suggestions tasks versions",
    "prompts": "config errors metrics models records rendered_prompt sandbox tasks users_code versions visible_text",
    "project": "addresses config datasets errors lake models models.pooled shared_locks suggestions task_files tasks tracking users_code",
    "remembered": "config lake project whole_files",
    "stages": "datasets errors lake metrics models progress project prompts reasoning records rendered_prompt sandbox statistics tasks "
    "tracking users_code versions",
    "gate": "config errors lake metrics project stages statistics versions",
    "notifications": "errors gate lake locks project statistics versions visible_text",
    "retention": "errors gate lake project",
    "explorer": "errors gate lake project records stages versions visible_text whole_files",
    "labels": "config errors explorer gate lake visible_text whole_files",
    "report": "errors explorer gate lake project statistics versions visible_text whole_files",
    "explorer.server": "errors explorer gate lake metrics report statistics visible_text",
    "pipeline": "errors explorer lake progress project stages users_code",
    "freshness": "datasets errors lake models project records stages tasks",
    "api": "code_versions config errors lake models pipeline progress project stages tasks",
    "assets": "config errors gate lake locks notifications pipeline progress project remembered report shared_locks sqlite_files stages "
    "statistics users_code versions visible_text whole_files",
    "cli": "addresses assets bridges.processes config datasets errors explorer explorer.server freshness gate labels lake metrics "
    "models models.transformers.weights notifications pipeline progress project prompts records remembered rendered_prompt report "
    "retention sandbox stages statistics suggestions task_files tasks terminal users_code visible_text whole_files",
}
"""For each package, and each module beside the packages, what it imports of eval_dagster. A package comes after all that it imports."""
DAGSTER = {"assets", "cli"}
"""Packages that may import Dagster."""


def _modules() -> dict[str, Path]:
    package = ROOT / "eval_dagster"
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in sorted(package.rglob("*.py"))
    }


MODULES = _modules()


def _package(name: str) -> str:
    """The longest entry that a module belongs to; none for the package itself, which offers names of all."""
    inner = name.removeprefix("eval_dagster").removeprefix(".")
    found = [entry for entry in ARROWS if inner == entry or inner.startswith(f"{entry}.")]
    assert found or not inner, f"{name} belongs to no package; name it in ARROWS"
    return max(found, key=len, default="")


@cache
def _imports(name: str) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            found |= {
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else str(node.module) for alias in node.names
            }
    return frozenset(found)


@cache
def _arrows() -> dict[str, dict[str, str]]:
    """For each package those that it imports, each with an import that shows it."""
    found: dict[str, dict[str, str]] = {entry: {} for entry in ["", *ARROWS]}
    for name in MODULES:
        for imported in _imports(name):
            if imported in MODULES and _package(imported) not in ("", _package(name)):
                found[_package(name)][_package(imported)] = f"{name} imports {imported}"
    return found


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_imports_what_is_named(package: str) -> None:
    found, allowed = _arrows()[package], set(ARROWS[package].split())
    assert not (more := found.keys() - allowed), [found[each] for each in more]
    assert not (gone := allowed - found.keys()), f"{package} imports {gone} no more: take it out of ARROWS"


def test_no_package_imports_one_above_it() -> None:
    order = list(ARROWS)
    for index, (package, imported) in enumerate(ARROWS.items()):
        assert set(imported.split()) <= set(order[:index]), package


@pytest.mark.parametrize("name", MODULES)
def test_libraries_stay_where_they_belong(name: str) -> None:
    imported = {each.split(".")[0] for each in _imports(name)}
    assert "dagster" not in imported or _package(name) in DAGSTER
    assert imported <= {"eval_dagster"} | sys.stdlib_module_names or _package(name) != "task_defs"


def test_there_is_no_cycle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"import cycle: {' -> '.join([*path[path.index(name) :], name])}"
        if name in done:
            return
        for imported in _imports(name):
            if imported in MODULES:
                visit(imported, (*path, name))
        done.add(name)

    for name in MODULES:
        visit(name, ())


def test_modules_stay_readable() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    del lengths["eval_dagster.task_defs.countries"]  # a table
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}
