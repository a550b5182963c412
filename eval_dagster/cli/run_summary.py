"""The end of `run`: counts, failures, the places of the results, and the next commands."""

import math
import os
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from eval_dagster.cli.console import errors, out, print_next, program_name, say
from eval_dagster.cli.tables import say_folded
from eval_dagster.gate.judgement import excused
from eval_dagster.gate.run_summary import RunSummary
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import catalog_path
from eval_dagster.lake.records import read_attempts
from eval_dagster.lake.tables.events import Attempt
from eval_dagster.pages.samples.places import shown_pages
from eval_dagster.project import Project
from eval_dagster.stages.imported import IMPORT_COMMAND
from eval_dagster.stages.partition import error_warning
from eval_dagster.texts.figures import counted, dollars

_LEAST_S = 0.05
"""Fewest worker-seconds that are worth a line."""
NOT_EVALUATED = 3
"""The exit status if nothing failed, and a cap kept something from being evaluated. The gate is not green then, either."""
Command = tuple[str, str]
"""A command without the program's name, and what it shows."""


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """The end of a run, with the state of its evals and models in the lake."""

    summary: RunSummary
    scored: Sequence[tuple[str, str]]
    """Evals and models that have a score."""
    asked: Sequence[tuple[str, str]]
    """The scored ones whose results are not imported."""
    judged: Sequence[tuple[str, str]]
    """Evals and models with a result, also those whose samples are all errors."""
    attempts: Sequence[Attempt]
    """How the evals and models of this run ended."""
    unscored: Sequence[str]
    """A message for each eval and model whose samples are all errors."""
    untracked: int
    """Number of results that are missing in the home's own MLflow store; 0 if MLflow is a server, whose failures are warnings."""
    has_errors: bool
    """Whether a sample of these evals and models has an error."""
    has_confident_errors: bool
    """Whether the relation of that name has a row of these evals and models."""
    excused: Collection[str]
    """The beginnings of failure messages that the suite does without: an accepted gap, or one that `require` allows."""

    @property
    def failed(self) -> Sequence[Attempt]:
        """Evals and models that failed at a stage of this run."""
        return [each for each in self.attempts if each.status == "failed"]

    @property
    def is_failed(self) -> bool:
        """Whether anything failed, or the suite's gate did for another reason than a cap."""
        gate = self.summary.gate
        is_gate_failed = gate is not None and gate.is_failed
        if gate is not None and is_gate_failed and not gate.red and gate.missing:
            capped = {(each.eval, each.model) for each in self.attempts if each.status == "not evaluated"}
            is_gate_failed = not {(row.eval, row.model) for row in gate.missing} <= capped
        is_counted = any(not self.is_excused(message) for message in self.summary.failures)
        return bool(is_counted or self.unscored or self.untracked or is_gate_failed)

    def is_excused(self, failure: str) -> bool:
        """Whether the suite does without the failed result."""
        return failure.partition(": ")[0] in self.excused


def read_end(project: Project, summary: RunSummary, evals: Sequence[str], models: Sequence[str]) -> RunEnd:
    """Read how the evals and models of a run ended."""
    asked = "eval in (select unnest($evals)) and model in (select unnest($models))"
    names = {"evals": list(evals), "models": list(models)}
    tracked = {**names, "evals": [name for name in evals if not project.is_imported(name)]}
    scores = read_rows(project.lake, f"select eval, model, n from leaderboard where {asked}", names)  # noqa: S608 - names are bound
    rows = [tuple(row.values()) for row in scores]
    untracked = f"select distinct eval, model from metrics where mlflow_run_id is null and {asked}"  # noqa: S608 - as above
    empty = [(name, model) for name, model, count in rows if not count]
    attempts = read_attempts(project.lake, run_ids=summary.run_ids)
    scored = [(name, model) for name, model, count in rows if count]
    return RunEnd(
        summary=summary,
        asked=[each for each in scored if not project.is_imported(each[0])],
        judged=[(name, model) for name, model, _ in rows],
        scored=scored,
        attempts=attempts,
        unscored=[all_errors(project, *key) for key in dict.fromkeys(empty)],
        untracked=0 if project.tracker.is_server else len(read_rows(project.lake, untracked, tracked)),
        has_errors=_has_row(project, f"from errors where {asked}", names),
        has_confident_errors=_has_row(project, f"from confident_errors where {asked}", names),
        excused=excused(summary.gate, attempts),
    )


def print_end(project: Project, end: RunEnd, seconds: float, flipped: Command | None) -> None:
    """Print the counts, the failures and warnings, the places of the results, and the next commands.

    `flipped` is the command that shows the samples of a regression, if there is one.
    """
    summary = end.summary
    made, current = sum(summary.made.values()), sum(summary.cached.values())
    computed, cached = request_counts(end.attempts)
    if computed or made:
        out.print(work_done(computed, cached, made, current, seconds))
    elif not summary.failures and not summary.not_evaluated:
        out.print(f"Nothing to recompute: all {current} tables were current, no model was loaded; {seconds:.0f} s")
    if cost := cost_line(end.attempts):
        out.print(cost)
    _print_problems(end)
    report = f"Report    {summary.report}\n" if summary.report else ""
    samples = "".join(f"{'' if place else 'Samples':<10}{page}\n" for place, page in enumerate(shown_pages(project.home, end.judged)))
    out.print(
        f"\n{report}{samples}"
        f"Results   {catalog_path(project.lake)} (DuckDB), {project.lake.root} (Parquet)\n"
        f"MLflow    {project.tracker.page() or project.tracker.shown_uri}\n"
        f"Dagster   {project.addresses.of('dagster') or os.environ.get('DAGSTER_HOME') or project.home / 'dagster'}"
        + (f", runs {', '.join(run_id[:8] for run_id in summary.run_ids)}" if summary.run_ids else ""),
        soft_wrap=True,
    )
    print_next(*([flipped] if flipped else []), *_commands(end))


