"""Models with `workers`: their handles, and the model over all workers, which answers as one.

This process cannot open a model if the workers have an interpreter of their own, whose packages are not installed here, or GPUs and this
machine has none. The version of such a model is asked of a worker.
"""

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from eval_dagster.config.models import ModelConfig, WorkersConfig
from eval_dagster.errors import EvalDagsterError, ModelError, ModelNotFoundError
from eval_dagster.models.base import Model, ModelHandle
from eval_dagster.models.pooled.crew import Crew, Member, connect, first_line, needs, new_actor, require_ray, room
from eval_dagster.models.pooled.pieces import Piece, cut
from eval_dagster.models.pooled.worker import Batch, WorkerFacts, WorkerTask, facts_of
from eval_dagster.models.registry import open_model
from eval_dagster.models.transformers.network.devices import device_of
from eval_dagster.models.usage import Usage
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import Message, ModelResponse, Request

_WAIT_S = 1.0
_MOST_DEATHS = 3
"""Workers that a request may end, of which the last one had this request alone, before the request counts as failed."""
Answered = tuple[Request, ModelResponse]
T = TypeVar("T")


def summed(parts: Sequence[Sequence[Usage]], state: str) -> list[Usage]:
    """One usage for each kind of work: the sum of all workers' counts, with the texts of the first one that has worked.

    `state` says how many workers there are. So does the reason for the way of computing, which results keep.
    """
    by_kind: dict[str, list[Usage]] = {}
    for usage in (each for part in parts for each in part):
        by_kind.setdefault(usage.kind, []).append(usage)
    sums: list[Usage] = []
    for usages in by_kind.values():
        first = next((usage for usage in usages if usage.requests), usages[0])
        same = [usage for usage in usages if type(usage) is type(first)]
        total = {
            field.name: sum(getattr(usage, field.name) for usage in same)
            for field in fields(first)
            if isinstance(getattr(first, field.name), int | float) and field.name != "cost"
        }
        costs = [usage.cost for usage in same if usage.cost is not None]
        reason = "; ".join(filter(None, (first.reason, state)))
        sums.append(replace(first, **total, cost=sum(costs) if costs else None, state=state, reason=reason))
    return sums


@dataclass(eq=False, kw_only=True)
class _Assignment:
    """A piece that a worker answers."""

    member: Member
    piece: Piece
    left: dict[str, Request] = field(default_factory=dict)
    """Requests without an answer, by id."""


