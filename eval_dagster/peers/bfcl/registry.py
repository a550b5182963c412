"""The registry `bfcl`: its names, its environment, and the task class of a name."""

from pathlib import Path
from typing import Any

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.peers.bfcl.tasks import function_calling_task
from eval_dagster.peers.processes.process import WorkerProcess
from eval_dagster.peers.processes.registry import ProcessRegistry
from eval_dagster.peers.workers.bfcl_messages import CategoriesDescribed
from eval_dagster.tasks.base import BaseTask
from eval_dagster.versions.hashes import code_version, stable_hash


class BfclRegistry(ProcessRegistry):
    """Categories and groups of BFCL v4: `bfcl:simple_python`, `bfcl:multi_turn`."""

    NAME = "bfcl"
    WORKER = "eval_dagster.peers.workers.bfcl_worker"
    COMPANIONS = (
        "eval_dagster.peers.workers.bfcl_faults",
        "eval_dagster.peers.workers.bfcl_memory",
        "eval_dagster.peers.workers.bfcl_package",
        "eval_dagster.peers.workers.bfcl_texts",
        "eval_dagster.peers.workers.clean_child",
        "eval_dagster.peers.workers.installed_versions",
    )
    DISTRIBUTION = "bfcl-eval"
    PACKAGES = ("bfcl_eval",)
    RELEASE = "2026.3.23"
    # The package requires 30 more, for asking models of all providers. These are what its checker and its systems import.
    EXTRA_REQUIREMENTS = (
        "mpmath==1.3.0",
        "numpy",
        "overrides",
        "python-dotenv",
        "rank-bm25==0.2.2",
        "tenacity",
        "tree-sitter==0.21.3",
        "tree-sitter-java==0.21.0",
        "tree-sitter-javascript==0.21.4",
    )
    IS_BARE = True
    IS_WALLED = True

    def benchmark(self, name: str, folder: Path) -> type[BaseTask[Any]]:  # type: ignore[override] # noqa: ARG002 - it reads no files
        """The task class of a category or a group.

        Raises:
            TaskDefinitionError: There is none, or it needs a network.
            RequirementError: The environment or the sandbox is missing.
        """

        def describe(process: WorkerProcess) -> CategoriesDescribed:
            try:
                described: CategoriesDescribed = process.call("describe", name=name)
            except DataError as error:
                raise TaskDefinitionError(str(error).removeprefix(f"{self.NAME}: ValueError: ")) from error
            return described

        environment = self.environment()
        process = self._process(environment, environment.stamp(self.PACKAGES))
        described = self._kept(f"describe {name}", describe)
        version = stable_hash([described["version"], code_version(*self._modules())])
        return function_calling_task(f"bfcl:{name}", described, process, version)
