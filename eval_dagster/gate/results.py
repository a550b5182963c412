"""Judgements of suites in the lake, and the acceptances of what did not pass.

A suite is a partition; a judgement has a file of the same name in each table.

With a judgement go the change points: when scores left their bands in the history of an eval for a model. A segment of the history starts
at a reference. Each later result is compared with it, sample by sample; the first that differs starts the next segment. The k-th comparison
of a segment is significant at alpha / (k (k + 1)). These levels sum to at most alpha for a segment of any length (Bonferroni's inequality),
and later results do not change the findings about earlier ones.

A person accepts states and gaps that did not pass the gate, with name, time and reason.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from eval_dagster.config.values import LAST_PASSED
from eval_dagster.errors import LakeError, UsageError
from eval_dagster.gate.records import GateResult, minute
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake, LakeFile, table_of
from eval_dagster.lake.format.damage import damage_named
from eval_dagster.lake.format.parquet_files import FileInfo, new_name, read_info, read_rows, time_of
from eval_dagster.lake.tables.rows import fields_in
from eval_dagster.lake.tables.schemas import EARLIER_REASONS
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.project import Project
from eval_dagster.records.aggregate_judgements import AggregateRegression
from eval_dagster.records.judgements import Acceptance, ChangedSample, FreshSample, Look, Regression, Verdict
from eval_dagster.results.comparison import causes, compare_metric
from eval_dagster.results.materializations import Materialization, history, materialization_at, n_values, overall
from eval_dagster.stages.looks import NOT_ASKED
from eval_dagster.versions.hashes import code_version, file_stamp, stable_hash

LookKey = tuple[str, str, str, datetime, datetime]
_TABLE = "acceptances"
_AGGREGATES = "aggregate_regressions"
_MOST_BACK = 7
"""Judgements that are searched for the last one of an aggregate: one is enough, but for those of a gate that failed."""
_POLICY = ("require", "critical", "require_proof", "supporting_p_value")
"""What a judgement demands of its suite, and the p-value that goes with it: fields of `GateResult` in the footer of its file."""
_VARIES = re.compile(r"[\d/\\]")
"""Marks words of a reason that may differ from night to night: a number, a time, an id or a path."""


def change_points(lake: Lake) -> list[Look]:
    """The points at which scores left their bands, by the last judgement of each suite. Skips damaged files; the catalog lists them."""
    found: list[Look] = []
    for files in lake.partitions("looks"):
        with suppress(LakeError), damage_named(files[-1]):
            found += _change_points_of(files[-1], tuple(file_stamp(files[-1])))
    return found


@lru_cache(maxsize=256)
def _change_points_of(path: Path, _stamp: tuple[Any, ...]) -> list[Look]:
    """The change points in a file of looks, which never changes: each result of a night asks for them, and most looks are none."""
    return [Look(**fields_in(row, Look)) for row in read_rows(path, where=pc.field("is_change_point"))]


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
    full = [point for point in points if not point.metrics.info.counts.get(NOT_ASKED)]
    having = [point for point in full if metric in (rows := overall(point)) and rows[metric]["value"] is not None] if metric else []
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
    name, outcome, is_proven = new_name(result.run_id, result.judged_at), result.outcome.value, result.is_proven
    rows = {
        "sample_changes": _rows(result, result.changes),
        "looks": _rows(result, result.looks),
        **({_AGGREGATES: _rows(result, result.aggregates)} if result.aggregates else {}),
        "regressions": _rows(result, [replace(each, outcome=outcome, is_suite_proven=is_proven) for each in result.regressions]),
    }
    info = FileInfo(
        fingerprint=name,  # a judgement is cheap and never reused
        version=stable_hash(
            [{key: str(value) for key, value in row.items() if key not in ("judged_at", "run_id")} for row in rows["regressions"]]
        ),
        run_id=result.run_id,
        materialized_at=result.judged_at.astimezone(UTC).isoformat(timespec="microseconds"),
        inputs={
            "suite": result.suite,
            "severity": result.severity,
            "looks": look_version(),
            **({"aggregates": str(len(result.aggregates))} if result.aggregates else {}),
            **{name: json.dumps(getattr(result, name)) for name in _POLICY},
        },
        counts={
            "alpha": result.alpha,
            "level": result.level,
            **{verdict.value: len(result.with_verdict(verdict)) for verdict in Verdict},
        },
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


def _rows(
    result: GateResult, records: Sequence[Regression | AggregateRegression | ChangedSample | FreshSample | Look]
) -> list[dict[str, object]]:
    shared = {"suite": result.suite, "judged_at": result.judged_at, "run_id": result.run_id}
    return [asdict(record) | shared for record in records]


def read_judgement(path: Path) -> tuple[FileInfo, list[Regression]]:
    """The footer of a file of judgements, and its rows. Raises `LakeError` if it is damaged."""
    info = read_info(path)
    found: list[Regression] = []
    for row in read_rows(path):
        verdict = Verdict(row["verdict"])
        if row.get("outcome") is None and verdict is Verdict.NOT_COMPARABLE:
            # Earlier rows have one verdict for everything that was not compared.
            for earlier, begins in EARLIER_REASONS.items():
                if (row["reason"] or "").startswith(begins):
                    verdict = Verdict(earlier)
                    break
        pools = {name: tuple(row.get(name) or ()) for name in ("pooled_baseline", "pooled_anchor")}
        found.append(Regression(**fields_in(row, Regression) | {"verdict": verdict} | pools))
    return info, found


def read_aggregates(path: Path) -> list[AggregateRegression]:
    """The rows of a file of judged aggregates. Raises `LakeError` if it is damaged."""
    lists = ("evals", "missing")
    return [
        AggregateRegression(
            **fields_in(row, AggregateRegression) | {"verdict": Verdict(row["verdict"])} | {name: tuple(row[name] or ()) for name in lists}
        )
        for row in read_rows(path)
    ]


def last_aggregates(lake: Lake, suite: str) -> dict[tuple[str, str], tuple[datetime, AggregateRegression]]:
    """The last judgement of each aggregate and model that was more than a gap, with its time. Damaged files are left out."""
    found: dict[tuple[str, str], tuple[datetime, AggregateRegression]] = {}
    for path in reversed(lake.files(lake.folder(_AGGREGATES, suite))[-_MOST_BACK:]):
        with suppress(LakeError):
            for row in read_aggregates(path):
                if not (row.is_gap or row.verdict is Verdict.ACCEPTED_GAP):
                    found.setdefault((row.aggregate, row.model), (time_of(path), row))
    return found


def _part(lake: Lake, table: str, suite: str, judgement: LakeFile) -> Path:
    """The file of a judgement in another table."""
    return lake.file(str((lake.folder(table, suite) / judgement.path.name).relative_to(lake.root)))


def _read(lake: Lake, suite: str, file: LakeFile, *, whole: bool = True) -> GateResult:
    changes = read_rows(_part(lake, "sample_changes", suite, file)) if whole else []
    # Earlier judgements do not record the policy.
    policy: dict[str, Any] = {name: json.loads(file.info.inputs[name]) for name in _POLICY if name in file.info.inputs}
    policy |= {name: tuple(value) for name, value in policy.items() if isinstance(value, list)}
    return GateResult(
        suite=suite,
        judged_at=datetime.fromisoformat(file.info.materialized_at),
        run_id=file.info.run_id,
        alpha=file.info.counts["alpha"],
        level=file.info.counts["level"],
        severity="warn" if file.info.inputs["severity"] == "warn" else "error",
        **policy,
        regressions=read_judgement(file.path)[1],
        aggregates=read_aggregates(_part(lake, _AGGREGATES, suite, file)) if "aggregates" in file.info.inputs else (),
        changes=[ChangedSample(**fields_in(row, ChangedSample) | {"gold": tuple(row["gold"])}) for row in changes],
        looks=read_looks(_part(lake, "looks", suite, file)) if whole else [],
    )


def read_acceptances(lake: Lake, suite: str) -> list[Acceptance]:
    """All acceptances of a suite, the oldest first. Damaged files are left out, as in the catalog."""
    found: list[Acceptance] = []
    for path in lake.readable_files(lake.root / _TABLE / f"suite={suite}"):
        with suppress(LakeError):
            found += [Acceptance(**fields_in(row, Acceptance) | {"verdict": Verdict(row["verdict"])}) for row in read_rows(path)]
    return sorted(found, key=lambda acceptance: acceptance.accepted_at)


def accept_states(project: Project, suite: str, *, evals: Sequence[str], models: Sequence[str], by: str, why: str) -> list[Acceptance]:
    """Accept states and gaps of a suite like `accept`, and publish the acceptances.

    Raises:
        UsageError: A name is unknown, the suite names its baseline itself and no gap is named, or as in `accept`.
        LakeError: The last judgement is damaged.
    """
    baseline = project.suite(suite).baseline
    project.select(suite=suite, evals=evals, models=models)
    is_named = baseline != LAST_PASSED
    if is_named and not (evals or models):
        raise UsageError(
            f"the baseline of the suite {suite} is {baseline!r}, which acceptances do not change; expected {LAST_PASSED!r} in evals.yaml, "
            "or a result that was not judged, named by its eval and its model"
        )
    accepted = accept(project.lake, suite, evals=evals, models=models, by=by, why=why, gaps_alone=is_named)
    publish(project.lake)
    return accepted


def acceptance_line(accepted: Acceptance) -> str:
    """An acceptance in one line."""
    state = "" if accepted.materialized_at is None else f" of {minute(accepted.materialized_at)}"
    metric = f" ({accepted.metric})" if accepted.metric else ""
    return f"{accepted.eval} on {accepted.model}{metric}{state}: {accepted.verdict.value}, by {accepted.accepted_by}"


def accept(
    lake: Lake, suite: str, *, evals: Sequence[str], models: Sequence[str], by: str, why: str, gaps_alone: bool = False
) -> list[Acceptance]:
    """Accept the last judged states of a suite as baseline and anchor of later results, and its gaps. The report shows `by` and `why`.

    Without names, the red states are accepted, and the states that a red aggregate holds. A gap has to be named by its eval or its model.
    A gap is a result that was not evaluated or is not comparable.

    Args:
        lake: The lake with the judgements.
        suite: Name of the suite.
        evals: Names of evals; empty: all.
        models: Names of models; empty: all.
        by: Name of the person.
        why: The reason.
        gaps_alone: Whether only gaps can be accepted, because the suite names its baseline itself.

    Raises:
        UsageError: The reason is missing, nothing can be accepted, or a red state has no value.
        LakeError: The last judgement is damaged.
    """
    if not why.strip() or not by.strip():
        raise UsageError("found an empty `why` or `by`; expected the reason and the name that people read in the report")
    result = current_result(lake, suite)
    if result is None:
        raise UsageError(f"there is nothing to accept: the suite {suite} was never judged; first: eval-dagster run --suite {suite}")
    now = datetime.now(UTC)
    chosen = [row for row in _chosen(result, read_acceptances(lake, suite), evals, models) if row.is_gap or not gaps_alone]
    if not chosen:
        raise UsageError(f"there is nothing to accept in {suite}: {_why_nothing(result, evals, models, gaps_alone=gaps_alone)}")
    accepted = [
        Acceptance(
            suite=suite,
            eval=row.eval,
            model=row.model,
            metric=row.metric if row.is_gap else None,
            materialized_at=_accepted_state(lake, row),
            verdict=row.verdict,
            reason=row.reason if row.is_gap else None,
            accepted_at=now,
            accepted_by=by.strip(),
            why=why.strip(),
        )
        for row in chosen
    ]
    name = new_name("accept", now)
    info = FileInfo(fingerprint=name, version=name, run_id="accept", materialized_at=now.isoformat(timespec="microseconds"))
    lake.add(lake.root / _TABLE / f"suite={suite}" / name, table_of(_TABLE, [asdict(each) for each in accepted]), info)
    return accepted


def is_for(acceptance: Acceptance, reason: str | None) -> bool:
    """Whether a gap was accepted for this reason, ignoring numbers, times and paths."""
    return acceptance.reason is None or _kind(acceptance.reason) == _kind(reason or "")


def _kind(reason: str) -> str:
    """The words of a reason that are the same each night. Only its first part counts, because details and advice follow a semicolon."""
    first = re.split(r";\s|\n", reason.strip(), maxsplit=1)[0]
    return " ".join(word for word in first.split() if not _VARIES.search(word))


def _chosen(result: GateResult, known: Sequence[Acceptance], evals: Sequence[str], models: Sequence[str]) -> list[Regression]:
    """The named gaps, and one row for each other chosen state, a red or held one if it has several. Accepted ones are left out.

    Green states are chosen only if no named result is red or a gap.
    """
    states = {(each.eval, each.model, each.materialized_at) for each in known if not each.is_gap}
    gaps = {(each.eval, each.model, each.metric) for each in known if each.is_gap and each.accepted_at >= result.judged_at}
    named = [row for row in _named(result, evals, models) if row.verdict is not Verdict.ACCEPTED_GAP]
    stopped = [row for row in named if row.is_red or row.held_by or (row.is_gap and (evals or models))]
    found: dict[tuple[str, str, str | None, bool], Regression] = {}
    for row in stopped or (named if evals or models else ()):
        if row.is_gap and (row.eval, row.model, row.metric) not in gaps:
            found.setdefault((row.eval, row.model, row.metric, True), row)
        elif not row.is_gap and row.materialized_at is not None and (row.eval, row.model, row.materialized_at) not in states:
            found.setdefault((row.eval, row.model, None, False), row)
    return list(found.values())


def _accepted_state(lake: Lake, row: Regression) -> datetime | None:
    """The time of the accepted state. Null for a gap without a state that later results can be compared with.

    A result that was not evaluated has no state of its own; its older state does not count. Raises `UsageError` for a red state without any
    value.
    """
    if row.verdict is Verdict.NOT_EVALUATED or row.materialized_at is None:
        return None
    has_values = True
    with suppress(LakeError):  # a damaged state
        state = materialization_at(history(lake, row.eval, row.model), row.materialized_at)
        has_values = state is None or bool(n_values(state))
    if has_values:
        return row.materialized_at
    if row.is_gap:
        return None
    raise UsageError(
        f"{row.eval} on {row.model} of {minute(row.materialized_at)} has no value, since all its samples are errors; "
        "expected a state that later results can be compared with; see the errors (eval-dagster sql errors) and evaluate it again, "
        "or name other results by --eval and --model"
    )


def _named(result: GateResult, evals: Sequence[str], models: Sequence[str]) -> list[Regression]:
    """The rows of these evals and models. Without names, all rows."""
    return [row for row in result.regressions if (not evals or row.eval in evals) and (not models or row.model in models)]


def _why_nothing(result: GateResult, evals: Sequence[str], models: Sequence[str], *, gaps_alone: bool) -> str:
    judged = f"judged {minute(result.judged_at)}"
    if evals or models:
        named = _named(result, evals, models)
        if not named:
            return f"it has no result of {', '.join([*evals, *models])} ({judged})"
        if gaps_alone:
            return f"what is named was judged ({judged}), and an acceptance does not change the baseline that evals.yaml names"
        if not any(row.materialized_at for row in named):
            return f"{named[0].eval}|{named[0].model} has no result yet ({judged})"
        return f"what is named is accepted already ({judged}); a later result must be judged first"
    if result.gaps:
        named_gaps = ", ".join(dict.fromkeys(f"{row.eval} on {row.model}" for row in result.gaps))
        return f"nothing is red; name what was not judged ({named_gaps}) by --eval and --model to accept the gap ({judged})"
    return f"nothing is red, or it is accepted already ({judged}); name one by --eval and --model to make it the anchor of its drift"
