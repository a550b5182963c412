"""The command `samples`."""

from pathlib import Path
from typing import Annotated

import typer

from eval_dagster.cli.console import out, print_next, program_name
from eval_dagster.cli.tables import require_outside, require_writable
from eval_dagster.errors import UsageError


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
    from eval_dagster.pages.samples.writing import write_page  # imported lazily: slow to import
    from eval_dagster.project import Project
    from eval_dagster.results.materializations import Materialization, MaterializationName

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