class PooledModel(Model):
    """The workers of a model. They end with this object, and at once where `respond` is interrupted."""

    def __init__(self, crew: Crew) -> None:
        """Start the workers and wait until one has loaded the model.

        Raises:
            ModelError: No worker gets a place, all are refused, or all end before they have loaded the model.
        """
        self._crew = crew
        self._queue: deque[Piece] = deque()
        self._busy: dict[Any, _Assignment] = {}
        weakref.finalize(self, crew.end)
        try:
            crew.start(crew.config.count)
            self.wait(1)
        except BaseException:
            crew.end()
            raise

    def wait(self, count: int) -> None:
        """Return when so many workers have loaded the model, or all that were not refused. Raises `ModelError` if none can."""
        while len(self._crew.idle) < count and (self._crew.starting or not self._crew.idle):
            self._step()

    def respond(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """Answer every request once, each as soon as its worker sends it. A request that ends its workers is answered by an error.

        Raises:
            ModelError: No worker is left, and no new one comes. Requests that have no answer then were not answered.
        """
        pieces = cut(requests, self._crew.config.count)
        self._crew.start(min(self._crew.config.count, len(pieces)))
        self._queue.extend(pieces)
        try:
            while self._queue or self._busy:
                while self._queue and self._crew.idle:
                    member, piece = self._crew.idle.pop(0), self._queue.popleft()
                    stream = member.actor.answer.options(num_returns="streaming").remote(piece.requests)
                    left = {each.request_id: each for each in piece.requests}
                    self._busy[stream] = _Assignment(member=member, piece=piece, left=left)
                yield from self._step()
        except BaseException:  # the caller's end too: nobody waits for an answer any more
            self._crew.end()
            self._queue.clear()
            self._busy.clear()
            raise

    def usage(self) -> Sequence[Usage]:
        """The work of all workers."""
        return summed(self._crew.usages(), self._crew.state())

    def _step(self) -> list[Answered]:
        """Wait for what comes next from any worker. Returns the answers among it."""
        import ray

        self._crew.require()
        waited = [*self._busy, *self._crew.starting]
        ready = ray.wait(waited, num_returns=1, timeout=_WAIT_S)[0] if waited else []
        answers: list[Answered] = []
        for ref in ready:
            if ref in self._busy:
                answers += self._take(ref)
            else:
                self._crew.settle(ref)
        return answers

    def _take(self, stream: Any) -> list[Answered]:
        """The answers of the next batch of a worker."""
        import ray

        assignment = self._busy[stream]
        try:
            batch: Batch = ray.get(next(stream))
        except StopIteration:
            del self._busy[stream]
            self._crew.idle.append(assignment.member)
            error = "ModelError: the model left the request unanswered"
            return [(request, ModelResponse(error=error, retryable=True)) for request in assignment.left.values()]
        except ray.exceptions.RayTaskError as error:
            del self._busy[stream]
            if isinstance(error.cause, EvalDagsterError):
                raise error.cause from None
            return self._lost(assignment, error.cause if isinstance(error.cause, Exception) else error)
        except ray.exceptions.RayError as error:
            del self._busy[stream]
            return self._lost(assignment, error)
        assignment.member.usages = batch.usages
        self._crew.answered()
        found = [(assignment.left.pop(name, None), response) for name, response in batch.answers]
        return [(request, response) for request, response in found if request is not None]

    def _lost(self, assignment: _Assignment, error: Exception) -> list[Answered]:
        """Queue what a lost worker has not answered; the error of a request that is to blame."""
        node_is_gone = self._crew.lost(assignment.member, error)
        if not assignment.left:
            return []
        piece = assignment.piece.remainder(list(assignment.left.values()))
        if node_is_gone:
            self._queue.appendleft(piece)
            return []
        piece.deaths += 1
        if piece.deaths < 2:
            self._queue.appendleft(piece)
        elif len(piece.requests) > 1:
            self._queue.extend(piece.halves())  # last, so that other requests are answered before more workers end
        elif piece.deaths < _MOST_DEATHS:
            self._queue.append(piece)
        else:
            self._crew.answered()
            message = f"WorkerLostError: {_MOST_DEATHS} workers ended while they answered this request; the last one: {first_line(error)}"
            return [(piece.requests[0], ModelResponse(error=message, retryable=True))]
        return []


class PooledHandle:
    """A model whose version this process computes, and which workers load. All else is as of the model without workers."""

    def __init__(self, name: str, own: ModelHandle, workers: WorkersConfig, task: WorkerTask) -> None:
        """`own` is the handle of the same model without workers."""
        self._name = name
        self._own = own
        self._workers = workers
        self._task = task

    def __getattr__(self, name: str) -> Any:
        """The member of the model without workers."""
        return getattr(self._own, name)

    def check(self) -> None:
        """Raise `ModelNotFoundError` if the model is not there, `RequirementError` without Ray. The cluster is not asked."""
        require_ray(self._name)
        self._own.check()

    def engine(self) -> str:
        """The engine of each worker, if all nodes are like this machine, and the number of workers."""
        return ", ".join(filter(None, (self._own.engine(), f"workers: {self._workers.count}")))

    def load(self) -> PooledModel:
        """Start the workers.

        Raises:
            RequirementError: Ray is not installed.
            ModelError: No worker can be had.
        """
        connect(self._name, self._workers)
        expected = facts_of(self._own, self._task)
        return PooledModel(Crew(name=self._name, config=self._workers, task=self._task, expected=expected, reporter=current_reporter()))


def task_of(name: str, config: ModelConfig, folder: Path) -> WorkerTask:
    """The instructions for the workers of a model."""
    assert config.workers is not None
    section = config.model_dump(mode="json", exclude={"workers"}, exclude_unset=True)
    every_s = max(0.25, 0.01 * config.workers.count)  # so that the driver is not busy with batches
    return WorkerTask(name=name, section=section, folder=str(folder), gpus=config.workers.gpus, every_s=every_s)


class ElsewhereHandle(ModelHandle):
    """A model that workers alone can open."""

    def __init__(self, name: str, workers: WorkersConfig, task: WorkerTask) -> None:
        """`name` is the model's in evals.yaml."""
        self._name = name
        self._workers = workers
        self._task = task
        self._facts: WorkerFacts | None = None
        self._renderer: Any = None

    def check(self) -> None:
        """Ask a worker for the model.

        Raises:
            RequirementError: Ray is not installed.
            ModelNotFoundError: The model is not there, or no worker can be asked.
        """
        self._known()

    def version(self) -> str:
        """The version of the model as a worker has it. Raises as `check` does."""
        return self._known().version

    def must_ask(self) -> bool:
        """Whether no worker was asked yet."""
        return self._facts is None

    def must_prepare(self) -> bool:
        """Always: a worker renders messages."""
        return True

    def content_version(self) -> str:
        """The version of the model without its engine. Raises as `check` does."""
        return self._known().content

    def template_version(self) -> str:
        """Hash of what `apply_chat_template` depends on. Raises as `check` does."""
        return self._known().template

    def takes_messages(self) -> bool:
        """Whether the model is sent messages if its prompt format is `chat`."""
        return self._known().takes_messages

    def answers_vary(self) -> bool:
        """Whether a fresh answer may differ from the one before."""
        return self._known().answers_vary

    def engine(self) -> str:
        """The place of the answers' computation. Only the workers know the engine itself."""
        where = f"of {self._workers.python}" if self._workers.python else f"with {self._workers.gpus:g} GPUs each"
        return f"{self._task.section['backend']}, workers: {self._workers.count} {where}"

    def image_mark(self) -> str:
        """The text that stands for one image in a plain prompt. Raises `ModelError` if the model takes no images."""
        return str(self._rendered("image_mark"))

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0, tools: Sequence[str] = ()) -> str:
        """Messages by the model's own template, as a worker renders them. Raises `ModelError` if it has none."""
        return str(self._rendered("render", list(messages), images, list(tools)))

    def load(self) -> PooledModel:
        """Start the workers. Raises `ModelError` if none can be had."""
        expected = self._known()
        crew = Crew(name=self._name, config=self._workers, task=self._task, expected=expected, reporter=current_reporter())
        return PooledModel(crew)

    def _known(self) -> WorkerFacts:
        """The report of the first worker. It ends at once, so that its GPUs are free."""
        if self._facts is None:
            connect(self._name, self._workers)
            import ray

            actor = new_actor(self._workers, self._task)
            try:
                with current_reporter().track(f"ask a worker for the version of {self._name}", total=1, unit="worker") as advance:
                    self._require_place(actor)
                    self._facts = self._result(actor.describe.remote())
                    advance()
            except ModelError as error:
                raise ModelNotFoundError(str(error)) from None
            finally:
                ray.kill(actor)
        return self._facts

    def _rendered(self, method: str, *arguments: Any) -> Any:
        """The prompt as a worker without GPU makes it. It stays for the next one."""
        connect(self._name, self._workers)
        if self._renderer is None:
            workers = self._workers.model_copy(update={"gpus": 0.0, "cpus": 0.0})
            self._renderer = new_actor(workers, replace(self._task, gpus=0.0))
            self._require_place(self._renderer)
        return self._result(getattr(self._renderer, method).remote(*arguments))

    def _require_place(self, actor: Any) -> None:
        """Raise `ModelError` if a worker gets no place within `patience_s`."""
        self._result(actor.place.remote(), timeout_s=self._workers.patience_s)

    def _result(self, ref: Any, timeout_s: float | None = None) -> Any:
        """The result of a worker's method. An exception of this package is raised as it is."""
        import ray

        try:
            return ray.get(ref, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise ModelError(
                f"Model {self._name!r}: no worker answered within {self._workers.patience_s:g} s (`patience_s`). It asks for "
                f"{needs(self._workers)}; the cluster has {room()}. Lower `cpus` or `gpus` of its `workers` in evals.yaml, or add nodes."
                f"{self._interpreter()}"
            ) from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, EvalDagsterError):
                raise error.cause from None
            raise ModelError(f"Model {self._name!r}: a worker failed: {first_line(error.cause)}") from None
        except ray.exceptions.RayError as error:
            raise ModelError(f"Model {self._name!r}: no worker could be started: {first_line(error)}.{self._interpreter()}") from None

    def _interpreter(self) -> str:
        python = self._workers.python
        if python is None:
            return ""
        return f" Each node needs {python}, with the same versions of Python and Ray as here, and with eval_dagster."


def open_handle(name: str, config: ModelConfig, *, folder: Path, home: Path) -> ModelHandle:
    """The handle of a configured model. Nothing is checked, loaded or started yet. Arguments and errors as of `open_model`."""
    workers = config.workers
    if workers is None:
        return open_model(name, config, folder=folder, home=home)
    task = task_of(name, config, folder)
    if workers.python is not None or (workers.gpus and device_of("auto") == "cpu"):
        return ElsewhereHandle(name, workers, task)
    return PooledHandle(name, open_model(name, config, folder=folder, home=home), workers, task)
