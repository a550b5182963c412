"""The registries of lighteval, and of eval-framework by its own package."""

from types import MappingProxyType

from eval_dagster.peers.processes.registry import ProcessRegistry
from eval_dagster.peers.programs import run_program


class LightevalRegistry(ProcessRegistry):
    """lighteval's tasks, `lighteval:mmlu:anatomy`, and those of a user's file, `lighteval:my_tasks.py:mine`."""

    NAME = "lighteval"
    WORKER = "eval_dagster.peers.workers.lighteval_worker"
    COMPANIONS = (
        "eval_dagster.peers.workers.installed_versions",
        "eval_dagster.peers.workers.random_draws",
        "eval_dagster.peers.workers.user_files",
    )
    DISTRIBUTION = "lighteval"
    PACKAGES = ("lighteval",)
    RELEASE = "0.13.0"
    EXTRA_REQUIREMENTS = ("lighteval[extended-tasks]", "language_data")
    READS_FILES = True


class EvalFrameworkRegistry(ProcessRegistry):
    """eval-framework's benchmarks with its own prompts and metrics: `eval_framework:MMLU`. Any release from 0.9 on."""

    NAME = "eval_framework"
    WORKER = "eval_dagster.peers.workers.eval_framework_worker"
    COMPANIONS = (
        "eval_dagster.peers.workers.eval_framework_code",
        "eval_dagster.peers.workers.eval_framework_contract",
        "eval_dagster.peers.workers.eval_framework_datasets",
        "eval_dagster.peers.workers.eval_framework_parts",
        "eval_dagster.peers.workers.eval_framework_programs",
        "eval_dagster.peers.workers.eval_framework_tasks",
        "eval_dagster.peers.workers.eval_framework_users",
        "eval_dagster.peers.workers.installed_versions",
        "eval_dagster.peers.workers.user_files",
    )
    DISTRIBUTION = "eval-framework"
    PACKAGES = ("eval_framework", "template_formatting")
    RELEASE = "0.15.4"
    OLDEST = "0.9"
    PYTHON = "3.12"
    READS_FILES = True
    ASKED = MappingProxyType({"run_program": run_program})
