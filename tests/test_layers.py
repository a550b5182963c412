"""Imports point one way: each package imports packages below it, and only those that are named here."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ARROWS = {
    "dagster_internals": "",
    "texts": "",
    "errors": "",
    "collector": "",
    "users_code": "errors",
    "config": "errors texts users_code",
    "records": "texts",
    "control_groups": "",
    "progress": "control_groups errors texts",
    "stores": "errors progress",
    "versions": "stores texts users_code",
    "lake.tables": "records texts",
    "models": "config errors lake.tables records stores users_code versions",
    "sandbox": "errors",
    "metrics": "errors records sandbox",
    "tasks": "errors metrics records texts versions",
    "peers": "errors metrics records sandbox tasks texts versions",
    "task_files": "errors metrics peers records tasks texts users_code versions",
    "wait_policy": "",
    "models.transformers.network": "control_groups errors records wait_policy",
    "models.pooled": "config errors models models.transformers.network progress records",
    "lake.format": "errors lake.tables versions",
    "lake.remote": "errors lake.format lake.tables progress stores",
    "addresses": "stores",
    "lake.files": "errors lake.format lake.remote lake.tables stores",
    "lake.records": "errors lake.files lake.format lake.tables",
    "datasets": "errors records stores tasks texts users_code versions",
    "tracking": "addresses errors progress records stores texts",
    "models.transformers.weights": "config errors lake.remote progress stores versions",
    "checkpoints": "config errors lake.files lake.format lake.records lake.remote lake.tables models models.transformers.weights records",
    "episodes": "errors lake.tables records sandbox tasks users_code versions",
    "key_prefixes": "stores",
    "imported_tasks": "lake.files lake.format lake.tables tasks",
    "project": "addresses checkpoints config datasets episodes errors imported_tasks key_prefixes lake.files lake.remote models "
    "models.pooled stores task_files tasks texts tracking users_code",
    "remembered": "config lake.files lake.remote project stores",
    "statistics": "records",
    "lake.catalog": "errors lake.files lake.format lake.remote lake.tables statistics stores versions",
    "lake.answers": "errors lake.catalog lake.files lake.format lake.remote lake.tables stores texts",
    "lake.lineage": "errors lake.files lake.format versions",
    "prompts": "config errors metrics models records sandbox tasks texts users_code versions",
    "stages": "datasets episodes errors lake.answers lake.files lake.format lake.lineage lake.records lake.tables metrics models "
    "progress project prompts records sandbox statistics stores tasks texts tracking users_code versions",
    "known_results": "project stages stores",
    "imports": "errors lake.catalog lake.files lake.format lake.lineage lake.tables records stages tasks texts versions",
    "freshness": "datasets errors lake.format lake.records lake.tables project records stages tasks",
    "results": "config errors lake.catalog lake.files lake.format lake.lineage lake.records lake.tables metrics records stages "
    "statistics stores texts",
    "pages.samples": "errors lake.files project results stages stores texts versions",
    "pipeline": "checkpoints collector errors lake.catalog lake.files lake.records lake.tables pages.samples progress project stages "
    "users_code",
    "gate": "config errors lake.catalog lake.files lake.format lake.lineage lake.records lake.tables metrics project records "
    "results stages statistics texts versions",
    "retention": "errors gate lake.catalog lake.files lake.format lake.tables project results",
    "named_runs": "errors lake.catalog lake.files lake.format lake.tables retention tracking",
    "lake": "lake.answers lake.catalog lake.files lake.format lake.tables",
    "notifications": "errors gate lake.catalog lake.files lake.format lake.tables project records results stores texts versions",
    "pages.report": "errors gate lake.catalog lake.files lake.format lake.records lake.tables pages.samples project records results "
    "stores texts tracking versions",
    "assets": "config dagster_internals datasets errors freshness gate key_prefixes known_results lake.catalog lake.files lake.records "
    "lake.tables models named_runs notifications pages.report remembered results retention pipeline progress project records stages "
    "stores texts users_code versions",
    "task_defs": "metrics records tasks versions",
    "api": "config errors lake.catalog lake.files models pipeline progress project stages tasks versions",
    "peers.workers": "records",
    "peers.processes": "errors peers.workers progress records sandbox stores tasks users_code versions",
    "peers.bfcl": "errors metrics peers.processes peers.workers records tasks versions",
    "peers.programs": "errors peers peers.workers sandbox",
    "peers.packages": "peers.processes peers.programs",
    "peers.tau2": "errors metrics peers.processes peers.workers records tasks versions",
    "peers.lm_eval": "errors metrics peers.processes peers.workers records tasks texts versions",
    "templates": "",
    "models.transformers.encoding": "errors models.transformers.weights records",
    "models.transformers.scoring": "errors models models.transformers.encoding models.transformers.network records",
    "models.transformers.generation": "errors models models.transformers.encoding models.transformers.network progress records versions",
    "models.transformers": "config errors models models.transformers.encoding models.transformers.generation "
    "models.transformers.network models.transformers.scoring models.transformers.weights progress records versions",
    "models.served.calls": "config errors models records",
    "models.served.scoring": "config errors models models.served.calls models.transformers.encoding models.transformers.weights "
    "progress records versions",
    "models.served.spend": "config errors models.served.calls stores",
    "models.served.pace": "config errors models.served.calls stores",
    "models.served.canaries": "config models.served.calls records",
    "models.served.borders": "config models.served.calls models.served.canaries",
    "models.served.watch": "lake.files lake.records lake.tables models.served.borders models.served.canaries stores",
    "models.served": "config errors lake.tables models models.pooled models.served.borders models.served.calls models.served.canaries "
    "models.served.pace models.served.scoring models.served.spend models.served.watch models.transformers.weights progress records "
    "stores texts versions",
    "models.vllm": "config errors models models.transformers models.transformers.encoding models.transformers.generation "
    "models.transformers.network models.transformers.scoring models.transformers.weights progress records versions",
    "pages.server": "errors gate lake.catalog lake.files lake.format lake.tables metrics pages.report pages.samples records results "
    "statistics texts",
    "cli": "addresses assets collector config dagster_internals datasets errors freshness gate imports known_results lake.catalog "
    "lake.files lake.records lake.remote lake.tables metrics models models.transformers.weights named_runs notifications "
    "pages.report pages.samples pages.server peers.processes pipeline progress project prompts records remembered results "
    "retention sandbox stages statistics stores task_files tasks texts tracking users_code",
    "pages": "",
}
"""For each package, and each module beside the packages, what it imports of eval_dagster. A package comes after all that it imports."""
DAGSTER = {"assets", "cli", "dagster_internals"}
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
    del lengths["eval_dagster.task_defs.capitals"]  # a table
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}
    # A file has one subject, and a subject has one file.
    assert sum(lengths.values()) / len(lengths) >= 160, "files have become smaller again"


def test_rows_are_typed() -> None:
    """`dict[str, Any]` is for what a library or a person gives in any form: the type checker does not see the keys of such a row."""
    untyped = {name: len(re.findall(r"(?:dict|Mapping)\[str, Any\]", path.read_text("utf-8"))) for name, path in MODULES.items()}
    assert sum(untyped.values()) <= 90, sorted(untyped.items(), key=lambda each: -each[1])[:20]