def request_counts(attempts: Sequence[Attempt]) -> tuple[int, int]:
    """The requests of a run that were sent to models, and those that were answered from the cache. What was current asks for nothing.

    Of episodes each turn counts.
    """
    return sum(each.sent for each in attempts), sum(each.from_cache for each in attempts if not each.cached)


def work_done(computed: int, cached: int, made: int, current: int, seconds: float) -> str:
    """The line with the counts of requests and tables."""
    requests = f"{counted(computed, 'request')} sent to models, {cached:,} answered from the cache"
    return f"{requests}; {counted(made, 'table')} made, {current:,} {'was' if current == 1 else 'were'} current; {seconds:.0f} s"


def cost_line(attempts: Sequence[Attempt]) -> str:
    """The line with the cost of a run's answers; empty if no model has a price or computes here."""
    costs = [each.cost for each in attempts if each.cost is not None]
    unknown = sum(each.cost_unknown or 0 for each in attempts)
    worker_s = math.fsum(each.worker_s or 0.0 for each in attempts)
    gpu_s = math.fsum(each.gpu_s or 0.0 for each in attempts)
    parts = [*([dollars(math.fsum(costs))] if costs else []), *([worker_time(worker_s, gpu_s)] if worker_s >= _LEAST_S else [])]
    known = [f"The answers of this run cost {' and '.join(parts)}"] if parts else []
    return "; ".join([*known, *([f"the cost of {unknown} is not known"] if unknown else [])])


def worker_time(worker_s: float, gpu_s: float | None) -> str:
    """Seconds of workers, and of GPUs if there are any."""
    return f"{worker_s:,.1f} worker-seconds" + (f" ({gpu_s:,.1f} GPU-seconds)" if gpu_s else "")


def _again() -> str:
    """The command that runs, which prints all warnings once more if its output is not a terminal. What is current is not computed again."""
    return f"{program_name()} {shlex.join(sys.argv[1:])} 2>&1 | less -S"


def print_not_evaluated(messages: Sequence[str]) -> None:
    """Print what a cap kept from being evaluated, with its number."""
    say_folded(messages, "not evaluated", style="yellow", whole=f"{program_name()} sql attempts --format csv | less -S")
    asked = [message for message in messages if IMPORT_COMMAND not in message]
    if asked:
        count = "1 result was" if len(asked) == 1 else f"{len(asked)} results were"
        errors.print(f"{count} not evaluated: the next run asks for what is missing, and for nothing twice", style="yellow", soft_wrap=True)


def _print_problems(end: RunEnd) -> None:
    kinds: dict[bool, list[str]] = {False: [], True: []}
    for message in [*end.summary.failures, *end.unscored]:
        kinds[end.is_excused(message)].append(message)
    attempts = f"{program_name()} sql attempts --format csv | less -S"
    say_folded(kinds[False], "failed", style="red", whole=attempts)
    say_folded(kinds[True], "not required", style="yellow", whole=attempts)
    print_not_evaluated(end.summary.not_evaluated)
    if end.untracked:
        what = "1 result is" if end.untracked == 1 else f"{end.untracked} results are"
        say(errors, "failed", f"{what} not in MLflow, for the reason below; the next run tries again", style="red")
    said = "\n".join([*end.summary.failures, *end.unscored])
    say_folded([message for message in end.summary.warnings if message not in said], "warning", style="yellow", whole=_again())


def _commands(end: RunEnd) -> Iterator[Command]:
    """First the commands that help to find the reason of a failure, then those that show results."""
    if any(each.stage == "model_outputs" for each in end.failed):
        yield "models", "whether the engine and the files of each model are there"
    of_tasks = [each.eval for each in end.failed if each.stage != "model_outputs"]
    if of_tasks:
        yield f"tasks {of_tasks[0]}", "an example of this eval, with checks of its prompts"
    if end.failed or end.summary.not_evaluated:
        yield "sql attempts", "how each evaluation ended, and why"
    if end.has_errors:
        yield "sql errors", "the samples that have an error, and why"
    if end.has_confident_errors:
        yield "sql confident_errors", "the mistakes a model was surest of"
    if end.asked:
        eval_name, model = end.asked[0]
        yield f"show {eval_name} --model {model}", "the exact prompt that a model sees"
    if end.scored:
        yield "view", "all results and their samples in a browser"
    yield "ui", "the assets in Dagster, the runs in MLflow"


def all_errors(project: Project, eval_name: str, model: str) -> str:
    """The message for an eval and a model whose samples are all errors."""
    scores = project.lake.require("scores", "sample_scores", eval_name, model)
    return error_warning(eval_name, model, scores) or f"{eval_name}|{model}: no sample has a value of the headline metric"


def _has_row(project: Project, source: str, names: dict[str, list[str]]) -> bool:
    return bool(read_rows(project.lake, f"select 1 {source} limit 1", names))
