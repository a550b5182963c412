"""The contents of a report's page: the gate's result, and related data of the lake."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.errors import EvalDagsterError, QueryError
from eval_dagster.gate.acceptances import read_acceptances
from eval_dagster.gate.attempts import Attempts
from eval_dagster.gate.materializations import Point, PointName, history, metric_versions
from eval_dagster.gate.records import Acceptance, GateResult
from eval_dagster.lake.attempts import Attempt, read_attempts
from eval_dagster.lake.catalog import read_rows
from eval_dagster.lake.files import Lake
from eval_dagster.project import Project
from eval_dagster.report.flips import Flips, flips_of
from eval_dagster.report.histories import History, headline_of, history_of
from eval_dagster.report.plots import MOST_POINTS
from eval_dagster.statistics.verdicts import Verdict
from eval_dagster.versions import package_versions

_MOST_ACCEPTED = 20
_FIGURES = ("metric", "value", "ci_low", "ci_high", "n", "n_errors")
LIBRARIES = (
    *("eval_dagster", "dagster", "duckdb", "mlflow", "torch", "transformers", "tokenizers", "datasets"),
    *("numpy", "scipy", "statsmodels", "pyarrow"),
)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A model's current headline score of an eval."""

    model: str
    metric: str | None = None
    """Null if there is no result."""
    rank: int | None
    """The rank among comparable results."""
    differs: str | None
    """What differs from comparable results, if there is no rank for this reason."""
    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int = 0
    n_errors: int = 0
    problem: str | None
    """Why there is no result, or why it is not from the last evaluation."""
    findings: Sequence[str] = ()
    """The checks that found a sign that the score measures something else, by name."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """The version of one input of a result, and the baseline's."""

    what: str
    now: str
    baseline: str | None
    """Null if it is the same, or if there is no baseline."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """All that a page shows."""

    result: GateResult
    standings: Mapping[str, Sequence[Standing]]
    """By eval, the best first."""
    accepted: Sequence[Acceptance]
    """The newest acceptances of the suite, the newest first."""
    histories: Sequence[History]
    flips: Sequence[Flips]
    costs: Sequence[Attempt]
    """Of each eval and model whose evaluation reached the model's answers."""
    versions: Mapping[tuple[str, str], Sequence[Version]]
    """By eval and model."""
    libraries: Mapping[str, str | None]
    settings: Mapping[str, Mapping[str, Any]]
    """Settings of each eval and model in evals.yaml, by `eval <name>` and `model <name>`."""


def collect(project: Project, result: GateResult, *, run_ids: Sequence[str] = ()) -> Contents:
    """Read the contents of a page, with the arguments of `report`. Missing or damaged data is left out."""
    evals, models = project.select(suite=result.suite)
    points, damages = _points(project, result.suite)
    attempts = read_attempts(project.lake)
    last = Attempts(attempts)
    problems = {key: damages.get(key) or last.problem(*key) for key in [*points, *damages]}
    current = {key: found[-1] for key, found in points.items() if found}
    return Contents(
        result=result,
        standings={
            name: _standings(project.lake, name, [(model, current.get((name, model)), problems.get((name, model))) for model in models])
            for name in evals
        },
        accepted=read_acceptances(project.lake, result.suite)[: -_MOST_ACCEPTED - 1 : -1],
        histories=[
            history_of(found, metric, result.change_points)
            for found in points.values()
            if found
            for metric in _drawn_metrics(found[-1], result)
        ],
        flips=flips_of(result),
        costs=_costs(attempts, list(points), run_ids),
        versions={key: list(_versions(point, _baseline(project, result, key))) for key, point in current.items()},
        libraries=package_versions(LIBRARIES),
        settings={
            **{
                f"eval {name}": {
                    **project.eval(name).model_dump(mode="json", exclude_defaults=True),
                    "num_fewshot": project.num_fewshot(name),
                }
                for name in evals
            },
            **{f"model {name}": project.model(name).model_dump(mode="json", exclude_defaults=True) for name in models},
        },
    )


