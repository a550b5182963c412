"""The command `import-suite`: a group of another package's benchmarks as evals and a suite of evals.yaml."""

import shutil
from collections.abc import Mapping
from typing import Any

from eval_dagster.cli.console import out, print_next
from eval_dagster.config.loading import load_config
from eval_dagster.config.yaml_document import with_entries
from eval_dagster.errors import UsageError
from eval_dagster.models.registry import registered_sections
from eval_dagster.project import Project
from eval_dagster.task_files.registries import opened_registry, registry_names
from eval_dagster.texts.figures import did_you_mean


def import_suite(source: str, suite: str | None) -> None:
    """Add a suite and its evals to evals.yaml, for all of its models.

    Args:
        source: `lm_eval:leaderboard`: a registry and a group of it.
        suite: The name of the suite; the group's if not given.

    Raises:
        UsageError: The group is unknown, or evals.yaml has entries of these names with other settings.
        ConfigError: evals.yaml is wrong.
    """
    project = Project.open()
    registry, colon, group = source.partition(":")
    if not (colon and group and registry in registry_names()):
        known = registry_names()
        raise UsageError(
            f"found {source!r}; expected a registry and a group of it, lm_eval:leaderboard say{did_you_mean(registry, known)}; "
            f"registries: {', '.join(known)}"
        )
    evals = opened_registry(registry, project.folder, project.config.environments).suite(group, project.folder)
    name = suite or group
    _add(project, {"evals": _new(project, evals), "suites": _new_suite(project, name, list(evals))})
    out.print(f"{project.config_path}: the suite {name} with {len(evals)} evals and {len(project.config.models)} models")
    for eval_name, settings in evals.items():
        shots = f", {settings['num_fewshot']} shots" if "num_fewshot" in settings else ""
        out.print(f"  {eval_name}: {settings['task']}{shots}", highlight=False)
    print_next((f"run --suite {name} --limit 5", "tries it with five samples of each subject"))


def _new(project: Project, evals: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The evals that evals.yaml lacks."""
    known = {name: settings.model_dump(exclude_unset=True) for name, settings in project.config.evals.items()}
    if taken := [name for name, settings in evals.items() if name in known and known[name] != settings]:
        raise UsageError(f"evals.yaml has evals of these names with other settings: {', '.join(taken)}; rename them there, and try again")
    return {name: settings for name, settings in evals.items() if name not in known}


def _new_suite(project: Project, name: str, evals: list[str]) -> dict[str, Any]:
    if name in project.config.suites:
        if list(project.config.suites[name].evals) == evals:
            return {}
        raise UsageError(f"evals.yaml has another suite {name!r}; choose a name for this one by --name")
    return {name: {"evals": evals, "models": list(project.config.models)}}


def _add(project: Project, added: Mapping[str, Mapping[str, Any]]) -> None:
    """Write evals.yaml anew, unless the result would be wrong."""
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
