"""The commands `environments` and `import-suite`: other packages whose benchmarks evals can use."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from eval_dagster.cli.console import out, print_next, print_table
from eval_dagster.cli.suite_files import read_suite_file
from eval_dagster.config.loading import load_config
from eval_dagster.config.yaml_document import with_entries
from eval_dagster.errors import RequirementError, UsageError
from eval_dagster.models.registry import registered_sections
from eval_dagster.peers.processes.environments import make_environment
from eval_dagster.peers.processes.registry import Environment, ProcessRegistry
from eval_dagster.project import Project, default_config_path
from eval_dagster.stores.whole_files import replaced
from eval_dagster.task_files.registries import opened_registry, registered, registry_names
from eval_dagster.texts.figures import did_you_mean
from eval_dagster.texts.visible_text import storable

environments = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@environments.callback(invoke_without_command=True)
def list_environments(context: typer.Context) -> None:
    """List the environments of registries, unless another command is given: each with its package, interpreter and state."""
    if context.invoked_subcommand is not None:
        return
    project = Project.open()
    named, known = project.config.environments, _registries()
    rows = []
    for name in dict.fromkeys([*known, *named]):
        registry = known[name.partition("==")[0]]
        given = named.get(name)
        path = project.folder / given if given else None
        version = (Environment(path).release(registry.DISTRIBUTION) or "") if path else ""
        opened = opened_registry(name, project.folder, named)
        assert isinstance(opened, ProcessRegistry)
        interpreter = given or ""
        try:
            environment = opened.environment()
            version = version or environment.release(registry.DISTRIBUTION) or ""
            interpreter, state = interpreter or "that of eval_dagster", "ready"
        except RequirementError as error:
            state = str(error)
        rows.append((name, registry.DISTRIBUTION, version, interpreter, state))
    print_table("Environments", ("registry", "package", "version", "interpreter", "state"), rows)


@environments.command()
def add(
    name: Annotated[
        str,
        typer.Argument(
            help="The registry: lighteval, eval_framework, lm_eval, bfcl, tau2 or one of your own; with a release: eval_framework==0.15.4."
        ),
    ],
    python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The interpreter to make it with; one that is new enough when absent.")
    ] = None,
) -> None:
    """Make an environment in the folder .environments beside evals.yaml, with the release that is supported or the one that is named.

    Releases of one package are environments of their own.
    """
    known = _registries()
    plain, _, release = name.partition("==")
    if plain not in known:
        raise UsageError(f"found the name {plain!r}; expected a registry that has an environment of its own: {', '.join(known)}")
    named, made = make_environment(type(known[plain]), default_config_path().resolve().parent, python, release or None)
    text = f"The environment of {name} is ready. evals.yaml names it so:\n\nenvironments:\n  {named}: {made}"
    if "==" in named:
        text += f"\n\nIts tasks are written `task: {named}:NAME`."
    out.print(text, soft_wrap=True)


def _registries() -> dict[str, ProcessRegistry]:
    found = {name: registered(name) for name in registry_names()}
    return {name: registry for name, registry in found.items() if isinstance(registry, ProcessRegistry)}


def import_suite(
    source: Annotated[
        str,
        typer.Argument(
            metavar="REGISTRY:GROUP",
            help="A group of benchmarks of another package, lm_eval:leaderboard, or a suite file: eval_framework:suite.yaml.",
        ),
    ],
    suite: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the suite; by default that of the group.")] = None,
    file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the sections of a suite file there instead of printing them.")
    ] = None,
) -> None:
    """Add a suite and its evals to evals.yaml, for all of its models. It is written anew, unless the result would be wrong.

    The sections of a suite file of eval-framework are printed instead, or written to a file of their own: they may be many.

    Raises:
        UsageError: The group is unknown, or evals.yaml has entries of these names with other settings.
        ConfigError: evals.yaml is wrong.
    """
    project = Project.open()
    registry, colon, group = source.partition(":")
    if registry == "eval_framework" and group.endswith((".yaml", ".yml")):
        if suite is not None:
            raise UsageError("a suite file names its suites; give it without --name")
        _import_file(Path(group), list(project.config.models), file)
        return
    if file is not None:
        raise UsageError("--output is for a suite file, eval_framework:suite.yaml; a group is added to evals.yaml")
    if not (colon and group and registry in registry_names()):
        known = registry_names()
        raise UsageError(
            f"found {source!r}; expected a registry and a group of it, lm_eval:leaderboard say{did_you_mean(registry, known)}; "
            f"registries: {', '.join(known)}"
        )
    evals = opened_registry(registry, project.folder, project.config.environments).suite(group, project.folder)
    there = {name: settings.model_dump(exclude_unset=True) for name, settings in project.config.evals.items()}
    if taken := [name for name, settings in evals.items() if name in there and there[name] != settings]:
        raise UsageError(f"evals.yaml has evals of these names with other settings: {', '.join(taken)}; rename them there, and try again")
    added = {"evals": {name: settings for name, settings in evals.items() if name not in there}}
    name = suite or group
    if name not in project.config.suites:
        added["suites"] = {name: {"evals": list(evals), "models": list(project.config.models)}}
    elif list(project.config.suites[name].evals) != list(evals):
        raise UsageError(f"evals.yaml has another suite {name!r}; choose a name for this one by --name")
    path = project.config_path
    text = with_entries(path.read_text(encoding="utf-8"), {section: entries for section, entries in added.items() if entries})
    written = path.with_name(f".{path.name}.new")
    try:
        written.write_text(text, encoding="utf-8")
        shutil.copymode(path, written)
        load_config(written, registries=registry_names(), sections=registered_sections())
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)
    out.print(f"{project.config_path}: the suite {name} with {len(evals)} evals and {len(project.config.models)} models")
    for eval_name, settings in evals.items():
        shots = f", {settings['num_fewshot']} shots" if "num_fewshot" in settings else ""
        out.print(f"  {eval_name}: {settings['task']}{shots}", highlight=False)
    print_next((f"run --suite {name} --limit 5", "tries it with five samples of each subject"))


def _import_file(path: Path, models: Sequence[str], file: Path | None) -> None:
    """Print the sections of a suite file of eval-framework, or write them to a file that is not there yet."""
    text = read_suite_file(path, models).text()
    if file is None:
        sys.stdout.write(storable(text))
        return
    if file.exists():
        raise UsageError(f"--output {file} exists; name another file, or delete it")
    try:
        with replaced(file) as temporary:
            temporary.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"--output {file} cannot be written: {error}") from error
    out.print(f"{file}: the sections of {path}; copy them into evals.yaml", soft_wrap=True)
