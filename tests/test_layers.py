"""Imports point one way: a module may import from its own layer's lower part and from the layers below, never upwards."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = [
    (
        "control_groups",
        "errors",
        "locks",
        "notice_sender",
        "os_errors",
        "reasoning",
        "records",
        "doc",
        "suggestions",
        "bindings",
        "code_closure",
        "definitions",
        "module_sources",
        "references",
        "statement_text",
        "versions",
        "statistics",
        "paired",
        "paired_corpora",
        "paired_means",
        "paired_suites",
        "paired_tests",
        "peak_memory",
        "progress",
        "progress_bars",
        "source_files",
        "sqlite_files",
        "terminal",
        "tracking_uris",
        "visible_text",
        "wait_policy",
        "yaml_document",
    ),
    ("sandbox",),
    ("config", "config_words", "config_file", "metrics", "models.base", "models.usage"),
    ("tasks", "prompts"),
    ("models", "lake", "tracked_names", "tracked_result", "tracked_run", "tracking", "tracking_store"),
    ("project",),
    ("results", "stages", "gate", "notice_texts", "notices", "retained", "retention"),
    ("report",),
    ("pipeline",),
    ("cli",),
]
"""Modules and packages of eval_dagster, the lowest first."""


def _modules() -> dict[str, Path]:
    files = [path for package in ("eval_dagster", "assets", "task_defs") for path in (ROOT / package).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


MODULES = _modules()


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


def _layer(name: str) -> int:
    inner = name.removeprefix("eval_dagster").removeprefix(".")
    matches = [
        (len(entry), level) for level, layer in enumerate(LAYERS) for entry in layer if inner == entry or inner.startswith(f"{entry}.")
    ]
    assert matches or not inner, f"{name} belongs to no layer; name it in LAYERS"
    return max(matches)[1] if matches else len(LAYERS)  # the package itself, which offers names of its modules


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("eval_dagster")])
def test_the_library_imports_downwards(name: str) -> None:
    for imported in _imports(name):
        if imported.startswith("eval_dagster."):
            assert _layer(imported) <= _layer(name), f"{name} imports {imported}, which lies above it"
        if not name.startswith("eval_dagster.cli"):
            assert imported.split(".")[0] not in ("dagster", "assets", "task_defs"), f"{name} imports {imported}"


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("task_defs")])
def test_benchmarks_import_the_library_alone(name: str) -> None:
    assert {imported.split(".")[0] for imported in _imports(name)} <= {"eval_dagster", "task_defs"} | sys.stdlib_module_names


def test_nothing_imports_the_command_line() -> None:
    for name in MODULES:
        if not name.startswith("eval_dagster.cli"):
            assert not any(imported.startswith("eval_dagster.cli") for imported in _imports(name)), name


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
    long = {name: lines for name, path in MODULES.items() if (lines := len(path.read_text().splitlines())) > 300}
    long.pop("task_defs.countries", None)
    assert not long
