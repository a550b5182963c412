"""Asks again the samples of a result that a test found worse. The result stays red if fresh answers confirm the fall.

`judge` marks such results as unconfirmed and asks nothing. A run that judges a suite confirms them before it writes the judgement.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from eval_dagster.errors import EvalDagsterError, LakeError
from eval_dagster.gate.judgement import judge
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import read_judgement
from eval_dagster.gate.scored_again import Rescorer
from eval_dagster.lake.format.parquet_files import time_of
from eval_dagster.lake.tables.columns import ScoreRow
from eval_dagster.metrics.base import BaseMetric, CorpusMetric, ItemMetric, item_of
from eval_dagster.project import Project
from eval_dagster.records.judgements import Against, FreshSample, Regression, Verdict
from eval_dagster.results.materializations import Materialization, overall
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.rescoring import FreshAnswers, FreshScore, ask_again
from eval_dagster.stages.scores import statistic_names
from eval_dagster.statistics.verdicts import (
    FEWEST,
    FreshTest,
    fresh_test,
    fresh_test_of_corpora,
    fresh_test_of_items,
    level_of_fresh,
    share_of_unflipped,
)
from eval_dagster.versions.hashes import stable_hash

Content: TypeAlias = tuple[Any, ...]
"""The value, the item or the statistics of one sample. A metric is computed from the contents of all samples."""
_NOT_POSSIBLE = "could not be confirmed: "
_SAME = ("eval", "model", "metric", "materialized_at", "baseline_materialized_at", "anchor_materialized_at")
"""Fields that are equal in two rows about the same fall."""
_FOUND = (
    *("verdict", "against", "reason", "confirmation", "fall_level"),
    *("n_fresh", "fresh_difference", "fresh_stderr", "fresh_p_value", "fresh_level"),
)
"""Fields of a confirmed or refuted row."""


@dataclass(frozen=True, kw_only=True)
class Fall:
    """A row, and the state that its result is worse than."""

    row: Regression
    against: Against
    now: Materialization
    before: Materialization
    level: float
    """Two-sided level of the judgement."""
    metrics: Sequence[type[BaseMetric[Any]]]
    """The task's metrics."""

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return self.row.metric or ""

    @cached_property
    def of_all(self) -> type[BaseMetric[Any]] | None:
        """The metric's class, if it is computed from all samples together. None for a mean."""
        if not any(row["metric"] == self.metric and row["aggregation"] == "corpus" for row in self.now.metric_rows):
            return None
        return next(metric for metric in self.metrics if self.metric.partition("/")[0] == metric.NAME)

    @property
    def p_value(self) -> float:
        """Two-sided p-value of the test that found the fall."""
        return (self.row.p_value if self.against == "baseline" else self.row.drift_p_value) or 0.0

    @cached_property
    def contents(self) -> dict[str, tuple[Content, Content]]:
        """The contents now and before, for each sample with both."""
        now, before = self.contents_in(self.now.scores_by_metric), self.contents_in(self.before.scores_by_metric)
        return {name: (now[name], before[name]) for name in sorted(now) if name in before}

    @property
    def rows(self) -> Mapping[str, ScoreRow]:
        """A row of `scores` for each sample, with its cluster and its subject."""
        return self.now.scores_by_metric[self._names[0]]

    @property
    def flipped(self) -> set[str]:
        """The samples that are scored differently."""
        return {name for name, (now, before) in self.contents.items() if now != before}

    @property
    def _names(self) -> list[str]:
        return statistic_names(self.of_all) if self.of_all is not None and issubclass(self.of_all, CorpusMetric) else [self.metric]

    def contents_in(self, scores: Mapping[str, Mapping[str, FreshScore]]) -> dict[str, Content]:
        """The content of each sample that has one, in scores by metric and sample."""
        columns = [scores.get(name, {}) for name in self._names]
        if self.of_all is not None and issubclass(self.of_all, ItemMetric):
            found = {name: (row["value"], row["item"]) for name, row in columns[0].items()}
            return {name: content for name, content in found.items() if content != (None, None)}
        values = {name: tuple(column[name]["value"] if name in column else None for column in columns) for name in columns[0]}
        return {name: content for name, content in values.items() if None not in content}

    def tested(self, fresh: FreshAnswers, asked_whole: set[str]) -> FreshTest | None:
        """The test by fresh answers. None if they do not suffice. `asked_whole` are the dataset rows whose samples were all asked."""
        found, is_better = self.contents_in(fresh.scores), bool(self.row.higher_is_better)
        names = [name for name in self.contents if self.of_all is None or name in found]
        now, before = [self.contents[name][0] for name in names], [self.contents[name][1] for name in names]
        clusters = [self.rows[name]["cluster"] for name in names]
        if self.of_all is None:
            is_macro = overall(self.now)[self.metric]["aggregation"] == "macro"
            return fresh_test(
                [value for (value,) in now],
                [value for (value,) in before],
                [found[name][0] if name in found else None for name in names],
                is_flipped=[self.rows[name]["source_id"] in asked_whole for name in names],
                higher_is_better=is_better,
                clusters=clusters,
                subjects=[self.rows[name]["subject"] for name in names] if is_macro else None,
            )
        again = [found[name] for name in names]
        if issubclass(self.of_all, CorpusMetric):
            a, b, c = (np.array(side, dtype=float).reshape(len(names), -1) for side in (now, before, again))
            return fresh_test_of_corpora(a, b, c, self.of_all.aggregate, clusters=clusters, higher_is_better=is_better)
        assert issubclass(self.of_all, ItemMetric)
        triples = [tuple(item_of({"value": value, "item": item}) for value, item in each) for each in zip(now, before, again, strict=True)]
        return fresh_test_of_items(triples, self.of_all.aggregate, clusters=clusters, higher_is_better=is_better)

    def level_for(self, found: FreshTest) -> float:
        """The one-sided level of the test by fresh answers."""
        is_step = self.against == "baseline"
        adjusted = self.row.p_adjusted if is_step else self.row.drift_p_adjusted
        own = self.level * self.p_value / adjusted if adjusted and self.p_value else self.level  # the rest left by Holm's correction
        fall = abs((self.row.difference if is_step else self.row.drift) or 0.0)
        return level_of_fresh(fall, self.p_value, own, found.stderr)

    def fresh_samples(self, fresh: FreshAnswers) -> list[FreshSample]:
        """The samples of the comparison that were asked again."""
        again, flipped = self.contents_in(fresh.scores), self.flipped
        is_valued = self.of_all is None
        return [
            FreshSample(
                eval=self.row.eval,
                model=self.row.model,
                metric=self.metric,
                against=self.against,
                sample_id=name,
                is_flipped=name in flipped,
                value=now[0] if is_valued else None,
                baseline_value=before[0] if is_valued else None,
                fresh_value=again[name][0] if is_valued and name in again else None,
                has_fresh_score=name in again,
                fresh_answer=fresh.texts.get(name),
                sample_name=self.rows[name].get("sample_name"),
            )
            for name, (now, before) in self.contents.items()
            if name in fresh.texts
        ]


