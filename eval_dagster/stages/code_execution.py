"""Checks that code execution is permitted before inference starts."""

from contextlib import AbstractContextManager

from eval_dagster.errors import RequirementError
from eval_dagster.project import Project
from eval_dagster.sandbox import ALLOW_KEY, SandboxPolicy, require_sandbox, sandbox_policy


def require_execution(project: Project, eval_name: str) -> None:
    """Raise `RequirementError` if an eval has metrics that run code, and the project does not allow it or the machine cannot isolate it."""
    names = [metric.NAME for metric in project.task(eval_name).METRICS if metric.EXECUTES_CODE]
    if not names:
        return
    if not project.config.sandbox.allow_code_execution:
        raise RequirementError(
            f"eval {eval_name}: {' and '.join(names)} would run code that a model wrote, which {project.config_path.name} does not allow; "
            f"set {ALLOW_KEY}: true in it. The code runs in a sandbox without network or access to files"
        )
    try:
        require_sandbox()
    except RequirementError as problem:
        raise RequirementError(f"eval {eval_name}: {problem}") from problem


def allowed_execution(project: Project) -> AbstractContextManager[None]:
    """Permit code in the sandbox within the block, if the project allows it."""
    return sandbox_policy(SandboxPolicy(allowed=project.config.sandbox.allow_code_execution))
