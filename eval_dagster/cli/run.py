"""The command `run`. With `--limit` it keeps the results apart from published ones."""

import logging
import os
import shlex
import sys
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from eval_dagster.cli.console import WarningHandler, errors, out, print_next, program_name, say
from eval_dagster.cli.leaderboard import print_aggregates, print_leaderboard
from eval_dagster.cli.options import Evals, Models, Suite
from eval_dagster.cli.run_summary import (
    NOT_EVALUATED,
    all_errors,
    cost_line,
    print_end,
    print_not_evaluated,
    read_end,
    request_counts,
    work_done,
)
from eval_dagster.cli.status import look_at_assets, print_states
from eval_dagster.cli.tables import require_writable, say_folded
from eval_dagster.errors import ModelNotFoundError, UsageError
from eval_dagster.gate.judgement import require_sensible_gate
from eval_dagster.gate.run_summary import RunSummary
from eval_dagster.known_results import are_known, note_known
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import catalog_path
from eval_dagster.lake.records import read_attempts
from eval_dagster.pipeline import evaluate, find_current
from eval_dagster.progress.bars import RichReporter
from eval_dagster.progress.reporting import SilentReporter, current_reporter, use_reporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult, partition_key
from eval_dagster.stages.suite_aggregates import require_sensible_aggregates
from eval_dagster.texts.figures import counted
from eval_dagster.texts.terminal import PlainConsole

_FEW_RESULTS = 300
"""Results that are looked at in two seconds or less."""


def run(
    *,
    suite: Suite = None,
    evals: Evals,
    models: Models,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Trial: evaluate at most N samples a subject; published results do not change.", metavar="N")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result of the suite's gate as JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result of the suite's gate as Markdown.")] = None,
    launch: Annotated[
        bool, typer.Option("--launch", help="Let the Dagster instance launch one run for each model, and follow these.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel what the same command with --launch has launched.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be made and asked, and why; make and ask nothing. Exit status 4: something.")
    ] = False,
) -> None:
    """Evaluate, and print the leaderboard and the gate's result of a suite; or do for the same evals and models what an option says.

    An eval or a model that cannot be evaluated is a failure that does not stop the others. Exit status 1 if an evaluation failed, or the
    suite regressed, is incomplete or lacks a proof that it requires; 3 if a cap is the only reason for that.

    Raises:
        UsageError: Options exclude each other, or nothing can be evaluated, and no suite is to be judged.
    """
    if (launch or cancel) and (limit is not None or (launch and cancel)):
        raise UsageError("--launch, --cancel and --limit exclude each other; choose one")
    if dry_run and (launch or cancel or junit or markdown):
        raise UsageError("--dry-run makes nothing, so that --launch, --cancel, --junit and --markdown do not go with it")
    project = _opened(fetches=not dry_run)
    chosen = partial(project.select, suite=suite, evals=evals, models=models)
    if dry_run:
        print_states(project if limit is None else project.trial(limit), *chosen(), fetches=True, suite=suite if limit is None else None)
        return
    if cancel:
        _cancel(project, *chosen(), suite)
        return
    if limit is not None:
        if junit or markdown:
            raise UsageError(
                "a trial (--limit) is judged by no gate, so there is nothing to write for --junit and --markdown; run without --limit"
            )
        whole = [*(["--suite", suite] if suite else []), *(f"--eval {name}" for name in evals), *(f"--model {name}" for name in models)]
        _run_trial(project, *chosen(), limit, " ".join(["run", *whole]), suite)
        return
    _delete_earlier(suite, junit, markdown)
    chosen_evals, chosen_models = chosen()
    look_at_assets(project, chosen_evals)
    project.lake.begin()
    if suite is not None:
        require_sensible_gate(project, suite)
        require_sensible_aggregates(project, suite)
    warn_of_problems(project, chosen_evals, chosen_models, is_judged=suite is not None, is_launched=launch)
    started = time.monotonic()
    with reporting():
        if launch:
            from eval_dagster.assets.runs.launched_runs import Launch, launch_evaluation

            # Ctrl-C ends the following alone.
            tell = current_reporter().note
            summary = launch_evaluation(Launch(project=project, evals=chosen_evals, models=chosen_models, suite=suite, tell=tell))
        else:
            summary = _evaluated(project, chosen_evals, chosen_models, suite)
    if suite is not None and summary.gate is None:
        from eval_dagster.cli import gate as gating

        gating.write_unjudged(suite, summary.failures, junit=junit, markdown=markdown)
    if not catalog_path(project.lake).exists():  # without a catalog, only the reasons can be printed
        for message in summary.failures:
            say(errors, "failed", message, style="red")
        print_not_evaluated(summary.not_evaluated)
        raise typer.Exit(1 if summary.failures else NOT_EVALUATED)
    end = read_end(project, summary, chosen_evals, chosen_models)
    if not print_leaderboard(project.lake, chosen=(chosen_evals, list(project.config.models)), whole=_leaderboard(suite, evals)):
        out.print("There is no result yet: no evaluation succeeded.")
    elif suite is not None:
        print_aggregates(project.lake, suite, chosen_models if models else ())
    flipped = None
    if summary.gate is not None:
        from eval_dagster.cli import gate as gating

        gating.print_gate(summary.gate)
        gating.write_summaries(summary.gate, project.addresses, junit=junit, markdown=markdown)
        flipped = gating.next_command(summary.gate)
    print_end(project, end, time.monotonic() - started, flipped)
    if end.is_failed:
        raise typer.Exit(1)
    if summary.not_evaluated:
        raise typer.Exit(NOT_EVALUATED)


