"""The command `plan`: how long the evals of a suite take on some numbers of workers, by answers whose time is known."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from eval_dagster.cli.console import errors, out, print_table
from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog.catalog import read_rows, refresh
from eval_dagster.lake.files import Lake, trial_lake
from eval_dagster.project import Project
from eval_dagster.statistics.capacity import Rates, Work, fit, run_seconds

_COLUMNS = ("eval", "requests", "tokens read", "tokens written", "worker seconds", "by")
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


def plan(
    *, suite: str | None, evals: Sequence[str], models: Sequence[str], like: str | None, workers: Sequence[int], start_s: float
) -> None:
    """Print for each model what its evals cost, and how long they take on so many workers.

    Args:
        suite: Evals and models of this suite.
        evals: Only these evals.
        models: Only these models.
        like: The model whose rates hold for models without answers.
        workers: Numbers of workers.
        start_s: Seconds in which a worker starts and loads the model.

    Raises:
        UsageError: No answer has times.
    """
    project = Project.open()
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
            _print_plan(project, model, chosen_evals, like or model, found, workers, start_s)
    if unknown:
        errors.print(f"not planned: {_without_times(unknown)}", style="yellow", soft_wrap=True)


def _without_times(models: Sequence[str]) -> str:
    return (
        f"no answer of {', '.join(models)} has a known time (`worker_s` in `responses`), as answers of servers have none; evaluate some "
        f"samples (run --model {models[0]} --limit 20), or name a model of the same size on the same machine that has answers (--like NAME)"
    )


def _print_plan(
    project: Project, model: str, names: Sequence[str], like: str, rates: Rates, workers: Sequence[int], start_s: float
) -> None:
    found = [_eval(project, name, model) for name in names]
    known = [each if each.worker_s is not None or each.work is None else _estimated(each, rates) for each in found]
    measured = {each.name for each in found if each.worker_s is not None}
    print_table(f"{model}: work", _COLUMNS, (_cells(each, measured) for each in known), right=_COLUMNS[1:5])
    error = "" if rates.error is None else f"; an eval that is left out of the fit is off by {rates.error:.0%} (median)"
    out.print(
        f"A worker takes {1000 * rates.request_s:.3f} ms a request, {1000 * rates.read_s:.3f} ms a token read and "
        f"{1000 * rates.written_s:.3f} ms a token written, by {rates.evals} evals of {like}{error}.",
        soft_wrap=True,
    )
    if any(each.work for each in known):
        _print_times(model, known, workers, start_s)
    if missing := [each.name for each in known if each.work is None]:
        errors.print(
            f"not planned: {', '.join(missing)}, which no model has answered; evaluate one of them first", style="yellow", soft_wrap=True
        )


def _print_times(model: str, known: Sequence[_Eval], workers: Sequence[int], start_s: float) -> None:
    total = sum(each.worker_s or 0.0 for each in known)
    requests = sum(each.work.requests for each in known if each.work)
    longest = max((each.longest_s for each in known), default=0.0)
    times = [run_seconds(total, workers=count, requests=requests, longest_s=longest, start_s=start_s) for count in workers]
    rows = [
        (count, f"{seconds:,.1f}", f"{(total + start_s) / count / seconds:.0%}" if seconds else "")
        for count, seconds in zip(workers, times, strict=True)
    ]
    print_table(f"{model}: time", ("workers", "seconds", "efficiency"), rows, right=("workers", "seconds", "efficiency"))


def _rates(project: Project, model: str) -> Rates | None:
    """Rates of a model, fitted to all its answers and trials; None if no answer has a time."""
    evals = [
        each
        for lake in (project.lake, trial_lake(project.lake))
        for name in project.config.evals
        if (each := _answered(lake, name, model)) is not None
    ]
    measured = [(each.work, each.worker_s) for each in evals if each.work and each.worker_s]
    return fit(measured) if measured else None


def _eval(project: Project, name: str, model: str) -> _Eval:
    """The plan of an eval by the model's answers, or by the answers of another model."""
    if own := _answered(project.lake, name, model):
        return own
    others = (_answered(project.lake, name, other) for other in project.config.models)
    return _Eval(name=name, work=next((each.work for each in others if each is not None), None), worker_s=None)


def _estimated(each: _Eval, rates: Rates) -> _Eval:
    assert each.work is not None
    return _Eval(name=each.name, work=each.work, worker_s=rates.seconds(each.work))


def _answered(lake: Lake, name: str, model: str) -> _Eval | None:
    """The answers of a model to an eval; None if there are none."""
    if lake.current("responses", name, model) is None:
        return None
    rows = read_rows(lake, _ANSWERS, {"eval": name, "model": model})
    if not rows:
        return None
    shared = [0, *(_shared(before["prompt"], after["prompt"]) for before, after in pairwise(rows))]
    read = sum(
        (row["prompt_tokens"] or 0) * (1 - common / max(1, len(row["prompt"]))) + (0 if row["is_written"] else row["output_tokens"] or 0)
        for row, common in zip(rows, shared, strict=True)
    )
    work = Work(requests=len(rows), tokens_read=read, tokens_written=sum(row["output_tokens"] or 0 for row in rows if row["is_written"]))
    times = [row["worker_s"] for row in rows]
    is_known = None not in times
    return _Eval(name=name, work=work, worker_s=sum(times) if is_known else None, longest_s=max(times) if is_known else 0.0)


def _shared(one: str, other: str) -> int:
    """Characters of the common beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _cells(each: _Eval, measured: set[str]) -> Sequence[str]:
    if each.work is None:
        return each.name, "", "", "", "", "no answers"
    amounts = [f"{amount:,.0f}" for amount in each.work.amounts()]
    return each.name, *amounts, f"{each.worker_s:,.2f}", "answers" if each.name in measured else "rates"
