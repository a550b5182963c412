"""The command that evaluates."""

import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from eval_dagster.cli.console import WarningHandler, errors, out, say
from eval_dagster.cli.run_summary import NOT_EVALUATED, print_end, print_not_evaluated, read_end
from eval_dagster.cli.sql import print_leaderboard
from eval_dagster.cli.tables import require_writable
from eval_dagster.errors import UsageError
from eval_dagster.gate.judgement import require_sensible_gate
from eval_dagster.lake.files import catalog_path
from eval_dagster.progress.bars import RichReporter
from eval_dagster.progress.reporting import current_reporter, use_reporter
from eval_dagster.project import Project
from eval_dagster.texts.figures import counted
from eval_dagster.texts.terminal import PlainConsole

if TYPE_CHECKING:
    from eval_dagster.assets.runs.run_summaries import RunSummary


def run(
    *, suite: str | None, evals: Sequence[str], models: Sequence[str], junit: Path | None, markdown: Path | None, launch: bool = False
) -> None:
    """Evaluate, and print the leaderboard and the gate's result of a suite. With `launch`, the Dagster instance launches the runs.

    An eval or a model that cannot be evaluated is a failure that does not stop the others. Exit status 1 if an evaluation failed, or the
    suite regressed or is incomplete; 3 if a cap is the only reason for that.

    Raises:
        UsageError: Nothing can be evaluated, and no suite is to be judged.
    """
    project = Project.open()
    for option, file in (("--junit", junit), ("--markdown", markdown)):
        if file is not None and suite is None:
            raise UsageError(f"{option} writes the result of a suite's gate; name the suite: --suite NAME")
        if file is not None:
            require_writable(option, file)
            if file.is_file() and not file.is_symlink():
                file.unlink()  # the result of an earlier run must not stand for this one, however this one ends
    chosen_evals, chosen_models = project.select(suite=suite, evals=evals, models=models)
    project.lake.begin()
    if suite is not None:
        require_sensible_gate(project, suite)
    # Models of launched runs may be within reach of other machines alone; each run checks its own.
    warn_of_problems(project, chosen_evals, chosen_models, [] if launch else chosen_models, is_judged=suite is not None)
    # Imported lazily: Dagster and the statistics take a second each, and a wrong configuration is reported before.
    from eval_dagster.assets.runs.in_process_runs import run_evaluation
    from eval_dagster.cli import gate as gating

    started = time.monotonic()
    with reporting():
        if launch:
            summary = launched(project, chosen_evals, chosen_models, suite)
        else:
            summary = run_evaluation(project, chosen_evals, chosen_models, suite=suite)
    if suite is not None and summary.gate is None:
        gating.write_unjudged(suite, summary.failures, junit=junit, markdown=markdown)
    if not catalog_path(project.lake).exists():  # without a catalog, only the reasons can be printed
        for message in summary.failures:
            say(errors, "failed", message, style="red")
        print_not_evaluated(summary.not_evaluated)
        raise typer.Exit(1 if summary.failures else NOT_EVALUATED)
    end = read_end(project, summary, chosen_evals, chosen_models)
    if not print_leaderboard(project.lake, chosen=(chosen_evals, list(project.config.models))):
        out.print("There is no result yet: no evaluation succeeded.")
    if summary.gate is not None:
        gating.print_gate(summary.gate)
        gating.write_summaries(summary.gate, project.addresses, junit=junit, markdown=markdown)
    print_end(project, end, time.monotonic() - started, gating.next_command(summary.gate) if summary.gate else None)
    if end.is_failed:
        raise typer.Exit(1)
    if summary.not_evaluated:
        raise typer.Exit(NOT_EVALUATED)


def warn_of_problems(project: Project, evals: Sequence[str], models: Sequence[str], checked: Sequence[str], *, is_judged: bool) -> None:
    """Print why evals and models cannot be evaluated. The run evaluates the rest, and reports these as failures.

    `checked` are the models to look at. Where `is_judged`, a gate judges that nothing could be evaluated.

    Raises:
        UsageError: Nothing can be evaluated, and no gate judges that.
    """
    problems = project.problems(evals, checked)
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


def launched(project: Project, evals: Sequence[str], models: Sequence[str], suite: str | None) -> "RunSummary":
    """Let the Dagster instance launch the runs, and follow them. Ctrl-C ends the following alone."""
    from eval_dagster.assets.runs.launched_runs import Launch, launch_evaluation

    tell = current_reporter().note
    return launch_evaluation(Launch(project=project, evals=evals, models=models, suite=suite, tell=tell))


def cancel(*, suite: str | None, evals: Sequence[str], models: Sequence[str]) -> None:
    """Cancel what the same command with `--launch` has launched."""
    from eval_dagster.assets.runs.launched_runs import Launch, cancel_evaluation

    project = Project.open()
    chosen_evals, chosen_models = project.select(suite=suite, evals=evals, models=models)
    ids = cancel_evaluation(Launch(project=project, evals=chosen_evals, models=chosen_models, suite=suite))
    names = ", ".join(run_id[:8] for run_id in ids)
    out.print(f"Runs that are being canceled: {names}" if ids else "There is no such run that has not ended.")


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
