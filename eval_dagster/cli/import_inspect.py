"""The command `import-inspect`: logs of inspect_ai become results of evals."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eval_dagster.cli.console import errors, out, print_next, print_table, program_name, say
from eval_dagster.config.loading import load_config
from eval_dagster.config.yaml_document import with_entries
from eval_dagster.errors import UsageError
from eval_dagster.imports.inspect_archive import log_files, required
from eval_dagster.models.registry import registered_sections
from eval_dagster.progress.reporting import following
from eval_dagster.project import Project
from eval_dagster.task_files.registries import registry_names
from eval_dagster.tasks.recorded import IMPORTED
from eval_dagster.texts.figures import counted

if TYPE_CHECKING:
    from eval_dagster.imports.importing import ImportedLog

_COLUMNS = ("eval", "model", "began (UTC)", "status", "answers", "errors")


def import_inspect(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder with .eval files, in it or in folders below it; or one such file.")
    ],
) -> None:
    """Add the logs to the results, and their evals and models to evals.yaml. A log that was added before adds nothing.

    Raises:
        UsageError: A package of the extra `inspect` is not installed, the folder has no log, or no log can be imported.
    """
    for package in ("msgspec", "zstandard"):
        required(package)
    from eval_dagster.imports.importing import import_logs, publish_imported  # needs them

    project = Project.open()
    taken = [name for name in project.config.evals if not project.is_imported(name)]
    paths = log_files(folder)
    found = list(following(import_logs(project.lake, paths, taken=taken), "import-inspect", total=len(paths), unit="logs", least=0))
    new = [each for each in found if each.state == "imported" and each.log is not None]
    failed = [each.problem for each in found if each.problem is not None]
    if new or any(each.state == "known" for each in found):
        with project.lake.lock("evals.yaml"):
            _add_entries(Project.open(), found)  # another import may have added entries meanwhile
    if new or any(each.replaced for each in found):
        for message in publish_imported(Project.open().lake, found):
            say(errors, "warning", message, style="yellow")
    if new:
        rows = [
            (each.log.eval, each.log.model, f"{each.log.time:%Y-%m-%d %H:%M:%S}", each.log.status, each.answers, each.errors)
            for each in new
            if each.log is not None
        ]
        print_table("Imported logs", _COLUMNS, rows)
    for each in found:
        for warning in each.warnings:
            say(errors, "warning", f"{each.path}: {warning}", style="yellow")
    for problem in failed:
        say(errors, "failed", problem, style="red")
    known, deleted = (sum(each.state == state for each in found) for state in ("known", "deleted"))
    of_gc = f"{deleted} left out, since gc has deleted their results, " if deleted else ""
    out.print(f"{counted(len(new), 'log')} imported, {known} known before, {of_gc}{len(failed)} failed", soft_wrap=True)
    if new:
        print_next(("leaderboard", "the newest result of each eval and model"), ("view", "all results, with each conversation"))
    if failed:
        raise typer.Exit(1)


def _add_entries(project: Project, found: "Sequence[ImportedLog]") -> None:
    """Add evals and models that evals.yaml lacks. It is written anew, unless the result would be wrong."""
    logs = [each.log for each in found if each.log is not None and each.state in ("imported", "known")]
    added = {
        "models": {log.model: {"backend": IMPORTED} for log in logs if log.model not in project.config.models},
        "evals": {log.eval: {"task": IMPORTED} for log in logs if log.eval not in project.config.evals},
    }
    added = {section: entries for section, entries in added.items() if entries}
    if not added:
        return
    path = project.config_path
    written = path.with_name(f".{path.name}.new")
    try:
        written.write_text(with_entries(path.read_text(encoding="utf-8"), added), encoding="utf-8")
        shutil.copymode(path, written)
        load_config(written, registries=registry_names(), sections=registered_sections())
        written.replace(path)
    except UsageError as error:
        raise UsageError(
            f"the logs are imported, and {path.name} cannot take their evals and models: {error}; correct it, and run "
            f"`{program_name()} import-inspect` again"
        ) from error
    finally:
        written.unlink(missing_ok=True)
    for section, entries in added.items():
        out.print(f"{path.name}: {section} {', '.join(entries)} added", soft_wrap=True)
