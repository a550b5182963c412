"""A registry whose benchmarks are asked as a process, the files that spare the time of asking, and its environment."""

import atexit
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from eval_dagster.errors import DataError, RequirementError, TaskDefinitionError
from eval_dagster.peers.processes.benchmark import ProcessBenchmark
from eval_dagster.peers.processes.process import WorkerProcess
from eval_dagster.peers.workers import serve
from eval_dagster.sandbox import Limits, walled
from eval_dagster.stores.whole_files import replaced, user_cache
from eval_dagster.tasks.benchmark import Listed
from eval_dagster.versions.hashes import file_hash, file_stamp, stable_hash

_WALLED = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}  # noqa: S108 - the sandbox's own
"""The environment variables of a worker in the sandbox."""
_LIMITS = Limits(memory_bytes=2**33, disk_bytes=2**28)
"""The most that a worker in the sandbox may use."""
_processes: dict[tuple[str, str, str], tuple[str | None, WorkerProcess]] = {}
"""By interpreter, worker and a user's file: the stamp of the environment when the process was asked for first, and the process."""


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

    def folders(self) -> list[str]:
        """The folders that the interpreter reads: of the environment, and of the installation of Python that it was made with."""
        prefix = self.python.parent.parent.resolve()
        try:
            lines = (prefix / "pyvenv.cfg").read_text("utf-8").splitlines()
        except OSError:
            return [str(prefix)]
        homes = [value.strip() for key, _, value in (line.partition("=") for line in lines) if key.strip() == "home"]
        return [*(str(Path(home).resolve().parent) for home in homes), str(prefix)]

    def _site_packages(self) -> Iterator[Path]:
        # The interpreter of a virtual environment is a link; its folders are beside the link.
        yield from sorted(self.python.parent.parent.glob("lib/python3*/site-packages"))


