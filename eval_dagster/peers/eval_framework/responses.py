"""`Completion` and `Loglikelihood` with the members that metrics of eval-framework use."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from eval_dagster import records
from eval_dagster.errors import DataError
from eval_dagster.metrics.base import Error
from eval_dagster.peers.eval_framework.contexts import GivenContext, LanguageMetricContext
from eval_dagster.peers.eval_framework.formatters import ConcatFormatter
from eval_dagster.peers.eval_framework.languages import code_of
from eval_dagster.records import Message, Role

_SPECIAL = re.compile(r"<\|(\S+)\|>")
_MISSING: Any = object()


class ConcatCompression(NamedTuple):
    """Size of a prompt in the plain format with its answer or its choices."""

    num_bytes: int
    num_tokens: int

    @classmethod
    def calculate(
        cls,
        messages: Sequence[Message],
        count_tokens: Callable[[str], int],
        choices: list[str] | None = None,
        completion: str | None = None,
    ) -> Self | None:
        """Count the bytes and the tokens; None if one of the counts is 0 or a choice is missing.

        Raises:
            ValueError: Not exactly one of `choices` and `completion` is given.
        """
        if (choices is None) == (completion is None):
            raise ValueError("expected either choices or completion")
        if choices is not None and None in choices:
            return None
        prompt = ConcatFormatter().format(messages)
        texts = [prompt, *choices] if choices is not None else [f"{prompt}{completion}"]
        size = cls(num_bytes=sum(len(text.encode()) for text in texts), num_tokens=sum(map(count_tokens, texts)))
        return size if all(size) else None


class _Response:
    """Members of both kinds of responses. Their fields can be set, as in eval-framework."""

    ground_truth: Any

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)

    @property
    def ground_truth_list(self) -> list[Any]:
        """The gold answers as a list."""
        return self.ground_truth if isinstance(self.ground_truth, list) else [self.ground_truth]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002 - the fields are not changed in place
        """A copy with other values of some fields."""
        made = object.__new__(type(self))
        vars(made).update({**vars(self), **(update or {})})
        return made

    def model_dump(self) -> dict[str, Any]:
        """The fields and their values."""
        return dict(vars(self))


class Completion(_Response, records.Completion):
    """A generated text with its question and gold answer."""

    id: int
    subject: str
    error: Error | None

    def __init__(
        self,
        *,
        completion: str = _MISSING,
        raw_completion: str = _MISSING,
        id: int = 0,  # noqa: A002 - the name of the field
        subject: str = "",
        ground_truth: str | list[str] | None = None,
        prompt: str = "",
        prompt_sequence_positions: int | None = None,
        concat_compression: ConcatCompression | None = None,
        messages: list[Message] | None = None,
        raw_completion_sequence_positions: int | None = None,
        context: GivenContext = None,
        error: Error | None = None,
        completion_text: str = "",
        **others: Any,
    ) -> None:
        """Take the fields of eval-framework or of `eval_dagster.records.Completion`."""
        self.completion = completion_text if completion is _MISSING else completion
        self.raw_completion = others.pop("raw_text", self.completion) if raw_completion is _MISSING else raw_completion
        vars(self).update({"id": id, "subject": subject, "prompt": prompt, "context": context, "error": error, "messages": messages})
        self.ground_truth = ground_truth
        self.prompt_sequence_positions = prompt_sequence_positions
        self.raw_completion_sequence_positions = raw_completion_sequence_positions
        self.concat_compression = concat_compression
        truths = [] if ground_truth is None else self.ground_truth_list
        vars(self).update({"ground_truths": truths, "row": {}, **others})

    @property
    def completion_text(self) -> str:
        """The text without its reasoning, after the task's post-processing."""
        return self.completion

    @property
    def raw_text(self) -> str:
        """The text as generated."""
        return self.raw_completion

    def _texts(self, *roles: Role) -> list[str]:
        return [message.content for message in self.messages or () if message.role in roles]

    @property
    def system_user_instruction(self) -> str:
        """The messages of system and user with blank lines between them."""
        return "\n\n".join(self._texts(Role.SYSTEM, Role.USER))

    @property
    def user_instruction(self) -> str:
        """The user's messages with blank lines between them."""
        return "\n\n".join(self._texts(Role.USER))

    @property
    def first_user_instruction(self) -> str:
        """The user's first message; empty without one."""
        return next(iter(self._texts(Role.USER)), "")

    @property
    def all_but_first_user_instruction(self) -> str:
        """The user's messages after the first."""
        return "\n\n".join(self._texts(Role.USER)[1:])

    @property
    def last_user_instruction(self) -> str:
        """The user's last message; empty without one."""
        return next(reversed(self._texts(Role.USER)), "")

    @property
    def sanitized_completion(self) -> str:
        """The text with spaces within what could be a special token."""
        return _SPECIAL.sub(r"<| \1 |>", self.completion)

    def _language(self, text: str) -> str:
        return self.context.language if isinstance(self.context, LanguageMetricContext) else code_of(text)

    def get_completion_language(self) -> str:
        """The code of the text's language, such as `en`; empty for an unknown one."""
        return self._language(self.completion)

    def get_raw_completion_language(self) -> str:
        """The code of the language of the text as generated."""
        return self._language(self.raw_completion)

    def get_instruction_language(self) -> str:
        """The code of the language of the user's messages."""
        return self._language(self.user_instruction)


class Loglikelihood(_Response, records.Loglikelihood):
    """The log-probabilities of choices by their texts, with the question and the gold answer.

    It may be made of a list of log-probabilities, which stays one. A metric gets it by the texts of its `choices`.
    """

    id: int
    subject: str
    error: Error | None

    def __init__(
        self,
        *,
        loglikelihoods: Mapping[str, float] | Sequence[float],
        id: int = 0,  # noqa: A002 - the name of the field
        subject: str = "",
        ground_truth: str | list[str] = "",
        prompt: str = "",
        prompt_sequence_positions: int | None = None,
        loglikelihoods_sequence_positions: Mapping[str, int] | None = None,
        concat_compression: ConcatCompression | None = None,
        error: Error | None = None,
        **others: Any,
    ) -> None:
        """Take the fields of eval-framework; others are fields of `eval_dagster.records.Loglikelihood`."""
        by_text = isinstance(loglikelihoods, Mapping)
        object.__setattr__(self, "loglikelihoods", dict(loglikelihoods) if isinstance(loglikelihoods, Mapping) else list(loglikelihoods))
        vars(self).update({"id": id, "subject": subject, "prompt": prompt, "error": error})
        self.ground_truth = ground_truth
        self.prompt_sequence_positions = prompt_sequence_positions
        self.loglikelihoods_sequence_positions = dict(loglikelihoods_sequence_positions or {})
        self.concat_compression = concat_compression
        vars(self).update({"choices": list(loglikelihoods) if by_text else [], "row": {}, **others})

    def by_text(self) -> Self:
        """The response with the log-probabilities by the texts of the choices.

        Raises:
            DataError: It has a list of them whose length is not the number of choices.
        """
        if isinstance(self.loglikelihoods, Mapping):
            return self
        values, choices = list(self.loglikelihoods), list(self.choices)
        if len(values) != len(choices):
            raise DataError(
                f"a Loglikelihood has {len(values)} loglikelihoods and {len(choices)} choices; a metric of eval-framework compares texts: "
                "give choices=[...] as well, or loglikelihoods as a mapping from each text"
            )
        return self.model_copy(update={"loglikelihoods": dict(zip(choices, values, strict=True))})
