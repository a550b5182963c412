"""The end of `run`: counts, failures, the places of the results, and the next commands."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval_dagster.cli.console import errors, out, print_next, say
from eval_dagster.lake.attempts import Attempt, read_attempts
from eval_dagster.lake.catalog import catalog_path, read_rows
from eval_dagster.project import Project
from eval_dagster.stages.sample_errors import error_warning

if TYPE_CHECKING:
    from eval_dagster.assets.in_process_runs import RunSummary

Command = tuple[str, str]
"""A command without the program's name, and what it shows."""


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """The end of a run, with the state of its evals and models in the lake."""

    summary: "RunSummary"
    scored: Sequence[tuple[str, str]]
    """Evals and models that have a score."""
    failed: Sequence[Attempt]
    """Evals and models that failed at a stage of this run."""
    unscored: Sequence[str]
    """A message for each eval and model whose samples are all errors."""
    untracked: int
    """Number of results that are missing in the home's own MLflow store; 0 if MLflow is a server, whose failures are warnings."""
    has_errors: bool
    """Whether a sample of these evals and models has an error."""
    has_confident_errors: bool
    """Whether the relation of that name has a row of these evals and models."""

    @property
    def is_failed(self) -> bool:
        """Whether anything failed, or the suite's gate did."""
        return bool(
            self.summary.failures or self.unscored or self.untracked or (self.summary.gate is not None and self.summary.gate.is_failed)
        )


def read_end(project: Project, summary: "RunSummary", evals: Sequence[str], models: Sequence[str]) -> RunEnd:
    """Read how the evals and models of a run ended."""
    asked = "eval in (select unnest($evals)) and model in (select unnest($models))"
    names = {"evals": list(evals), "models": list(models)}
    scores = read_rows(project.lake, f"select eval, model, n from leaderboard where {asked}", names)  # noqa: S608 - names are bound
    rows = [(row["eval"], row["model"], row["n"]) for row in scores]
    untracked = f"select distinct eval, model from metrics where mlflow_run_id is null and {asked}"  # noqa: S608 - as above
    empty = [(name, model) for name, model, count in rows if not count]
    return RunEnd(
        summary=summary,
        scored=[(name, model) for name, model, count in rows if count],
        failed=[each for each in read_attempts(project.lake) if each.run_id in summary.run_ids and each.status == "failed"],
        unscored=[all_errors(project, *key) for key in dict.fromkeys(empty)],
        untracked=0 if project.tracker.is_server else len(read_rows(project.lake, untracked, names)),
        has_errors=_has_row(project, f"from errors where {asked}", names),
        has_confident_errors=_has_row(project, f"from confident_errors where {asked}", names),
    )


def print_end(project: Project, end: RunEnd, seconds: float, flipped: Command | None) -> None:
    """Print the counts, the failures and warnings, the places of the results, and the next commands.

    `flipped` is the command that shows the samples of a regression, if there is one.
    """
    summary = end.summary
    made, current = sum(summary.made.values()), sum(summary.cached.values())
    if summary.requests_computed or made:
        out.print(work_done(summary.requests_computed, summary.requests_cached, made, current, seconds))
    elif not summary.failures:
        out.print(f"Nothing to recompute: all {current} tables were current, no model was loaded; {seconds:.0f} s")
    _print_problems(end)
    report = f"Report    {summary.report}\n" if summary.report else ""
    out.print(
        f"\n{report}"
        f"Results   {catalog_path(project.lake)} (DuckDB), {project.lake.root} (Parquet)\n"
        f"MLflow    {project.tracker.shown_uri}\n"
        f"Dagster   {os.environ['DAGSTER_HOME']}, runs {', '.join(run_id[:8] for run_id in summary.run_ids)}",
        soft_wrap=True,
    )
    print_next(*([flipped] if flipped else []), *_commands(end))


def work_done(computed: int, cached: int, made: int, current: int, seconds: float) -> str:
    """The line with the counts of requests and tables."""
    requests = f"{computed} requests sent to models, {cached} answered from the cache"
    return f"{requests}; {made} tables made, {current} were current; {seconds:.0f} s"


def _print_problems(end: RunEnd) -> None:
    for message in [*end.summary.failures, *end.unscored]:
        say(errors, "failed", message, style="red")
    if end.untracked:
        what = "1 result is" if end.untracked == 1 else f"{end.untracked} results are"
        say(errors, "failed", f"{what} not in MLflow, for the reason below; the next run tries again", style="red")
    for message in dict.fromkeys(end.summary.warnings):
        if not any(message in failure for failure in [*end.summary.failures, *end.unscored]):
            say(errors, "warning", message, style="yellow")


def _commands(end: RunEnd) -> Iterator[Command]:
    """First the commands that help to find the reason of a failure, then those that show results."""
    if any(each.stage == "model_outputs" for each in end.failed):
        yield "models", "whether each model can be loaded"
    of_tasks = [each.eval for each in end.failed if each.stage != "model_outputs"]
    if of_tasks:
        yield f"tasks {of_tasks[0]}", "an example of this eval, with checks of its prompts"
    if end.failed:
        yield "sql attempts", "how each evaluation ended, and why"
    if end.has_errors:
        yield "sql errors", "the samples that have an error, and why"
    if end.has_confident_errors:
        yield "sql confident_errors", "the mistakes a model was surest of"
    if end.scored:
        eval_name, model = end.scored[0]
        yield f"show {eval_name} --model {model}", "the exact prompt that a model sees"
    yield "ui", "the assets in Dagster, the runs in MLflow"


def all_errors(project: Project, eval_name: str, model: str) -> str:
    """The message for an eval and a model whose samples are all errors."""
    scores = project.lake.require("scores", "sample_scores", eval_name, model)
    return error_warning(eval_name, model, scores) or f"{eval_name}|{model}: no sample has a value of the headline metric"


def _has_row(project: Project, source: str, names: dict[str, list[str]]) -> bool:
    return bool(read_rows(project.lake, f"select 1 {source} limit 1", names))
