"""The commands `samples` and `label`: the samples of a result in a file for people."""

from pathlib import Path
from typing import Annotated

import typer

from eval_dagster.cli.console import out, print_next, program_name
from eval_dagster.cli.tables import require_outside, require_writable
from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.pages.samples.writing import write_page
from eval_dagster.project import Project
from eval_dagster.results.labels import export_labels, import_labels
from eval_dagster.results.materializations import Materialization, MaterializationName

labels = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


def samples(
    eval_name: Annotated[str, typer.Argument(metavar="EVAL", help="Name of the eval.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")],
    against: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Compare with this model, NAME@2026-01-31 for instance; by default with the result before."),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="The newest result up to that time: 2026-01-31, 2026-01-31T02:00, previous.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All samples, however many there are; by default at most 20,000.")] = False,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="File to write [default: samples-EVAL-MODEL.html in this folder].")
    ] = None,
) -> None:
    """Write the page of a result: its samples with answers and scores in one file, which any browser opens without a network."""
    file = to or Path(f"samples-{eval_name}-{model}.html".replace("/", "-"))
    if file.suffix != ".html":
        raise UsageError(f"found --to {file}; expected a file whose name ends in .html")
    require_writable("--to", file)
    project = Project.open()
    require_outside("--to", file, project.home)
    project.lake.pull()

    def found(text: str) -> Materialization:
        name = MaterializationName.parse(text, list(project.config.models))
        point = name.find(project.lake, eval_name)
        if point is None:
            if not any(project.lake.folder("metrics", eval_name, name.model).glob("*.parquet")):
                project.eval(eval_name)  # names what is near to a mistyped name
                project.model(name.model)
            if name.previous:
                raise UsageError(
                    f"{eval_name} on {name.model} has no result before its last change of data, prompts, model or metrics; "
                    f"choose one that `{program_name()} sql metrics_history` lists by its time"
                )
            raise UsageError(
                f"there is no result of {eval_name} on {text}; make one by `{program_name()} run`, "
                f"or choose one that `{program_name()} sql metrics_history` lists"
            )
        return point

    point = found(model if at is None else f"{model}@{at}")
    write_page(
        file,
        project.lake,
        eval_name,
        point.model,
        point.materialized_at,
        against="previous" if against is None else found(against),
        whole=everything,
    )
    out.print(
        f"{file} has the samples of {eval_name} on {point.model} of {point.materialized_at:%Y-%m-%d %H:%M} UTC.\n"
        "Open it in a browser, or mail it: it needs nothing else. It holds the prompts and answers.",
        soft_wrap=True,
    )
    print_next(("view", "all results and their samples in a browser"))


@labels.command("export")
def export(
    eval_name: Annotated[str, typer.Argument(metavar="EVAL", help="Name of the eval.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model; model@2026-01-31 for an earlier result.")],
    to: Annotated[Path, typer.Option(metavar="FILE.csv", help="File to write; it must not exist.")],
    count: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 100,
    seed: Annotated[int, typer.Option(help="The same seed chooses the same samples.")] = 0,
) -> None:
    """Write a random part of a result to a CSV file, with an empty column for the label."""
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
    project = Project.open()
    done = import_labels(project.lake, file, by=by)
    publish(project.lake)
    parts = [f"{len(done.new)} labels written"]
    parts += [f"{done.known} are there already"] if done.known else []
    parts += [f"{done.empty} rows have no label"] if done.empty else []
    out.print("; ".join(parts), soft_wrap=True)
    print_next(("sql human_labels", "all labels, by whom and when"))
