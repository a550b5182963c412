"""A model that answers from a table or a function: honest, fast and repeatable, for tests and demonstrations."""

import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from types import FunctionType
from typing import Any, TypeGuard

from eval_dagster.config.models import ScriptedModel
from eval_dagster.errors import ModelError, ModelNotFoundError, described
from eval_dagster.models.base import Model, ModelHandle, cut_at_stop
from eval_dagster.models.usage import Usage
from eval_dagster.records import GenerationSettings, Message, ModelResponse, Request
from eval_dagster.users_code import calling, raised_at
from eval_dagster.versions.hashes import code_version, file_hash, stable_hash
from eval_dagster.versions.source_files import load_file

Answer = str | Sequence[float] | ModelResponse
"""A text, or one log-probability a choice, or for a perplexity one a token. A whole response can call tools."""


class CutText(str):
    """A text of a function that was cut off at the limit: its `finish_reason` is `length`."""

    __slots__ = ()


AnswerFunction = Callable[[Request], Answer]

ENGINE_VERSION = 1
"""Version of the code that makes answers from a table or from the values of a function. Raise it if an answer may change.

Golden answers fail if an answer changed and this number did not.
"""

_PROBABILITY = 0.9
"""Probability of the choice that a table names; the others share the rest."""

_TOKEN_PROBABILITY = 0.5
"""Probability of each word of a text whose perplexity is computed from a table."""


class ScriptedHandle(ModelHandle):
    """A model that answers from a function or, without one, from a table."""

    def __init__(self, name: str, *, function: AnswerFunction | None = None, answers: Mapping[str, str] | None = None, default: str = ""):
        """The table answers a prompt by the first key that the prompt contains, and by `default` if there is none."""
        self.requests_seen = 0
        """Requests that were answered by this handle's models so far."""
        self.name = name
        self._answers = dict(answers or {})
        self._default = default
        self._function = function
        self._file: Path | None = None
        self._path = self._function_name = ""

    SECTION = ScriptedModel

    @classmethod
    def open(cls, name: str, config: ScriptedModel, *, folder: Path, home: Path) -> "ScriptedHandle":  # noqa: ARG003
        """The handle of a section of the evals.yaml in `folder`."""
        handle = cls(name, answers=config.answers, default=config.default)
        if config.function is not None:
            handle._path, _, handle._function_name = config.function.rpartition(":")
            handle._file = folder / os.path.expanduser(handle._path)  # noqa: PTH111 - of an unknown user, too
        return handle

    def check(self) -> None:
        """Raise `ModelNotFoundError` if the function is not there."""
        self._resolve()

    def version(self) -> str:
        """Hash of the table and of the code of the function."""
        code: Any = None
        if self._file is not None:
            function = self._resolve()
            code = code_version(*([function] if isinstance(function, FunctionType) else []), load_file(self._file.resolve()))
        elif self._function is not None:
            try:
                code = inspect.getsource(self._function)
            except (OSError, TypeError):  # a function without a source file, or a callable object, has only its name
                name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
                code = f"{getattr(self._function, '__module__', '')}.{name}"
        table = {"answers": list(self._answers.items()), "default": self._default}
        return stable_hash({"backend": "scripted", "engine": ENGINE_VERSION, "code": code, **table})

    def content_version(self) -> str:
        """Hash of the table and of the function's file. Raises `ModelNotFoundError` if the function is not there."""
        code = None
        if self._file is not None:
            if not os.path.isfile(self._file):  # noqa: PTH113 - false for a name that no file can have
                raise self._not_found("the file does not exist")
            code = [f"{self._path}:{self._function_name}", file_hash(self._file)]
        return stable_hash([list(self._answers.items()), self._default, code])

    def image_mark(self) -> str:
        """The mark of an image in a prompt; a scripted model reads no images."""
        return "<image>"

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0, tools: Sequence[str] = ()) -> str:  # noqa: ARG002
        """Raise `ModelError`: scripted models have no chat template."""
        raise ModelError(f"Model {self.name!r} is scripted and has no chat template. Set `prompt_format: plain` for it in evals.yaml.")

    def template_version(self) -> str:
        """The same for all scripted models."""
        return stable_hash("no chat template")

    def load(self) -> "ScriptedResponder":
        """The model; its answers count in `requests_seen`. Raises `ModelNotFoundError` if the function is not there."""
        return ScriptedResponder(self, self._resolve() or self._look_up)

    def _look_up(self, request: Request) -> Answer:
        matches = (answer for key, answer in self._answers.items() if key in request.prompt)
        answer = next(matches, self._default)
        if request.choices is not None:  # the highest log-probability is at the answer; all are equal if no choice is or contains it
            wanted = answer.strip()
            texts = [choice.strip() for choice in request.choices]
            chosen = next((index for index, text in enumerate(texts) if text == wanted), None)
            if chosen is None and wanted:
                chosen = next((index for index, text in enumerate(texts) if wanted in text), None)
            if chosen is None:
                return [-math.log(len(texts))] * len(texts)
            rest = (1 - _PROBABILITY) / max(len(texts) - 1, 1)
            return [math.log(_PROBABILITY if index == chosen else rest) for index in range(len(texts))]
        return [math.log(_TOKEN_PROBABILITY)] * len(request.prompt.split()) if request.perplexity else answer

    def _resolve(self) -> AnswerFunction | None:
        if self._file is None:
            return self._function
        if not os.path.isfile(self._file):  # noqa: PTH113 - false for a name that no file can have
            raise self._not_found("the file does not exist")
        try:
            function: AnswerFunction | None = getattr(load_file(self._file.resolve()), self._function_name, None)
        except Exception as error:
            raise self._not_found(f"the file cannot be run ({described(error)})") from error
        if not callable(function):
            raise self._not_found(f"the file defines no function {self._function_name!r}")
        return function

    def _not_found(self, seen: str) -> ModelNotFoundError:
        return ModelNotFoundError(
            f"Model {self.name!r}: function {self._function_name!r} in {self._file}: {seen}. "
            "Write `function: path/to/file.py:name` in evals.yaml, the path relative to that file."
        )


