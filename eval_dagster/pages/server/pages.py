"""The whole pages of results: those that runs wrote, or made when they are opened."""

from collections import OrderedDict
from contextlib import suppress
from datetime import datetime
from threading import Lock

from eval_dagster.lake.catalog.catalog import CatalogState
from eval_dagster.lake.files import Lake
from eval_dagster.pages.samples.page import page_stamp, result_page
from eval_dagster.pages.samples.places import page_path
from eval_dagster.pages.server.parameters import NotFoundError, Parameters, time_of_address
from eval_dagster.pages.server.results import find_result
from eval_dagster.results.materializations import history, materialization_at
from eval_dagster.results.samples import collect_samples

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
        elif (page := _written(state.lake, result.eval, result.model, result.materialized_at)) is not None:
            return page
        key = (result.eval, result.model, result.materialized_at, against and (against.model, against.materialized_at))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        before = against and materialization_at(history(state.lake, against.eval, against.model), against.materialized_at)
        if against is not None and before is None:
            raise NotFoundError(f"{against.name} is no longer in the lake, so that nothing can be compared with it")
        page = result_page(collect_samples(state.lake, result.eval, result.model, result.materialized_at, against=before or "previous"))
        with self._lock:
            self._kept[key] = page
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return page


def _written(lake: Lake, eval_name: str, model: str, materialized_at: datetime) -> bytes | None:
    """The page that a run wrote for this materialization; null if it is another one."""
    with suppress(OSError):
        page = page_path(lake.home, eval_name, model).read_bytes()
        if page_stamp(materialized_at).encode() in page[:_HEAD]:
            return page
    return None
