"""The nights of a suite: each judgement of its gate, down to the samples that got worse."""

from collections.abc import Mapping
from typing import Any

from eval_dagster.explorer.server.parameters import NotFoundError, Parameters
from eval_dagster.explorer.server.rendering import page
from eval_dagster.lake.reader import CatalogState

_A_PAGE = 60


def nights(state: CatalogState, parameters: Parameters) -> str:
    """The judgements of a suite, the newest first."""
    suites = [row["suite"] for row in state.rows("select distinct suite from regressions order by suite")]
    suite, number = parameters.text("suite") or (suites[0] if suites else None), parameters.page()
    rows = state.rows(
        """
        select judged_at, any_value(outcome) as outcome, count(*) as results, count(*) filter (verdict = 'regressed') as regressed,
            count(*) filter (verdict = 'errors') as errors, count(*) filter (verdict = 'improved') as improved,
            count(*) filter (verdict in ('not comparable', 'not evaluated')) as unjudged, count(*) over () as total
        from regressions_history where suite = $suite group by judged_at order by judged_at desc limit $most offset $first
        """,
        {"suite": suite, "most": _A_PAGE, "first": (number - 1) * _A_PAGE},
    )
    total = rows[0]["total"] if rows else 0
    return page("nights.html", suites=suites, suite=suite, rows=rows, number=number, pages=max(1, -(-total // _A_PAGE)), total=total)


def night(state: CatalogState, parameters: Parameters) -> str:
    """One judgement of a suite: what was compared, and what got worse. By default the last one."""
    suite, at = parameters.required("suite"), parameters.time("at")
    rows = state.rows(
        """
        select * from regressions_history
        where suite = $suite and judged_at = coalesce($at, (select max(judged_at) from regressions_history where suite = $suite))
        order by list_position(
            ['regressed', 'errors', 'not evaluated', 'not comparable', 'accepted gap', 'improved', 'first result', 'no change seen'],
            verdict
        ), eval, model, metric
        """,
        {"suite": suite, "at": at},
    )
    if not rows:
        raise NotFoundError(
            f"the suite {suite!r} has no judgement{'' if at is None else f' of {at.isoformat()}'}; the list of nights has all"
        )
    return page("night.html", suite=suite, judged_at=rows[0]["judged_at"], rows=[{**row, **_compared(row)} for row in rows])


def _compared(row: Mapping[str, Any]) -> dict[str, Any]:
    """Model and time of what the verdict is about: the baseline, or the anchor of drift. Each is written as `model@time`."""
    kind = "anchor" if row["against"] == "anchor" else "baseline"
    return {"against_model": row[kind].rpartition("@")[0] if row[kind] else None, "against_at": row[f"{kind}_materialized_at"]}
