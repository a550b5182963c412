"""Computes the relation `aggregates` of a catalog, from its current metrics and from the scores behind them.

A catalog has the rows itself, since a bootstrap is no query. They are computed when it is published, for models whose metrics changed or
for all if evals.yaml has other aggregates. So they always belong to the metrics beside them.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from eval_dagster.lake.files import Configured, ConfiguredAggregate
from eval_dagster.lake.tables.columns import AggregateRow
from eval_dagster.lake.tables.schemas import schema_of
from eval_dagster.statistics.aggregates import Part, Scale, aggregate_mean, aggregate_median, influences, mixed_scales

KIND = "aggregates"
"""The kind of the row of `internal._configured` with the definitions."""
SCHEMA = schema_of(AggregateRow)
_CHOSEN = pa.schema(
    [("place", pa.int64()), ("eval", pa.string()), ("model", pa.string()), ("metric", pa.string()), ("is_corpus", pa.bool_())]
)


def definitions(known: Configured | None) -> str | None:
    """The definitions of all aggregates as a text. None without any."""
    return json.dumps([asdict(each) for each in known.aggregates]) if known is not None and known.aggregates else None


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The current result of a metric of an eval and a model."""

    eval: str
    model: str
    metric: str
    aggregation: str
    value: float | None
    stderr: float | None
    n_clusters: int
    higher_is_better: bool
    bound_low: float | None
    bound_high: float | None
    is_headline: bool
    scores_file: str | None
    chance: float | None
    estimate: str | None

    @property
    def is_even(self) -> bool:
        """Whether the scores behind it stand for all samples: an estimate by history has chosen ones."""
        return self.estimate != "history"

    @property
    def scale(self) -> Scale:
        bounds = None if self.bound_low is None or self.bound_high is None else (self.bound_low, self.bound_high)
        return Scale(metric=self.metric, higher_is_better=self.higher_is_better, bounds=bounds)


@dataclass(frozen=True, kw_only=True)
class _Samples:
    """The samples behind a result, as numbers that are equal in all evals for equal texts."""

    clusters: NDArray[np.uint64]
    samples: NDArray[np.uint64]
    influence: NDArray[np.float64] | None
    """Null for a metric of all samples together."""


_Results = dict[tuple[str, str | None], _Found]
"""By eval and the metric that an aggregate names."""


def current_results(connection: duckdb.DuckDBPyConnection, aggregates: Sequence[ConfiguredAggregate], model: str) -> _Results:
    """The current results of a model that its aggregates take."""
    evals = sorted({name for each in aggregates if model in each.models for name in each.evals})
    columns = ", ".join(_Found.__dataclass_fields__).replace("n_clusters", "coalesce(n_clusters, n)")
    rows = connection.execute(
        f"select {columns} from internal._current_metrics where subject is null "  # noqa: S608 - names of fields
        "and eval in (select unnest($evals)) and model = $model order by is_headline, aggregation = 'macro' desc",
        {"evals": evals, "model": model},
    ).fetchall()
    named = {each.metric for each in aggregates if each.metric is not None}
    found: _Results = {}
    for row in (_Found(**dict(zip(_Found.__dataclass_fields__, each, strict=True))) for each in rows):
        if row.is_headline:
            found[row.eval, None] = row
        if row.metric in named:  # of two rows of a metric the headline, else the mean of the samples
            found[row.eval, row.metric] = row
    return found


def aggregate_rows(
    connection: duckdb.DuckDBPyConnection, aggregates: Sequence[ConfiguredAggregate], model: str, results: _Results
) -> pa.Table:
    """The rows of the aggregates of a model. The relation `aggregated_scores` has the scores behind the results."""
    parts = _samples_of(connection, list({id(each): each for each in results.values()}.values()))
    rows = [
        _row(each, model, [results.get((name, each.metric)) for name in each.evals], parts) for each in aggregates if model in each.models
    ]
    return pa.Table.from_pylist(list(map(dict, rows)), schema=SCHEMA)


