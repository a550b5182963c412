"""The contents of a report's page: the gate's result, and related data of the lake."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter

from pydantic import BaseModel

from eval_dagster.errors import EvalDagsterError, QueryError
from eval_dagster.gate.judgement import Attempts
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import change_points, judged_times, read_acceptances
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_head
from eval_dagster.lake.records import read_attempts
from eval_dagster.lake.tables.columns import AggregateRow
from eval_dagster.lake.tables.events import Attempt
from eval_dagster.pages.report.evidence import Flips, flips_of
from eval_dagster.pages.report.histories import Curve, History, headline_of, history_of, learning_curves
from eval_dagster.pages.report.plots import MOST_POINTS
from eval_dagster.project import Project, in_order
from eval_dagster.records.judgements import Acceptance, Look, Verdict
from eval_dagster.results.materializations import Materialization, MaterializationName, history, metric_versions, with_rows
from eval_dagster.results.trust import AnswerFigures, answer_words
from eval_dagster.versions.hashes import package_versions

_MOST_ACCEPTED = 20
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
    spread: float | None = None
    """The largest difference between the scores of two variants of the prompt; null without variants."""
    exceeds_models: bool | None = None
    """Whether this is more than the two best models differ by; null if chance alone may explain it."""
    mixed_answers: str | None = None
    """The models or states of a server whose answers the score mixes, in words."""
    answers: str = ""
    """How the model answered, if there is something to tell."""


_MOST_HISTORIES = 100
"""Pictures on a page: each takes a twentieth of a second and 15 KB."""
_RANKED = "select board.*, spread, exceeds_models from leaderboard_all as board left join prompt_sensitivity using (eval, model)"


class _Ranked(AnswerFigures):
    """The columns of `_RANKED` that a standing has."""

    eval: str
    model: str
    rank: int | None
    differs: str | None
    findings: list[str] | None
    spread: float | None
    exceeds_models: bool | None
    mixed_answers: str | None


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
    aggregates: Sequence[AggregateRow] = ()
    """The aggregates of the suite by the current results."""
    accepted: Sequence[Acceptance]
    """The newest acceptances of the suite, the newest first."""
    histories: Sequence[History]
    """The histories of the headline scores and of the metrics that changed, without those of checkpoints that were evaluated once. If they
    are too many for a page, those that changed come first, and then the new ones."""
    histories_left: int = 0
    """The number of histories for which the page has no room."""
    new_histories: Sequence[History] = ()
    """The histories of headline scores that have an earlier result, and a result since the last judgement."""
    curves: Sequence[Curve] = ()
    """The learning curves of the suite's training runs."""
    flips: Sequence[Flips]
    costs: Sequence[Attempt]
    """Of each eval and model whose evaluation reached the model's answers."""
    versions: Mapping[tuple[str, str], Sequence[Version]]
    """By eval and model."""
    libraries: Mapping[str, str | None]
    settings: Mapping[str, Mapping[str, object]]
    """Settings of each eval and model in evals.yaml, by `eval <name>` and `model <name>`."""