def judge_and_confirm(project: Project, suite: str, *, run_id: str, since: datetime | None = None) -> GateResult:
    """Judge a suite, and confirm its falls. Writes only fresh answers.

    Fresh answers can take hours. If another judgement was written meanwhile, the suite is judged again, from the newest results and
    judgements. Fresh answers are stored, so the second time asks for few.
    """
    while True:
        with project.lake.steady():
            judged = judge(project, suite, run_id=run_id, since=since)
        result = confirm(project, judged)
        paths = project.lake.files(project.lake.folder("regressions", suite))
        if not paths or time_of(paths[-1]) < result.judged_at:
            return result


def confirm(project: Project, result: GateResult) -> GateResult:
    """The result after fresh answers to the samples of its unconfirmed rows. Progress is reported to the current reporter.

    A fall that fresh answers do not show becomes `no change seen`, or `not comparable` on less than half of the baseline's samples. Without
    fresh answers, the row stays as it is, with the reason. If the last judgement confirmed or refuted a fall, it is not asked about again.
    Writes only the answers.
    """
    known: dict[tuple[Any, ...], Regression] = {}
    with suppress(LakeError):  # a damaged judgement is not used
        if (last := project.lake.current("regressions", result.suite)) is not None:
            known = {_same(row): row for row in read_judgement(last.path)[1] if row.confirmation in ("confirmed", "refuted")}
    rows, fresh, warnings = list(result.regressions), list(result.fresh), list(result.warnings)
    for index, row in enumerate(rows):
        if row.confirmation == "unconfirmed" and (earlier := known.get(_same(row))) is not None:
            rows[index] = replace(row, **{name: getattr(earlier, name) for name in _FOUND})
    waiting = [index for index, row in enumerate(rows) if row.confirmation == "unconfirmed"]
    for _, group in groupby(waiting, key=lambda index: (rows[index].eval, rows[index].model)):
        indices = list(group)
        for index, (row, samples) in zip(indices, _confirmed(project, result, [rows[index] for index in indices]), strict=True):
            rows[index] = row
            fresh += samples
            if row.confirmation == "unconfirmed":
                problem = (row.reason or "").partition(_NOT_POSSIBLE)[2]
                warnings.append(f"the fall of {row.eval}|{row.model} {_NOT_POSSIBLE}{problem}")
    return replace(result, regressions=rows, fresh=fresh, warnings=tuple(dict.fromkeys(warnings)))


