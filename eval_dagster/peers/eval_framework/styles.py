"""The task styles of eval-framework. They write cue and answer of an example without white space of their own."""

import random
from hashlib import sha256
from string import ascii_uppercase
from typing import Any, Self

from eval_dagster.peers.eval_framework.metrics.loglikelihood import (
    AccuracyLoglikelihood,
    AccuracyNormLoglikelihood,
    BitsPerByteLoglikelihood,
)
from eval_dagster.peers.eval_framework.metrics.text import AccuracyCompletion
from eval_dagster.tasks import style
from eval_dagster.tasks.language import Language

_WORDS = {Language.ENG: ("Question: ", "Answer:"), Language.DEU: ("Frage: ", "Antwort:")}


class TaskStyler(style.TaskStyler):
    """Writes the prompt of a task that gives question, choices and the correct one."""

    _cue_text = "Answer:"
    question_prefix = "Question: "

    def __init__(self, question_prefix: str = "Question: ", cue_text: str = "Answer:", **others: Any) -> None:
        """Take the words; `others` are further arguments of a style."""
        super().__init__(question_prefix, cue_text, **others)
        self._cue_text = cue_text

    @classmethod
    def for_language(cls, language: Any, **arguments: Any) -> Self:
        """A styler with the words of English or German; arguments replace them. Other languages get the default words."""
        if language in _WORDS:
            arguments = dict(zip(("question_prefix", "cue_text"), _WORDS[language], strict=True)) | arguments
        return cls(**arguments)

    def get_cue_text(self) -> str:
        """The opening of the answer."""
        return self._cue_text

    def get_fewshot_target_text(self, choices: list[str], correct_index: int) -> str:
        """The answer of an example: the cue and the gold answer."""
        return f"{self.get_cue_text()}{self.get_ground_truth(choices, correct_index)}"

    def get_extra_metadata(self) -> dict[str, str]:
        """The kind of the style."""
        return {"task_style": self.task_style.value}


class MCStyle(TaskStyler, style.MCStyle):
    """Multiple choice: the prompt lists the choices, and their labels are scored."""

    metrics = (AccuracyLoglikelihood, AccuracyNormLoglikelihood, BitsPerByteLoglikelihood)  # type: ignore[assignment]


class MCCompletionStyle(TaskStyler, style.MCCompletionStyle):
    """Multiple choice with an answer in words: the generated text must be the text of the correct choice."""

    metrics = (AccuracyCompletion,)  # type: ignore[assignment]

    def get_fewshot_target_text(self, choices: list[str], correct_index: int) -> str:
        """The answer of an example: the cue, a space and the gold answer."""
        return f"{self.get_cue_text()} {self.get_ground_truth(choices, correct_index)}"


class ClozeStyle(TaskStyler, style.ClozeStyle):
    """Cloze: the prompt does not list the choices, and the whole text of each is scored."""

    metrics = (AccuracyLoglikelihood, AccuracyNormLoglikelihood, BitsPerByteLoglikelihood)


class BPBStyle(ClozeStyle, style.BPBStyle):
    """Bits per byte: the prompt of a cloze. Only the correct choice is scored."""

    metrics = (BitsPerByteLoglikelihood,)  # type: ignore[assignment]


def get_n_letters(n: int) -> list[str]:
    """The first `n` letters from A on; at most 26."""
    return list(ascii_uppercase[: max(0, n)])


def answer_key_to_index(key: str) -> int:
    """The position that an answer key names, from 0: a letter from A on, or a number from 1 on."""
    return int(key) - 1 if key.isdigit() else ord(key.upper()) - ord("A")


def format_mc_prompt(question_text: str, choices: list[str], *, space_prefixed_labels: bool = False) -> str:
    """The question, then a line for each choice."""
    gap = " " if space_prefixed_labels else ""
    lines = [f"{gap}{label}. {choice}" for label, choice in zip(get_n_letters(len(choices)), choices, strict=False)]
    return "\n".join([question_text, "\n".join(lines), ""])


def shuffle_correct_with_distractors(correct: str, distractors: list[str], seed_text: str) -> tuple[list[str], int]:
    """The choices in an order that the seed's text decides, and the position of the correct one."""
    choices = [*distractors, correct]
    order = list(range(len(choices)))
    random.Random(int(sha256(seed_text.encode()).hexdigest(), 16)).shuffle(order)  # noqa: S311
    return [choices[position] for position in order], order.index(len(distractors))