def collect(project: Project, result: GateResult, *, run_ids: Sequence[str] = ()) -> Contents:
    """Read the contents of a page, with the arguments of `report`. Missing or damaged data is left out.

    No task is loaded: a file that cannot be imported, or an eval that evals.yaml no longer has, costs nothing of the page.
    """
    evals, models = _names(project, result)
    points, damages = _points(project, result)
    attempts = read_attempts(project.lake)
    last = Attempts(attempts)
    problems = {key: damages.get(key) or last.problem(*key) for key in [*points, *damages]}
    current = {key: found[-1] for key, found in points.items() if found}
    last_attempts = {(each.eval, each.model): each for each in attempts if not run_ids or each.run_id in run_ids}
    versions, baselines = {}, _baselines(project, result)
    for key, point in current.items():
        before = _inputs(baselines[key]) if key in baselines else {}
        versions[key] = [Version(what="dataset", now=point.metrics.info.inputs.get("dataset", ""), baseline=None)]
        for what, now in _inputs(point).items():
            versions[key].append(Version(what=what, now=now, baseline=None if before.get(what) == now else before.get(what)))
    histories, left, new = _histories(project, result, points)
    ranked = _ranked(project.lake)
    return Contents(
        result=result,
        standings={
            name: _standings(ranked.get(name, {}), [(model, current.get((name, model)), problems.get((name, model))) for model in models])
            for name in evals
        },
        aggregates=_aggregates(project.lake, result.suite),
        accepted=read_acceptances(project.lake, result.suite)[: -_MOST_ACCEPTED - 1 : -1],
        histories=histories,
        histories_left=left,
        new_histories=new,
        curves=_curves(project, evals, models),
        flips=flips_of(result),
        costs=[last_attempts[key] for key in points if key in last_attempts and last_attempts[key].requests_computed is not None],
        versions=versions,
        libraries=package_versions(LIBRARIES),
        settings={
            **{f"eval {name}": _settings(project.config.evals.get(name)) | _num_fewshot(name, current) for name in evals},
            **{f"model {name}": _settings(project.config.models.get(name)) for name in models},
        },
    )


def _aggregates(lake: Lake, suite: str) -> list[AggregateRow]:
    with suppress(QueryError):  # nothing was published yet
        return read_rows(lake, "from aggregates where suite = $suite order by aggregate, model", {"suite": suite})
    return []


def _curves(project: Project, evals: Sequence[str], models: Sequence[str]) -> list[Curve]:
    families = dict.fromkeys(project.known_checkpoints[model].family for model in models if model in project.known_checkpoints)
    try:
        return learning_curves(project.lake, list(families), evals)
    except EvalDagsterError:  # `damaged_files` and the other parts of the page tell of it
        return []


def _names(project: Project, result: GateResult) -> tuple[list[str], list[str]]:
    """The evals and models of a suite, and those that were judged, in the order of evals.yaml."""
    suite = project.config.suites.get(result.suite)
    evals = dict.fromkeys([*(suite.evals if suite else ()), *(row.eval for row in result.regressions)])
    models = dict.fromkeys([*(suite.models if suite else ()), *(row.model for row in result.regressions)])
    return (
        list(dict.fromkeys([*in_order(list(evals), project.config.evals), *evals])),
        list(dict.fromkeys([*in_order(list(models), project.config.models), *models])),
    )


def _settings(section: BaseModel | None) -> dict[str, object]:
    """The settings in evals.yaml; none if it no longer has the section."""
    return {} if section is None else section.model_dump(mode="json", exclude_defaults=True)


def _num_fewshot(eval_name: str, current: Mapping[tuple[str, str], Materialization]) -> dict[str, object]:
    """The number of examples in the prompts of an eval, by the lake."""
    for point in (point for (name, _), point in current.items() if name == eval_name):
        with suppress(EvalDagsterError, IndexError, KeyError):
            file = point.lake.of_version("prompts", point.metrics.info.inputs["rendered_prompts"], eval_name, point.model)
            if file is not None:
                return {"num_fewshot": read_head(file.path, 1, ["num_fewshot"])[0]["num_fewshot"]}
    return {}


def _histories(
    project: Project, result: GateResult, points: Mapping[tuple[str, str], Sequence[Materialization]]
) -> tuple[list[History], int, list[History]]:
    """The histories that a page shows, the number of those for which it has no room, and the new ones, as in `Contents`."""
    changes: dict[tuple[str, str], list[Look]] = defaultdict(list)
    for look in _changes(project.lake, result):
        changes[look.eval, look.model].append(look)
    changed: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in result.regressions:
        if row.metric and (row.is_red or row.verdict is Verdict.IMPROVED):
            changed[row.eval, row.model].append(row.metric)
    before = max((time for time in judged_times(project.lake, result.suite) if time < result.judged_at), default=None)
    wanted: list[tuple[int, tuple[str, str], str]] = []
    new: list[History] = []
    for key, found in points.items():
        headline = headline_of(found[-1]) if found else None
        is_new = bool(found) and (before is None or found[-1].materialized_at > before)
        if headline is not None and is_new and len(found) > 1:
            new.append(history_of(found, str(headline["metric"]), changes[key]))
        if found and not (key[1] in project.known_checkpoints and len(found) < 2):
            drawn = dict.fromkeys([*([str(headline["metric"])] if headline else []), *changed[key]])
            wanted += [(0 if metric in changed[key] else 1 if is_new else 2, key, metric) for metric in drawn]
    chosen = {(key, metric) for _, key, metric in sorted(wanted, key=itemgetter(0))[:_MOST_HISTORIES]}
    shown = [history_of(points[key], metric, changes[key]) for _, key, metric in wanted if (key, metric) in chosen]
    return shown, len(wanted) - len(shown), new


