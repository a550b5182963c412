"""The handle of a model with `workers`, which load the model."""

from collections.abc import Sequence
from pathlib import Path

from eval_dagster.config.models import ModelConfig
from eval_dagster.config.workers import WorkersConfig
from eval_dagster.models.base import (
    ConversationalHandle,
    DistantHandle,
    ExplainedHandle,
    FindKnown,
    Look,
    ModelHandle,
    VaryingHandle,
    WatchedHandle,
)
from eval_dagster.models.pooled.cluster import connect, require_ray
from eval_dagster.models.pooled.crew import Crew
from eval_dagster.models.pooled.facts import WorkerFacts, installed_packages
from eval_dagster.models.pooled.model import PooledModel
from eval_dagster.models.pooled.worker import WorkerTask, device_text
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import Message


class PooledHandle:
    """A model whose version this process computes, and which workers load."""

    def __init__(self, name: str, own: ModelHandle, workers: WorkersConfig, task: WorkerTask) -> None:
        """`own` is the handle of the same model without workers."""
        self._name = name
        self._own = own
        self._workers = workers
        self._task = task

    def check(self) -> None:
        """Raise `ModelNotFoundError` if the model is not there, `RequirementError` without Ray. The cluster is not asked."""
        require_ray(self._name)
        self._own.check()

    def version(self) -> str:
        """That of the model without workers."""
        return self._own.version()

    def must_ask(self) -> bool:
        """Whether the model without workers would ask."""
        return isinstance(self._own, DistantHandle) and self._own.must_ask()

    def must_prepare(self) -> bool:
        """Whether the model without workers would prepare files."""
        return isinstance(self._own, DistantHandle) and self._own.must_prepare()

    def content_version(self) -> str:
        """That of the model without workers."""
        return self._own.content_version()

    def image_mark(self) -> str:
        """The text that stands for one image in a plain prompt."""
        return self._own.image_mark()

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Render messages by the model's own template."""
        return self._own.apply_chat_template(messages, images=images)

    def template_version(self) -> str:
        """Hash of what `apply_chat_template` depends on."""
        return self._own.template_version()

    def takes_messages(self) -> bool:
        """Whether the model is sent messages if its prompt format is `chat`."""
        return isinstance(self._own, ConversationalHandle) and self._own.takes_messages()

    def answers_vary(self) -> bool:
        """Whether a fresh answer may differ from the one before."""
        return isinstance(self._own, VaryingHandle) and self._own.answers_vary()

    def engine(self) -> str:
        """The engine of each worker, if all nodes are like this machine, and the number of workers."""
        own = f"{self._own.engine()}, " if isinstance(self._own, ExplainedHandle) else ""
        return f"{own}workers: {self._workers.count}"

    def load(self) -> PooledModel:
        """Start the workers.

        Raises:
            RequirementError: Ray is not installed.
            ModelError: No worker can be had.
        """
        connect(self._name, self._workers)
        reporter = current_reporter()
        return PooledModel(Crew(name=self._name, config=self._workers, task=self._task, expected=self._facts(), reporter=reporter))

    def _facts(self) -> WorkerFacts:
        """The facts that each worker has to report."""
        return WorkerFacts(
            version=self.version(),
            content=self.content_version(),
            template=self.template_version(),
            takes_messages=self.takes_messages(),
            answers_vary=self.answers_vary(),
            device=device_text(self._task.section.get("device")),
            packages=installed_packages(),
        )


class WatchedPooledHandle(PooledHandle):
    """The same for a model that can change behind its name."""

    def __init__(self, name: str, own: ModelHandle, watched: WatchedHandle, workers: WorkersConfig, task: WorkerTask) -> None:
        """`watched` is the handle `own`."""
        super().__init__(name, own, workers, task)
        self._watched = watched

    def look(self, known: FindKnown, run_id: str) -> Look:
        """Find out whether the model still answers as before."""
        return self._watched.look(known, run_id)

    def declared_versions(self) -> tuple[str, str]:
        """`version` and `content_version` without what looks found."""
        return self._watched.declared_versions()


def task_of(name: str, config: ModelConfig, folder: Path) -> WorkerTask:
    """The instructions for the workers of a model."""
    assert config.workers is not None
    section = config.model_dump(mode="json", exclude={"workers"}, exclude_unset=True)
    every_s = max(0.25, 0.01 * config.workers.count)  # so that the driver is not busy with batches
    return WorkerTask(name=name, section=section, folder=str(folder), gpus=config.workers.gpus, every_s=every_s)
