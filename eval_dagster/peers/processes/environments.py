"""Makes the environment of a registry: a virtual environment with its package, by an interpreter that is new enough."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from eval_dagster.errors import RequirementError, UsageError
from eval_dagster.peers.processes.registry import Environment, ProcessRegistry

FOLDER = ".environments"
"""Beside evals.yaml; holds one environment for each registry and release."""


def make_environment(registry: type[ProcessRegistry], folder: Path, python: Path | None, release: str | None = None) -> tuple[str, Path]:
    """Make the environment of a registry, or install into an existing one. The output of pip is shown. Git ignores the folder.

    Args:
        registry: Its class.
        folder: The folder of evals.yaml.
        python: The interpreter to make it with; by default one that is new enough.
        release: The release to install; by default the supported one.

    Returns:
        The name of the environment in evals.yaml, and its interpreter, relative to the folder.

    Raises:
        UsageError: The registry supports another release alone.
        RequirementError: No interpreter is new enough, or a step failed.
    """
    if release is not None and registry.OLDEST is None and release != registry.RELEASE:
        raise UsageError(f"found the release {release} of {registry.NAME}; expected {registry.RELEASE}, which is supported")
    wanted = release or registry.RELEASE
    name = registry.NAME
    # Without a release, the environment of the registry; another release has an environment of its own beside it.
    if release is not None and Environment(folder / _python(name)).release(registry.DISTRIBUTION) not in (None, release):
        name = f"{name}=={release}"
    made = _python(name)
    (folder / FOLDER).mkdir(exist_ok=True)
    (folder / FOLDER / ".gitignore").write_text("*\n", "utf-8")
    if not (folder / made).is_file():
        _run([str(python or interpreter(registry)), "-m", "venv", str(folder / made.parent.parent)], name)
    pinned = registry.DISTRIBUTION if wanted is None else f"{registry.DISTRIBUTION}=={wanted}"
    if registry.IS_BARE:
        _run([str(folder / made), "-m", "pip", "install", *registry.EXTRA_REQUIREMENTS], name)
        _run([str(folder / made), "-m", "pip", "install", "--no-deps", pinned], name)
    else:
        _run([str(folder / made), "-m", "pip", "install", pinned, *registry.EXTRA_REQUIREMENTS], name)
    return name, made


def _python(name: str) -> Path:
    return Path(FOLDER) / name / "bin" / "python"


def interpreter(registry: type[ProcessRegistry]) -> str:
    """An interpreter that is new enough for a registry: this one, or one of the PATH, of pyenv or of uv.

    Raises:
        RequirementError: There is none. The message says where it was looked for.
    """
    wanted = registry.PYTHON
    if wanted is None or sys.version_info[:2] >= _version(wanted):
        return sys.executable
    for candidate in _candidates():
        if _is_new_enough(candidate, wanted):
            return candidate
    raise RequirementError(
        f"{registry.DISTRIBUTION} needs Python {wanted} or newer, and this is {'.'.join(map(str, sys.version_info[:2]))}; looked for "
        f"python{wanted} and newer on the PATH, below {_pyenv()}, and for those that uv knows. Install one, for instance with "
        f"`uv python install {wanted}`, or name one: `eval-dagster environments add {registry.NAME} --python path/to/python{wanted}`"
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _pyenv() -> Path:
    return Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"


def _candidates() -> Iterator[str]:
    for minor in range(12, 20):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    if found := shutil.which("python3"):
        yield found
    yield from map(str, sorted(_pyenv().glob("3.*/bin/python3")))
    if uv := shutil.which("uv"):
        listed = subprocess.run([uv, "python", "list", "--only-installed"], capture_output=True, text=True, check=False)
        yield from (line.split()[1] for line in listed.stdout.splitlines() if len(line.split()) > 1)


def _is_new_enough(python: str, wanted: str) -> bool:
    """Whether an interpreter starts, and is new enough. A shim of pyenv may name a version that is not chosen."""
    code = "import sys, venv; print('.'.join(map(str, sys.version_info[:3])))"
    try:
        ended = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0 and _version(ended.stdout.strip()) >= _version(wanted)


def _run(command: list[str], name: str) -> None:
    try:
        done = subprocess.run(command, check=False, stdout=sys.stderr)
    except OSError as error:
        raise RequirementError(f"the environment of {name} cannot be made: {command[0]} does not start: {error.strerror}") from error
    if done.returncode:
        raise RequirementError(f"the environment of {name} cannot be made: {' '.join(command)} ended with status {done.returncode}")
