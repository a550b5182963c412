"""Sends requests to a model: one call for several evals, measured, and flushed to the cache while the model works."""

import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from types import FrameType
from typing import TypeVar

from eval_dagster.errors import EvalDagsterError, LakeUnreachableError, ModelError, NotEvaluatedError
from eval_dagster.lake.answers.claims import Claim
from eval_dagster.lake.answers.responses import ResponseCache, ResponseFlusher
from eval_dagster.lake.format.parquet_files import read_rows_at
from eval_dagster.lake.tables.columns import Answer, PromptRow
from eval_dagster.lake.tables.rows import answer_row, request_of
from eval_dagster.models.base import Known, Look, Model, ModelHandle
from eval_dagster.models.usage import remember_ways
from eval_dagster.progress.reporting import Reporter, SilentReporter, use_reporter
from eval_dagster.project import Project
from eval_dagster.records import ModelResponse, Request
from eval_dagster.records.copies import altered
from eval_dagster.stages.answer_faults import fitting, require_asked
from eval_dagster.stages.answer_progress import AnswerProgress
from eval_dagster.stages.live_asking import Later, LiveAsks
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.peak_memory import PeakMemory
from eval_dagster.users_code import calling
from eval_dagster.versions.hashes import stable_hash
from eval_dagster.versions.seen_ids import SeenIds

T = TypeVar("T")
_EVALS, _REQUESTS = 3, 40
"""Numbers of evals, and of requests, among which a look finds some with cached answers."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MEBIBYTE = 2**20
_WAIT_S = 0.2
"""Seconds between two looks at a claim."""


def look_at(project: Project, model: str, evals: Sequence[str], run_id: str, reporter: Reporter) -> Look:
    """Look at a model, if it can change. From then on, the versions of its handle include the result."""
    handle = project.handle(model)

    def known() -> list[Known]:
        """Some requests of the run with cached answers, in an order that differs in each run."""
        rows: list[PromptRow] = []
        for name in _drawn(evals, _EVALS, run_id):
            prompts = Partition(project=project, eval_name=name, model=model, run_id=run_id).current("rendered_prompts")
            if prompts is not None:
                count = int(prompts.info.counts["prompts"])
                drawn = Random(stable_hash([run_id, name]))  # noqa: S311 - no secret
                places = drawn.sample(range(count), min(count, _REQUESTS))
                rows += read_rows_at(prompts.path, places).values()
        chosen = {row["request_id"]: row for row in rows if row["error"] is None}
        found = ResponseCache(project.lake, handle.version()).find(list(chosen))
        return [(request_of(chosen[name]), found[name]) for name in _drawn([name for name in chosen if name in found], _REQUESTS, run_id)]

    with use_reporter(reporter):
        return handle.look(known, run_id)


def is_looked_at(project: Project, model: str) -> bool:
    """Whether each run looks if a model has changed, such as one behind a server, before it uses its answers."""
    return type(project.handle(model)).look is not ModelHandle.look


def _drawn(items: Sequence[T], count: int, run_id: str) -> list[T]:
    """Some of the items, drawn by their hashes with the run."""
    return sorted(items, key=lambda item: stable_hash([run_id, item]))[:count]


@contextmanager
def late_interruption(models: Callable[[], Iterable[Model]], reporter: Reporter) -> Iterator[None]:
    """Within the block, the first SIGINT or SIGTERM ends the models' work by `Model.end`, and takes effect after the block.

    A second signal takes effect at once. If all models compute in this process, so does the first one. So it does in threads
    other than the main one, which do not receive signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in _SIGNALS}
    received: list[int] = []

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def end(number: int, _frame: FrameType | None) -> None:
        restore()
        waiting = [model for model in models() if model.waits_for_answers]
        if not waiting:
            signal.raise_signal(number)
            return
        received.append(number)
        for model in waiting:
            model.end()
        # In a separate thread, because the interrupted code may hold the lock of the reporter.
        note = "interrupted: waits for the answers that are under way; interrupt again to leave them"
        threading.Thread(target=reporter.note, args=(note,), daemon=True).start()

    for number in _SIGNALS:
        signal.signal(number, end)
    try:
        yield
    finally:
        restore()
        if received:
            signal.raise_signal(received[0])


