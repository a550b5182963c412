"""The pages of the samples of red results, which a report links. Each compares with what the gate compared with."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, urlencode

from eval_dagster.errors import LakeError
from eval_dagster.gate.records import GateResult
from eval_dagster.lake.files import Lake
from eval_dagster.pages.samples.places import PAGE
from eval_dagster.pages.samples.writing import write_page
from eval_dagster.records.judgements import Regression, Verdict
from eval_dagster.results.materializations import Materialization, history, materialization_at

log = logging.getLogger(__name__)

ResultMetric = tuple[str, str, str | None]
"""Eval, model and metric."""


def write_sample_pages(lake: Lake, result: GateResult, folder: Path) -> Mapping[ResultMetric, str]:
    """Write the page of each red result to `<folder>/<eval>/<model>/samples.html`.

    Where metrics of a result are compared with several others, each further one has its own page, `samples_2.html` and so on.
    A page that cannot be written is left out with a warning, since a report is valid without it.

    Returns:
        Links to the samples that became worse, or to the errors, relative to the folder beside `folder`; by eval, model and metric.
    """
    links: dict[ResultMetric, str] = {}
    written: dict[tuple[str, str], list[Materialization | None]] = {}
    for row in result.red:
        others = written.setdefault((row.eval, row.model), [])
        try:
            against = _compared(lake, row)
            number = others.index(against) if against in others else len(others)
            path = folder / row.eval / row.model / (f"{Path(PAGE).stem}_{number + 1}.html" if number else PAGE)
            if number == len(others):
                _write(path, lake, row, against)
                others.append(against)
        except Exception as error:  # the boundary between a report and its pages
            log.warning(f"no page of the samples of {row.eval}|{row.model}: {type(error).__name__}: {error}")
            continue
        view = {"show": "error"} if row.verdict is Verdict.ERRORS else {"show": "worse"} if against is not None else {}
        place = quote(str(path.relative_to(folder.parent)))
        fragment = urlencode(view | ({"metric": row.metric} if row.metric else {}))
        links[row.eval, row.model, row.metric] = f"{place}#{fragment}" if fragment else place
    return links


def _write(path: Path, lake: Lake, row: Regression, against: Materialization | None) -> None:
    if row.materialized_at is None:
        raise LakeError("there is no result")
    write_page(path, lake, row.eval, row.model, row.materialized_at, against=against)


def _compared(lake: Lake, row: Regression) -> Materialization | None:
    """The state that the gate found the result worse than; None if it is no longer in the lake."""
    is_anchor = row.against == "anchor"
    name, when = (row.anchor, row.anchor_materialized_at) if is_anchor else (row.baseline, row.baseline_materialized_at)
    if name is None or when is None:
        return None
    with suppress(LakeError):
        return materialization_at(history(lake, row.eval, name.rpartition("@")[0]), when)
    return None
