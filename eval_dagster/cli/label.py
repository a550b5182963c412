"""The commands `label export` and `label import`."""

from pathlib import Path
from typing import Annotated

import typer

from eval_dagster.cli.console import out, print_next
from eval_dagster.cli.tables import require_writable
from eval_dagster.errors import UsageError

labels = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Let people label answers: a CSV file to fill in, and back.")


@labels.command("export")
def export(
    eval_name: Annotated[str, typer.Argument(metavar="EVAL", help="Name of the eval.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model; model@2026-01-31 for an earlier result.")],
    to: Annotated[Path, typer.Option(metavar="FILE.csv", help="File to write; it must not exist.")],
    count: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 100,
    seed: Annotated[int, typer.Option(help="The same seed chooses the same samples.")] = 0,
) -> None:
    """Write a random part of a result to a CSV file, with an empty column for the label."""
    from eval_dagster.project import Project
    from eval_dagster.results.labels import export_labels
    from eval_dagster.results.materializations import MaterializationName  # imported lazily: slow to import

    if to.suffix != ".csv":
        raise UsageError(f"found --to {to}; expected a file whose name ends in .csv")
    require_writable("--to", to)
    project = Project.open()
    project.eval(eval_name)
    name = MaterializationName.parse(model, list(project.config.models))
    number = export_labels(project.lake, eval_name, name, to, count=count, seed=seed)
    out.print(f"{number} samples written to {to}: fill in the column label, and comment where there is one", soft_wrap=True)
    print_next((f"label import {to} --by NAME", "adds the labels to the relation human_labels"))


@labels.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="A file of `label export` with labels. Rows without one are left out.")],
    by: Annotated[str, typer.Option(metavar="NAME", help="Name of the person who labelled.")],
) -> None:
    """Add the labels of a CSV file to the relation `human_labels`: all of them, or none if a row is wrong."""
    from eval_dagster.lake.catalog.publishing import publish
    from eval_dagster.project import Project
    from eval_dagster.results.labels import import_labels  # imported lazily, as above

    project = Project.open()
    done = import_labels(project.lake, file, by=by)
    publish(project.lake)
    parts = [f"{len(done.new)} labels written"]
    parts += [f"{done.known} are there already"] if done.known else []
    parts += [f"{done.empty} rows have no label"] if done.empty else []
    out.print("; ".join(parts), soft_wrap=True)
    print_next(("sql human_labels", "all labels, by whom and when"))
