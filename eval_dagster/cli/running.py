"""The command that evaluates."""

import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from eval_dagster.cli.console import WarningHandler, errors, out, program_name
from eval_dagster.cli.querying import print_leaderboard
from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog import catalog_path, connect
from eval_dagster.progress import RichReporter, use_reporter
from eval_dagster.project import Project
from task_defs import TASKS

if TYPE_CHECKING:
    from assets.running import RunSummary


def run(
    *, suite: str | None, evals: Sequence[str], models: Sequence[str], limit: int | None, junit: Path | None, markdown: Path | None
) -> None:
    """Evaluate and print the leaderboard, and of a suite what got worse; exit status 1 if something failed or the gate did."""
    project = Project.open(TASKS)
    _check_summaries(suite, {"--junit": junit, "--markdown": markdown})
    chosen_evals, chosen_models = project.select(suite=suite, evals=evals, models=models)
    project.check(chosen_evals, chosen_models)
    # Dagster takes a second to import, as do the statistics; a wrong configuration and the other commands need not wait for them.
    from assets.running import run_evaluation
    from eval_dagster.cli import gating

    started = time.monotonic()
    # Dagster captures the process's output while a step runs; bars are drawn on the terminal behind it.
    with (
        os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal,
        _reporting(Console(file=terminal)),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        summary = run_evaluation(project, chosen_evals, chosen_models, limit=limit, suite=suite)
    print_leaderboard(project.lake)
    if summary.gate is not None:
        gating.print_gate(summary.gate, baseline=project.suite(summary.gate.suite).baseline)
        gating.write_summaries(summary.gate, junit=junit, markdown=markdown)
    flipped = gating.next_command(summary.gate) if summary.gate else None
    _print_summary(project, summary, chosen_evals[0], time.monotonic() - started, flipped)
    unscored = _without_score(project, chosen_evals, chosen_models)
    for message in [*summary.failures, *unscored]:
        errors.print(f"failed: {message}", style="red", markup=False, soft_wrap=True)
    for message in dict.fromkeys(summary.warnings):
        errors.print(f"warning: {message}", style="yellow", markup=False, soft_wrap=True)
    if summary.failures or unscored or (summary.gate is not None and summary.gate.is_failed):
        raise typer.Exit(1)


@contextmanager
def _reporting(console: Console) -> Iterator[None]:
    """Draw progress on a console, and print above it what the library warns of."""
    handler, library = WarningHandler(console), logging.getLogger("eval_dagster")
    library.addHandler(handler)
    try:
        with use_reporter(RichReporter(console)):
            yield
    finally:
        library.removeHandler(handler)


def _check_summaries(suite: str | None, files: Mapping[str, Path | None]) -> None:
    """Raise `UsageError` where there will be nothing to write, or nowhere to write it."""
    for option, path in files.items():
        if path is None:
            continue
        if suite is None:
            raise UsageError(f"{option} tells what the gate of a suite found; name the suite: --suite NAME")
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise UsageError(f"{option} {path} cannot be written; expected a file in a folder that is there and may be written to")


def _print_summary(project: Project, summary: "RunSummary", shown: str, seconds: float, flipped: tuple[str, str] | None) -> None:
    if summary.requests_computed or any(summary.made.values()):
        out.print(
            f"{summary.requests_computed} requests sent to models, {summary.requests_cached} answered from the cache; "
            f"{sum(summary.made.values())} tables made, {sum(summary.cached.values())} were current; {seconds:.0f} s"
        )
    elif not summary.failures:
        out.print(f"Nothing to recompute: all {sum(summary.cached.values())} tables were current, no model was loaded; {seconds:.0f} s")
    program = program_name()
    following = [
        *([flipped] if flipped else []),
        (f"{program} sql confident_errors", "the mistakes a model was surest of"),
        (f"{program} show {shown}", "the exact prompt that a model sees"),
        ("make ui", "the assets in Dagster, the runs in MLflow"),
    ]
    width = max(len(command) for command, _ in following)
    lines = "\n".join(f"  {command:<{width}}  {purpose}" for command, purpose in following)
    report = f"Report    {summary.report}\n" if summary.report else ""
    out.print(
        f"\n{report}"
        f"Results   {catalog_path(project.lake)} (DuckDB), {project.lake.root} (Parquet)\n"
        f"MLflow    {project.tracker.shown_uri}\n"
        f"Dagster   {os.environ['DAGSTER_HOME']}, runs {', '.join(run_id[:8] for run_id in summary.run_ids)}\n\n"
        f"Next\n{lines}",
        markup=False,
        soft_wrap=True,
    )


def _without_score(project: Project, evals: Sequence[str], models: Sequence[str]) -> list[str]:
    """Evaluated evals in which every sample is an error."""
    with connect(project.lake) as catalog:
        rows = catalog.execute("select eval, model, n_errors from leaderboard where n = 0").fetchall()
    return [
        f"{name}|{model}: all {count} samples are errors; see `eval-dagster sql errors`"
        for name, model, count in rows
        if name in evals and model in models
    ]
