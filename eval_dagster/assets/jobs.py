"""Two jobs for each suite, to evaluate it and to judge it; one job for any evals and models; for the leaderboard; to accept results.

The evaluating jobs have no partitions, although their assets have. Dagster would start a run for each partition, whereas these jobs
evaluate all their evals and models in one run. They need no input; their config can choose a part.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from eval_dagster.assets.evaluation import Choice, evaluate_choice
from eval_dagster.assets.materializations import StepEvent
from eval_dagster.assets.names import LEADERBOARD, REGRESSIONS, Names, gate_check
from eval_dagster.assets.resources import ProjectFile
from eval_dagster.assets.tags import home_tags, model_tags, suite_tags
from eval_dagster.errors import EvalDagsterError
from eval_dagster.gate.results import accept_states, acceptance_line
from eval_dagster.project import Project
from eval_dagster.texts.visible_text import visible

if TYPE_CHECKING:  # what `define_asset_job` returns has no public name
    from eval_dagster.dagster_internals.definitions import UnresolvedAssetJobDefinition


class AcceptedStates(dg.Config):
    """The arguments of an acceptance, as `eval-dagster accept` takes it."""

    suite: str = Field(description="Suite whose gate the results did not pass.")
    why: str = Field(description="The reason, for the report.")
    by: str = Field(description="Your name, for the report.")
    evals: list[str] = Field(default=[], description="Names of evals; empty: all that is red.")
    models: list[str] = Field(default=[], description="Names of models; empty: all that is red.")


def evaluating_jobs(project: Project) -> list[dg.JobDefinition]:
    """The jobs that evaluate from dataset to metrics: any choice of evals and models, and one job for each suite."""
    names, file, settings = Names.of(project), ProjectFile.of(project), project.config
    suites = {names.suite_job(suite): suite for suite in settings.suites}

    # All jobs share this op: Dagster allows one op for a name.
    @dg.op(name=names.evaluation_op, description="Takes evals and models from dataset to metrics.", out={})
    def evaluate(context: dg.OpExecutionContext, config: Choice) -> Iterator[StepEvent]:
        """Evaluate the evals and models of the job, or the part in the config."""
        yield from evaluate_choice(context, file.open(context.instance), config, suite=suites.get(context.job_name))

    def evaluating_job(name: str, description: str, tags: dict[str, str]) -> dg.JobDefinition:
        @dg.job(name=name, description=description, tags=tags, executor_def=dg.in_process_executor)
        def job() -> None:
            evaluate()

        return job

    return [
        evaluating_job(
            names.evaluation_job,
            "Evaluate all evals on all models; name some of them in the config to evaluate these alone.",
            tags={**home_tags(project.home), **model_tags(settings, list(settings.models))},
        ),
        *(
            evaluating_job(
                name,
                f"Evaluate the suite {suite}: {', '.join(settings.suites[suite].evals)} on {', '.join(settings.suites[suite].models)}. "
                f"When the run has ended, {names.gate_job(suite)} judges the suite.",
                tags={**suite_tags(project.home, suite), **model_tags(settings, settings.suites[suite].models)},
            )
            for name, suite in suites.items()
        ),
    ]


def gate_job(name: str, project: Project) -> "UnresolvedAssetJobDefinition":
    """The job that compares a suite with its baseline. It fails on a regression if the suite's severity is `error`."""
    suite, names = project.config.suites[name], Names.of(project)
    asset = names.key(REGRESSIONS)
    check = dg.AssetCheckKey(asset, gate_check(name))
    return dg.define_asset_job(
        names.gate_job(name),
        selection=dg.AssetSelection.assets(asset).without_checks() | dg.AssetSelection.checks(check),
        description=f"Compare the suite {name} with its baseline: {suite.baseline}.",
        tags=suite_tags(project.home, name),
        executor_def=dg.in_process_executor,
    )


def accepting_job(project: Project) -> dg.JobDefinition:
    """The job by which a person accepts results. The launchpad has its config filled in but for the reason and the name."""
    names, file = Names.of(project), ProjectFile.of(project)
    op_name = names.named("accept")
    config: dict[str, object] = {"suite": next(iter(project.config.suites), ""), "why": "", "by": "", "evals": [], "models": []}

    @dg.op(name=op_name, description="Records the acceptance, as `eval-dagster accept` does.", out={})
    def accept(context: dg.OpExecutionContext, config: AcceptedStates) -> Iterator[dg.AssetObservation]:
        """Accept the last judged states of a suite, and show on the asset `regressions` what was accepted."""
        opened = file.open(context.instance)
        try:
            accepted = accept_states(opened, config.suite, evals=config.evals, models=config.models, by=config.by, why=config.why)
        except EvalDagsterError as error:
            raise dg.Failure(visible(str(error)), allow_retries=False) from error
        lines = [visible(acceptance_line(each)) for each in accepted]
        for line in lines:
            context.log.info(f"accepted: {line}")
        metadata = {"suite": config.suite, "accepted": "\n".join(lines), "why": visible(config.why), "by": visible(config.by)}
        said = f"accepted: {'; '.join(lines)}"
        yield dg.AssetObservation(names.key(REGRESSIONS), partition=config.suite, description=said, metadata=metadata)

    @dg.job(
        name=names.accepting_job,
        description="Accept results that a gate did not let pass as the baseline of later ones: fill in `why` and `by` in the launchpad.",
        tags=home_tags(project.home),
        executor_def=dg.in_process_executor,
        config={"ops": {op_name: {"config": config}}},
    )
    def job() -> None:
        accept()

    return job


def leaderboard_job(project: Project) -> "UnresolvedAssetJobDefinition":
    """The job that refreshes the leaderboard."""
    names = Names.of(project)
    return dg.define_asset_job(
        names.leaderboard_job,
        selection=dg.AssetSelection.assets(names.key(LEADERBOARD)),
        tags=home_tags(project.home),
        executor_def=dg.in_process_executor,
    )
