"""Judgements in the lake. A suite is a partition; a judgement has a file of the same name in each table.

With a judgement go the change points: when scores left their bands in the history of an eval for a model. A segment of the history starts
at a reference. Each later result is compared with it, sample by sample; the first that differs starts the next segment. The k-th comparison
of a segment is significant at alpha / (k (k + 1)). These levels sum to at most alpha for a segment of any length (Bonferroni's inequality),
and later results do not change the findings about earlier ones.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from eval_dagster.errors import LakeError
from eval_dagster.gate.records import GateResult, Require
from eval_dagster.lake.files import Lake, LakeFile, table_of
from eval_dagster.lake.format.parquet_files import FileInfo, new_name, read_info, read_rows, time_of
from eval_dagster.lake.tables.rows import fields_in
from eval_dagster.lake.tables.schemas import EARLIER_REASONS
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.records.judgements import ChangedSample, FreshSample, Look, Regression, Verdict
from eval_dagster.results.comparison import causes, compare_metric
from eval_dagster.results.materializations import Materialization, overall
from eval_dagster.versions.hashes import code_version, stable_hash

LookKey = tuple[str, str, str, datetime, datetime]


def change_points(lake: Lake) -> list[Look]:
    """The points at which scores left their bands, by the last judgement of each suite. Skips damaged files; the catalog lists them."""
    found: list[Look] = []
    for files in lake.partitions("looks"):
        with suppress(LakeError):
            found += [look for look in read_looks(files[-1]) if look.is_change_point]
    return found


def read_looks(path: Path) -> list[Look]:
    """The rows of a file of looks. Raises `LakeError` if it is damaged."""
    return [Look(**fields_in(row, Look)) for row in read_rows(path)]


def key_of(look: Look) -> LookKey:
    """Identifies a comparison by eval, model, metric and the times of both results."""
    return look.eval, look.model, look.metric, look.materialized_at, look.reference_at


def look_version() -> str:
    """Version of the code that computes p-values. Looks from other code are computed again."""
    return code_version(find_looks)


def find_looks(
    points: Sequence[Materialization], metrics: Sequence[type[BaseMetric[Any]]], *, alpha: float, known: Mapping[LookKey, Look]
) -> Iterator[Look]:
    """Compare each past result of the current headline metric with the reference of its segment.

    Results with the same scores as the previous result or the reference are skipped. So are results with deleted scores, unless their
    comparison is known. If a result cannot be compared with the reference, a new segment starts without a change point.

    Args:
        points: All materializations of an eval for a model, the oldest first.
        metrics: The task's metrics.
        alpha: Two-sided level of significance of a segment.
        known: Looks of earlier judgements by `key_of`, from code of the same `look_version`. They are not computed again.
    """
    metric = next((row["metric"] for row in points[-1].metric_rows if row["is_headline"]), None) if points else None
    having = [point for point in points if metric is not None and overall(point).get(metric, {}).get("value") is not None]
    if metric is None or not having:
        return
    before = having[0]
    # A copy, so that its scores leave memory when another result becomes the reference.
    reference, looks = replace(before), 0
    for point in having[1:]:
        if point.scores_version in (before.scores_version, reference.scores_version):
            before = point
            continue
        try:
            look = _look(point, reference, metric, metrics, known)
        except LakeError:
            if not _has_scores(point):
                continue
            look = None
        if look is None:
            reference, before, looks = replace(point), point, 0
            continue
        looks += 1
        is_change = look.p_value is not None and look.p_value <= alpha / (looks * (looks + 1))
        cause = (look.cause or ", ".join(causes(replace(point), replace(before), metric))) if is_change else None
        yield replace(look, is_change_point=is_change, cause=cause)
        if is_change:
            reference, looks = replace(point), 0
        before = point


def _look(
    point: Materialization, reference: Materialization, metric: str, metrics: Sequence[type[BaseMetric[Any]]], known: Mapping[LookKey, Look]
) -> Look | None:
    """Compare a point with its reference. None if they have nothing in common. Raises `LakeError` if scores were deleted."""
    key = point.eval_name, point.model, metric, point.materialized_at, reference.materialized_at
    if key in known:
        return known[key]
    # Only the reference keeps its scores in memory, for the next comparison.
    comparison = compare_metric(replace(point), reference, metric, metrics)
    if comparison is None or comparison.p_value is None:
        return None
    return Look(
        eval=point.eval_name,
        model=point.model,
        metric=metric,
        materialized_at=point.materialized_at,
        reference_at=reference.materialized_at,
        value=comparison.value_a,
        reference_value=comparison.value_b,
        difference=comparison.difference,
        p_value=comparison.p_value,
        is_change_point=False,
        cause=None,
    )


def _has_scores(point: Materialization) -> bool:
    try:
        return bool(replace(point).scores)
    except LakeError:
        return False


def write_result(lake: Lake, result: GateResult) -> LakeFile:
    """Write a judgement. It becomes the current judgement of its suite."""
    name = new_name(result.run_id, result.judged_at)
    rows = {
        "sample_changes": _rows(result, result.changes),
        "looks": _rows(result, result.looks),
        "regressions": _rows(result, [replace(each, outcome=result.outcome.value) for each in result.regressions]),
    }
    info = FileInfo(
        fingerprint=name,  # a judgement is cheap and never reused
        version=stable_hash(
            [{key: str(value) for key, value in row.items() if key not in ("judged_at", "run_id")} for row in rows["regressions"]]
        ),
        run_id=result.run_id,
        materialized_at=result.judged_at.astimezone(UTC).isoformat(timespec="microseconds"),
        inputs={"suite": result.suite, "severity": result.severity, "require": json.dumps(result.require), "looks": look_version()},
        counts={"alpha": result.alpha, "level": result.level, **{verdict.value: len(result.with_verdict(verdict)) for verdict in Verdict}},
    )
    for (eval_name, model), samples in groupby(result.fresh, key=lambda each: (each.eval, each.model)):
        lake.add(lake.folder("confirmations", eval_name, model) / name, table_of("confirmations", _rows(result, list(samples))), info)
    for table, of_table in rows.items():  # `regressions` last, because a judgement counts once this file exists
        lake.add(lake.folder(table, result.suite) / name, table_of(table, of_table), info)
    return LakeFile(path=lake.folder("regressions", result.suite) / name, info=info)


def current_result(lake: Lake, suite: str) -> GateResult | None:
    """The last judgement of a suite, if any. Raises `LakeError` if its file is damaged."""
    file = lake.current("regressions", suite)
    return None if file is None else _read(lake, suite, file)


def result_of_run(lake: Lake, suite: str, run_id: str) -> GateResult | None:
    """A run's judgement of a suite, if any. It need not be the last one. Raises `LakeError` if it is damaged."""
    named = [path for path in reversed(lake.files(lake.folder("regressions", suite))) if f"-{run_id[:8]}-" in path.name]
    files = (LakeFile(path=path, info=read_info(path)) for path in named)
    file = next((file for file in files if file.info.run_id == run_id), None)
    return None if file is None else _read(lake, suite, file)


