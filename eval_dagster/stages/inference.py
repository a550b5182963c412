"""Sending a model its requests: one call for all evals that need any, measured and flushed while it works."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval_dagster.errors import EvalDagsterError, ModelError
from eval_dagster.lake.flushing import ResponseFlusher
from eval_dagster.lake.responses import ResponseCache, to_row
from eval_dagster.models.base import Model
from eval_dagster.models.usage import Usage
from eval_dagster.progress.reporting import Reporter, use_reporter
from eval_dagster.project import Project
from eval_dagster.records import Request
from eval_dagster.stages.answer_progress import AnswerProgress
from eval_dagster.stages.peak_memory import PeakMemory

_MEBIBYTE = 2**20


@dataclass(kw_only=True)
class ModelRun:
    """One call of a model: what it answered, and what that took.

    The call answers the requests of several evals at once, and what they share is computed once for all: its figures are those of the
    whole call, and no part of them belongs to one eval. Their names begin with `run_`.
    """

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows of the response cache by request id."""
    failure: str | None = None
    """Why some requests have no answer."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """`run_requests`, `run_seconds`, `run_peak_memory_mib` (above what the loaded model takes); where the model counts tokens also
    `run_tokens_asked` (to be read, as if each choice and each text went by itself), `run_tokens_computed` (all that went through the
    network), `run_reuse_factor` (tokens asked for each token of them computed) and `run_tokens_per_s`."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """By which way the model worked and why, and how memory was measured."""


def ask(
    project: Project,
    model: str,
    model_version: str,
    cache: ResponseCache,
    requests: Sequence[Request],
    evals: Mapping[str, str],
    *,
    run_id: str,
    reporter: Reporter,
) -> ModelRun:
    """Load a model and send it requests. Answers that will not change are flushed to the cache, also where the call is interrupted.

    Args:
        project: The project.
        model: The model's name.
        model_version: The version that its answers are kept under.
        cache: Where they are kept.
        requests: What to send.
        evals: The eval that a request belongs to, by the request's id, for the progress.
        run_id: The run's.
        reporter: Follows loading and answers.
    """
    run = ModelRun()
    if not requests:
        return run
    try:
        loaded = _load(project, model, model_version, reporter)
        started = time.monotonic()
        with (
            PeakMemory() as memory,
            ResponseFlusher(cache, run_id) as flusher,
            use_reporter(reporter),
            AnswerProgress(reporter, model, loaded, requests, evals) as progress,
        ):
            _collect(loaded, model_version, requests, run.answers, flusher, progress)
    except EvalDagsterError as error:
        run.failure = str(error)
        return run
    usages = [usage for usage in loaded.usage() if usage.requests]
    run.figures = _figures(usages, requests=len(requests), seconds=time.monotonic() - started) | {
        "run_peak_memory_mib": round(memory.bytes / _MEBIBYTE, 1)
    }
    told = [
        (f"{usage.kind}_{name}", text)
        for usage in usages
        for name, text in (
            ("path", usage.path),
            ("reason", usage.reason),
            ("elsewhere", f"{usage.elsewhere} inputs or texts went another way" if usage.elsewhere else ""),
            ("layers", usage.layers),
        )
    ]
    run.notes = {"peak_memory_measured": memory.measured} | {name: text for name, text in told if text}
    return run


def _load(project: Project, model: str, model_version: str, reporter: Reporter) -> Model:
    handle = project.handle(model)
    with use_reporter(reporter), reporter.track(f"load {model}", total=1, unit="model") as advance:
        loaded = handle.load()
        advance()
    if handle.version() != model_version:
        raise ModelError(f"the model {model} changed while it was being loaded; run again")
    return loaded


def _collect(
    loaded: Model,
    model_version: str,
    requests: Sequence[Request],
    answers: dict[str, dict[str, Any]],
    flusher: ResponseFlusher,
    progress: AnswerProgress,
) -> None:
    for request, response in loaded.respond(requests):
        row = to_row(request.request_id, response, model_version) | {"retryable": response.retryable}
        answers[request.request_id] = row
        if not response.retryable:
            flusher.add(row)
        progress.count(request)


def _figures(usages: Sequence[Usage], *, requests: int, seconds: float) -> dict[str, float]:
    figures: dict[str, float] = {"run_requests": requests, "run_seconds": round(seconds, 3)}
    if not usages:
        return figures
    asked, read, computed = (
        sum(counts) for counts in zip(*((each.inputs_asked(), each.inputs_computed(), each.computed()) for each in usages), strict=True)
    )
    figures |= {"run_tokens_asked": asked, "run_tokens_computed": computed}
    if read:
        figures["run_reuse_factor"] = round(asked / read, 3)
    if seconds:
        figures["run_tokens_per_s"] = round(computed / seconds, 1)
    return figures
