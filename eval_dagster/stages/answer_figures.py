"""Computes the columns of `metrics` about answers, and finds the states of the servers that gave them. It asks no model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import looks_at_model
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.metrics.base import BaseMetric, CorpusMetric, ItemMetric, RowMetric, bounds_of, is_between, response_kind
from eval_dagster.records import Loglikelihood
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.answer_columns import Answers
from eval_dagster.stages.score_columns import NONE, Codes, Flags, Floats, Scores, base_name, numbers
from eval_dagster.tasks.base import BaseTask

_Key = tuple[str, str, str | None]
"""Metric, aggregation and subject of a row of `metrics`."""


# ---- states of a server


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """A time in which the looks at a server found no change."""

    name: str
    """Two states have the same name if the server went back to the answers that opened an epoch."""
    since: datetime | None
    """Time of the look that found it. Null for the first one."""


def server_states(lake: Lake, model: str) -> list[ServerState]:
    """The states of the server of a model, the oldest first, by the rows of `endpoint_states`. Empty if nobody has looked."""
    looks = looks_at_model(lake, model)
    last = {row["run_id"]: row for row in looks if row["endpoint"] == looks[-1]["endpoint"]}  # a second look of a run decides
    states: list[ServerState] = []
    for row in sorted(last.values(), key=lambda row: row["looked_at"]):
        is_known = row["outcome"] != "different" or row["epoch_rose"]
        opened = f"epoch {row['epoch'] - bool(row['epoch_rose'])}"
        states = states or [ServerState(name=opened, since=None)]
        # Under a pin, the epoch stays: all answers that differ from its first ones are one state.
        name = f"epoch {row['epoch']}" if is_known else f"{opened}, changed"
        if name != states[-1].name:
            states.append(ServerState(name=name, since=row["looked_at"]))
    return states


# ---- figures of metrics


@dataclass(frozen=True, kw_only=True, eq=False)
class _Answered:
    """The scored samples of a metric with their answers: one, or all answers about a row of the dataset if the metric scores rows."""

    n_samples: int
    subjects: Codes
    """The subject of each sample, by its code."""
    n_subjects: int
    targets: Codes
    """The sample that each answer belongs to; -1 without one."""
    answers: Answers

    def any_answer(self, is_so: Flags) -> Flags:
        """Whether one of the answers of each sample is so."""
        found = np.zeros(self.n_samples, dtype=np.bool_)
        found[self.targets[is_so & (self.targets != NONE)]] = True
        return found

    @cached_property
    def is_cut(self) -> Flags:
        return self.any_answer(self.answers.cut_off > 0)

    @cached_property
    def has_text(self) -> Flags:
        return self.any_answer(~np.isnan(self.answers.cut_off))

    def by_subject(self, samples: Flags) -> NDArray[np.intp]:
        """The number of these samples in each subject."""
        return np.bincount(self.subjects[samples], minlength=self.n_subjects)


def with_answer_figures(task: type[BaseTask[Any]], rows: Sequence[MetricRow], scores: Scores, answers: Answers) -> list[MetricRow]:
    """Rows of `metrics` with the columns about answers: counts of samples, the value without cut-off answers, and its bounds."""
    of_metric = {name: _answered(scores, answers, name) for name in scores.bases}
    whole: dict[_Key, MetricRow] = {_key(row): row for row in rows}
    ends: list[dict[_Key, MetricRow]] = [{}, {}]
    if any(each.is_cut.any() for each in of_metric.values()):
        is_cut, is_bounded = (np.zeros(len(scores), dtype=np.bool_) for _ in range(2))
        values = np.empty((2, len(scores)))
        bounds = _bounds(rows, scores)
        for name, own in scores.bases.items():
            is_cut[own] = of_metric[name].is_cut[scores.samples.codes[own]]
            is_bounded[own] = name in bounds
            values[:, own] = np.reshape(bounds.get(name, (math.nan, math.nan)), (2, 1))
        whole = _aggregated(task, scores.where(~is_cut))
        replaced = is_cut & ~np.isnan(scores.values)
        for end, found in zip(values, ends, strict=True):
            found |= _aggregated(task, replace(scores, values=np.where(replaced, end, scores.values)).where(is_bounded))
    subjects = {text: code for code, text in enumerate(scores.subjects.texts.to_pylist())}
    counted = {name: _counts(each, name) for name, each in of_metric.items()}
    chances = _chances(task, scores, answers)
    figures: list[MetricRow] = []
    for row in rows:
        counts = counted[base_name(row["metric"])]
        number = {what: int(each.sum() if row["subject"] is None else each[subjects[row["subject"]]]) for what, each in counts.items()}
        has_texts, completed = number["texts"] > 0, whole.get(_key(row))
        bound = [found.get(_key(row)) for found in ends] if number["cut"] else [row, row]
        added: dict[str, int | float | None] = {
            f"n_{what}": number[what] if has_texts else None for what in ("cut_off", "empty", "refused", "repeated")
        }
        added["n_unparsed"] = number["unparsed"] if number["named"] else None
        added["n_shortened"] = number["shortened"]
        added["n_completed"] = (completed["n"] if completed else 0) if has_texts else None
        added["value_completed"] = completed["value"] if completed and has_texts else None
        for column, found_row in zip(("value_lowest", "value_highest"), bound, strict=True):
            added[column] = found_row["value"] if found_row and has_texts else None
        added["chance"] = _chance(row, chances, subjects, scores)
        figures.append(cast(MetricRow, {**row, **added}))
    return figures


def may_know_chance(metric: type[BaseMetric[Any]]) -> bool:
    """Whether a metric may count correct choices, so that the score of guessing is known: its values and choices tell."""
    is_of_choices = response_kind(metric) is Loglikelihood and not issubclass(metric, CorpusMetric | ItemMetric | RowMetric)
    return is_of_choices and metric.HIGHER_IS_BETTER and metric.BEST == 1.0 and bounds_of(metric) in (None, (0.0, 1.0))


def _chances(task: type[BaseTask[Any]], scores: Scores, answers: Answers) -> Mapping[str, Floats]:
    """By metric that counts correct choices, the probability of each scored sample that a guess is correct; NaN without a score."""
    n_choices, gold = answers.n_choices, answers.gold.counts
    of_samples = np.full(len(scores.samples.texts), np.nan)
    asked = (n_choices > 1) & (gold > 0) & (answers.samples != NONE)
    of_samples[answers.samples[asked]] = gold[asked] / n_choices[asked]
    shares = [0.0, *(1 / ties for ties in range(1, int(n_choices.max(initial=1)) + 1))]
    found: dict[str, Floats] = {}
    for metric in task.METRICS:
        rows = scores.bases.get(metric.NAME, np.empty(0, dtype=np.intp))
        rows = rows[~np.isnan(scores.values[rows])]
        values, samples = scores.values[rows], scores.samples.codes[rows]
        if len(rows) and may_know_chance(metric) and np.isin(values, shares).all() and not np.isnan(of_samples[samples]).any():
            found[metric.NAME] = np.full(len(of_samples), np.nan)
            found[metric.NAME][samples] = of_samples[samples]
    return found


def _chance(row: MetricRow, chances: Mapping[str, Floats], subjects: Mapping[str, int], scores: Scores) -> float | None:
    """The score of guessing, averaged as the metric is: over samples, or over the means of subjects."""
    of_samples = chances.get(row["metric"])
    if of_samples is None or row["aggregation"] == "corpus":
        return None
    of_subject = np.full(len(of_samples), NONE, dtype=np.int32)
    of_subject[scores.samples.codes] = scores.subjects.codes
    wanted = ~np.isnan(of_samples) & ((of_subject == subjects[row["subject"]]) if row["subject"] is not None else True)
    if not wanted.any():
        return None
    codes = of_subject[wanted] if row["aggregation"] == "macro" else np.zeros(int(wanted.sum()), dtype=np.int32)
    _, groups, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    return float((np.bincount(groups, of_samples[wanted]) / sizes).mean())


def _answered(scores: Scores, answers: Answers, metric: str) -> _Answered:
    rows = scores.bases[metric]
    samples, sources = scores.samples.codes[rows], scores.sources.codes[rows]
    is_scored, subjects = np.zeros(len(scores.samples.texts), dtype=np.bool_), np.zeros(len(scores.samples.texts), dtype=np.int32)
    is_scored[samples] = True
    subjects[scores.samples.codes] = scores.subjects.codes
    targets = np.where((answers.samples != NONE) & is_scored[answers.samples], answers.samples, NONE)
    if (without := np.flatnonzero(targets == NONE)).size:
        first_of_row = np.full(len(scores.sources.texts) + 1, NONE, dtype=np.int32)  # the last is for a row without a score
        first_of_row[sources[::-1]] = samples[::-1]
        first_of_row[-1] = NONE
        source = numbers(pc.index_in(answers.sources.texts, value_set=scores.sources.texts), NONE)
        targets[without] = first_of_row[source[answers.sources.codes[without]]]
    return _Answered(n_samples=len(is_scored), subjects=subjects, n_subjects=len(scores.subjects.texts), targets=targets, answers=answers)


def _counts(answered: _Answered, metric: str) -> Mapping[str, NDArray[np.intp]]:
    """By subject, the samples of a metric with an answer of each kind."""
    answers = answered.answers
    unparsed = answers.unparsed.get(metric, np.full(len(answers), np.nan))
    of_texts = {name: cast("NDArray[np.float64]", getattr(answers, name)) > 0 for name in ("cut_off", "empty", "refused", "repeated")}
    of_texts |= {"unparsed": unparsed > 0, "named": ~np.isnan(unparsed)}
    return {
        **{name: answered.by_subject(answered.has_text & answered.any_answer(is_so)) for name, is_so in of_texts.items()},
        "texts": answered.by_subject(answered.has_text),
        "cut": answered.by_subject(answered.is_cut),
        "shortened": answered.by_subject(answered.any_answer(answers.is_shortened)),
    }


def _key(row: MetricRow) -> _Key:
    return row["metric"], row["aggregation"], row["subject"]


def _aggregated(task: type[BaseTask[Any]], scores: Scores) -> dict[_Key, MetricRow]:
    return {_key(row): row for row in metric_rows(task, scores)} if len(scores) else {}


def _bounds(rows: Sequence[MetricRow], scores: Scores) -> dict[str, tuple[float, float]]:
    """The ends of the values of each metric that is a mean of samples, if they are known and finite."""
    found: dict[str, tuple[float, float]] = {}
    corpora = {base_name(row["metric"]) for row in rows if row["aggregation"] == "corpus"}
    for row in rows:
        name, low, high = base_name(row["metric"]), row["bound_low"], row["bound_high"]
        if name not in corpora and low is not None and high is not None and math.isfinite(low) and math.isfinite(high):
            found[name] = (low, high)
    values = {name: scores.values[scores.bases[name]] for name in found}
    ends = {name: of_name[~np.isnan(of_name)] for name, of_name in values.items()}
    return {
        name: bounds
        for name, bounds in found.items()
        if not len(ends[name]) or (is_between(float(ends[name].min()), bounds) and is_between(float(ends[name].max()), bounds))
    }
