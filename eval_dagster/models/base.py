"""The classes that a model backend extends: a model is checked and versioned cheaply, loaded once, and asked many times.

A backend cuts its texts at the first stop sequence by `cut_at_stop`.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from eval_dagster.config.models import ModelSection
from eval_dagster.lake.tables.columns import AnswerRow
from eval_dagster.models.usage import Usage
from eval_dagster.records import Message, ModelResponse, Request

Known = tuple[Request, AnswerRow]
"""A request, and the row of the response cache that holds its answer."""
FindKnown = Callable[[], Sequence[Known]]
"""Gives some requests of the run, chosen at random, whose answers are cached under the model's current version."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """The findings of a run's look at a model."""

    warnings: Sequence[str] = ()
    """What a person has to know, in one line each."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Text for the user interfaces."""
    cost: float = 0.0
    """US dollars; 0 without a price."""
    down: str | None = None
    """Why no request can be answered now. Cached answers stay valid."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a model's answers to requests that come one after the other."""

    error: BaseException | None = None
    """Why it ended. Null if that was asked for."""


PutAnswers = Callable[[Sequence[tuple[Request, ModelResponse]] | Ended], None]
"""Takes answers as soon as they are there, and at last the end. It is called in a thread of the model."""


class Answering(Protocol):
    """Answers requests as they come."""

    def add(self, requests: Sequence[Request]) -> None:
        """Ask requests, while earlier ones may be under way."""
        ...

    def cancel(self) -> None:
        """Leave what is under way, and end. Returns when nothing is put any more."""
        ...


@runtime_checkable
class Model(Protocol):
    """A loaded model. A backend extends this class, and so gets the defaults."""

    waits_for_answers: ClassVar[bool] = False
    """Whether answers under way cost money, so that an interrupted run calls `end` and waits for them."""

    @abstractmethod
    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        """Answer every request once, in any order, each as soon as it is done.

        A request that fails alone is answered by a response with `error` set; nothing is raised for it.
        """

    @abstractmethod
    def usage(self) -> Sequence[Usage]:
        """The work so far, one for each kind; empty if the model counts no tokens. May be called while it responds."""

    def gpus(self) -> int | None:
        """The number of GPUs that it uses, 0 on the CPU. Null if it computes elsewhere: the time between answers is not what they took."""
        return None

    def conversing(self) -> AbstractContextManager[None]:
        """Within the block, later requests may continue earlier ones with their answers. A model may keep what it computed for them."""
        return nullcontext()

    def answering(self) -> Callable[[PutAnswers], Answering] | None:
        """A function that begins to answer requests as they come. Null for a model that answers a sequence at a time, by `respond`."""
        return None

    def end(self) -> None:
        """Begin no further request. `respond` ends when those under way are answered. May be called from a handler of a signal."""
        return


@runtime_checkable
class ModelHandle(Protocol):
    """A configured model, not yet loaded. A backend extends this class, and so gets the defaults."""

    @abstractmethod
    def check(self) -> None:
        """Raise `ModelNotFoundError` if the model could not be loaded; reads no weights, loads nothing."""

    @abstractmethod
    def version(self) -> str:
        """Hash of everything that can change an output: weights, tokenizer, chat template, dtype, engine. Loads no weights."""

    @abstractmethod
    def content_version(self) -> str:
        """Hash of the model alone: weights, configuration, tokenizer and chat template.

        Where it is the same and `version` is not, only the engine can have changed an answer: code, packages, device, dtype or the length
        of the context. Raises `ModelNotFoundError` if the model is not there.
        """

    @abstractmethod
    def image_mark(self) -> str:
        """The text that stands for one image in a plain prompt. Raises `ModelError` if the model takes no images."""

    @abstractmethod
    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0, tools: Sequence[str] = ()) -> str:
        """Render messages by the model's own template; a last assistant message is left open, to be continued.

        Args:
            messages: The conversation.
            images: Images that stand before the text of the last user turn.
            tools: Definitions of the tools that the model may call, as JSON. They are given only if there are some.

        Raises:
            ModelError: The model has no chat template, or takes no images and there are some.
        """

    @abstractmethod
    def template_version(self) -> str:
        """Hash of what `apply_chat_template` depends on."""

    @abstractmethod
    def load(self) -> Model:
        """Load the weights. Raises `ModelError` if they cannot be loaded."""

    def engine(self) -> str:
        """The engine and device that would compute the answers, and why; empty if that is not known. Loads nothing. Raises as `check`."""
        return ""

    def takes_messages(self) -> bool:
        """Whether the model is sent messages if its prompt format is `chat`. Else it is sent one text by its chat template."""
        return False

    def answers_vary(self) -> bool:
        """Whether the model may answer the same request differently when it is sent again."""
        return False

    def shares(self) -> bool:
        """Whether `load` uses what the model holds that was loaded before, or frees it. Else its memory is freed first."""
        return False

    def loads_at_once(self) -> bool:
        """Whether `load` takes no time, since the model computes elsewhere."""
        return False

    def must_ask(self) -> bool:
        """Whether `version` would ask a server or start a worker."""
        return False

    def must_prepare(self) -> bool:
        """Whether `apply_chat_template` would fetch or convert files, or start a worker."""
        return False

    def look(self, known: FindKnown, run_id: str) -> Look:  # noqa: ARG002
        """Find out whether a model that can change behind its name, such as one on a server, still answers as before.

        `version` and `content_version` have the result from then on.

        Args:
            known: Gives requests whose answers are cached under the current version.
            run_id: The run that looks.
        """
        return Look()

    def declared_versions(self) -> tuple[str, str] | None:
        """`version` and `content_version` without what looks found; null if the model cannot change behind its name.

        If both are the same and the other ones are not, only a change behind the model's name can have changed an answer.
        """
        return None


class ModelBackend(Protocol):
    """A kind of model. An entry point of the group `eval_dagster.models` names it, under the backend's name in evals.yaml."""

    SECTION: ClassVar[type[ModelSection]]
    """The keys of such a model in evals.yaml."""

    @classmethod
    def open(cls, name: str, config: Any, *, folder: Path, home: Path) -> ModelHandle:
        """The handle of a configured model. Nothing is checked or loaded yet.

        Args:
            name: The model's name in evals.yaml.
            config: Its section, an instance of `SECTION`.
            folder: The folder of evals.yaml, where relative paths start.
            home: The folder of all state.
        """
        ...


def is_scored(request: Request) -> bool:
    """Whether a request asks for log-probabilities of given tokens, not for texts."""
    return request.choices is not None or request.perplexity


def cut_at_stop(text: str, stop_sequences: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop sequence, and whether there is one."""
    ends = [end for end in (text.find(stop) for stop in stop_sequences if stop) if end >= 0]
    return (text[: min(ends)], True) if ends else (text, False)
