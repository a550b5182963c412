# ruff: noqa: ARG002 - not every style shows the choices
"""Styles of a question with choices: multiple choice, cloze, bits per byte, or an answer in words.

A task that sets `TASK_STYLER` gives only the question, its choices and the position of the correct one. The styler writes the rest.
Names as in eval-framework.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import count, islice, product
from string import ascii_uppercase
from typing import Any, ClassVar, Self

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import BaseMetric
from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.records import ResponseType
from eval_dagster.tasks.language import Language

_WORDS = {
    Language.ARB: ("سؤال: ", "الإجابة:"),
    Language.CES: ("Otázka: ", "Odpověď:"),
    Language.DAN: ("Spørgsmål: ", "Svar:"),
    Language.DEU: ("Frage: ", "Antwort:"),
    Language.ENG: ("Question: ", "Answer:"),
    Language.FIN: ("Kysymys: ", "Vastaus:"),
    Language.FRA: ("Question : ", "Réponse :"),
    Language.HRV: ("Pitanje: ", "Odgovor:"),
    Language.ITA: ("Domanda: ", "Risposta:"),
    Language.NLD: ("Vraag: ", "Antwoord:"),
    Language.NOR: ("Spørsmål: ", "Svar:"),
    Language.POL: ("Pytanie: ", "Odpowiedź:"),
    Language.POR: ("Pergunta: ", "Resposta:"),
    Language.RUS: ("Вопрос: ", "Ответ:"),
    Language.SPA: ("Pregunta: ", "Respuesta:"),
    Language.SRP: ("Питање: ", "Одговор:"),
    Language.SWE: ("Fråga: ", "Svar:"),
    Language.UKR: ("Питання: ", "Відповідь:"),
}
"""Question and cue by language."""


class TaskStyle(Enum):
    """The kind of a styler."""

    MULTIPLE_CHOICE = "multiple_choice"
    CLOZE = "cloze"
    BPB = "bpb"


class TaskStyler:
    """Writes the prompt of a task that gives question, choices and the correct one."""

    response_type: ClassVar[ResponseType]
    metrics: ClassVar[Sequence[type[BaseMetric]]]
    """The metrics of a task that sets none; the first is its headline."""
    task_style: ClassVar[TaskStyle]

    def __init__(self, question_prefix: str = "Question: ", cue_text: str = "Answer:") -> None:
        """Remember how questions are put.

        Args:
            question_prefix: Stands right before every question.
            cue_text: Opens the answer.
        """
        self.question_prefix = question_prefix
        self.cue_text = cue_text

    @classmethod
    def for_language(cls, language: Language, **arguments: Any) -> Self:
        """A styler with the words of a language; arguments replace them.

        Raises:
            TaskDefinitionError: The language has no words here, and not both are given.
        """
        if language in _WORDS:
            arguments = dict(zip(("question_prefix", "cue_text"), _WORDS[language], strict=True)) | arguments
        elif not {"question_prefix", "cue_text"} <= arguments.keys():
            raise TaskDefinitionError(
                f"{cls.__name__} knows no words for {language}; give it question_prefix and cue_text, or take one of: "
                f"{', '.join(each.name for each in _WORDS)}"
            )
        return cls(**arguments)

    def get_question_text(self, raw_question: str) -> str:
        """The question with its prefix."""
        return f"{self.question_prefix}{raw_question}"

    def get_instruction_text(self, raw_question: str, choices: list[str]) -> str:
        """The question as the user asks it."""
        raise NotImplementedError

    def get_ground_truth(self, choices: list[str], correct_index: int) -> str:
        """The text that is correct: one of the scored texts, or the text that is compared."""
        raise NotImplementedError

    def get_possible_completions(self, choices: list[str], correct_index: int | None = None) -> list[str] | None:
        """The texts that are scored; None if text is generated."""
        raise NotImplementedError

    def get_cue_text(self) -> str:
        """The opening of the answer."""
        return self.cue_text

    def get_fewshot_target_text(self, choices: list[str], correct_index: int) -> str:
        """The answer of an example, including the cue, with one space between them, as for a scored choice."""
        answer = self.get_ground_truth(choices, correct_index)
        if not self.cue_text:
            return answer
        return f"{self.cue_text}{'' if self.cue_text[-1].isspace() else ' '}{answer.removeprefix(' ')}"


class _LabelledStyle(TaskStyler):
    """The prompt lists the choices, each on a line with its label."""

    task_style = TaskStyle.MULTIPLE_CHOICE

    def __init__(self, question_prefix: str = "Question: ", cue_text: str = "Answer:", space_prefixed_labels: bool = False) -> None:
        """Remember how questions are put.

        Args:
            question_prefix: Stands right before every question.
            cue_text: Opens the answer.
            space_prefixed_labels: Whether a space stands before every label, so that a tokenizer sees the same label there as in the
                answer (Gu et al. 2024, arXiv:2406.08446).
        """
        super().__init__(question_prefix, cue_text)
        self.space_prefixed_labels = space_prefixed_labels

    def get_instruction_text(self, raw_question: str, choices: list[str]) -> str:
        """The question, then a line `A. choice` for each choice."""
        gap = " " if self.space_prefixed_labels else ""
        lines = [f"{gap}{label}. {choice}" for label, choice in zip(get_n_letters(len(choices)), choices, strict=True)]
        return "".join(f"{line}\n" for line in [self.get_question_text(raw_question), *lines])


class MCStyle(_LabelledStyle):
    """Multiple choice: the prompt lists the choices, and their labels are scored.

    As in eval-framework, accuracy by characters is among the metrics although all labels have one character.
    """

    response_type = ResponseType.LOGLIKELIHOODS
    metrics = (AccuracyLoglikelihood, AccuracyNormLoglikelihood, BitsPerByteLoglikelihood)

    def get_ground_truth(self, choices: list[str], correct_index: int) -> str:
        """The label of the correct choice."""
        return f" {get_n_letters(len(choices))[_position(choices, correct_index)]}"

    def get_possible_completions(self, choices: list[str], correct_index: int | None = None) -> list[str]:
        """The labels of all choices."""
        return [f" {label}" for label in get_n_letters(len(choices))]


class MCCompletionStyle(_LabelledStyle):
    """Multiple choice with an answer in words: the prompt lists the choices, and the generated text must be the text of the correct one.

    White space around the text is ignored, because a text after the cue begins with a space.
    """

    response_type = ResponseType.COMPLETION
    metrics = (ExactMatch,)

    def get_ground_truth(self, choices: list[str], correct_index: int) -> str:
        """The text of the correct choice."""
        return choices[_position(choices, correct_index)]

    def get_possible_completions(self, choices: list[str], correct_index: int | None = None) -> None:
        """Return None: text is generated."""


class ClozeStyle(TaskStyler):
    """Cloze: the prompt does not list the choices, and the whole text of each is scored."""

    response_type = ResponseType.LOGLIKELIHOODS
    metrics: ClassVar[Sequence[type[BaseMetric]]] = (AccuracyLoglikelihood, AccuracyNormLoglikelihood, BitsPerByteLoglikelihood)
    task_style = TaskStyle.CLOZE

    def __init__(
        self,
        question_prefix: str = "Question: ",
        cue_text: str = "Answer:",
        trailing_newline: bool = True,
        leading_space_continuations: bool = True,
    ) -> None:
        """Remember how questions are put.

        Args:
            question_prefix: Stands right before every question.
            cue_text: Opens the answer.
            trailing_newline: Whether a line break ends the question; false if a choice continues its sentence.
            leading_space_continuations: Whether a space stands before every choice.
        """
        super().__init__(question_prefix, cue_text)
        self.trailing_newline = trailing_newline
        self.leading_space_continuations = leading_space_continuations

    def get_instruction_text(self, raw_question: str, choices: list[str]) -> str:
        """The question alone."""
        return self.get_question_text(raw_question) + ("\n" if self.trailing_newline else "")

    def get_ground_truth(self, choices: list[str], correct_index: int) -> str:
        """The text of the correct choice."""
        return self._continuation(choices[_position(choices, correct_index)])

    def get_possible_completions(self, choices: list[str], correct_index: int | None = None) -> list[str]:
        """The texts of all choices."""
        return [self._continuation(choice) for choice in choices]

    def _continuation(self, choice: str) -> str:
        return f" {choice}" if self.leading_space_continuations else choice


class BPBStyle(ClozeStyle):
    """Bits per byte: the prompt of a cloze. Only the correct choice is scored."""

    metrics = (BitsPerByteLoglikelihood,)
    task_style = TaskStyle.BPB

    def get_possible_completions(self, choices: list[str], correct_index: int | None = None) -> list[str]:
        """The text of the correct choice.

        Raises:
            DataError: `correct_index` is missing.
        """
        if correct_index is None:
            raise DataError("BPBStyle scores the correct choice alone; give its position as correct_index")
        return [self.get_ground_truth(choices, correct_index)]


def get_n_letters(n: int) -> list[str]:
    """The first `n` labels: A to Z, then AA, AB, ..., like the columns of a spreadsheet."""
    labels = ("".join(letters) for length in count(1) for letters in product(ascii_uppercase, repeat=length))
    return list(islice(labels, max(n, 0)))


def answer_key_to_index(key: str) -> int:
    """The position that a dataset's answer key names, from 0: a letter from A on, or a number from 1 on.

    Raises:
        DataError: It is neither.
    """
    key = key.strip()
    if key.isdecimal() and int(key) >= 1:
        return int(key) - 1
    if len(key) == 1 and key.upper() in ascii_uppercase:
        return ascii_uppercase.index(key.upper())
    raise DataError(f"the answer key is {key!r}; expected a letter from A on or a number from 1 on")


def _position(choices: Sequence[str], index: int) -> int:
    """The index, checked: a negative one would silently count from the end.

    Raises:
        DataError: It is not a position of the choices.
    """
    if not isinstance(index, int) or not 0 <= index < len(choices):
        raise DataError(f"the correct index is {index!r}; expected a position of the {len(choices)} choices {list(choices)}, from 0")
    return index
