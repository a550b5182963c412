"""Sends requests to a model: one call for several evals, measured, and flushed to the cache while the model works."""

import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from eval_dagster.errors import EvalDagsterError, LakeUnreachableError, ModelError, NotEvaluatedError
from eval_dagster.lake.claims import Claim
from eval_dagster.lake.flushing import ResponseFlusher
from eval_dagster.lake.responses import ResponseCache
from eval_dagster.lake.rows import answer_row
from eval_dagster.models.base import LocalModel, Model, ModelHandle, SharingHandle
from eval_dagster.models.known_ways import remember_ways
from eval_dagster.models.usage import Usage
from eval_dagster.progress.reporting import Reporter, use_reporter
from eval_dagster.project import Project
from eval_dagster.records import GenerationSettings, ModelResponse, Request
from eval_dagster.stages.answer_progress import AnswerProgress
from eval_dagster.stages.late_interruption import late_interruption
from eval_dagster.stages.peak_memory import PeakMemory
from eval_dagster.users_code import calling

_MEBIBYTE = 2**20
_WAIT_S = 0.2
"""Seconds between two looks at a claim."""


@dataclass(kw_only=True)
class ModelRun:
    """One call of a model: its answers, and the time, tokens and memory that it took.

    The call answers the requests of several evals at once, and computes what they share once. So its figures are those of the whole call
    and cannot be divided among the evals. Their names begin with `run_`.
    """

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows of the response cache by request id."""
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows of the response cache by request id that were stored by the time when this run came to ask: other processes asked."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """The eval that each request was sent for, by the id of the request."""
    failure: str | None = None
    """Why some requests have no answer."""
    is_limited: bool = False
    """Whether that is a limit that a person has set, and no failure."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """`run_requests`, `run_seconds` and `run_peak_memory_mib` (above the memory of the loaded model). Where the model counts tokens also
    `run_tokens_asked` (tokens to read if each choice and each text were computed alone), `run_tokens_computed` (all tokens that went
    through the network), `run_reuse_factor` (tokens asked divided by the tokens read) and `run_tokens_per_s`. Where they have a price also
    `run_cost` (US dollars for all calls, those included that failed) and `run_calls_of_estimated_cost`, if there are such calls."""
    look_cost: float = 0.0
    """US dollars for the look at a served model before the call."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """The way in which the model computed and the reason for it, and how memory was measured."""


class KeptModel:
    """The model that a run loaded last, where the next model may share what it holds. It is freed with this object."""

    def __init__(self) -> None:
        self._model: Model | None = None

    def load(self, handle: ModelHandle) -> Model:
        """Load a model. What the kept one holds is shared, or freed before. Raises `ModelError` where the model cannot be loaded."""
        shares = isinstance(handle, SharingHandle) and handle.shares()
        if not shares:
            self._model = None
        loaded = handle.load()
        self._model = loaded if shares else None
        return loaded


@dataclass(frozen=True, kw_only=True)
class AskedModel:
    """A model in one version, as a run asks it."""

    project: Project
    name: str
    version: str
    """The version of the model, which its answers are stored under."""
    run_id: str
    stored_as: str | None = None
    """Another name that the answers are stored under, where they are not the model's answers of a result."""
    kept: KeptModel = field(default_factory=KeptModel)
    """What keeps the model loaded for the next one of the run."""

    @cached_property
    def cache(self) -> ResponseCache:
        """The stored answers."""
        return ResponseCache(self.project.lake, self.stored_version)

    @property
    def stored_version(self) -> str:
        """The version in the stored rows."""
        return self.stored_as or self.version


