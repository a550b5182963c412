"""The registries of lighteval, and of eval-framework by its own package."""

from eval_dagster.peers.processes.registry import ProcessRegistry


class LightevalRegistry(ProcessRegistry):
    """lighteval's tasks: `lighteval:mmlu:anatomy`."""

    NAME = "lighteval"
    WORKER = "eval_dagster.peers.workers.lighteval_worker"
    COMPANIONS = (
        "eval_dagster.peers.workers.installed_versions",
        "eval_dagster.peers.workers.random_draws",
    )
    DISTRIBUTION = "lighteval"
    PACKAGES = ("lighteval",)
    RELEASE = "0.13.0"
    EXTRA_REQUIREMENTS = ("lighteval[extended-tasks]", "language_data")


class EvalFrameworkRegistry(ProcessRegistry):
    """eval-framework's tasks with its own prompts and metrics: `eval_framework:MMLU`."""

    NAME = "eval_framework"
    WORKER = "eval_dagster.peers.workers.eval_framework_worker"
    COMPANIONS = ("eval_dagster.peers.workers.installed_versions",)
    DISTRIBUTION = "eval-framework"
    PACKAGES = ("eval_framework", "template_formatting")
    RELEASE = "0.9.1"
    PYTHON = "3.12"