def _samples_of(connection: duckdb.DuckDBPyConnection, results: Sequence[_Found]) -> dict[int, _Samples]:
    """The samples of results, by the identity of each."""
    table = [
        {
            "place": place,
            "eval": each.eval,
            "model": each.model,
            "metric": each.metric,
            "is_corpus": each.aggregation == "corpus",
        }
        for place, each in enumerate(results)
    ]
    connection.register("chosen_results", pa.Table.from_pylist(table, schema=_CHOSEN))
    # Clusters that are not rows of the dataset, such as numbers of documents, are those of one dataset.
    found = connection.execute(
        """
        with datasets as (
            select eval, any_value(dataset_path) as dataset_path
            from samples
            where eval in (select eval from chosen_results)
            group by eval
        )
        select
            chosen.place,
            coalesce(s.cluster, s.sample_id) as own,
            coalesce(s.source_id, s.sample_id) as source,
            hash(case when own = source then own else concat(datasets.dataset_path, chr(10), own) end) as cluster,
            hash(s.subject) as subject,
            hash(s.sample_id) as sample,
            case when chosen.is_corpus then 0 else s.value end as value
        from aggregated_scores as s
        join chosen_results as chosen
            on s.eval = chosen.eval
            and s.model = chosen.model
            and case when chosen.is_corpus then split_part(s.metric, '/', 1) else s.metric end = chosen.metric
        left join datasets
            on s.eval = datasets.eval
        where (chosen.is_corpus and s.error is null) or isfinite(s.value)
        order by chosen.place, sample
        """
    ).fetchnumpy()
    places, columns = np.asarray(found["place"]), {name: np.asarray(found[name]) for name in ("cluster", "subject", "sample", "value")}
    starts = np.searchsorted(places, np.arange(len(results) + 1))
    parts: dict[int, _Samples] = {}
    for place, each in enumerate(results):
        own = {name: column[starts[place] : starts[place + 1]] for name, column in columns.items()}
        is_mean = each.aggregation != "corpus" and len(own["value"]) > 0
        influence = influences(own["value"], own["subject"] if each.aggregation == "macro" else None) if is_mean else None
        parts[id(each)] = _Samples(clusters=own["cluster"], samples=own["sample"], influence=influence)
    return parts


def _row(aggregate: ConfiguredAggregate, model: str, results: Sequence[_Found | None], parts: dict[int, _Samples]) -> AggregateRow:
    usable = [
        each
        for each in results
        if each is not None and each.value is not None and each.is_even and not (aggregate.normalised and _chance(each) is None)
    ]
    named = {each.eval for each in usable}
    row = AggregateRow(
        suite=aggregate.suite,
        aggregate=aggregate.name,
        model=model,
        value=None,
        stderr=None,
        ci_low=None,
        ci_high=None,
        n_evals=len(usable),
        n_samples=len(np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *(parts[id(each)].samples for each in usable)]))),
        missing=[name for name in aggregate.evals if name not in named],
        reason=None,
    )
    if row["missing"]:
        row["reason"] = _why_missing(aggregate, results)
        return row
    if not aggregate.normalised and (problem := mixed_scales([(each.eval, each.scale) for each in usable])) is not None:
        row["reason"] = problem
        return row
    members = [_part(each, parts[id(each)], aggregate) for each in usable]
    found = aggregate_median(members) if aggregate.of == "median" else aggregate_mean(members, aggregate.weights)
    row["value"], row["stderr"], row["ci_low"], row["ci_high"] = found.value, found.stderr, found.ci_low, found.ci_high
    return row


def _chance(result: _Found) -> float | None:
    """The score of guessing. None if it is not known, or already the best score."""
    return result.chance if result.chance is not None and result.chance < 1 else None


def _why_missing(aggregate: ConfiguredAggregate, results: Sequence[_Found | None]) -> str:
    metric = f"result with the metric {aggregate.metric}" if aggregate.metric else "result with a headline metric"
    lacking: dict[str, list[str]] = defaultdict(list)
    for name, each in zip(aggregate.evals, results, strict=True):
        if each is None:
            lacking[f"no {metric}"].append(name)
        elif each.value is None:
            lacking["no sample with a value"].append(name)
        elif not each.is_even:
            lacking["an estimate by history, whose error goes with no other's"].append(name)
        elif aggregate.normalised and _chance(each) is None:
            lacking["no known score by chance"].append(name)
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in lacking.items())


def _part(result: _Found, samples: _Samples, aggregate: ConfiguredAggregate) -> Part:
    """A score in an aggregate, normalised if the aggregate asks for it."""
    assert result.value is not None
    chance = _chance(result) if aggregate.normalised else None
    low, scale = (0.0, 1.0) if chance is None else (chance, 1 - chance)
    bounds = result.scale.bounds
    return Part(
        value=(result.value - low) / scale,
        stderr=None if result.stderr is None else result.stderr / scale,
        bounds=None if bounds is None else ((bounds[0] - low) / scale, (bounds[1] - low) / scale),
        clusters=samples.clusters,
        influence=samples.influence,
        n_clusters=result.n_clusters,
    )
