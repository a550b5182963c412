"""Comparisons sample by sample: two models at one eval, the metrics of one result, and what a model was sure of with what was right."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import combinations
from math import log10
from typing import Any, NamedTuple, TypedDict

import numpy as np

import eval_dagster
from eval_dagster import metrics
from eval_dagster.gate.proof import proof_of_pair
from eval_dagster.lake.catalog.catalog import CatalogState
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.metrics.base import BaseMetric, is_between, known_bounds
from eval_dagster.pages.report.evidence import Pill
from eval_dagster.pages.server import charts
from eval_dagster.pages.server.rendering import page
from eval_dagster.pages.server.results import NotFoundError, Parameters, Result, find_result
from eval_dagster.records.judgements import Verdict
from eval_dagster.statistics.noninferiority import NotWorse
from eval_dagster.statistics.paired import Comparison, compare_means
from eval_dagster.statistics.verdicts import Case, judge_suite
from eval_dagster.texts.figures import interval, number, p_equals

_MOST_VALUES = 1_000
_BINS = 32
_MOST_METRICS = 12
_PAIRS = """
    create or replace temp table pairs as
    with a as (select sample_id, cluster, subject, value from read_parquet($a) where metric = $metric and value is not null),
    b as (select sample_id, value from read_parquet($b) where metric = $metric and value is not null)
    select a.sample_id, a.cluster, a.subject, a.value as a, b.value as b
    from a join b on a.sample_id = b.sample_id
