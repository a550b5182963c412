"""The newest release of a package by the index that pip uses, and environments with a release."""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from eval_dagster.peers.processes.environments import make_environment
from eval_dagster.peers.processes.registry import ProcessRegistry


def python_of(interpreter: Path | str) -> str:
    """The version of an interpreter's Python, such as `3.12`."""
    code = "import sys; print('{}.{}'.format(*sys.version_info))"
    return subprocess.run([str(interpreter), "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def newest_release(distribution: str, python: str) -> str:
    """The newest release for a version of Python.

    Raises:
        LookupError: The index has none, or does not answer.
    """
    # pip's setting of quietness would hide the versions.
    command = [sys.executable, "-m", "pip", "index", "versions", distribution, "--python-version", python]
    done = subprocess.run(command, env={**os.environ, "PIP_QUIET": "0"}, capture_output=True, text=True, check=False, timeout=600)
    found = re.match(r"\S+ \((\S+)\)", done.stdout)
    if done.returncode or found is None:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines() or ["pip says nothing"]
        raise LookupError(f"the index names no release of {distribution} for Python {python}: {said[-1]}")
    return found[1]


def of_release(registry: type[ProcessRegistry], release: str) -> type[ProcessRegistry]:
    """A registry that takes a release, even if another one alone is supported."""
    return registry if registry.OLDEST else type(registry.__name__, (registry,), {"RELEASE": release})


def registry_environment(registry: type[ProcessRegistry], folder: Path, release: str) -> Path:
    """The interpreter of an environment as `eval-dagster environments add` makes it. Raises as `make_environment`."""
    place = folder / f"{registry.NAME}-{release}"
    place.mkdir(parents=True, exist_ok=True)
    _, python = make_environment(of_release(registry, release), place, None, release)
    return place / python


def environment_with(place: Path, requirements: Sequence[str], *, is_beside: bool = False) -> Path:
    """The interpreter of an environment with packages, made or completed by pip.

    Args:
        place: Its folder.
        requirements: What pip installs.
        is_beside: Whether it sees the packages of the running environment, too; its own come first.

    Raises:
        LookupError: The environment cannot be made.
    """
    python = place / "bin" / "python"
    if not python.is_file():
        _run([sys.executable, "-m", "venv", str(place)])
    if is_beside:
        (packages,) = place.glob("lib/python3*/site-packages")
        (packages / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _run([str(python), "-m", "pip", "install", *requirements])
    return python


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines() or ["nothing"]
        raise LookupError(f"{' '.join(command[1:])} ended with status {done.returncode}: {said[-1]}")
