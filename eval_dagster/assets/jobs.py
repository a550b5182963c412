"""Two jobs for each suite, to evaluate it and to judge it; one job for any evals and models; for the leaderboard; to accept results.

The evaluating jobs have no partitions, although their assets have. Dagster would start a run for each partition, whereas these jobs
evaluate all their evals and models in one run. They need no input; their config can choose a part.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from eval_dagster.assets.evaluation import evaluate_all_stages
from eval_dagster.assets.provenance import REGRESSIONS
from eval_dagster.assets.resources import ProjectResource
from eval_dagster.assets.tags import home_tags, model_tags, suite_tags
from eval_dagster.config.values import identifier
from eval_dagster.dagster_internals.definitions import RUN_KEY_TAG
from eval_dagster.errors import EvalDagsterError
from eval_dagster.gate.results import accept_states, acceptance_line
from eval_dagster.project import Project
from eval_dagster.texts.visible_text import visible

if TYPE_CHECKING:  # what `define_asset_job` returns has no public name
    from eval_dagster.dagster_internals.definitions import UnresolvedAssetJobDefinition

LEADERBOARD_JOB = "refresh_leaderboard"
EVALUATION_JOB = "evaluate_all"
ACCEPTING_JOB = "accept_result"
_OP = "evaluate_choice"
_FAILED = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
_ACCEPTING_OP = "accept"


class Choice(dg.Config):
    """The part of a job's evals and models that a run evaluates."""

    evals: list[str] = Field(default=[], description="Names of evals; empty: all that the job is for.")
    models: list[str] = Field(default=[], description="Names of models; empty: all that the job is for.")


class AcceptedStates(dg.Config):
    """The arguments of an acceptance, as `eval-dagster accept` takes it."""

    suite: str = Field(description="Suite whose gate the results did not pass.")
    why: str = Field(description="The reason, for the report.")
    by: str = Field(description="Your name, for the report.")
    evals: list[str] = Field(default=[], description="Names of evals; empty: all that is red.")
    models: list[str] = Field(default=[], description="Names of models; empty: all that is red.")


def chosen(*, evals: Sequence[str] = (), models: Sequence[str] = ()) -> dict[str, object]:
    """The config of a run that evaluates a part of its job's evals and models."""
    return {"ops": {_OP: {"config": {"evals": list(evals), "models": list(models)}}}}


def is_whole(run: dg.DagsterRun) -> bool:
    """Whether a run evaluates all evals and models of its job."""
    config: Any = run.run_config
    choice = config.get("ops", {}).get(_OP, {}).get("config", {})
    return not choice.get("evals") and not choice.get("models")


def suite_job_name(suite: str) -> str:
    """The name of a suite's job; Dagster allows letters, digits and underscores."""
    return f"suite_{identifier(suite)}"


def gate_job_name(suite: str) -> str:
    """The name of the job that judges a suite."""
    return f"gate_{identifier(suite)}"


def gate_check_name(suite: str) -> str:
    """The name of a suite's check on the asset `regressions`."""
    return f"nothing_regressed_in_{identifier(suite)}"


def suite_job(name: str, project: Project) -> dg.JobDefinition:
    """The job that evaluates a suite, from dataset to metrics."""
    suite = project.config.suites[name]
    return _evaluation_job(
        suite_job_name(name),
        f"Evaluate the suite {name}: {', '.join(suite.evals)} on {', '.join(suite.models)}. When the run has ended, "
        f"{gate_job_name(name)} judges the suite.",
        tags={**suite_tags(project.home, name), **model_tags(project.config, suite.models)},
    )


def evaluation_job(project: Project) -> dg.JobDefinition:
    """The job for all evals and models, or for any choice of them."""
    return _evaluation_job(
        EVALUATION_JOB,
        "Evaluate all evals on all models; name some of them in the config to evaluate these alone.",
        tags={**home_tags(project.home), **model_tags(project.config, list(project.config.models))},
    )