def _opened(*, fetches: bool) -> Project:
    """The project, with the checkpoints that there are. If it `fetches`, the Hub is asked, and what is complete is remembered."""
    project = Project.open()
    if not (project.training_runs and fetches):
        return project
    try:
        project.checkpoints()
    except ModelNotFoundError as error:
        say(errors, "warning", f"{error} The checkpoints that were seen before are evaluated.", style="yellow")
    return Project.open()


def _delete_earlier(suite: str | None, junit: Path | None, markdown: Path | None) -> None:
    """Delete the files of an earlier gate, which must not stand for this run. Raises `UsageError` if none can be written."""
    for option, file in (("--junit", junit), ("--markdown", markdown)):
        if file is not None and suite is None:
            raise UsageError(f"{option} writes the result of a suite's gate; name the suite: --suite NAME")
        if file is not None:
            require_writable(option, file)
            if file.is_file() and not file.is_symlink():
                file.unlink()


def _leaderboard(suite: str | None, evals: Sequence[str]) -> str:
    """The command that prints the leaderboard of a suite, of evals, or of all."""
    return shlex.join(["leaderboard", *(["--suite", suite] if suite else []), *(part for name in evals for part in ("--eval", name))])


def _evaluated(project: Project, evals: Sequence[str], models: Sequence[str], suite: str | None) -> RunSummary:
    """Evaluate in a run of Dagster, unless everything is current, Dagster knows it, and no gate has to judge."""
    partitions = [(eval_name, model) for model in models for eval_name in evals]
    if suite is None and are_known(project, partitions):
        # A search that ends early would print work that is done once more.
        is_short = len(partitions) <= _FEW_RESULTS
        found = find_current(project, partitions, reporter=SilentReporter() if is_short else current_reporter())
        failed = "select eval, model from leaderboard_all where newer_attempt is not null"
        if found is not None and not {tuple(row.values()) for row in read_rows(project.lake, failed)} & set(partitions):
            warned = [*found.damages, *(warning for each in found.results for warning in each.warnings)]
            return RunSummary(cached=Counter(each.stage for each in found.results), warnings=warned)
    # Imported lazily: Dagster and the statistics take a second each, and a wrong configuration is reported before.
    from eval_dagster.assets.runs.in_process_runs import run_evaluation

    summary = run_evaluation(project, evals, models, suite=suite)
    if not summary.failures and not summary.not_evaluated:
        note_known(project, partitions)
    return summary


