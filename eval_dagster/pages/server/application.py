"""The web application: its addresses, the whole pages of results, its headers, and how errors are shown."""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from threading import Lock

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from eval_dagster.errors import LakeError, UsageError
from eval_dagster.lake.catalog.catalog import CatalogReader, CatalogState
from eval_dagster.pages.samples.page import page_policy, page_stamp, result_page
from eval_dagster.pages.samples.places import page_path
from eval_dagster.pages.server import comparison, nights, overview, sample, samples
from eval_dagster.pages.server.nights import Watched
from eval_dagster.pages.server.refreshing import Refresher
from eval_dagster.pages.server.rendering import FOLDER, FOOTER, REPORT_STYLE, page
from eval_dagster.pages.server.results import NotFoundError, Parameters, find_result, time_of_address
from eval_dagster.results.materializations import history, materialization_at
from eval_dagster.results.samples import collect_samples
from eval_dagster.texts.visible_text import visible

_MOST_KEPT = 8
_HEAD = 300
"""Bytes of a page in which its stamp is."""


class ResultPages:
    """Gives the page of each result. The last ones that were made are kept: one of 10,000 samples takes seconds."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    def page(self, state: CatalogState, names: tuple[str, str, str], parameters: Parameters) -> bytes:
        """The page of eval, model and time; `against` and `against_at` name the result that it is compared with, else the one before.

        Raises:
            UsageError: The time is invalid, or the result does not exist.
            LakeError: A part of the result was deleted, or is damaged.
        """
        result = find_result(state, names[0], names[1], time_of_address(names[2], repr(names[2])))
        against = None
        if (model := parameters.text("against")) is not None:
            against = find_result(state, result.eval, model, parameters.time("against_at"))
        else:
            with suppress(OSError):  # a run may have written the page, of this materialization or of another one
                written = page_path(state.lake.home, result.eval, result.model).read_bytes()
                if page_stamp(result.materialized_at).encode() in written[:_HEAD]:
                    return written
        key = (result.eval, result.model, result.materialized_at, against and (against.model, against.materialized_at))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        before = against and materialization_at(history(state.lake, against.eval, against.model), against.materialized_at)
        if against is not None and before is None:
            raise NotFoundError(f"{against.name} is no longer in the lake, so that nothing can be compared with it")
        made = result_page(collect_samples(state.lake, result.eval, result.model, result.materialized_at, against=before or "previous"))
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return made


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
    "/calibration": comparison.calibration,
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

    results, policy = ResultPages(), {**_HEADERS, "Content-Security-Policy": page_policy()}

    def whole(state: CatalogState, request: Request) -> Response:
        names = (request.path_params["eval"], request.path_params["model"], request.path_params["at"])
        return HTMLResponse(results.page(state, names, Parameters(request.query_params)), headers=policy)

    def making(make: Callable[[CatalogState, Parameters], str]) -> Callable[[CatalogState, Request], Response]:
        return lambda state, request: HTMLResponse(make(state, Parameters(request.query_params)), headers=_HEADERS)

    answers = {path: making(make) for path, make in {"/": first, **_PAGES}.items()} | {"/results/{eval}/{model}/{at}": whole}
    routes = [Route(path, _answering(reader, refresher, answer), methods=["GET"]) for path, answer in answers.items()]
    routes.append(Route("/style.css", _style, methods=["GET"]))
    return Starlette(routes=routes, exception_handlers={HTTPException: _unknown})


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
