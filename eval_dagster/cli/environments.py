"""The command `environments`: the interpreters of packages that have an environment of their own."""

from pathlib import Path
from typing import Annotated

import typer

from eval_dagster.cli.console import out, print_table
from eval_dagster.errors import RequirementError, UsageError
from eval_dagster.peers.processes.environments import Environment
from eval_dagster.peers.processes.registry import ProcessRegistry, make_environment
from eval_dagster.project import Project, default_config_path
from eval_dagster.task_files.registries import opened_registry, registered, registry_names

environments = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@environments.callback(invoke_without_command=True)
def list_environments(context: typer.Context) -> None:
    """List the environments of lighteval, eval-framework, lm-eval and registries of your own, or make one."""
    if context.invoked_subcommand is not None:
        return
    project = Project.open()
    rows = []
    for name, registry in _registries().items():
        given = project.config.environments.get(name)
        rows.append((name, registry.DISTRIBUTION, *_state(registry, project, given)))
    print_table("Environments", ("registry", "package", "version", "interpreter", "state"), rows)


def _state(registry: ProcessRegistry, project: Project, given: str | None) -> tuple[str, str, str]:
    """The version of the package, the interpreter, and whether it can be used."""
    path = project.folder / given if given else None
    version = (Environment(path).release(registry.DISTRIBUTION) or "") if path else ""
    opened = opened_registry(registry.NAME, project.folder, project.config.environments)
    assert isinstance(opened, ProcessRegistry)
    try:
        environment = opened.environment()
    except RequirementError as error:
        return version, given or "", str(error)
    return version or environment.release(registry.DISTRIBUTION) or "", given or "that of eval_dagster", "ready"


@environments.command()
def add(
    name: Annotated[str, typer.Argument(help="The registry: lighteval, eval_framework, lm_eval or one of your own.")],
    python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The interpreter to make it with; one that is new enough when absent.")
    ] = None,
) -> None:
    """Make an environment with the release that is supported, in the folder .environments beside evals.yaml."""
    known = _registries()
    if name not in known:
        raise UsageError(f"found the name {name!r}; expected a registry that has an environment of its own: {', '.join(known)}")
    made = make_environment(type(known[name]), default_config_path().resolve().parent, python)
    out.print(f"The environment of {name} is ready. evals.yaml names it so:\n\nenvironments:\n  {name}: {made}", soft_wrap=True)


def _registries() -> dict[str, ProcessRegistry]:
    found = {name: registered(name) for name in registry_names()}
    return {name: registry for name, registry in found.items() if isinstance(registry, ProcessRegistry)}
