"""Imports a user's file in the environment of another package. It needs the standard library alone."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

_folders: set[str] = set()


@cache
def module_of(file: Path) -> Any:
    """The module of a user's file. It can import the files beside it. Raises LookupError if it is not a Python file."""
    _folders.add(str(file.parent))
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise LookupError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(file.stem, None)
        raise
    return module


def is_user_module(module: Any) -> bool:
    """Whether a module is a user's file, or beside one."""
    file = getattr(module, "__file__", None)
    return file is not None and str(Path(file).parent) in _folders


def content_of(file: Path) -> dict[str, str]:
    """A hash of a file, and of each file beside it that it imports, or that one of those imports, by name."""
    found: dict[str, str] = {}
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path.name in found or not path.is_file():
            continue
        content = path.read_bytes()
        found[path.name] = hashlib.sha256(content).hexdigest()[:16]
        for node in ast.walk(ast.parse(content)):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            waiting += [file.parent / f"{name.partition('.')[0]}.py" for name in names]
    return dict(sorted(found.items()))
