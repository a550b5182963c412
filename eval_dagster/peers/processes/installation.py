"""Makes the environment of a registry: a virtual environment with the supported release."""

import shutil
import subprocess
import sys
from pathlib import Path

from eval_dagster.errors import RequirementError
from eval_dagster.peers.processes.registry import ProcessRegistry

FOLDER = ".environments"
"""Beside evals.yaml; holds one environment for each registry."""


def make_environment(registry: type[ProcessRegistry], folder: Path, python: Path | None) -> Path:
    """Make the environment of a registry, or install into an existing one. The output of pip is shown. Git ignores the folder.

    Args:
        registry: Its class.
        folder: The folder of evals.yaml.
        python: The interpreter to make it with; by default one that is new enough.

    Returns:
        The interpreter of the environment, relative to the folder.

    Raises:
        RequirementError: No interpreter is new enough, or a step failed.
    """
    environment = Path(FOLDER) / registry.NAME
    made = environment / "bin" / "python"
    (folder / FOLDER).mkdir(exist_ok=True)
    (folder / FOLDER / ".gitignore").write_text("*\n", "utf-8")
    if not (folder / made).is_file():
        _run([str(python or _interpreter(registry)), "-m", "venv", str(folder / environment)], registry.NAME)
    pinned = registry.DISTRIBUTION if registry.RELEASE is None else f"{registry.DISTRIBUTION}=={registry.RELEASE}"
    _run([str(folder / made), "-m", "pip", "install", pinned, *registry.EXTRA_REQUIREMENTS], registry.NAME)
    return made


def _interpreter(registry: type[ProcessRegistry]) -> str:
    wanted = registry.PYTHON
    if wanted is None or sys.version_info[:2] >= tuple(int(part) for part in wanted.split(".")):
        return sys.executable
    if found := shutil.which(f"python{wanted}"):
        return found
    raise RequirementError(
        f"{registry.DISTRIBUTION} needs Python {wanted}; this is {'.'.join(map(str, sys.version_info[:2]))}, and there is no "
        f"python{wanted} on the PATH; name an interpreter: `eval-dagster environments add {registry.NAME} --python path/to/python{wanted}`"
    )


def _run(command: list[str], name: str) -> None:
    try:
        done = subprocess.run(command, check=False, stdout=sys.stderr)
    except OSError as error:
        raise RequirementError(f"the environment of {name} cannot be made: {command[0]} does not start: {error.strerror}") from error
    if done.returncode:
        raise RequirementError(f"the environment of {name} cannot be made: {' '.join(command)} ended with status {done.returncode}")