def warn_of_problems(project: Project, evals: Sequence[str], models: Sequence[str], *, is_judged: bool, is_launched: bool = False) -> None:
    """Print why evals and models cannot be evaluated. The run evaluates the rest, and reports these as failures.

    Where `is_judged`, a gate judges that nothing could be evaluated. Where `is_launched`, models and the IO managers of assets with rows
    may be within reach of other machines alone; each run checks its own.

    Raises:
        UsageError: Nothing can be evaluated, and no gate judges that.
    """
    looked_at = [name for name in evals if not (is_launched and project.asset_keys([name]))]
    problems = project.problems(looked_at, [] if is_launched else models)
    is_nothing_left = all(("eval", name) in problems for name in evals) or all(("model", name) in problems for name in models)
    if problems and is_nothing_left and not is_judged:
        raise UsageError("\n".join(problems.values()))
    for message in problems.values():
        say(errors, "warning", message, style="yellow")
    if problems:
        rest = "nothing else is left to evaluate" if is_nothing_left else "the rest is evaluated"
        counts = [
            f"{broken} of {counted(len(names), kind)}"
            for kind, names in (("eval", evals), ("model", models))
            if (broken := sum((kind, name) in problems for name in names))
        ]
        errors.print(f"{' and '.join(counts)} cannot be evaluated; {rest}", style="yellow")


def _cancel(project: Project, evals: Sequence[str], models: Sequence[str], suite: str | None) -> None:
    """Cancel what the same command with `--launch` has launched."""
    from eval_dagster.assets.runs.launched_runs import Launch, cancel_evaluation

    ids = cancel_evaluation(Launch(project=project, evals=evals, models=models, suite=suite))
    names = ", ".join(run_id[:8] for run_id in ids)
    out.print(f"Runs that are being canceled: {names}" if ids else "There is no such run that has not ended.")


def _run_trial(project: Project, evals: Sequence[str], models: Sequence[str], limit: int, whole: str, suite: str | None) -> None:
    """Evaluate at most `limit` samples a subject and print the trial's leaderboard; exit status 1 if something failed.

    No published result changes: no table of the lake, no record of Dagster or MLflow, no judgement and no report. The answers go to the
    project's cache. `whole` is the command that evaluates the same without a limit, and `suite` the suite of which aggregates are printed.
    """
    look_at_assets(project, evals)
    project.lake.begin()
    warn_of_problems(project, evals, models, is_judged=False)
    trial = project.trial(limit)
    out.print(f"Trial of at most {limit} samples a subject: no published result changes, and no suite is judged.", style="bold")
    started, run_id = time.monotonic(), uuid.uuid4().hex
    partitions = [(eval_name, model) for model in models for eval_name in evals]
    with reporting():
        outcomes = list(evaluate(trial, partitions, stages=set(STAGES), run_id=run_id, reporter=current_reporter()))
    print_leaderboard(trial.lake, title="Trial", chosen=(evals, models), whole="leaderboard --trial")
    if suite is not None:
        print_aggregates(trial.lake, suite, models)
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
        (whole, "all samples, published; answers of the trial come from the cache"),
    )
    ended = [
        (each.is_limited, f"{each.stage} {partition_key(each.eval_name, each.model)}: {each.message}")
        for each in outcomes
        if isinstance(each, StageFailure)
    ]
    empty = [tuple(row.values()) for row in read_rows(trial.lake, "select distinct eval, model from leaderboard where n = 0")]
    failures = [message for is_limited, message in ended if not is_limited]
    failures += [all_errors(trial, *key) for key in empty if key in partitions]
    limited = [message for is_limited, message in ended if is_limited]
    for message in failures:
        say(errors, "failed", message, style="red")
    again = f"{program_name()} {shlex.join(sys.argv[1:])} 2>&1 | less -S"
    warned = [warning for each in results for warning in each.warnings if warning not in failures]
    say_folded(warned, "warning", style="yellow", whole=again)
    print_not_evaluated(limited)
    if failures or limited:
        raise typer.Exit(1 if failures else NOT_EVALUATED)


@contextmanager
def reporting() -> Iterator[None]:
    """Draw progress on the terminal, and print the library's warnings above it."""
    # Dagster captures the process's output while a step runs. Bars are drawn on a duplicate of the terminal.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        console = PlainConsole(file=terminal)
        handler, library = WarningHandler(console), logging.getLogger("eval_dagster")
        library.addHandler(handler)
        try:
            with use_reporter(RichReporter(console)):
                yield
        finally:
            library.removeHandler(handler)