@dataclass(kw_only=True)
class ModelRun:
    """One call of a model: its answers, with its time, tokens and memory.

    The call answers the requests of several evals at once, and computes their shared parts once. So its figures apply to the whole call and
    cannot be divided among the evals. Their names begin with `run_`.
    """

    answers: dict[str, Answer] = field(default_factory=dict)
    """Rows of the response cache by request id, of the last requests."""
    found: dict[str, Answer] = field(default_factory=dict)
    """Rows of the response cache by request id, stored by other processes before this run asked the last requests."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """The eval of each of the last requests, by the request's id."""
    failure: str | None = None
    """The reason that some requests have no answer."""
    is_limited: bool = False
    """Whether the reason is a limit set by a person, rather than a failure."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """`run_requests`, `run_seconds` and `run_peak_memory_mib` (above the memory of the loaded model). If the model counts tokens, also
    `run_tokens_asked` (tokens to read if each choice and each text were computed alone), `run_tokens_computed` (all tokens that went
    through the network), `run_reuse_factor` (tokens asked divided by the tokens read) and `run_tokens_per_s`. If tokens have a price, also
    `run_cost` (US dollars for all calls, including failed ones) and `run_calls_of_estimated_cost`, if there are such calls.
    """
    look_cost: float = 0.0
    """US dollars for the look at a served model before the call."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """How the model computed, with the reason, and how memory was measured."""


class KeptModel:
    """The last model that a run loaded, if the next model may share its resources. It is freed with this object."""

    def __init__(self) -> None:
        self._model: Model | None = None

    def load(self, handle: ModelHandle) -> Model:
        """Load a model. The kept model's resources are shared, or freed before. Raises `ModelError` if the model cannot be loaded."""
        if not (shares := handle.shares()):
            self._model = None
        loaded = handle.load()
        if not isinstance(loaded, Model):
            raise ModelError(
                f"{type(handle).__name__}.load gave a {type(loaded).__name__}, which lacks members of a loaded model; expected an instance "
                "of a subclass of eval_dagster.Model, which has defaults for most of them"
            )
        self._model = loaded if shares else None
        return loaded


@dataclass(frozen=True, kw_only=True)
class AskedModel:
    """A model in one version, as a run asks it."""

    project: Project
    name: str
    version: str
    """The version of the model, under which its answers are stored."""
    run_id: str
    stored_as: str | None = None
    """Another name under which the answers are stored, if they are not the model's answers for a result."""
    kept: KeptModel = field(default_factory=KeptModel)
    """Keeps the model loaded for the next model of the run."""

    @cached_property
    def cache(self) -> ResponseCache:
        """The stored answers."""
        return ResponseCache(self.project.lake, self.stored_version)

    @property
    def stored_version(self) -> str:
        """The version in the stored rows."""
        return self.stored_as or self.version


def ask(model: AskedModel, requests: Sequence[Request], evals: Mapping[str, str], reporter: Reporter) -> ModelRun:
    """Load a model and send it requests at once, as `Asker` does."""
    asker = Asker(model, reporter)
    asker.ask(requests, evals)
    asker.end()
    return asker.run