def environment_for(name: str, given: Path | None, distribution: str, release: str | None, oldest: str | None = None) -> Environment:
    """The environment of a registry: the one that evals.yaml names, else our own if it has the package.

    Args:
        name: The registry's name.
        given: The interpreter of evals.yaml.
        distribution: The package as pip names it.
        release: The supported version; None for any.
        oldest: The oldest supported version. Then newer ones than `release` and those between are supported, too.

    Raises:
        RequirementError: There is none, or it has another release than the supported ones.
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
    if oldest is not None:
        if found is not None and _parts(found) < _parts(oldest):
            raise RequirementError(f"tasks of {name} need {distribution} {oldest} or newer, and {place} has {found}; {remedy}")
    elif release is not None and found is not None and found != release:
        raise RequirementError(f"tasks of {name} need {distribution} {release}, and {place} has {found}; {remedy}")
    return environment


def _parts(release: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", release)[:3]]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class ProcessRegistry:
    """Benchmarks of a package in an environment of its own. A subclass names the package and the worker."""

    NAME: ClassVar[str]
    """The registry's name: its entry point, and the key under `environments` in evals.yaml."""
    WORKER: ClassVar[str]
    """Dotted name of the module with the worker's functions. It is never imported here."""
    COMPANIONS: ClassVar[Sequence[str]] = ()
    """Dotted names of the modules in the worker's folder that it imports."""
    DISTRIBUTION: ClassVar[str]
    """The package as pip names it."""
    PACKAGES: ClassVar[Sequence[str]]
    """The importable packages whose files decide the worker's results. Its descriptions are kept until one of them changes."""
    RELEASE: ClassVar[str | None] = None
    """The supported version, which `eval-dagster environments add` installs; None for any."""
    OLDEST: ClassVar[str | None] = None
    """The oldest supported version, if all from it on are."""
    READS_FILES: ClassVar[bool] = False
    """Whether the worker reads files of a user: the name of a benchmark may be `path/to/file.py:name`."""
    ASKED: ClassVar[Mapping[str, Callable[..., object]]] = MappingProxyType({})
    """The functions that the worker may ask for, by their names."""
    EXTRA_REQUIREMENTS: ClassVar[Sequence[str]] = ()
    """The packages that `eval-dagster environments add` installs beside the distribution."""
    IS_BARE: ClassVar[bool] = False
    """Whether the distribution is installed without its own requirements, since `EXTRA_REQUIREMENTS` has all that the worker needs."""
    IS_WALLED: ClassVar[bool] = False
    """Whether the worker runs in the sandbox, because the package executes what a model wrote. It reads its environment alone."""
    PYTHON: ClassVar[str | None] = None
    """The least version of Python that the package needs, such as `3.12`."""

    def __init__(self) -> None:
        self._given: Path | None = None

    def within(self, python: Path | None) -> Self:
        """The registry with the interpreter of evals.yaml, or without one."""
        made = type(self)()
        made._given = python
        return made

    def names(self) -> Mapping[str, Listed]:
        """All names. Raises RequirementError without an environment."""
        listed: Mapping[str, str] = self._kept("names", lambda process: process.call("names"))
        return {name: Listed(kind=kind) for name, kind in listed.items()}

    def benchmark(self, name: str, folder: Path) -> ProcessBenchmark:
        """The benchmark of a name.

        Raises:
            TaskDefinitionError: There is none, or the worker refuses it.
            RequirementError: The environment is missing.
        """
        path, is_file, own = name.rpartition(".py:")
        files: dict[str, str] = {}
        if is_file:
            file = (folder / f"{path}.py").resolve()
            if not self.READS_FILES:
                raise TaskDefinitionError(f"{self.NAME} reads no files; a task of your own is written path/to/file.py:Class")
            if not file.is_file():
                raise TaskDefinitionError(f"there is no task file {file}; a path is relative to the folder of evals.yaml")
            name, files = f"{file}:{own}", {str(each): file_hash(each) for each in sorted(file.parent.glob("*.py"))}

        def describe(process: WorkerProcess) -> Any:
            try:
                return process.call("describe", name=name)
            except DataError as error:
                raise TaskDefinitionError(str(error)) from error

        environment = self.environment()
        process = self._process(environment, environment.stamp(self.PACKAGES), files)
        described = self._kept(f"describe {name}", describe, files)
        return ProcessBenchmark(name, described, process, self._modules(), self.ASKED.values())

    def _modules(self) -> tuple[str, ...]:
        return (self.WORKER, *self.COMPANIONS)

    def suite(self, name: str, folder: Path) -> Mapping[str, Mapping[str, Any]]:  # noqa: ARG002 - no group is made of others here
        """Raise `TaskDefinitionError`: a group of the package is one eval."""
        raise TaskDefinitionError(f"{self.NAME} has no groups that are suites; `task: {self.NAME}:{name}` is one eval")

    def environment(self) -> Environment:
        """The environment. Raises RequirementError if none can be used."""
        return environment_for(self.NAME, self._given, self.DISTRIBUTION, self.RELEASE, self.OLDEST)

    def _process(self, environment: Environment, stamp: str | None, files: Mapping[str, str] = MappingProxyType({})) -> WorkerProcess:
        """The process of the worker; another one for the files of each folder of a user, since it imports them."""
        key = (str(environment.python), self.WORKER, str(Path(next(iter(files))).parent) if files else "")
        stamp = stamp and stable_hash([stamp, dict(files)]) if files else stamp
        known, process = _processes.get(key, (None, None))
        if process is None:
            file = worker_file(self.WORKER)
            folders = [*environment.folders(), str(file.parent), str(Path(serve.__file__).parent)]
            walls = partial(walled, folders=folders, environment=_WALLED, limits=_LIMITS) if self.IS_WALLED else None
            process = WorkerProcess(self.NAME, environment.python, file, self.ASKED, walls)
        elif known != stamp:
            process.close()  # it imported the package before that changed
        _processes[key] = (stamp, process)
        return process

    def _kept(self, what: str, ask: Callable[[WorkerProcess], Any], files: Mapping[str, str] = MappingProxyType({})) -> Any:
        """The worker's result, kept on disk, since starting the worker and importing its package takes seconds."""
        environment = self.environment()
        stamp = environment.stamp(self.PACKAGES)
        if stamp is None:
            return ask(self._process(environment, stamp, files))
        code = [file_hash(file) for file in (Path(serve.__file__), *map(worker_file, self._modules()))]
        key = stable_hash([stamp, code, what, *([dict(files)] if files else [])])
        return kept_json(f"{self.NAME}-{key}", lambda: ask(self._process(environment, stamp, files)))


def kept_json(name: str, make: Callable[[], Any]) -> Any:
    """The content of a JSON file in the user's cache. It is made and kept if it is missing or cannot be read.

    If the folder or the disk takes no file, it only costs the time of making the content again.
    """
    file = user_cache() / f"{name}.json"
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        made = make()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file) as written:
            written.write_text(json.dumps(made), encoding="utf-8")
    except OSError:
        pass
    return made


def worker_file(module: str) -> Path:
    """The file of a worker.

    Raises:
        TaskDefinitionError: The module does not exist.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise TaskDefinitionError(f"there is no module {module!r}, which a registry names as its WORKER")
    return Path(spec.origin)


def close_processes() -> None:
    """End the processes of all registries. Each starts again when it is called."""
    for _, process in _processes.values():
        process.close()


atexit.register(close_processes)
