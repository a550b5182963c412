"""Options that several commands have."""

from typing import Annotated

import typer

from eval_dagster.cli.tables import Format

Suite = Annotated[str | None, typer.Option("--suite", metavar="NAME", help="Evals and models of this suite.")]
Evals = Annotated[
    list[str],
    typer.Option("--eval", metavar="NAME", help="Only this eval; may be repeated.", default_factory=list, show_default=False),
]
Models = Annotated[
    list[str],
    typer.Option("--model", metavar="NAME", help="Only this model; may be repeated.", default_factory=list, show_default=False),
]
Trial = Annotated[bool, typer.Option("--trial", help="Show trials (`run --limit`) instead of published results.")]
LakeURL = Annotated[
    str | None, typer.Option("--lake", metavar="URL", help="Read the lake at this URL (s3://bucket/prefix), which needs no evals.yaml.")
]
Origins = Annotated[
    list[str],
    typer.Option(
        "--origin",
        metavar="URL",
        help="Another address of the pages (proxy, tunnel); may be repeated.",
        default_factory=list,
        show_default=False,
    ),
]
FORMAT = typer.Option(
    "--format",
    help="Format of the rows: csv holds exact texts, spreadsheet is csv without formulas, json escapes control characters.",
)
RowFormat = Annotated[Format, FORMAT]
