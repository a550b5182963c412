"""Environments of other packages: their interpreter, what is installed in them, and whether it changed."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from eval_dagster.errors import RequirementError
from eval_dagster.versions.hashes import file_stamp, stable_hash


@dataclass(frozen=True)
class Environment:
    """An interpreter with its packages."""

    python: Path

    def release(self, distribution: str) -> str | None:
        """The installed version of a distribution; None if it is not installed or not known."""
        for folder in self._site_packages():
            for found in folder.glob("*.dist-info"):
                name, _, version = found.name.removesuffix(".dist-info").partition("-")
                if _normalized(name) == _normalized(distribution):
                    return version
        return None

    def stamp(self, packages: Sequence[str]) -> str | None:
        """A text that changes when a distribution or a file of the packages changes; None if changes cannot be seen.

        They cannot if the interpreter has no folder of packages beside it, or if a package is installed from a folder of its own
        (editable).
        """
        folders = list(self._site_packages())
        found: list[object] = []
        for folder in folders:
            for info in sorted(folder.glob("*.dist-info")):
                try:
                    origin = json.loads((info / "direct_url.json").read_text("utf-8"))
                except (OSError, ValueError):
                    origin = {}
                if origin.get("dir_info", {}).get("editable"):
                    return None
                record = info / "RECORD"
                found.append([info.name, file_stamp(record) if record.is_file() else None])
        for package in packages:
            roots = [folder / package for folder in folders if (folder / package).is_dir()]
            if not roots:
                return None
            found += [[file.relative_to(root).as_posix(), file_stamp(file)] for root in roots for file in sorted(root.rglob("*.py"))]
        return stable_hash([str(self.python), found])

    def is_known(self) -> bool:
        """Whether the interpreter has a folder of packages beside it, so that installed packages can be seen."""
        return any(self._site_packages())

    def _site_packages(self) -> Iterator[Path]:
        # The interpreter of a virtual environment is a link; its folders are beside the link.
        yield from sorted(self.python.parent.parent.glob("lib/python3*/site-packages"))


def environment_for(name: str, given: Path | None, distribution: str, release: str | None) -> Environment:
    """The environment of a registry: the one that evals.yaml names, else our own if it has the package.

    Raises:
        RequirementError: There is none, or it has another release than the supported one.
    """
    remedy = f"`eval-dagster environments add {name}` makes one"
    if given is not None:
        environment, place = Environment(given), f"the environment {given} of evals.yaml"
        found = environment.release(distribution)
        if not given.is_file():
            raise RequirementError(f"tasks of {name} need {place}, and there is no such file; {remedy}")
        if found is None and environment.is_known():
            raise RequirementError(f"{place} lacks the package {distribution}, which tasks of {name} need; {remedy}")
    else:
        environment, place = Environment(Path(sys.executable)), "the environment of eval_dagster"
        try:
            found = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            raise RequirementError(
                f"tasks of {name} need the package {distribution} in an environment of its own, and evals.yaml names none under "
                f"`environments`; {remedy}"
            ) from None
    if release is not None and found is not None and found != release:
        raise RequirementError(f"tasks of {name} need {distribution} {release}, and {place} has {found}; {remedy}")
    return environment


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
