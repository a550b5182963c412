"""The handle of a model that this process cannot open: its version is asked of a worker.

That is so if the workers have an interpreter of their own, whose packages are not installed here, or GPUs and this machine has none.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from eval_dagster.config.models import ModelConfig
from eval_dagster.config.workers import WorkersConfig
from eval_dagster.errors import EvalDagsterError, ModelError, ModelNotFoundError
from eval_dagster.models.base import ModelHandle, WatchedHandle
from eval_dagster.models.pooled.cluster import connect, needs, room
from eval_dagster.models.pooled.crew import Crew, first_line, new_actor
from eval_dagster.models.pooled.facts import WorkerFacts
from eval_dagster.models.pooled.handle import PooledHandle, WatchedPooledHandle, task_of
from eval_dagster.models.pooled.model import PooledModel
from eval_dagster.models.pooled.worker import WorkerTask
from eval_dagster.models.registry import open_model
from eval_dagster.models.transformers.network.devices import device_of
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import Message

T = TypeVar("T")


class ElsewhereHandle:
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

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Messages by the model's own template, as a worker renders them. Raises `ModelError` if it has none."""
        return str(self._rendered("render", list(messages), images))

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
    own = open_model(name, config, folder=folder, home=home)
    if isinstance(own, WatchedHandle):
        return WatchedPooledHandle(name, own, own, workers, task)
    return PooledHandle(name, own, workers, task)