def _same(row: Regression) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in _SAME)


def _confirmed(project: Project, result: GateResult, rows: Sequence[Regression]) -> list[tuple[Regression, list[FreshSample]]]:
    """The rows of an eval and a model, with the samples asked again for each. A row without fresh answers has the reason."""
    readings = [_falls(project, row, result.level) for row in rows]
    falls = [fall for of_row, _ in readings for fall in of_row]
    try:
        if not falls:
            return [(_not_possible(row, problems), []) for row, (_, problems) in zip(rows, readings, strict=True)]
        max_error_rate = project.suite(result.suite).gate.max_error_rate
        flipped = {fall.rows[name]["source_id"] for fall in falls for name in fall.flipped}
        # Of the dataset rows that have not flipped, all or a random part; for the same result, the same part.
        others = {fall.rows[name]["source_id"] for fall in falls for name in fall.contents} - flipped
        share = max(1.0 if fall.of_all else share_of_unflipped(fall.p_value) for fall in falls)
        state = falls[0].now.scores_version
        in_order = sorted(others, key=lambda name: stable_hash([state, name]))
        asked = flipped | set(in_order[: max(FEWEST, math.ceil(share * len(others)))])
        partition = Partition(project=project, eval_name=rows[0].eval, model=rows[0].model, run_id=result.run_id)
        fresh = ask_again(partition, falls[0].now.metrics, asked)
    except Exception as error:  # the boundary between one partition and the next
        return [(_not_possible(row, [_said_of(error)]), []) for row in rows]
    return [_tested(row, *of_row, flipped, fresh, max_error_rate) for row, of_row in zip(rows, readings, strict=True)]