def gate_job(name: str, project: Project) -> "UnresolvedAssetJobDefinition":
    """The job that compares a suite with its baseline. It fails on a regression if the suite's severity is `error`."""
    suite = project.config.suites[name]
    check = dg.AssetCheckKey(dg.AssetKey(REGRESSIONS), gate_check_name(name))
    return dg.define_asset_job(
        gate_job_name(name),
        selection=dg.AssetSelection.assets(REGRESSIONS).without_checks() | dg.AssetSelection.checks(check),
        description=f"Compare the suite {name} with its baseline: {suite.baseline}.",
        tags=suite_tags(project.home, name),
        executor_def=dg.in_process_executor,
    )


def accepting_job(project: Project) -> dg.JobDefinition:
    """The job by which a person accepts results. The launchpad has its config filled in but for the reason and the name."""
    suite = next(iter(project.config.suites), "")
    config: dict[str, object] = {"suite": suite, "why": "", "by": "", "evals": [], "models": []}

    @dg.job(
        name=ACCEPTING_JOB,
        description="Accept results that a gate did not let pass as the baseline of later ones: fill in `why` and `by` in the launchpad.",
        tags=home_tags(project.home),
        executor_def=dg.in_process_executor,
        config={"ops": {_ACCEPTING_OP: {"config": config}}},
    )
    def job() -> None:
        _accepting()

    return job


def leaderboard_job(project: Project) -> "UnresolvedAssetJobDefinition":
    """The job that refreshes the leaderboard."""
    return dg.define_asset_job(
        LEADERBOARD_JOB,
        selection=dg.AssetSelection.assets("leaderboard"),
        tags=home_tags(project.home),
        executor_def=dg.in_process_executor,
    )


@dg.op(name=_OP, description="Takes evals and models from dataset to metrics.", out={})
def _evaluation(
    context: dg.OpExecutionContext, config: Choice, project: ProjectResource
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """Evaluate the evals and models of the job, or the part in the config. All jobs share this op: Dagster allows one op for a name."""
    twin = _earlier_twin(context.instance, context.run)
    if twin is not None:
        context.log.info(f"the run {twin.run_id} evaluates the same night, so that this one evaluates nothing; are there two daemons?")
        return
    opened = project.open(context.instance)
    suite = next((name for name in opened.config.suites if suite_job_name(name) == context.job_name), None)
    evals, models = opened.select(suite=suite, evals=config.evals, models=config.models)
    yield from evaluate_all_stages(context, opened, [(eval_name, model) for model in models for eval_name in evals])


def _earlier_twin(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun | None:
    """The first run of the same night and model, as a second daemon requests one.

    None if it has failed, or if a person has executed the run again.
    """
    key = run.tags.get(RUN_KEY_TAG)
    if key is None or run.parent_run_id is not None:
        return None
    records = instance.get_run_records(dg.RunsFilter(job_name=run.job_name, tags={RUN_KEY_TAG: key}), ascending=True)
    first = next((record.dagster_run for record in records if record.dagster_run.status not in _FAILED), run)
    return None if first.run_id == run.run_id else first


@dg.op(name=_ACCEPTING_OP, description="Records the acceptance, as `eval-dagster accept` does.", out={})
def _accepting(context: dg.OpExecutionContext, config: AcceptedStates, project: ProjectResource) -> Iterator[dg.AssetObservation]:
    """Accept the last judged states of a suite, and show on the asset `regressions` what was accepted."""
    opened = project.open(context.instance)
    try:
        accepted = accept_states(opened, config.suite, evals=config.evals, models=config.models, by=config.by, why=config.why)
    except EvalDagsterError as error:
        raise dg.Failure(visible(str(error)), allow_retries=False) from error
    lines = [visible(acceptance_line(each)) for each in accepted]
    for line in lines:
        context.log.info(f"accepted: {line}")
    metadata = {"suite": config.suite, "accepted": "\n".join(lines), "why": visible(config.why), "by": visible(config.by)}
    yield dg.AssetObservation(asset_key=REGRESSIONS, partition=config.suite, description=f"accepted: {'; '.join(lines)}", metadata=metadata)


def _evaluation_job(name: str, description: str, tags: dict[str, str]) -> dg.JobDefinition:
    @dg.job(name=name, description=description, tags=tags, executor_def=dg.in_process_executor)
    def job() -> None:
        _evaluation()

    return job
