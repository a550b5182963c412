"""Imports a user's file in a worker's process."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any


@cache
def module_of(file: Path) -> Any:
    """The module of a user's file. It can import the files beside it. Raises LookupError for a file that is not Python."""
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


_folders: set[str] = set()