def ask(model: AskedModel, requests: Sequence[Request], evals: Mapping[str, str], reporter: Reporter) -> ModelRun:
    """Load a model and send it requests. Final answers are flushed to the cache, also where the call is interrupted.

    A request that another process is asking is not sent: this one waits for the answer, and sends what the other one leaves.
    `evals` gives the eval of each request by its id, for the progress of loading and answers that `reporter` follows.
    """
    run = ModelRun(owners=evals)
    sender = _Sender(model, run, reporter)
    left = {request.request_id: request for request in requests}
    while left:
        with model.cache.claimed(left.keys(), model.run_id) as claim:
            run.found |= {name: dict(row) for name, row in claim.known.items()}
            if claim.requests:
                sender.send([request for name, request in left.items() if name in claim.requests], claim)
        done = claim.known.keys() | (run.answers.keys() if claim.is_lost() else claim.requests)
        left = {name: request for name, request in left.items() if name not in done}
        if run.failure is not None:
            break
        if claim.others and not claim.requests:
            _wait(model, claim, reporter)
    sender.end()
    return run


def _wait(model: AskedModel, claim: Claim, reporter: Reporter) -> None:
    """Wait until a process that asks requests of this run has ended its work, or has died."""
    holders = " and ".join(sorted(other.holder for other in claim.others))
    count = len({name for other in claim.others for name in other.requests} - claim.known.keys())
    reporter.note(f"{model.name}: {count} requests are already being asked by {holders}; this run waits for the answers")
    with reporter.track(f"wait for the answers of {model.name}", total=1, unit="claim") as advance:
        while all(other.is_held() for other in claim.others):
            time.sleep(_WAIT_S)
        advance()


class _Sender:
    """Sends requests of a run to a model, which is loaded when the first ones are sent."""

    def __init__(self, model: AskedModel, run: ModelRun, reporter: Reporter) -> None:
        self._model = model
        self._run = run
        self._reporter = reporter
        self._loaded: Model | None = None
        self._requests = 0
        self._seconds = 0.0
        self._memory: PeakMemory | None = None

    def send(self, requests: Sequence[Request], claim: Claim) -> None:
        """Send requests, as long as their claim is not lost. Where the model fails, the run has the reason."""
        run, model, reporter = self._run, self._model, self._reporter
        code = f"the model {model.name}"
        try:
            with calling(code, is_limited=False):
                self._loaded = loaded = self._loaded or _load(model, reporter)
        except EvalDagsterError as error:
            run.failure, run.is_limited = str(error), isinstance(error, NotEvaluatedError)
            return
        started = time.monotonic()
        memory = PeakMemory()
        try:
            with (
                calling(code, is_limited=False),  # a batch may take hours
                memory,
                ResponseFlusher(model.cache, model.run_id, back_up=claim.back_up) as flusher,
                use_reporter(reporter),
                AnswerProgress(reporter, model.name, loaded, requests, run.owners) as progress,
                late_interruption(loaded, reporter),
                closing(_timed(loaded, requests)) as answers,
            ):
                for request, response in answers:
                    row = answer_row(request.request_id, response, model.stored_version) | {"retryable": response.retryable}
                    run.answers[request.request_id] = row
                    if not response.retryable:
                        flusher.add(row)
                    progress.count(request)
                    if claim.is_lost():
                        reporter.note(f"{model.name}: the lake was out of reach for so long that others may ask; the rest is claimed anew")
                        break
        except LakeUnreachableError:  # the answers are in the journal
            raise
        except EvalDagsterError as error:
            run.failure, run.is_limited = str(error), isinstance(error, NotEvaluatedError)
        finally:
            if self._memory is None or memory.bytes > self._memory.bytes:
                self._memory = memory
            self._requests += len(requests)
            self._seconds += time.monotonic() - started

    def end(self) -> None:
        """Give the run its figures and notes. A run in which the model failed has none."""
        run, loaded, model = self._run, self._loaded, self._model
        if loaded is None or self._memory is None or (run.failure is not None and not run.is_limited):
            return
        usages = [usage for usage in loaded.usage() if usage.requests]
        run.figures = _figures(usages, requests=self._requests, seconds=self._seconds) | {
            "run_peak_memory_mib": round(self._memory.bytes / _MEBIBYTE, 1)
        }
        notes = [
            (f"{usage.kind}_{name}", text)
            for usage in usages
            for name, text in (
                ("path", usage.path),
                ("reason", usage.reason),
                ("elsewhere", f"{usage.elsewhere} inputs or texts went another way" if usage.elsewhere else ""),
                ("layers", usage.layers),
            )
        ]
        ways = {
            usage.kind: ": ".join(part for part in (usage.path, usage.reason) if part) for usage in usages if usage.path or usage.reason
        }
        remember_ways(model.project.home, model.name, model.version, ways)
        run.notes = {"peak_memory_measured": self._memory.measured} | {name: text for name, text in notes if text}