def _falls(project: Project, row: Regression, level: float) -> tuple[list[Fall], list[str]]:
    """The falls from the baseline and from the anchor that tests found, and the reasons for unreadable ones."""
    level = level if row.fall_level is None else row.fall_level
    found: list[Fall] = []
    problems: list[str] = []
    of_tests: list[Against] = ["baseline"] if row.against == "baseline" else []
    has_drifted = False
    if row.drift is not None and row.drift_p_adjusted is not None:
        is_large = abs(row.drift) >= max(project.suite(row.suite).gate.smallest_difference, row.noise_floor or 0.0)
        has_drifted = is_large and (row.drift < 0) is row.higher_is_better and row.drift_p_adjusted <= level
    if row.against == "anchor" or has_drifted:
        of_tests.append("anchor")
    for against in of_tests:
        is_step = against == "baseline"
        name, time = (row.baseline, row.baseline_materialized_at) if is_step else (row.anchor, row.anchor_materialized_at)
        try:
            rescorer = Rescorer(project)
            now, before = _point(rescorer, row.eval, f"{row.model}@", row.materialized_at), _point(rescorer, row.eval, name, time)
            before = rescorer.like(now, before, str(row.metric))
            fall = Fall(row=row, against=against, now=now, before=before, level=level, metrics=project.task(row.eval).METRICS)
            if not fall.flipped:  # reads the scores
                raise LakeError("the scores of the result are those of the state that it is worse than")
            found.append(fall)
        except Exception as error:  # the boundary between one fall and the next
            problems.append(_said_of(error))
    return found, problems


def _point(rescorer: Rescorer, eval_name: str, name: str | None, time: datetime | None) -> Materialization:
    model = (name or "").rpartition("@")[0]
    if time is None:
        raise LakeError(f"the result of {eval_name}|{model} has no time")
    return rescorer.readable(eval_name, model, time)


def _tested(
    row: Regression, falls: Sequence[Fall], problems: Sequence[str], flipped: set[str], fresh: FreshAnswers, max_error_rate: float
) -> tuple[Regression, list[FreshSample]]:
    """The row after the first fall that fresh answers confirm. Refuted if they confirm none and each could be tested."""
    samples: list[FreshSample] = []
    tested, left = row, list(problems)
    for fall in falls:
        try:
            of_fall = fall.fresh_samples(fresh)
            errors = sum(not each.has_fresh_score for each in of_fall)
            if errors > max_error_rate * len(of_fall):
                raise LakeError(
                    f"{errors} of {len(of_fall)} fresh answers are errors; at most {max_error_rate:g} of them may be (max_error_rate)"
                )
            found = fall.tested(fresh, flipped)
            if found is None:
                raise LakeError("the repeated answers give no value, or do not vary, so the drop cannot be tested")
            level = fall.level_for(found)
        except Exception as error:  # the boundary between one fall and the next
            left.append(_said_of(error))
            continue
        samples += of_fall
        said = (
            f"{len(fall.flipped)} of {len(fall.contents)} samples had flipped; {found.n_fresh} were asked again, and by their answers the "
            f"difference is {found.difference:+.3f} (p = {found.p_value:.2g}; below {level:.2g} confirms)"
        )
        tested = replace(
            row,
            n_fresh=found.n_fresh,
            fresh_difference=found.difference,
            fresh_stderr=found.stderr,
            fresh_p_value=found.p_value,
            fresh_level=level,
        )
        if found.p_value < level:
            reason = _with_reason(row, f"confirmed: {said}")
            return replace(tested, confirmation="confirmed", against=fall.against, reason=reason), samples
        verdict = Verdict.NOT_COMPARABLE if row.is_partial else Verdict.NO_CHANGE_SEEN
        tested = replace(tested, confirmation="refuted", verdict=verdict, against=None, reason=f"not confirmed: {said}")
    return (_not_possible(row, left), samples) if left else (tested, samples)


def _said_of(error: Exception) -> str:
    return str(error) if isinstance(error, EvalDagsterError) else f"{type(error).__name__}: {error}"


def _not_possible(row: Regression, problems: Sequence[str]) -> Regression:
    return replace(row, reason=_with_reason(row, _NOT_POSSIBLE + "; ".join(dict.fromkeys(problems))))


def _with_reason(row: Regression, reason: str) -> str:
    """The row's reason and another one, without the problem of an earlier judgement."""
    earlier = (row.reason or "").partition(_NOT_POSSIBLE)[0].removesuffix("; ")
    return "; ".join(filter(None, (earlier, reason)))
