"""The command `run --limit`: evaluates few samples, and keeps the results apart from published ones."""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import typer

from eval_dagster.cli.console import errors, out, print_next, say
from eval_dagster.cli.run import reporting, warn_of_problems
from eval_dagster.cli.run_summary import NOT_EVALUATED, all_errors, cost_line, print_not_evaluated, request_counts, work_done
from eval_dagster.cli.sql import print_leaderboard
from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import catalog_path
from eval_dagster.lake.records import read_attempts
from eval_dagster.pipeline import Outcome, evaluate
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult, partition_key


def run_trial(
    *, suite: str | None, evals: Sequence[str], models: Sequence[str], limit: int, junit: Path | None, markdown: Path | None
) -> None:
    """Evaluate at most `limit` samples a subject and print the trial's leaderboard; exit status 1 if something failed.

    No published result changes: no table of the lake, no record of Dagster or MLflow, no judgement and no report. The answers go to the
    project's cache.
    """
    project = Project.open()
    if junit or markdown:
        raise UsageError(
            "a trial (--limit) is judged by no gate, so there is nothing to write for --junit and --markdown; run without --limit"
        )
    chosen_evals, chosen_models = project.select(suite=suite, evals=evals, models=models)
    project.lake.begin()
    warn_of_problems(project, chosen_evals, chosen_models, chosen_models, is_judged=False)
    trial = project.trial(limit)
    out.print(f"Trial of at most {limit} samples a subject: no published result changes, and no suite is judged.", style="bold")
    started, run_id = time.monotonic(), uuid.uuid4().hex
    partitions = [(eval_name, model) for model in chosen_models for eval_name in chosen_evals]
    with reporting():
        outcomes = list(evaluate(trial, partitions, stages=set(STAGES), run_id=run_id, reporter=current_reporter()))
    print_leaderboard(trial.lake, title="Trial", chosen=(chosen_evals, chosen_models))
    results = [each for each in outcomes if isinstance(each, StageResult)]
    attempts = read_attempts(trial.lake, run_ids=[run_id])
    computed, answered = request_counts(attempts)
    current = sum(each.cached for each in results)
    out.print(work_done(computed, answered, len(results) - current, current, time.monotonic() - started))
    if cost := cost_line(attempts):
        out.print(cost)
    out.print(f"\nResults   {catalog_path(trial.lake)} (DuckDB), {trial.lake.root} (Parquet)", soft_wrap=True)
    print_next(
        ("sql sample_results --trial", "prompt, answer, gold and score of each sample"),
        ("leaderboard --trial", "all trials"),
        (_whole(suite, evals, models), "all samples, published; answers of the trial come from the cache"),
    )
    failures = _failures(trial, partitions, outcomes)
    for message in failures:
        say(errors, "failed", message, style="red")
    for message in dict.fromkeys(warning for each in results for warning in each.warnings if warning not in failures):
        say(errors, "warning", message, style="yellow")
    limited = [each for each in outcomes if isinstance(each, StageFailure) and each.is_limited]
    print_not_evaluated([_line(each) for each in limited])
    if failures or limited:
        raise typer.Exit(1 if failures else NOT_EVALUATED)


def _failures(trial: Project, partitions: Sequence[tuple[str, str]], outcomes: Sequence[Outcome]) -> list[str]:
    failed = [each for each in outcomes if isinstance(each, StageFailure) and not each.is_limited]
    empty = read_rows(trial.lake, "select distinct eval, model from leaderboard where n = 0")
    return [
        *map(_line, failed),
        *(all_errors(trial, row["eval"], row["model"]) for row in empty if (row["eval"], row["model"]) in partitions),
    ]


def _line(failure: StageFailure) -> str:
    return f"{failure.stage} {partition_key(failure.eval_name, failure.model)}: {failure.message}"


def _whole(suite: str | None, evals: Sequence[str], models: Sequence[str]) -> str:
    """The command that evaluates the same without a limit."""
    options = [("--suite", suite)] if suite else []
    options += [*(("--eval", name) for name in evals), *(("--model", name) for name in models)]
    return " ".join(["run", *(f"{option} {name}" for option, name in options)])