class ScriptedResponder(Model):
    """A scripted model, loaded."""

    def __init__(self, handle: ScriptedHandle, function: AnswerFunction):
        self._handle = handle
        self._function = function

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        """Answer the requests in their order. An exception of the function becomes an error of that request."""
        for request in requests:
            self._handle.requests_seen += 1
            try:
                with calling(f"the function of the model {self._handle.name}", request.request_id):
                    if request.choices is not None:
                        response = self._scores(request, request.choices)
                    else:
                        response = self._perplexity(request) if request.perplexity else self._texts(request)
            except Exception as error:
                response = ModelResponse(error=f"{described(error)}{raised_at(error)}", retryable=True)
            yield request, response

    def usage(self) -> Sequence[Usage]:
        """Empty: a scripted model has no tokens."""
        return ()

    def gpus(self) -> int:
        """None."""
        return 0

    def _texts(self, request: Request) -> ModelResponse:
        settings = request.generation or GenerationSettings()
        texts, reasons = list[str](), list[str]()
        for _ in range(request.first_text, settings.num_samples):
            answer = self._function(request)
            if isinstance(answer, ModelResponse):
                return answer
            if not isinstance(answer, str):
                raise ModelError(f"The function gave {type(answer).__name__} for a request without choices; expected a text.")
            text, is_stopped = cut_at_stop(answer, settings.stop_sequences)
            texts.append(text)
            reasons.append("length" if isinstance(answer, CutText) and not is_stopped else "stop")
        return ModelResponse(input=request.prompt, text=tuple(texts), finish_reason=tuple(reasons))

    def _scores(self, request: Request, choices: Sequence[str]) -> ModelResponse:
        answer: object = self._function(request)
        if not _is_list(answer) or len(answer) != len(choices):
            seen = f"{len(answer)} numbers" if _is_list(answer) else "a text" if isinstance(answer, str) else type(answer).__name__
            raise ModelError(f"The function gave {seen} for a request with {len(choices)} choices; expected one log-probability a choice.")
        logprobs = _finite(answer)
        tokens = tuple((value,) for value in logprobs)
        has_prior = request.unconditioned_prompt is not None
        return ModelResponse(
            input=request.prompt,
            logprobs=logprobs,
            token_logprobs=tokens,
            argmax_logits_eq_gold=tuple(value == max(logprobs) for value in logprobs),
            logits=tokens if request.use_logits else None,
            unconditioned_logprobs=(-math.log(len(choices)),) * len(choices) if has_prior else None,
        )

    def _perplexity(self, request: Request) -> ModelResponse:
        answer: object = self._function(request)
        if not _is_list(answer) or not len(answer):
            seen = "no number" if _is_list(answer) else "a text" if isinstance(answer, str) else type(answer).__name__
            raise ModelError(f"The function gave {seen} for a text whose perplexity is asked for; expected one log-probability a token.")
        logprobs = _finite(answer)
        return ModelResponse(
            input=request.prompt,
            logprobs=logprobs,
            token_logprobs=(logprobs,),
            argmax_logits_eq_gold=(False,),
            logits=(logprobs,) if request.use_logits else None,
        )


def _is_list(answer: object) -> TypeGuard[Sequence[float]]:
    """Whether an answer has a length and members, as a list, a tuple or an array, and is not a text."""
    return isinstance(answer, Sized) and isinstance(answer, Iterable) and not isinstance(answer, str | bytes)


def _finite(answer: Sequence[float]) -> tuple[float, ...]:
    logprobs = tuple(float(value) for value in answer)
    if not all(map(math.isfinite, logprobs)):
        raise ModelError(f"The function gave a log-probability that is no finite number: {logprobs}.")
    return logprobs
