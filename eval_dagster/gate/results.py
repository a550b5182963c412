"""Judgements in the lake. A suite is a partition; a judgement has a file of the same name in each table."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from eval_dagster.errors import LakeError
from eval_dagster.gate.change_points import LookKey, key_of, look_version, read_looks
from eval_dagster.gate.records import GateResult, Require
from eval_dagster.lake.files import Lake, LakeFile, table_of
from eval_dagster.lake.format.file_names import new_name, time_of
from eval_dagster.lake.format.file_reading import read_info, read_rows
from eval_dagster.lake.format.file_writing import FileInfo
from eval_dagster.lake.tables.rows import fields_in
from eval_dagster.lake.tables.schemas import EARLIER_REASONS
from eval_dagster.records.judgements import ChangedSample, FreshSample, Look, Regression, Verdict
from eval_dagster.versions.hashes import stable_hash


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
