"""A virtual environment that has the wheel of this project, and shares everything else with the environment of the tests."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "eval_dagster")
_OWN = ("eval_dagster", "__editable__")
"""How the names of this project's own entries in site-packages begin."""


def build(folder: Path, *, sdist: bool = False) -> Path:
    """Build the wheel, or the source archive, from a copy of the sources; gives its path.

    A copy, because setuptools keeps files of earlier builds in `build/`, which would get into the wheel.
    """
    source = folder / "source"
    for name in _SOURCES:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            source.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, source / name)
    target = folder / "dist"
    target.mkdir()
    if sdist:
        run([sys.executable, "-c", f"from setuptools.build_meta import build_sdist; build_sdist({str(target)!r})"], source)
    else:
        run([sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target)], source)
    [built] = target.iterdir()
    return built


class FreshEnvironment:
    """A virtual environment without the package, until it is installed; nothing in it leads to the checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "venv"
        venv.create(self.folder, with_pip=False, symlinks=True)
        shared = folder / "dependencies"
        shared.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if entry.suffix != ".pth" and not entry.name.startswith(_OWN):
                (shared / entry.name).symlink_to(entry)
        self.site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(self.folder)}))
        (self.site_packages / "shared.pth").write_text(f"{shared}\n")
        pip = Path(self.program("pip"))
        pip.write_text(f'#!/bin/sh\nexec "{self.program("python")}" -m pip "$@"\n')
        pip.chmod(0o755)
        self.files_before = self.files()

    def pip(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run pip in the environment; no index is asked."""
        offline = ["--no-index", "--no-deps", "--no-build-isolation"] if arguments[0] == "install" else []
        return run([self.program("python"), "-m", "pip", *arguments, *offline], self.folder, self.variables())

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def variables(self) -> dict[str, str]:
        """The environment variables of a shell in which the environment is active; none of them is of this project."""
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("EVAL_DAGSTER_", "DAGSTER_", "PYTHON"))}
        return outer | {"VIRTUAL_ENV": str(self.folder), "PATH": f"{self.folder / 'bin'}:{outer['PATH']}"}

    def files(self) -> set[str]:
        """What lies in site-packages."""
        return {str(path.relative_to(self.site_packages)) for path in self.site_packages.rglob("*")}


def run(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None, *, status: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder, and see that it ends with a status."""
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == status, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done
