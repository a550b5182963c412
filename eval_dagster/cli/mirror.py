"""The command `mirror`: the datasets of the configured evals in a folder."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from eval_dagster.cli.console import errors, out, print_next, say
from eval_dagster.datasets.row_files import MirrorPart, merged
from eval_dagster.errors import DataError, EvalDagsterError
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.project import Project
from eval_dagster.texts.figures import file_size


def mirror(
    folder: Annotated[Path, typer.Argument(help="Folder of the mirror. Files that it has are not fetched again.")],
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="Only what the evals of this suite read.")] = None,
) -> None:
    """Print what is fetched and how large it is, then fetch it.

    Raises:
        UsageError: The suite is unknown, or a task or dataset of an eval is not there.
        DataError: A dataset could not be fetched; all others are.
    """
    project = Project.open()
    evals, _ = project.select(suite=suite)
    parts: list[MirrorPart] = []
    for name in evals:
        task, subjects = project.task(name), project.subjects(name)
        found = list(project.reader.read_from(task, subjects, fewshot=project.num_fewshot(name) > 0))
        if not found:
            out.print(f"{name}: its rows are in a folder or come with the task; nothing to fetch", highlight=False)
        parts += found
    parts = merged(parts)
    missing = [part for part in parts if part.missing(folder)]
    sizes = [part.size(folder) for part in parts]
    table = Table("dataset", "configuration", "splits", "to fetch", title=f"Mirror in {folder}", title_justify="left")
    for part, size in zip(parts, sizes, strict=True):
        state = "is there" if part not in missing else "unknown size" if size is None else file_size(size)
        table.add_row(part.path, part.config, ", ".join(part.splits), state)
    out.print(table)
    known = [size for size in sizes if size is not None]
    unknown = len(sizes) - len(known)
    out.print(f"to fetch: {file_size(sum(known))}" + (f", and {unknown} of unknown size" if unknown else ""), highlight=False)
    failed: list[str] = []
    with current_reporter().track("mirror", total=len(missing), unit="configurations") as advance:
        for part in missing:
            try:
                part.write(folder)
            except EvalDagsterError as error:
                failed.append(f"{part.path}, {part.config}: {error}")
            advance()
    for message in failed:
        say(errors, "error", message, style="red")
    if failed:
        raise DataError(f"{len(failed)} of {len(missing)} configurations could not be fetched; the same command tries them again")
    out.print(f"The evals read them from there with `datasets: {{mirror: {folder}}}` in evals.yaml, or EVAL_DAGSTER_DATASETS={folder}.")
    print_next(("run", "evaluates"))