class Asker:
    """Asks a model requests in one or several parts. The model is loaded when the first ones are sent."""

    def __init__(self, model: AskedModel, reporter: Reporter) -> None:
        """`reporter` shows the progress of loading and answers."""
        self.run = ModelRun()
        """The call of the model, with the answers of the last part."""
        self.answered = SeenIds()
        """The requests that this call answered, in any part."""
        self.failed: dict[str, Answer] = {}
        """Their answers that are not stored, since another call may succeed."""
        self._model = model
        self._reporter = reporter
        self._loaded: Model | None = None
        self._requests = 0
        self._seconds = 0.0
        self._memory: PeakMemory | None = None
        self._session: ExitStack | None = None
        self._flusher: ResponseFlusher | None = None
        self._live: LiveAsks | None = None

    @contextmanager
    def session(self) -> Iterator[None]:
        """Ask many small parts within the block, later ones of which may continue earlier ones.

        Its answers are flushed every few seconds, and the progress of the parts is not shown.
        """
        with ExitStack() as stack:
            stack.callback(self._leave)  # at last: what has arrived is stored before
            if self._model.cache.has_journals:
                flusher = ResponseFlusher(self._model.cache, self._model.run_id)
                self._flusher = stack.enter_context(flusher)
                stack.enter_context(self._model.cache.searched_often(flusher))
            self._session, self._memory = stack, None
            if self._loaded is not None:
                stack.enter_context(self._loaded.conversing())
            yield

    def _leave(self) -> None:
        self._session = self._flusher = self._live = None

    @property
    def loaded(self) -> Model | None:
        """The model, if it is loaded."""
        return self._loaded

    @property
    def is_live(self) -> bool:
        """Whether the model is asked by `live`, which finds the stored answers too."""
        return self._live is not None

    def live(self, later: Later) -> LiveAsks | None:
        """Asks requests as they come, within a session. None if the model answers a sequence at a time, or has failed.

        `later` is given a function for each batch of answers, as `LiveAsks` says. A model that takes time to load is not loaded here.
        """
        model, session = self._model, self._session
        if self._live is not None:
            self._live.tell(later)
        elif self.run.failure is None and session is not None and model.cache.has_journals:
            loaded = self._load() if self._loaded is not None or model.project.handle(model.name).loads_at_once() else None
            begin = None if loaded is None else loaded.answering()
            if loaded is not None and begin is not None:
                claim = session.enter_context(model.cache.growing_claim(model.run_id))
                with use_reporter(self._reporter):
                    self._live = LiveAsks(self, model.name, loaded, claim, self._reporter, later, begin)
                session.callback(self._live.close)
                self._memory = session.enter_context(PeakMemory())
        return self._live

    def ask(self, requests: Sequence[Request], evals: Mapping[str, str], part: str = "") -> None:
        """Send requests, unless the model has failed before. Final answers are flushed to the cache, even if the call is interrupted.

        A request that another process is asking is not sent. This run waits for the answer, and sends the requests that the other process
        leaves.

        Args:
            requests: The requests.
            evals: From the id of each request to its eval.
            part: Which part of all requests these are, in words.
        """
        run, model, reporter = self.run, self._model, self._reporter
        run.answers, run.found, run.owners = {}, {}, evals
        left = {request.request_id: request for request in requests}
        while left and run.failure is None:
            with model.cache.claimed(left.keys(), model.run_id) as claim:
                run.found |= claim.known
                if claim.requests:
                    self._send([request for name, request in left.items() if name in claim.requests], claim, part)
            done = claim.known.keys() | (run.answers.keys() if claim.is_lost() else claim.requests)
            left = {name: request for name, request in left.items() if name not in done}
            if run.failure is None and claim.others and not claim.requests:
                holders = " and ".join(sorted(other.holder for other in claim.others))
                count = len({name for other in claim.others for name in other.requests} - claim.known.keys())
                reporter.note(f"{model.name}: {count} requests are already being asked by {holders}; this run waits for the answers")
                with reporter.track(f"wait for the answers of {model.name}", total=1, unit="claim") as advance:
                    waited = {name for other in claim.others for name in other.requests} - claim.known.keys()
                    while all(other.is_held() for other in claim.others) and not model.cache.find(waited):
                        time.sleep(_WAIT_S)
                    advance()

    def _send(self, requests: Sequence[Request], claim: Claim, part: str) -> None:
        """Send requests while their claim is not lost. If the model fails, the run gets the reason."""
        run, model, reporter = self.run, self._model, self._reporter
        loaded = self._load()
        if loaded is None:
            return
        started = time.monotonic()
        memory, shown = self._memory, reporter
        if memory is None or self._session is None:
            memory = PeakMemory()
        if self._session is not None:
            shown = SilentReporter()
        try:
            with (
                calling(f"the model {model.name}", is_limited=False),  # a batch may take hours
                self._measured(memory),
                self._flushing(claim) as flusher,
                use_reporter(reporter),
                AnswerProgress(shown, model.name, loaded, requests, run.owners, part) as progress,
                nullcontext() if self._session is not None else late_interruption(lambda: [loaded], reporter),
                closing(_timed(loaded, requests)) as answers,
            ):
                for request, response in answers:
                    run.answers[request.request_id] = row = self.row_of(request, response)
                    if not response.retryable:
                        flusher.add(row)
                    progress.count(request)
                    if claim.is_lost():
                        reporter.note(f"{model.name}: the lake was out of reach for so long that others may ask; the rest is claimed anew")
                        break
        except LakeUnreachableError:  # the answers are in the journal
            raise
        except EvalDagsterError as error:
            self.fail(error)
        finally:
            if self._memory is None or memory.bytes > self._memory.bytes:
                self._memory = memory
            self.count(len(requests), time.monotonic() - started)

    def _load(self) -> Model | None:
        """The loaded model. If it cannot be loaded, the run gets the reason."""
        model, reporter = self._model, self._reporter
        if self._loaded is not None:
            return self._loaded
        try:
            with calling(f"the model {model.name}", is_limited=False):
                handle = model.project.handle(model.name)
                with use_reporter(reporter), reporter.track(f"load {model.name}", total=1, unit="model") as advance:
                    loaded = model.kept.load(handle)
                    advance()
                if handle.version() != model.version:
                    raise ModelError(f"the model {model.name} changed while it was being loaded; run again")
                self._loaded = loaded
                if self._session is not None:
                    self._session.enter_context(loaded.conversing())
        except EvalDagsterError as error:
            self.fail(error)
            return None
        return loaded

    def fail(self, error: EvalDagsterError) -> None:
        """Give the run the reason for which the model answers nothing more."""
        self.run.failure, self.run.is_limited = str(error), isinstance(error, NotEvaluatedError)

    def row_of(self, request: Request, response: ModelResponse) -> Answer:
        """The row of an answer."""
        return {**answer_row(request.request_id, response, self._model.stored_version), "retryable": response.retryable}

    def store(self, rows: Sequence[Answer]) -> None:
        """Store final answers, within a session."""
        assert self._flusher is not None
        self._flusher.add(*rows)

    def count(self, requests: int, seconds: float) -> None:
        """Count requests that the model was asked, and the time in which it answered some."""
        self._requests += requests
        self._seconds += seconds

    @contextmanager
    def _measured(self, memory: PeakMemory) -> Iterator[None]:
        """Measure the peak memory of a part, or of the session from its first part on."""
        if self._session is None:
            with memory:
                yield
            return
        if self._memory is not memory:
            self._memory = self._session.enter_context(memory)
        yield

    @contextmanager
    def _flushing(self, claim: Claim) -> Iterator[ResponseFlusher]:
        """Collect the answers of a part. They are flushed at its end, or every few seconds in a session."""
        if self._flusher is not None:
            yield self._flusher
            return
        with ResponseFlusher(self._model.cache, self._model.run_id, back_up=claim.back_up) as flusher:
            yield flusher

    def end(self) -> None:
        """Give the run its figures and notes. A run with a failed model has none."""
        run, loaded, model = self.run, self._loaded, self._model
        if loaded is None or self._memory is None or (run.failure is not None and not run.is_limited):
            return
        usages = [usage for usage in loaded.usage() if usage.requests]
        figures: dict[str, float] = {"run_requests": self._requests, "run_seconds": round(self._seconds, 3)}
        if usages:
            asked, read, computed = (
                sum(counts)
                for counts in zip(*((each.inputs_asked(), each.inputs_computed(), each.computed()) for each in usages), strict=True)
            )
            figures |= {"run_tokens_asked": asked, "run_tokens_computed": computed}
            if read:
                figures["run_reuse_factor"] = round(asked / read, 3)
            if self._seconds:
                figures["run_tokens_per_s"] = round(computed / self._seconds, 1)
        costs = [usage.cost for usage in usages if usage.cost is not None]
        if costs:
            estimated = sum(usage.cost_estimated for usage in usages)
            figures |= {"run_cost": math.fsum(costs), **({"run_calls_of_estimated_cost": estimated} if estimated else {})}
        run.figures = figures | {"run_peak_memory_mib": round(self._memory.bytes / _MEBIBYTE, 1)}
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


def _timed(loaded: Model, requests: Sequence[Request]) -> Generator[tuple[Request, ModelResponse]]:
    """The answers of a model. If it computes in this process without measuring times, each gets the time since the previous answer.

    The answers of a batch come together, so the first one gets the time of the batch. Only sums over many answers are meaningful.
    """
    gpus = loaded.gpus()
    last = time.monotonic()
    asked = {request.request_id for request in requests}
    for request, given in loaded.respond(requests):
        require_asked(request, asked)
        asked.remove(request.request_id)
        response = fitting(request, given)
        now = time.monotonic()
        if gpus is not None and response.worker_s is None:
            response = altered(response, {"worker_s": now - last, "gpu_s": (now - last) * gpus})
        yield request, response
        last = now
