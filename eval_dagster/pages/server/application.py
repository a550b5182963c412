"""The web application: its addresses, its headers, and how errors are shown."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from eval_dagster.errors import LakeError, UsageError
from eval_dagster.lake.catalog.catalog import CatalogReader, CatalogState
from eval_dagster.pages.samples.page import page_policy
from eval_dagster.pages.server import calibration, comparison, nights, overview, sample, samples
from eval_dagster.pages.server.nights import Watched
from eval_dagster.pages.server.pages import ResultPages
from eval_dagster.pages.server.parameters import NotFoundError, Parameters
from eval_dagster.pages.server.refreshing import Refresher
from eval_dagster.pages.server.rendering import FOLDER, FOOTER, REPORT_STYLE, page
from eval_dagster.texts.visible_text import visible

Endpoint = Callable[[Request], Awaitable[Response]]
_LOG = logging.getLogger(__name__)
_POLICY = "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'"
"""The pages have no script at all."""
_HEADERS = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
_PAGES: dict[str, Callable[[CatalogState, Parameters], str]] = {
    "/leaderboard": overview.leaderboard,
    "/matrix": overview.matrix,
    "/history": overview.history,
    "/compare": comparison.scatter,
    "/agreement": comparison.agreement,
    "/calibration": calibration.calibration,
    "/nights": nights.nights,
    "/night": nights.night,
    "/samples": samples.listing,
    "/sample": sample.one,
}


def application(
    reader: CatalogReader, refresher: Refresher | None = None, *, suites: Sequence[str] = (), watch: Callable[[], Watched] = Watched
) -> Starlette:
    """The pages of a lake. They only read it; a page shows one state of the catalog, the current one when it is opened.

    Args:
        reader: Reads the catalog.
        refresher: Opened pages have it fetch what other machines add, and their footer says when that was.
        suites: Names of the suites of evals.yaml. All that were judged are shown without it.
        watch: Tells which nights are missing when the first page is opened.
    """

    def first(state: CatalogState, parameters: Parameters) -> str:
        # The leaderboard was the first page: its addresses stay.
        is_leaderboard = any(parameters.text(name) for name in ("eval", "model", "all", "page"))
        return overview.leaderboard(state, parameters) if is_leaderboard else nights.start(state, parameters, suites, watch())

    pages = {"/": first, **_PAGES}
    routes = [Route(path, _endpoint(reader, refresher, make), methods=["GET"]) for path, make in pages.items()]
    routes.append(Route("/results/{eval}/{model}/{at}", _result_endpoint(reader, refresher), methods=["GET"]))
    routes.append(Route("/style.css", _style, methods=["GET"]))
    return Starlette(routes=routes, exception_handlers={HTTPException: _unknown})


def _endpoint(reader: CatalogReader, refresher: Refresher | None, make: Callable[[CatalogState, Parameters], str]) -> Endpoint:
    return _answering(
        reader, refresher, lambda state, request: HTMLResponse(make(state, Parameters(request.query_params)), headers=_HEADERS)
    )


def _result_endpoint(reader: CatalogReader, refresher: Refresher | None) -> Endpoint:
    pages, policy = ResultPages(), {**_HEADERS, "Content-Security-Policy": page_policy()}

    def answer(state: CatalogState, request: Request) -> Response:
        names = (request.path_params["eval"], request.path_params["model"], request.path_params["at"])
        return HTMLResponse(pages.page(state, names, Parameters(request.query_params)), headers=policy)

    return _answering(reader, refresher, answer)


def _answering(reader: CatalogReader, refresher: Refresher | None, answer: Callable[[CatalogState, Request], Response]) -> Endpoint:
    """An endpoint that answers in a thread, with a page for each error."""

    def answer_or_explain(request: Request) -> Response:
        if refresher is not None:
            FOOTER.set(refresher.footer())  # in the context of this request
            refresher.wake()
        try:
            with reader.state() as state:
                return answer(state, request)
        except NotFoundError as error:
            return _failure(HTTPStatus.NOT_FOUND, str(error))
        except UsageError as error:
            return _failure(HTTPStatus.BAD_REQUEST, str(error))
        except LakeError as error:
            return _failure(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}; `eval-dagster verify` lists all damaged files")
        except Exception as error:  # the boundary between a page and the server
            _LOG.exception("%s failed", visible(str(request.url)))
            return _failure(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(answer_or_explain, request)

    return endpoint


def _failure(status: HTTPStatus, message: str) -> Response:
    return HTMLResponse(page("error.html", title=status.phrase, message=message), status_code=status, headers=_HEADERS)


async def _unknown(_: Request, error: Exception) -> Response:
    status = HTTPStatus(error.status_code if isinstance(error, HTTPException) else 500)
    return _failure(status, "there is no such page; the links above lead to all that there are")


async def _style(_: Request) -> Response:
    return Response(_style_sheet(), media_type="text/css", headers={"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"})


@cache
def _style_sheet() -> str:
    return REPORT_STYLE.read_text("utf-8") + (FOLDER / "static" / "view.css").read_text("utf-8")