"""
"""In the memory of the session of this page."""
_MOST_TESTS = 256
"""Most tests that are kept. Files of scores never change."""


class Tested(NamedTuple):
    """Two results, tested by the functions of `eval-dagster compare`."""

    comparison: Comparison
    verdict: Verdict
    """The verdict about a."""
    proof: NotWorse


_tests: dict[tuple[object, ...], Tested] = {}


class Cell(TypedDict):
    """Samples with the same scores, or scores in the same bin, of two models a and b."""

    n: int
    a_low: float
    a_high: float
    b_low: float
    b_high: float


class Summary(TypedDict):
    """The common samples of two models."""

    n: int
    correlation: float | None
    a_higher: int
    b_higher: int
    low: float
    high: float
    distinct_pairs: int


class Agreement(NamedTuple):
    """How far two metrics agree."""

    correlation: float | None
    equal: float | None
    """Share of samples with equal values."""


class Bin(TypedDict):
    """A row of the relation `calibration`."""

    n: int
    confidence_low: float
    confidence_high: float
    confidence: float
    accuracy: float
    ci_low: float
    ci_high: float
    expected_calibration_error: float


def scatter(state: CatalogState, parameters: Parameters) -> str:
    """Two models at one eval: each sample is a point, or a part of a point that stands for several."""
    evals = [row["eval"] for row in state.rows("select distinct eval from metrics order by eval")]
    eval_name = parameters.text("eval") or (evals[0] if evals else "")
    rows = state.rows(
        "select model, max(materialized_at) as at from metrics where eval = $eval group by model order by model", {"eval": eval_name}
    )
    models = [row["model"] for row in rows]
    # The form sends the names of the eval before, too; those that this eval lacks are left out.
    first = _known(parameters.text("a"), models)
    names = (first, _known(parameters.text("b"), models, [each for each in models if each != first]))
    parts: dict[str, object] = {"evals": evals, "eval": eval_name, "models": models, "names": names, "found": None}
    if names[0] is not None and names[1] is not None:
        a = find_result(state, eval_name, names[0], parameters.time("a_at"))
        b = find_result(state, eval_name, names[1], parameters.time("b_at"))
        for each in (a, b):
            if each.metric(None).get("estimate") == "history":
                why = "its samples were chosen, and are not like the others"
                raise NotFoundError(f"the score of {each.name} is an estimate by history: {why}, so it is not compared; choose another")
        shared = [name for name in a.metric_names if name in b.metric_names]
        metric = _known(parameters.text("metric"), shared)
        if metric is None:
            raise NotFoundError(f"{a.name} and {b.name} have no metric in common; choose two others")
        parts |= {"a": a, "b": b, "metrics": shared, "found": _compared(state, a, b, a.metric(metric))}
    return page("compare.html", **parts)


def _picture(cells: Sequence[Cell], low: float, high: float) -> charts.Scatter:
    across, up = charts.square([low, high])
    most = max(cell["n"] for cell in cells)
    largest = 16.0 if len(cells) <= 64 else 6.0
    dots: list[dict[str, object]] = [
        {
            **cell,
            "x": across.place((cell["a_low"] + cell["a_high"]) / 2),
            "y": up.place((cell["b_low"] + cell["b_high"]) / 2),
            "radius": round(2.5 + largest * (log10(cell["n"]) / log10(most) if most > 1 else 0), 2),
        }
        for cell in cells
    ]
    return charts.Scatter.of(dots, across, up)


def _known(name: str | None, names: Sequence[str], others: Sequence[str] | None = None) -> str | None:
    """A name if it is one of some names, else the first of `others`, by default of the same names; null if there is none."""
    return name if name in names else next(iter(names if others is None else others), None)


def _compared(state: CatalogState, a: Result, b: Result, metric: MetricRow) -> dict[str, object]:
    state.rows(_PAIRS, {"a": a.scores, "b": b.scores, "metric": metric["metric"]})
    summary: Summary = state.rows(_SUMMARY)[0]
    if not summary["n"]:
        return {"summary": summary, "metric": metric, "is_corpus": metric["aggregation"] == "corpus"}
    test, judged, proof = _tested(state, a, b, metric)
    is_binned = summary["distinct_pairs"] > _MOST_VALUES
    low, high = summary["low"], summary["high"]
    bins = {"low": low, "step": (high - low) / _BINS, "last": _BINS - 1}
    cells: list[Cell] = state.rows(_BINNED, bins) if is_binned and high > low else state.rows(_EXACT)
    table = None
    if {value for cell in cells for value in (cell["a_low"], cell["b_low"])} <= {0.0, 1.0} and not is_binned:
        counts = {(cell["a_low"], cell["b_low"]): cell for cell in cells}
        table = {key: counts.get(key) for key in ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0))}
    lower = metric["higher_is_better"] is False
    better = {"a": summary["b_higher"], "b": summary["a_higher"]} if lower else {"a": summary["a_higher"], "b": summary["b_higher"]}
    evidence = [
        f"difference {number(test.difference, '+')}",
        f"95 % interval {interval(test.ci_low, test.ci_high, '+')}",
        *([f"p {p_equals(test.p_value)} by {test.test}"] if test.p_value is not None else []),
        f"{test.n_common:,} common samples" + (f" in {test.n_clusters:,} clusters" if test.n_clusters < test.n_common else ""),
        *([f"a difference of {number(test.min_detectable)} would have been seen"] if test.min_detectable is not None else []),
    ]
    if proof.p_value is not None and metric["higher_is_better"] is not None:
        said = f"proven not worse by {proof.margin:g}" if proof.is_proven else f"may be worse by {proof.margin:g}"
        evidence.append(f"{said}: p {p_equals(proof.p_value)}")
    evidence += [f"{each.name}: {each.part}" for each in (a, b) if each.part is not None]
    figures = {"value": test.difference, "ci_low": test.ci_low, "ci_high": test.ci_high}
    most = max((abs(end) for end in figures.values() if end is not None), default=0.0) or 1.0
    axis = charts.Scale.axis([-most, most], start=2, end=98)
    # The words and the mark show which of the two is better, not only the colour.
    if judged is Verdict.NOT_COMPARABLE:
        verdict = Pill(text="too few samples for a test", mark="?", tone="warning")
    elif judged is Verdict.NOT_WORSE:
        verdict = Pill(text=f"{a.model} is {Verdict.NOT_WORSE} than {b.model}", mark="✓", tone="good")
    elif judged is Verdict.NO_CHANGE_SEEN:
        verdict = Pill(text="no difference seen", mark="=", tone="unknown")
    elif metric["higher_is_better"] is None:
        verdict = Pill(text=f"{a.model} and {b.model} differ", mark="≠", tone="unknown")
    elif judged is Verdict.IMPROVED:
        verdict = Pill(text=f"{a.model} is better than {b.model}", mark="▲", tone="good")
    else:
        verdict = Pill(text=f"{a.model} is worse than {b.model}", mark="▼", tone="bad")
    return {
        "summary": summary,
        "test": test,
        "proof": proof,
        "verdict": verdict,
        "evidence": "; ".join(evidence),
        "bar": {**figures, "bar": {name: axis.place(value) for name, value in figures.items()}, "ticks": axis.ticks()},
        "better": better,
        "metric": metric,
        "table": table,
        "picture": _picture(cells, low, high),
        "is_binned": is_binned,
    }


_SUMMARY = """
    select count(*) as n, corr(a, b) as correlation, count(*) filter (a > b) as a_higher, count(*) filter (a < b) as b_higher,
        least(min(a), min(b)) as low, greatest(max(a), max(b)) as high,
        (select count(*) from (select distinct a, b from pairs limit 1001)) as distinct_pairs
    from pairs
