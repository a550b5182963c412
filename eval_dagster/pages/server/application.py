"""The web application: its addresses, the whole pages of results, its headers, how errors are shown, and the fetches of a shared lake."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from threading import Lock

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from eval_dagster.errors import EvalDagsterError, LakeError, UsageError
from eval_dagster.lake.catalog.catalog import CatalogReader, CatalogState, refresh
from eval_dagster.lake.files import Lake
from eval_dagster.pages.samples.page import page_policy, page_stamp, result_page
from eval_dagster.pages.samples.places import page_path
from eval_dagster.pages.server import comparison, nights, overview, sample, samples
from eval_dagster.pages.server.nights import Watched
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


EVERY_S = 60.0
"""Seconds between two fetches, at least. There is none while no page is opened."""
_STOP_S = 2.0


class Refresher:
    """Brings the catalog of a shared lake up to date in a thread. A page never waits for it, and never fails by it."""

    def __init__(self, lake: Lake, *, fetch: Callable[[Lake], bool] = refresh, every_s: float = EVERY_S) -> None:
        """The results have just been fetched. Of a lake without an object store nothing is fetched: runs publish to its catalog."""
        self._lake = lake
        self._fetch = fetch
        self._every_s = every_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._tried_at = time.monotonic()
        self._fetched_at = datetime.now(UTC)
        self._failure: str | None = None

    def wake(self) -> None:
        """Begin to fetch, unless the last fetch is recent or still going on."""
        if self._lake.mirror is None:
            return
        with self._lock:
            is_busy = self._thread is not None and self._thread.is_alive()
            if is_busy or time.monotonic() - self._tried_at < self._every_s:
                return
            self._tried_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="refresh of the shared lake", daemon=True)
            self._thread.start()

    def footer(self) -> str | None:
        """When the results were fetched, and why not later; null if nothing is fetched."""
        if self._lake.mirror is None:
            return None
        with self._lock:
            fetched = f"Results of the shared lake, fetched at {self._fetched_at:%Y-%m-%d %H:%M:%S} UTC."
            return fetched if self._failure is None else f"{fetched} Newer ones could not be fetched: {self._failure}"

    def close(self) -> None:
        """Wait a little for a fetch that is going on."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(_STOP_S)

    def _run(self) -> None:
        began, failure = datetime.now(UTC), None
        try:
            if not self._fetch(self._lake):
                failure = f"{self._lake.home} cannot be written"
        except EvalDagsterError as error:
            failure = str(error)
        except Exception as error:  # the boundary between the pages and a fetch
            _LOG.exception("the results of the shared lake could not be fetched")
            failure = f"{type(error).__name__}: {error}"
        with self._lock:
            self._failure = failure
            if failure is None:
                self._fetched_at = began


Endpoint = Callable[[Request], Awaitable[Response]]
_LOG = logging.getLogger(__name__)
_POLICY = "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'"
"""The pages have no script at all."""
_HEADERS = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
_PAGES: dict[str, Callable[[CatalogState, Parameters], str]] = {
    "/leaderboard": overview.leaderboard,
    "/matrix": overview.matrix,
    "/history": overview.history,
    "/curves": overview.curves,
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