def _changes(lake: Lake, result: GateResult) -> list[Look]:
    """The change points of scores: by this judgement, and by the last one of every suite, as in the relation `change_points`."""
    return [*change_points(lake), *result.change_points]


def _points(project: Project, result: GateResult) -> tuple[dict[tuple[str, str], list[Materialization]], dict[tuple[str, str], str]]:
    """The newest points of each eval and model, the oldest first; and messages on damaged ones."""
    evals, models = _names(project, result)
    points: dict[tuple[str, str], list[Materialization]] = {}
    damages: dict[tuple[str, str], str] = {}
    for key in [(eval_name, model) for eval_name in evals for model in models]:
        try:
            points[key] = with_rows(history(project.lake, *key)[-MOST_POINTS:])
        except EvalDagsterError as error:
            damages[key] = str(error)
    return points, damages


def _ranked(lake: Lake) -> dict[str, dict[str, _Ranked]]:
    """The rows of the leaderboard by eval and model."""
    found: dict[str, dict[str, _Ranked]] = defaultdict(dict)
    with suppress(QueryError):  # nothing was published yet
        for row in read_rows(lake, _RANKED):
            found[row["eval"]][row["model"]] = row
    return found


def _standings(ranked: Mapping[str, _Ranked], found: Sequence[tuple[str, Materialization | None, str | None]]) -> list[Standing]:
    """The standings of an eval's models, ranked ones first."""
    standings = []
    for model, point, problem in found:
        row, rank = headline_of(point) if point else None, ranked.get(model)
        standings.append(
            Standing(
                model=model,
                metric=row and row["metric"],
                rank=rank and rank["rank"],
                differs=rank and rank["differs"],
                value=row and row["value"],
                ci_low=row and row["ci_low"],
                ci_high=row and row["ci_high"],
                n=row["n"] if row else 0,
                n_errors=row["n_errors"] if row else 0,
                problem=problem if problem or row else "no result yet",
                findings=(rank and rank["findings"]) or (),
                spread=rank and rank["spread"],
                exceeds_models=rank and rank["exceeds_models"],
                mixed_answers=rank and rank["mixed_answers"],
                answers=answer_words(rank) if rank else "",
            )
        )
    return sorted(standings, key=lambda standing: (standing.rank is None, standing.rank))


def _baselines(project: Project, result: GateResult) -> dict[tuple[str, str], Materialization]:
    """The baseline of each eval and model whose baseline is still there."""
    found: dict[tuple[str, str], Materialization | None] = {}
    for row in result.regressions:
        key = row.eval, row.model
        if key not in found and row.baseline and row.baseline_materialized_at:
            name = MaterializationName(model=row.baseline.rpartition("@")[0] or row.baseline, until=row.baseline_materialized_at)
            found[key] = None
            with suppress(EvalDagsterError):
                found[key] = name.find(project.lake, row.eval)
    return {key: point for key, point in found.items() if point is not None}


def _inputs(point: Materialization) -> dict[str, str]:
    """The versions of a result's inputs, by their names on the page."""
    names = {"dataset rows": "data", "prompts": "prompt", "model": "model"}
    metrics = {f"metric {metric}": version for metric, version in metric_versions(point).items()}
    return {what: point.versions[key] for what, key in names.items()} | metrics