"""
_EXACT = "select a as a_low, a as a_high, b as b_low, b as b_high, count(*) as n from pairs group by a, b order by n desc"
_BINNED = """
    select
        count(*) as n,
        -- The least and the largest value of its samples, which are in no other point. An edge of a bin is in two of them.
        min(a) as a_low,
        max(a) as a_high,
        min(b) as b_low,
        max(b) as b_high
    from pairs
    group by least(floor((a - $low) / $step), $last)::integer, least(floor((b - $low) / $step), $last)::integer
    order by n desc
"""


_ASKED = """
    with a as (
        select sample_id, bool_or(error is not null) as is_error
        from read_parquet($a)
        where split_part(metric, '/', 1) = $name
        group by sample_id
    ),
    b as (
        select sample_id, bool_or(error is not null) as is_error
        from read_parquet($b)
        where split_part(metric, '/', 1) = $name
        group by sample_id
    )
    select (select count(*) from a) as n, (select count(*) from a join b using (sample_id) where a.is_error and not b.is_error) as n_lost
"""


def _tested(state: CatalogState, a: Result, b: Result, metric: MetricRow) -> Tested:
    """The comparison of the common samples."""
    is_macro, is_higher_better = metric["aggregation"] == "macro", metric["higher_is_better"] is not False
    key = (*a.scores, *b.scores, metric["metric"], is_macro, is_higher_better)
    if key not in _tests:
        # Samples without a cluster stand alone. Numbers are compared many times faster than texts.
        columns = state.columns("select a, b, hash(cluster) as cluster, cluster is null as is_alone, hash(subject) as subject from pairs")
        clusters = None
        if not columns["is_alone"].all():
            clusters = np.where(columns["is_alone"], np.arange(len(columns["a"]), dtype=np.uint64), columns["cluster"]).tolist()
        while len(_tests) >= _MOST_TESTS:
            del _tests[next(iter(_tests))]
        subjects = columns["subject"].tolist() if is_macro else None
        ends = [end(columns[side]) for side in ("a", "b") for end in (np.min, np.max)]
        name = metric["metric"].partition("/")[0]
        known, low, high = _built_in().get(name), metric["bound_low"], metric["bound_high"]
        bounds = None if low is None or high is None else (low, high)
        if bounds is None or not all(is_between(float(end), bounds) for end in ends):
            bounds = None if known is None else known_bounds(known, [float(each) for each in ends])
        found = compare_means(columns["a"], columns["b"], clusters=clusters, subjects=subjects, bounds=bounds)
        [judged] = judge_suite([Case(comparison=found, higher_is_better=is_higher_better)])
        [asked] = state.rows(_ASKED, {"a": a.scores, "b": b.scores, "name": name})
        proof = proof_of_pair(
            found,
            margin=None,
            is_share=found.are_shares if known is None else known.IS_PROPORTION,
            higher_is_better=is_higher_better,
            n_samples=asked["n"] + (a.metric(None)["n_not_asked"] or 0),
            n_lost=asked["n_lost"],
            is_part=a.part is not None or b.part is not None,
        )
        is_not_worse = proof.is_proven and judged.verdict is Verdict.NO_CHANGE_SEEN and metric["higher_is_better"] is not None
        _tests[key] = Tested(found, Verdict.NOT_WORSE if is_not_worse else judged.verdict, proof)
    return _tests[key]


@cache
def _built_in() -> dict[str, type[BaseMetric[Any]]]:
    """The metrics of this package by name. The bounds of others are in files that pages do not run."""
    places = [(name, module) for name, module in eval_dagster._MODULE_OF.items() if module.startswith(f"{metrics.__name__}.")]
    values = (getattr(import_module(module), name) for name, module in places)
    return {each.NAME: each for each in values if isinstance(each, type) and issubclass(each, BaseMetric) and hasattr(each, "NAME")}


def agreement(state: CatalogState, parameters: Parameters) -> str:
    """How far the metrics of one result agree: for each two of them the correlation over the samples, and the share of equal values."""
    result = find_result(state, parameters.required("eval"), parameters.required("model"), parameters.time("at"))
    rows = state.rows(
        "select metric, count(value) as n from read_parquet($scores) group by metric order by metric", {"scores": result.scores}
    )
    known = [row["metric"] for row in rows if row["n"]]
    headline = [name for name in result.metric_names if name in known]
    names = [*headline, *(name for name in known if name not in headline)]
    shown = names[:_MOST_METRICS]
    pairs = list(combinations(range(len(shown)), 2))
    found: dict[tuple[int, int], Agreement] = {}
    if pairs:
        wide = ", ".join(f"max(value) filter (metric = $m{place}) as v{place}" for place in range(len(shown)))
        columns = ", ".join(f"corr(v{a}, v{b}) as c{a}_{b}, avg((v{a} = v{b})::integer) as e{a}_{b}" for a, b in pairs)
        query = f"select {columns} from (select {wide} from read_parquet($scores) group by sample_id)"
        values: dict[str, float | None]
        [values] = state.rows(query, {"scores": result.scores, **{f"m{place}": name for place, name in enumerate(shown)}})
        found = {(a, b): Agreement(correlation=values[f"c{a}_{b}"], equal=values[f"e{a}_{b}"]) for a, b in pairs}
    cells = [[found.get((min(a, b), max(a, b))) for b in range(len(shown))] for a in range(len(shown))]
    return page("agreement.html", result=result, names=shown, cells=cells, left_out=len(names) - len(shown))


_LARGEST = 9.0


def calibration(state: CatalogState, parameters: Parameters) -> str:
    """The bins of confidence of the current result of an eval and a model, with the accuracy of each."""
    key = {"eval": parameters.required("eval"), "model": parameters.required("model")}
    bins: list[Bin] = state.rows("select * from calibration where eval = $eval and model = $model order by bin", key)
    models = [
        row["model"] for row in state.rows("select distinct model from metrics where eval = $eval order by model", {"eval": key["eval"]})
    ]
    across, up = charts.square([0.0, 1.0])
    most = max((row["n"] for row in bins), default=1)
    dots: list[dict[str, object]] = [
        {
            **row,
            "x": across.place(row["confidence"]),
            "y": up.place(row["accuracy"]),
            "low": up.place(row["ci_low"]),
            "high": up.place(row["ci_high"]),
            "radius": round(2.5 + _LARGEST * (row["n"] / most) ** 0.5, 2),
        }
        for row in bins
    ]
    picture = charts.Scatter.of(dots, across, up)
    return page("calibration.html", **key, models=models, bins=bins, picture=picture, total=sum(row["n"] for row in bins))