def _load(model: AskedModel, reporter: Reporter) -> Model:
    handle = model.project.handle(model.name)
    with use_reporter(reporter), reporter.track(f"load {model.name}", total=1, unit="model") as advance:
        loaded = model.kept.load(handle)
        advance()
    if handle.version() != model.version:
        raise ModelError(f"the model {model.name} changed while it was being loaded; run again")
    return loaded


def _timed(loaded: Model, requests: Sequence[Request]) -> Generator[tuple[Request, ModelResponse]]:
    """The answers of a model. Where it computes in this process and sets no times itself, each has the time since the answer before.

    The answers of a batch come together, so that the first of them has the time of the batch. Only sums over many answers have a meaning.
    """
    gpus = loaded.gpus() if isinstance(loaded, LocalModel) else None
    last = time.monotonic()
    asked = {request.request_id for request in requests}
    for request, given in loaded.respond(requests):
        if request.request_id not in asked:
            raise ModelError(f"the model answered the request {request.request_id}, which it was not asked now; expected each once")
        asked.remove(request.request_id)
        misfit = _misfit(request, given)
        response = given if misfit is None else ModelResponse(error=f"ModelError: the model gave {misfit}", retryable=True)
        now = time.monotonic()
        if gpus is not None and response.worker_s is None:
            response = replace(response, worker_s=now - last, gpu_s=(now - last) * gpus)
        yield request, response
        last = now


def _misfit(request: Request, response: object) -> str | None:
    """The fault of an answer, which a model of users may have made; None if it fits its request."""
    if not isinstance(response, ModelResponse):
        return f"{type(response).__name__}; expected a ModelResponse"
    if response.error is not None:
        return None
    if request.choices is None and not request.perplexity:
        number, texts = (request.generation or GenerationSettings()).num_samples - request.first_text, response.text
        if len(texts) != number or not all(isinstance(text, str) for text in texts):
            return f"{len(texts)} texts; expected {number} texts of type str"
        return _miscounted(number, "texts", finish_reason=response.finish_reason)
    number = 1 if request.choices is None else len(request.choices)
    values, prior = response.choice_logprobs, response.unconditioned_logprobs
    if not all(map(math.isfinite, (*values, *(prior or ())))):
        return f"a log-probability that is no finite number: {[*values, *(prior or ())]}"
    if request.choices is None:
        return None if values else "no log-probability of the text; expected one for each token"
    return _miscounted(number, "choices", logprobs=values) or _miscounted(
        number,
        "choices",
        **{
            name: found
            for name, found in {
                "token_logprobs": response.token_logprobs,
                "argmax_logits_eq_gold": response.argmax_logits_eq_gold,
                "unconditioned_logprobs": prior,
            }.items()
            if found
        },
    )


def _miscounted(number: int, of: str, **lists: Sequence[object]) -> str | None:
    """The first of the lists that has another length than `number`, in words; None without one."""
    return next(
        (f"{len(each)} {name} for {number} {of}; expected one for each" for name, each in lists.items() if len(each) != number), None
    )


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
    costs = [usage.cost for usage in usages if usage.cost is not None]
    if costs:
        estimated = sum(usage.cost_estimated for usage in usages)
        figures |= {"run_cost": math.fsum(costs), **({"run_calls_of_estimated_cost": estimated} if estimated else {})}
    return figures
