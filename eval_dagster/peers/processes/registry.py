"""A registry whose benchmarks are asked as a process."""

import atexit
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.peers.kept_files import kept_json
from eval_dagster.peers.processes.benchmark import ProcessBenchmark
from eval_dagster.peers.processes.environments import Environment, environment_for
from eval_dagster.peers.processes.process import WorkerProcess
from eval_dagster.peers.workers import serve
from eval_dagster.tasks.benchmark import Listed
from eval_dagster.versions.hashes import file_hash, stable_hash

_processes: dict[tuple[str, str], tuple[str | None, WorkerProcess]] = {}
"""By interpreter and worker: the stamp of the environment when the process was asked for first, and the process."""


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
    """The supported version; None for any."""
    EXTRA_REQUIREMENTS: ClassVar[Sequence[str]] = ()
    """The packages that `eval-dagster environments add` installs beside the distribution."""
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

    def benchmark(self, name: str, folder: Path) -> ProcessBenchmark:  # noqa: ARG002 - the names are those of the package
        """The benchmark of a name.

        Raises:
            TaskDefinitionError: There is none, or the worker refuses it.
            RequirementError: The environment is missing.
        """

        def describe(process: WorkerProcess) -> Any:
            try:
                return process.call("describe", name=name)
            except DataError as error:
                raise TaskDefinitionError(str(error)) from error

        environment = self.environment()
        return ProcessBenchmark(
            name, self._kept(f"describe {name}", describe), self._process(environment, environment.stamp(self.PACKAGES)), self._modules()
        )

    def _modules(self) -> tuple[str, ...]:
        return (self.WORKER, *self.COMPANIONS)

    def suite(self, name: str, folder: Path) -> Mapping[str, Mapping[str, Any]]:  # noqa: ARG002 - no group is made of others here
        """Raise `TaskDefinitionError`: a group of the package is one eval."""
        raise TaskDefinitionError(f"{self.NAME} has no groups that are suites; `task: {self.NAME}:{name}` is one eval")

    def environment(self) -> Environment:
        """The environment. Raises RequirementError if none can be used."""
        return environment_for(self.NAME, self._given, self.DISTRIBUTION, self.RELEASE)

    def _process(self, environment: Environment, stamp: str | None) -> WorkerProcess:
        key = (str(environment.python), self.WORKER)
        known, process = _processes.get(key, (None, None))
        if process is None:
            process = WorkerProcess(self.NAME, environment.python, worker_file(self.WORKER))
        elif known != stamp:
            process.close()  # it imported the package before that changed
        _processes[key] = (stamp, process)
        return process

    def _kept(self, what: str, ask: Callable[[WorkerProcess], Any]) -> Any:
        """The worker's result, kept on disk, since starting the worker and importing its package takes seconds."""
        environment = self.environment()
        stamp = environment.stamp(self.PACKAGES)
        if stamp is None:
            return ask(self._process(environment, stamp))
        code = [file_hash(file) for file in (Path(serve.__file__), *map(worker_file, self._modules()))]
        return kept_json(f"{self.NAME}-{stable_hash([stamp, code, what])}", lambda: ask(self._process(environment, stamp)))


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
