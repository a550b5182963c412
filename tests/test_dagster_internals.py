"""The private names of Dagster: they lie in one room, and the installed Dagster has them all."""

import ast
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import eval_dagster

PACKAGE = Path(eval_dagster.__file__).parent
ROOM = PACKAGE / "dagster_internals"


def _private(file: Path) -> list[tuple[str, str]]:
    """The private modules of Dagster that a file imports from, with the names."""
    imports = [each for each in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(each, ast.ImportFrom | ast.Import)]
    found = [(str(each.module), name.name) for each in imports if isinstance(each, ast.ImportFrom) for name in each.names]
    found += [(name.name, "") for each in imports if isinstance(each, ast.Import) for name in each.names]
    return [(module, name) for module, name in found if module.startswith("dagster._")]


def _is_there(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name)
    except ImportError:
        return False


@pytest.mark.long
def test_nothing_else_imports_private_names_of_dagster() -> None:
    found = {
        str(file.relative_to(PACKAGE)): names for file in PACKAGE.rglob("*.py") if ROOM not in file.parents and (names := _private(file))
    }
    assert not found, "import them in eval_dagster/dagster_internals"


def test_dagster_has_them_all() -> None:
    names = [each for file in sorted(ROOM.glob("*.py")) for each in _private(file)]
    missing = [f"{module}.{name}" for module, name in names if not _is_there(module, name)]
    assert len(names) > 20
    assert not missing, f"Dagster {version('dagster')} lacks what eval_dagster/dagster_internals imports: {', '.join(missing)}"
