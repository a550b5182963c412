"""The command `status`, and `run --dry-run`: what a run would make, and why."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import typer

from eval_dagster.cli.console import errors, out, print_next, say
from eval_dagster.cli.options import Evals, Models, RowFormat, Suite
from eval_dagster.cli.tables import Format, print_few, print_rows, print_screenful
from eval_dagster.freshness import PartitionState, partition_states
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, partition_key
from eval_dagster.texts.figures import counted, dollars

STALE = 4
"""The exit status if a run would make something."""
_BROKEN = 1
"""The exit status where something is broken, or cannot be told."""
_TITLES = {
    "dataset_snapshot": "dataset",
    "rendered_prompts": "prompts",
    "model_outputs": "outputs",
    "sample_scores": "scores",
    "task_metrics": "metrics",
}
_COLUMNS = ("eval", "model", *_TITLES.values(), "requests", "time", "cost")
_ROW = ("eval", "model", "stage", "state", "causes", "detail", "requests", "requests_are_exact", "seconds", "cost", "basis")
_MINUTE, _HOUR = 60, 3600


def show_states(
    *,
    suite: Suite = None,
    evals: Evals,
    models: Models,
    everything: Annotated[bool, typer.Option("--all", help="Also show evals and models of which nothing would be made.")] = False,
    output: RowFormat = Format.TABLE,
) -> None:
    """Print what a run would make of evals and models; raises as `print_states`. Nothing is fetched."""
    project = Project.open()
    chosen = project.select(suite=suite, evals=evals, models=models)
    print_states(project, *chosen, everything=everything, output=output, suite=suite)


def look_at_assets(project: Project, evals: Sequence[str]) -> None:
    """Ask Dagster for the newest materializations of the assets that have the rows of evals, and print which it does not know."""
    if project.asset_keys(evals):
        from eval_dagster.assets.asset_datasets import look_from_command  # imported lazily: Dagster takes a second

        for key, found in look_from_command(project, evals).items():
            say(
                errors,
                "not known",
                f"the Dagster instance that this command asks does not know the asset {key}; the rows are those materialized {found}, the "
                "newest that the home has heard of; set DAGSTER_HOME to that of your project",
                style="yellow",
            )


def print_states(
    project: Project,
    evals: Sequence[str],
    models: Sequence[str],
    *,
    fetches: bool = False,
    everything: bool = False,
    output: Format = Format.TABLE,
    suite: str | None = None,
) -> None:
    """Print what a run of a project, or of a trial of it, would make.

    Args:
        project: The project.
        evals: Its evals.
        models: Its models.
        fetches: Whether datasets may be fetched.
        everything: Whether evals and models are shown of which nothing would be made.
        output: The format. JSON and CSV have a row for each stage, and all evals and models.
        suite: The suite of the run, whose gate may stop it early.

    Raises:
        typer.Exit: Something would be made (exit status 4), or is broken or cannot be told (1).
    """
    look_at_assets(project, evals)
    states = list(partition_states(project, evals, models, fetches=fetches, suite=suite))
    if output is Format.TABLE:
        stopping = suite if suite is not None and project.suite(suite).gate.stop == "early" else None
        _print_states(states, everything=everything, stopping=stopping)
    else:
        print_rows(_ROW, (row for state in states for row in _rows(state)), output)
    if not all(state.is_known for state in states):
        raise typer.Exit(_BROKEN)
    if not all(state.is_fresh for state in states):
        raise typer.Exit(STALE)


def _rows(state: PartitionState) -> Iterable[Sequence[object]]:
    known = state.estimate
    for cell in state.cells.values():
        asked = [known.requests, known.is_exact, known.seconds, known.cost, known.basis]
        yield [
            *(state.eval, state.model, cell.stage, cell.state, ", ".join(cell.causes), cell.detail),
            *(asked if cell.stage == "model_outputs" else [None] * len(asked)),
        ]


def _print_states(states: Sequence[PartitionState], *, everything: bool, stopping: str | None) -> None:
    fresh = sum(state.is_fresh for state in states)
    shown = [state for state in states if everything or not state.is_fresh]
    if shown:
        # What is broken comes first, since a terminal shows the first rows.
        first = sorted(shown, key=lambda state: state.is_known)
        numbers, choices = ("requests", "time", "cost"), "--suite, --eval or --model"
        print_screenful("What a run would make", _COLUMNS, map(_cells, first), right=numbers, choices=choices)
    notes: dict[str, list[str]] = {}
    for state in shown:
        for note in _notes(state):
            notes.setdefault(note, []).append(partition_key(state.eval, state.model))
    of = {note: names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more" for note, names in notes.items()}
    print_few([f"{names}: {note}" for note, names in of.items()])
    if fresh == len(states):
        out.print(f"Everything is up to date: {fresh} of {fresh} results of an eval and a model. A run would make nothing.", soft_wrap=True)
        print_next(("leaderboard", "the results"))
        return
    out.print(_summary(states, fresh), soft_wrap=True)
    if stopping is not None and any(state.estimate.requests != 0 for state in states):
        out.print(f"The suite {stopping} may stop early, so fewer requests may be sent.")
    if unknown := sum(not state.is_known for state in states):
        say(errors, "not known", f"{unknown} of {len(states)} are broken or cannot be told, for the reasons above", style="yellow")
    commands = []
    if any(cell.is_made for state in states for cell in state.cells.values()):
        commands.append((f"run --suite {stopping}" if stopping else "run", "makes what is missing or stale"))
    broken = [(state, cell.stage) for state in states for cell in state.cells.values() if cell.state == "broken"]
    of_tasks = [state.eval for state, stage in broken if stage != "model_outputs"]
    if of_tasks:
        purpose = "an example of this eval, with checks of its prompts; correct what the message above names"
        commands.append((f"tasks {of_tasks[0]}", purpose))
    if len(of_tasks) < len(broken):
        commands.append(("models", "whether the engine and the files of each model are there"))
    print_next(*commands, ("status --format json", "each stage with its causes, for programs"))


def _summary(states: Sequence[PartitionState], fresh: int) -> str:
    first = {state.eval: state for state in reversed(states)}  # all models share the dataset of an eval, which counts for the first one
    made = Counter(
        stage
        for state in states
        for stage, cell in state.cells.items()
        if cell.is_made and (stage in list(STAGES)[1:] or state is first[state.eval])
    )
    parts = ", ".join(f"{_TITLES[stage]} of {count}" for stage, count in made.items())
    estimates = [state.estimate for state in states if not state.is_fresh]
    known = sum(each.requests or 0 for each in estimates)
    open_ones = sum(each.requests is None for each in estimates)
    requests = f"{counted(known, 'request')} would be sent" + ("" if all(each.is_exact for each in estimates) else " at most")
    requests += f" for those that are known ({open_ones} are not)" if open_ones else ""
    asked = [each for each in estimates if each.requests != 0]
    if not asked:
        broken = "" if parts else " before what is broken is corrected"
        return f"{fresh} of {len(states)} are up to date. A run would make: {parts or f'nothing{broken}'}. No request would be sent."
    costs = [each.cost for each in asked if each.has_price]
    cost = f"; cost {_sum(costs, dollars)}" if costs else ""
    time = _sum([each.seconds for each in asked], _duration)
    return f"{fresh} of {len(states)} are up to date. A run would make: {parts}. {requests}; model time {time}{cost}."


def _sum(amounts: Sequence[float | None], shown: Callable[[float], str]) -> str:
    known = [amount for amount in amounts if amount is not None]
    if not known:
        return "unknown"
    unknown = len(amounts) - len(known)
    return f"about {shown(math.fsum(known))}" + (f", and unknown for {unknown} of {len(amounts)}" if unknown else "")


def _cells(state: PartitionState) -> Sequence[str]:
    found = state.estimate
    requests = "?" if found.requests is None else f"{found.requests:,}" if found.is_exact else f"≤ {found.requests:,}"
    time = "" if found.requests == 0 else "unknown" if found.seconds is None else f"~ {_duration(found.seconds)}"
    unpriced = "unknown" if found.has_price else "no price"
    cost = "" if found.requests == 0 else unpriced if found.cost is None else f"~ {dollars(found.cost)}"
    cells = [state.cells[stage] for stage in STAGES]
    named = [f"stale: {', '.join(cell.causes)}" if cell.causes else cell.state for cell in cells]
    return [state.eval, state.model, *named, requests, time, cost]


def _notes(state: PartitionState) -> Iterable[str]:
    """The details that do not fit into the table, once each."""
    details = {cell.detail: cell for cell in reversed(list(state.cells.values())) if cell.detail}
    for detail, cell in reversed(list(details.items())):
        yield f"{_TITLES[cell.stage]} {cell.state}: {detail}"
    if state.estimate.requests is None:
        yield "how many requests would be sent cannot be told"
    elif not state.estimate.is_exact:
        yield "the number of requests is that of the samples, since the prompts cannot be rendered here"
    if state.estimate.requests != 0 and state.estimate.basis:
        yield f"the time {'is' if state.estimate.seconds is not None else 'is unknown:'} {state.estimate.basis}"


def _duration(seconds: float) -> str:
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"
