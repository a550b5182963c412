"""Warns of scores that fall slowly: the evidence from all states since the anchor, beside the test of one result against it.

A drift is a warning and not red: it has a rate of false alarms of its own, and spends nothing of the suite's alpha.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eval_dagster.errors import EvalDagsterError
from eval_dagster.gate.looks import is_part
from eval_dagster.gate.partition import Partition
from eval_dagster.gate.scored_again import is_same_ruler
from eval_dagster.lake.format.parquet_files import time_of
from eval_dagster.records.judgements import SOUND, Regression
from eval_dagster.results.materializations import Materialization, overall
from eval_dagster.results.paired_scores import numbers_of_texts
from eval_dagster.statistics.drift import LEVEL, MOST_STATES, Evidence, drift_evidence

_WORSE = 0.05
"""A result is warned of as long as its own p-value against the anchor is at most this."""


def with_drift(row: Regression, partition: Partition, results: int) -> Regression:
    """The row with the evidence that its score falls slowly since the anchor, or as it was if there is none.

    States between anchor and result that cannot be read are left out. A night that stopped early adds no evidence: it has that of the last
    whole night, and its warning, since a part of the samples does not show whether the score has recovered.

    Args:
        row: A judged row.
        partition: Its eval and model.
        results: Number of results of the suite. Each may warn falsely with its part of the level.
    """
    anchor_at = row.anchor_materialized_at
    if row.metric is None or row.difference is None or anchor_at is None:
        return row
    limit = results / LEVEL
    if row.n_not_asked:
        before = _before(partition, row.metric, anchor_at)
        if before is None:
            return row
        is_drifting = row.verdict in SOUND and bool(before.is_drifting)
        return replace(
            row, drift_e_value=before.drift_e_value, drift_e_limit=limit, drift_since=before.drift_since, is_drifting=is_drifting
        )
    try:
        states = _states(partition, row.metric, anchor_at)
        found = _evidence(states, row.metric)
    except EvalDagsterError:  # the anchor or the result is damaged, or the answers of the anchor cannot be scored again
        return row
    if found is None:
        return row
    largest, since = found
    before = _before(partition, row.metric, anchor_at)
    if before is not None and (before.drift_e_value or 0.0) > largest:
        largest, since = before.drift_e_value or 0.0, before.drift_since or since
    fall, p_value = (row.difference, row.p_value) if row.drift is None else (row.drift, row.drift_p_value)
    is_worse = p_value is not None and p_value <= _WORSE and (fall < 0) is (row.higher_is_better is not False)
    return replace(
        row,
        drift_e_value=largest,
        drift_e_limit=limit,
        drift_since=since,
        is_drifting=row.verdict in SOUND and largest >= limit and is_worse,
    )


def _before(partition: Partition, metric: str, anchor_at: datetime) -> Regression | None:
    """The newest row with evidence since the anchor. None if there is none."""
    of_anchor = takewhile(lambda each: time_of(each.path) >= anchor_at, partition.standings.judgements())
    known = (each for judgement in of_anchor for each in judgement.of(partition.key, metric) if each.drift_e_value is not None)
    newest = next(known, None)
    return newest if newest is not None and newest.anchor_materialized_at == anchor_at else None


def _states(partition: Partition, metric: str, anchor_at: datetime) -> list[Materialization]:
    """The states since the anchor that are compared with each other: the anchor, those that passed, and the result, each once."""
    *earlier, current = partition.points
    anchor = partition.rescorer.readable(partition.eval_name, partition.model, anchor_at)
    judged = partition.standings.judged_since(partition.key, metric, anchor_at)
    passed = [
        point
        for point in earlier
        if point.materialized_at > anchor_at and all(judged.get(point.materialized_at, ([False], []))[0]) and not is_part(point)
    ]
    alike = [point for point in passed if _is_like(current, point, metric)]
    found = {point.scores_version: point for point in reversed([partition.rescorer.like(current, anchor, metric), *alike, current])}
    return sorted(found.values(), key=lambda point: point.materialized_at)


def _is_like(current: Materialization, point: Materialization, metric: str) -> bool:
    """Whether an earlier state has scores of the same metric that can be read."""
    try:
        return (
            metric in overall(point) and is_same_ruler(current, point, metric) and point.has_scores and bool(len(point.scores_of(metric)))
        )
    except EvalDagsterError:
        return False


def _evidence(states: Sequence[Materialization], metric: str) -> tuple[float, datetime] | None:
    """The largest evidence, with the time of the state after which the fall begins. None for a metric of all samples together.

    Raises `LakeError` if scores were deleted.
    """
    row = overall(states[-1])[metric]
    if row["aggregation"] == "corpus":
        return None
    if len(states) < 2:
        return 1.0, states[0].materialized_at
    block = (len(states) - 2) // MOST_STATES
    states = states[block * MOST_STATES :]
    tables = [state.scores_of(metric).select(["sample_id", "subject", "cluster", "value"]) for state in states]
    every = pa.concat_tables(tables)
    samples = pc.unique(every["sample_id"])
    scores = np.full((len(states), len(samples)), np.nan)
    for of_state, table in zip(scores, tables, strict=True):
        of_state[pc.index_in(table["sample_id"], value_set=samples).to_numpy()] = table["value"].to_numpy()
    first = pc.index_in(samples, value_set=every["sample_id"].combine_chunks())
    clusters, subjects = (numbers_of_texts(every[name].take(first)).tolist() for name in ("cluster", "subject"))
    found: Evidence = drift_evidence(
        scores,
        higher_is_better=row["higher_is_better"] is not False,
        are_alike=all(state.versions == states[-1].versions for state in states),
        clusters=clusters if len(set(clusters)) < len(clusters) else None,
        subjects=subjects if row["aggregation"] == "macro" else None,
        block=block,
    )
    return found.largest, states[found.start].materialized_at