def headline_histories(project: Project, result: GateResult) -> list[History]:
    """The histories of a suite's headline scores. Damaged ones are left out."""
    found = _points(project, result.suite)[0].values()
    return [history_of(points, str(row["metric"]), result.change_points) for points in found if points and (row := headline_of(points[-1]))]


def _points(project: Project, suite: str) -> tuple[dict[tuple[str, str], list[Point]], dict[tuple[str, str], str]]:
    """The newest points of each eval and model, the oldest first; and messages on damaged ones."""
    evals, models = project.select(suite=suite)
    points: dict[tuple[str, str], list[Point]] = {}
    damages: dict[tuple[str, str], str] = {}
    for key in [(eval_name, model) for eval_name in evals for model in models]:
        try:
            points[key] = history(project.lake, *key)[-MOST_POINTS:]
        except EvalDagsterError as error:
            damages[key] = str(error)
    return points, damages


def _standings(lake: Lake, eval_name: str, found: Sequence[tuple[str, Point | None, str | None]]) -> list[Standing]:
    """The standings of an eval's models, ranked ones first."""
    try:
        ranked = {row["model"]: row for row in read_rows(lake, "select * from leaderboard_all") if row["eval"] == eval_name}
    except QueryError:  # nothing was published yet
        ranked = {}
    standings = [_standing(model, point, ranked.get(model, {}), problem) for model, point, problem in found]
    return sorted(standings, key=lambda standing: (standing.rank is None, standing.rank))


def _standing(model: str, point: Point | None, ranked: Mapping[str, Any], problem: str | None) -> Standing:
    row = headline_of(point) if point else None
    figures = {name: row[name] for name in _FIGURES} if row else {}
    problem = problem if problem or row else "no result yet"
    return Standing(
        model=model,
        rank=ranked.get("rank"),
        differs=ranked.get("differs"),
        problem=problem,
        findings=ranked.get("findings") or (),
        **figures,
    )


def _drawn_metrics(point: Point, result: GateResult) -> list[str]:
    """The headline metric, and the metrics that have changed."""
    headline = headline_of(point)
    changed = [
        row.metric
        for row in result.regressions
        if (row.eval, row.model) == (point.eval_name, point.model) and row.metric and (row.is_red or row.verdict is Verdict.IMPROVED)
    ]
    return list(dict.fromkeys([*([str(headline["metric"])] if headline else []), *changed]))


def _baseline(project: Project, result: GateResult, key: tuple[str, str]) -> Point | None:
    for row in result.regressions:
        if (row.eval, row.model) == key and row.baseline and row.baseline_materialized_at:
            model = row.baseline.rpartition("@")[0] or row.baseline
            try:
                return PointName(model=model, until=row.baseline_materialized_at).find(project.lake, row.eval)
            except EvalDagsterError:
                return None
    return None


def _costs(attempts: Sequence[Attempt], partitions: Sequence[tuple[str, str]], run_ids: Sequence[str]) -> list[Attempt]:
    """The last attempt of each partition, or the last one of these runs."""
    found = {(each.eval, each.model): each for each in attempts if not run_ids or each.run_id in run_ids}
    return [found[key] for key in partitions if key in found and found[key].requests_computed is not None]


def _versions(point: Point, baseline: Point | None) -> Iterator[Version]:
    yield Version(what="dataset", now=point.metrics.info.inputs.get("dataset", ""), baseline=None)
    before = _inputs(baseline) if baseline else {}
    for what, now in _inputs(point).items():
        yield Version(what=what, now=now, baseline=None if before.get(what) == now else before.get(what))


def _inputs(point: Point) -> dict[str, str]:
    """The versions of a result's inputs, by their names on the page."""
    names = {"dataset rows": "data", "prompts": "prompt", "model": "model"}
    metrics = {f"metric {metric}": version for metric, version in metric_versions(point).items()}
    return {what: point.versions[key] for what, key in names.items()} | metrics
