"""The page on the architecture names functions, modules and files that are there."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text("utf-8")
_QUOTED = re.findall(r"`([^`\n]+)`", PAGE)
NAMES = sorted({name for name in _QUOTED if re.fullmatch(r"[a-z_]+(\.\w+)+", name) and not name.endswith((".py", ".yaml", ".toml"))})
FILES = sorted({name for name in _QUOTED if name.endswith((".py", ".yaml", ".toml", "/")) and name != "evals.yaml"})
TABLES = re.findall(r"\| `(\w+)(?:\.\w+)?`", PAGE)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there(name: str) -> None:
    if name == "prompts.request_id":  # a column
        return
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ".".join(["eval_dagster", *parts[:count]])
        if importlib.util.find_spec(module if count == 1 else ".".join(["eval_dagster", parts[0]])) is None:
            continue
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return
    pytest.fail(f"the page names {name}, which is no module of eval_dagster")


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_there(name: str) -> None:
    assert any((folder / name).exists() for folder in (ROOT, ROOT / "eval_dagster"))


def test_the_page_names_something() -> None:
    assert len(NAMES) > 30
    assert len(FILES) > 8
