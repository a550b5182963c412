"""The command `view`."""

from typing import Annotated

import typer


def view(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the pages; the next free one if it is in use.")] = 4000,
    trial: Annotated[bool, typer.Option("--trial", help="Show trials (`run --limit`) instead of published results.")] = False,
    lake: Annotated[
        str | None, typer.Option("--lake", metavar="URL", help="Read the lake at this URL (s3://bucket/prefix), which needs no evals.yaml.")
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="URL", help="Another address of the pages (proxy, tunnel); may be repeated."),
    ] = None,
) -> None:
    """Show all results as web pages on loopback, until Ctrl-C: leaderboard, histories, comparisons, nights, and each sample."""
    from eval_dagster.cli.servers.view_server import serve  # imported lazily: the servers of web pages are slow to import

    serve(port, trial=trial, url=lake, origins=origins or [])
