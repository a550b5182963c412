"""Models whose answers were given elsewhere and imported, so that they cannot be asked."""

from collections.abc import Sequence
from pathlib import Path

from eval_dagster.config.models import ImportedModel
from eval_dagster.errors import NotEvaluatedError
from eval_dagster.models.base import Model, ModelHandle
from eval_dagster.records import Message
from eval_dagster.versions.hashes import stable_hash


class ImportedHandle(ModelHandle):
    """A model of imported results."""

    SECTION = ImportedModel

    def __init__(self, name: str) -> None:
        """Take its name in evals.yaml."""
        self._name = name

    @classmethod
    def open(cls, name: str, config: ImportedModel, *, folder: Path, home: Path) -> "ImportedHandle":  # noqa: ARG003
        """The handle of a section of evals.yaml."""
        return cls(name)

    def check(self) -> None:
        """Accept the model: its results are there, and nothing is loaded."""

    def version(self) -> str:
        """The same for all imported models, since each result has the version of its own log."""
        return stable_hash("imported")

    def content_version(self) -> str:
        """As `version`."""
        return self.version()

    def template_version(self) -> str:
        """As `version`."""
        return self.version()

    def image_mark(self) -> str:
        """Raise `NotEvaluatedError`."""
        raise self._unasked()

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0, tools: Sequence[str] = ()) -> str:  # noqa: ARG002
        """Raise `NotEvaluatedError`."""
        raise self._unasked()

    def load(self) -> Model:
        """Raise `NotEvaluatedError`."""
        raise self._unasked()

    def _unasked(self) -> NotEvaluatedError:
        return NotEvaluatedError(
            f"Model {self._name!r}: its answers are imported, and evals.yaml does not say where it can be asked; set its `backend` for that"
        )
