"""The command `plan`: how long the evals of a suite take on some numbers of workers, by answers whose time is known."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import typer

from eval_dagster.cli.console import errors, out, print_table, program_name
from eval_dagster.cli.options import Evals, Models, Suite
from eval_dagster.cli.plan_samples import parse_budget, print_samples
from eval_dagster.cli.tables import print_screenful
from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog.catalog import read_rows, refresh
from eval_dagster.lake.files import Lake, trial_lake
from eval_dagster.project import Project
from eval_dagster.statistics.capacity import Rates, Work, fit, run_seconds

_COLUMNS = ("eval", "requests", "tokens read", "tokens written", "worker seconds", "by")
_WORKERS = (1, 8, 64)
_ANSWERS = """
    select distinct on (r.request_id) p.prompt, p.response_type = 'completion' as is_written, r.prompt_tokens, r.output_tokens, r.worker_s
    from responses as r
    join prompts as p using (eval, model, sample_id, request_id)
    where r.eval = $eval and r.model = $model and r.error is null
    order by p.prompt, r.request_id
"""


@dataclass(frozen=True, kw_only=True)
class _Eval:
    """An eval of a model."""

    name: str
    work: Work | None
    """Null if the eval has no answers of any model."""
    worker_s: float | None
    """Null if the answers of the model are missing, or their time."""
    longest_s: float = 0.0
    """The longest time between two answers."""


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """An answer of a model, with the prompt that it was asked."""

    prompt: str
    is_written: bool
    """Whether the model writes a text, instead of scoring choices."""
    prompt_tokens: int | None
    output_tokens: int | None
    worker_s: float | None
    """Null if the time of the answer is not known."""


def plan(
    *,
    suite: Suite = None,
    evals: Evals,
    models: Models,
    like: Annotated[str | None, typer.Option(metavar="NAME", help="Model whose rates hold for models without answers.")] = None,
    workers: Annotated[
        list[int] | None, typer.Option(min=1, metavar="N", help="Number of workers; may be repeated [default: 1, 8, 64].")
    ] = None,
    detect: Annotated[
        float | None,
        typer.Option(min=0.01, max=100, metavar="POINTS", help="Show how many samples each eval of the suite takes to see such a fall."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT", help="Time of workers or money a night, such as 20min or 5usd: propose limits that see the smallest fall."
        ),
    ] = None,
    start_s: Annotated[float, typer.Option(min=0, metavar="S", help="Seconds in which a worker starts and loads the model.")] = 0.0,
) -> None:
    """Print for each model what its evals cost, and how long they take on so many workers; with a fall to detect, what a suite can see.

    Raises:
        UsageError: No answer has times, a budget has another form, or a fall is to be detected without a suite.
    """
    project = Project.open()
    if detect is not None or budget is not None:
        if suite is None:
            raise UsageError(
                f"found no suite; expected the suite whose history says what it can see: {program_name()} plan --suite NAME --detect 2"
            )
        amount = None if budget is None else parse_budget(budget)
        refresh(project.lake)
        print_samples(project, suite, detect or 2.0, amount)
        return
    chosen_evals, chosen_models = project.select(suite=suite, evals=evals, models=models)
    if like is not None:
        project.model(like)
    refresh(project.lake)
    rates = {model: _rates(project, like or model) for model in chosen_models}
    unknown = [model for model in chosen_models if rates[model] is None]
    if unknown and len(unknown) == len(chosen_models):
        raise UsageError(_without_times([like] if like else unknown))
    for model, found in rates.items():
        if found is not None:
            _print_plan(project, model, chosen_evals, like or model, found, workers or _WORKERS, start_s)
    if unknown:
        errors.print(f"not planned: {_without_times(unknown)}", style="yellow", soft_wrap=True)


def _without_times(models: Sequence[str]) -> str:
    return (
        f"no answer of {', '.join(models)} has a known time (`worker_s` in `responses`), as answers of servers have none; evaluate some "
        f"samples (run --model {models[0]} --limit 20), or name a model of the same size on the same machine that has answers (--like NAME)"
    )


def _rates(project: Project, model: str) -> Rates | None:
    """Rates of a model, fitted to all its answers and trials; None if no answer has a time."""
    evals = [_answered(lake, name, model) for lake in (project.lake, trial_lake(project.lake)) for name in project.config.evals]
    measured = [(each.work, each.worker_s) for each in evals if each is not None and each.work and each.worker_s]
    return fit(measured) if measured else None


def _print_plan(
    project: Project, model: str, names: Sequence[str], like: str, rates: Rates, workers: Sequence[int], start_s: float
) -> None:
    known: list[_Eval] = []
    rows: list[Sequence[str]] = []
    for name in names:
        measured = _answered(project.lake, name, model)
        others = (_answered(project.lake, name, other) for other in project.config.models)
        work = measured.work if measured else next((each.work for each in others if each is not None), None)
        if work is None:
            rows.append((name, "", "", "", "", "no answers"))
            known.append(_Eval(name=name, work=None, worker_s=None))
            continue
        is_measured = measured is not None and measured.worker_s is not None
        each = measured if measured is not None and is_measured else _Eval(name=name, work=work, worker_s=rates.seconds(work))
        amounts = [f"{amount:,.0f}" for amount in work.amounts()]
        rows.append((name, *amounts, f"{each.worker_s:,.2f}", "answers" if is_measured else "rates"))
        known.append(each)
    print_screenful(f"{model}: work", _COLUMNS, rows, right=_COLUMNS[1:5], choices="--suite or --eval")
    error = "" if rates.error is None else f"; an eval that is left out of the fit is off by {rates.error:.0%} (median)"
    out.print(
        f"A worker takes {1000 * rates.request_s:.3f} ms a request, {1000 * rates.read_s:.3f} ms a token read and "
        f"{1000 * rates.written_s:.3f} ms a token written, by {rates.evals} evals of {like}{error}.",
        soft_wrap=True,
    )
    if requests := sum(each.work.requests for each in known if each.work):
        total = sum(each.worker_s or 0.0 for each in known)
        longest = max(each.longest_s for each in known)
        times = [run_seconds(total, workers=count, requests=requests, longest_s=longest, start_s=start_s) for count in workers]
        cells = [
            (count, f"{seconds:,.1f}", f"{(total + start_s) / count / seconds:.0%}" if seconds else "")
            for count, seconds in zip(workers, times, strict=True)
        ]
        print_table(f"{model}: time", ("workers", "seconds", "efficiency"), cells, right=("workers", "seconds", "efficiency"))
    if missing := [each.name for each in known if each.work is None]:
        errors.print(
            f"not planned: {', '.join(missing)}, which no model has answered; evaluate one of them first", style="yellow", soft_wrap=True
        )


def _answered(lake: Lake, name: str, model: str) -> _Eval | None:
    """The answers of a model to an eval; None if there are none."""
    if lake.current("responses", name, model) is None:
        return None
    answers = [_Answer(**row) for row in read_rows(lake, _ANSWERS, {"eval": name, "model": model})]
    if not answers:
        return None
    # A worker reads the beginning that a prompt shares with the one before it once.
    shared = [0, *(_shared(before.prompt, after.prompt) for before, after in pairwise(answers))]
    read = sum(
        (each.prompt_tokens or 0) * (1 - common / max(1, len(each.prompt))) + (0 if each.is_written else each.output_tokens or 0)
        for each, common in zip(answers, shared, strict=True)
    )
    work = Work(requests=len(answers), tokens_read=read, tokens_written=sum(each.output_tokens or 0 for each in answers if each.is_written))
    times = [each.worker_s for each in answers if each.worker_s is not None]
    is_known = len(times) == len(answers)
    return _Eval(name=name, work=work, worker_s=sum(times) if is_known else None, longest_s=max(times) if is_known else 0.0)


def _shared(one: str, other: str) -> int:
    """Characters of the common beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
