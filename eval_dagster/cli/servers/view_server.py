"""The command `view`: a server of web pages over all results, on loopback."""

import os
import sys
from datetime import UTC, datetime
from typing import Annotated

import typer
import uvicorn

from eval_dagster.addresses import noted
from eval_dagster.cli.check_nights import configuration
from eval_dagster.cli.console import errors, out
from eval_dagster.cli.options import LakeURL, Origins, Trial
from eval_dagster.cli.servers.loopback_guard import ORIGINS_VARIABLE, LoopbackGuard
from eval_dagster.cli.servers.ui import HOST, allowed_origin, free_port
from eval_dagster.cli.sql import queried_lake, read_again, reads_url
from eval_dagster.errors import ConfigError
from eval_dagster.lake.catalog.catalog import CatalogReader
from eval_dagster.pages.server.application import Refresher, application
from eval_dagster.pages.server.nights import Watched

_PAGES = "/.*"
"""Other sites may link to every page: none changes anything."""
_STOP_S = 2


class _Server(uvicorn.Server):
    """A server that prints its address as soon as it answers."""

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            out.print(f"View   http://{HOST}:{self.config.port}   last night, leaderboard, histories, comparisons, samples", soft_wrap=True)
            out.print("Ctrl-C stops it.")
            sys.stdout.flush()


def missing_nights(now: datetime | None = None) -> Watched:
    """Whether evals.yaml can be read, and which suites' last night was not judged in time."""
    from eval_dagster.assets.due_nights import late_nights  # imported lazily: Dagster takes a second

    try:
        known, broken = configuration()
    except ConfigError as error:
        return Watched(problem=str(error))
    missing = {name: night.tick for name, night in late_nights(known, now or datetime.now(UTC)).items()}
    return Watched(problem=f"evals.yaml cannot be read: {broken}" if broken else None, missing=missing)


def view(
    *,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the pages; the next free one if it is in use.")] = 4000,
    trial: Trial = False,
    url: LakeURL = None,
    origins: Origins,
) -> None:
    """Serve the pages until Ctrl-C. Raises `QueryError` without any result."""
    known = [allowed_origin(each) for each in origins] or os.environ.get(ORIGINS_VARIABLE, "").split()
    is_project = not trial and not reads_url(url)
    # An evals.yaml that cannot be read hides no result: the home keeps the last one that could.
    project = configuration()[0].project if is_project else None
    lake = project.lake if project else queried_lake(url, trial=trial)
    read_again(lake)
    reader, refresher = CatalogReader(lake), Refresher(lake)
    with reader.state():
        pass  # the one message where there is no catalog, before a port is taken
    suites = list(project.config.suites) if project else []
    pages = application(reader, refresher, suites=suites, watch=missing_nights if project else Watched)
    guarded = LoopbackGuard(pages, pages=_PAGES, graphql=(), origins=known)
    chosen = free_port(port)
    config = uvicorn.Config(
        guarded,
        host=HOST,
        port=chosen,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_STOP_S,
    )
    try:
        with noted(lake.home, {"pages": f"http://{HOST}:{chosen}"}, os.getpid()):
            _Server(config).run()
    except KeyboardInterrupt:
        errors.print("stopped")
    finally:
        refresher.close()
        reader.close()