def result_at(lake: Lake, suite: str, judged_at: datetime) -> GateResult | None:
    """The judgement of a suite at a time, if any, without its samples and looks. Raises `LakeError` if it is damaged."""
    paths = [path for path in lake.files(lake.folder("regressions", suite)) if time_of(path) == judged_at]
    return None if not paths else _read(lake, suite, LakeFile(path=paths[-1], info=read_info(paths[-1])), whole=False)


def judged_times(lake: Lake, suite: str) -> list[datetime]:
    """The times of a suite's judgements, the oldest first. Includes damaged files, because their suite was judged."""
    return [time_of(path) for path in lake.files(lake.folder("regressions", suite))]


def known_looks(lake: Lake, suite: str) -> dict[LookKey, Look]:
    """The looks in the last judgement of a suite, if the same code made them. Empty if its file is damaged."""
    with suppress(LakeError):
        file = lake.current("looks", suite)
        if file is not None and file.info.inputs["looks"] == look_version():
            return {key_of(look): look for look in read_looks(file.path)}
    return {}


def _rows(result: GateResult, records: Sequence[Regression | ChangedSample | FreshSample | Look]) -> list[dict[str, Any]]:
    shared = {"suite": result.suite, "judged_at": result.judged_at, "run_id": result.run_id}
    return [asdict(record) | shared for record in records]


def read_judgement(path: Path) -> tuple[FileInfo, list[Regression]]:
    """The footer of a file of judgements, and its rows. Raises `LakeError` if it is damaged."""
    return read_info(path), [Regression(**fields_in(row, Regression) | {"verdict": _verdict(row)}) for row in read_rows(path)]


def _verdict(row: Mapping[str, Any]) -> Verdict:
    """The verdict of a row of `regressions`. Earlier rows have one verdict for everything that was not compared."""
    if row.get("outcome") is None and row["verdict"] == Verdict.NOT_COMPARABLE:
        reason = row["reason"] or ""
        return next((Verdict(verdict) for verdict, begins in EARLIER_REASONS.items() if reason.startswith(begins)), Verdict.NOT_COMPARABLE)
    return Verdict(row["verdict"])


def _require(info: FileInfo) -> Require:
    """The results that the suite had to judge. Earlier judgements do not record them."""
    found = json.loads(info.inputs.get("require", '"all"'))
    return tuple(found) if isinstance(found, list) else found


def _part(lake: Lake, table: str, suite: str, judgement: LakeFile) -> Path:
    """The file of a judgement in another table."""
    return lake.file(str((lake.folder(table, suite) / judgement.path.name).relative_to(lake.root)))


def _read(lake: Lake, suite: str, file: LakeFile, *, whole: bool = True) -> GateResult:
    changes = read_rows(_part(lake, "sample_changes", suite, file)) if whole else []
    return GateResult(
        suite=suite,
        judged_at=datetime.fromisoformat(file.info.materialized_at),
        run_id=file.info.run_id,
        alpha=file.info.counts["alpha"],
        level=file.info.counts["level"],
        severity="warn" if file.info.inputs["severity"] == "warn" else "error",
        require=_require(file.info),
        regressions=read_judgement(file.path)[1],
        changes=[ChangedSample(**fields_in(row, ChangedSample) | {"gold": tuple(row["gold"])}) for row in changes],
        looks=read_looks(_part(lake, "looks", suite, file)) if whole else [],
    )
