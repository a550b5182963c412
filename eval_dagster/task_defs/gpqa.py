"""GPQA."""

from collections.abc import Sequence
from typing import ClassVar

from eval_dagster.metrics.completion import ChoiceLetter
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import get_n_letters
from eval_dagster.versions.hashes import stable_hash

_LABELS = "ABCD"
_OPTIONS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


class _GPQA(BaseTask[str]):
    """The rows, shared by all variants, and their options in an order that depends only on the row's content.

    The main questions include the diamond ones, and the extended questions include the main ones, so each set is an eval of its own. The
    diamond questions, the usual ones in published results, have no suffix in the name.
    """

    DATASET_PATH = "Idavidrein/gpqa"
    DATASET_REVISION = "633f5ee89ab8ad4522a9f850766b73f62147ffdd"
    SAMPLE_SPLIT = "train"
    SUBJECTS: ClassVar[Sequence[str]] = ("gpqa_diamond",)
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/Idavidrein/gpqa (CC-BY-4.0; gated: accept its terms there, then `hf auth login`)"

    def _get_choices(self, item: Row) -> list[str]:
        options = [_cleaned(item.get(name)) for name in _OPTIONS]
        return sorted(options, key=lambda option: stable_hash([item["Question"], option]))

    def _get_correct_index(self, item: Row) -> int:
        return self._get_choices(item).index(_cleaned(item["Correct Answer"]))

    def _asked(self, item: Row) -> str:
        """The question, then a line for each option."""
        choices = self._get_choices(item)
        options = [f"({label}) {choice}" for label, choice in zip(get_n_letters(len(choices)), choices, strict=True)]
        return "\n".join([f"What is the correct answer to this question:{item['Question']}", "Choices:", *options])


class GPQA(_GPQA):
    """Questions by experts of biology, physics and chemistry that a search engine does not answer (Rein et al. 2023, arXiv:2311.12022).

    The 198 diamond questions, which two other experts answered correctly and most laymen wrongly.
    """

    NAME = "GPQA"
    FEWSHOT_SPLIT = "train"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood,)

    def _get_instruction_text(self, item: Row) -> str:
        return f"{self._asked(item)}\nAnswer:"

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [f" ({label})" for label in get_n_letters(len(self._get_choices(item)))]

    def _get_ground_truth(self, item: Row) -> str:
        return f" ({_LABELS[self._get_correct_index(item)]})"


class GPQAMain(GPQA):
    """GPQA's main set of 448 questions."""

    NAME = "GPQA (main)"
    SUBJECTS = ("gpqa_main",)


class GPQAExtended(GPQA):
    """All 546 questions of GPQA."""

    NAME = "GPQA (extended)"
    SUBJECTS = ("gpqa_extended",)


class GPQAIDK(IDKMixin, GPQA):
    """GPQA with a fifth answer: not to know."""

    NAME = "GPQA (I don't know)"


class GPQACoT(_GPQA):
    """GPQA, reasoned about before a letter is named, without examples.

    The introduction states the rule of MMLU-Pro (Wang et al. 2024, arXiv:2406.01574).
    """

    NAME = "GPQA (chain of thought)"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ChoiceLetter,)
    MAX_TOKENS = 4096

    def _get_initial_prompt_text(self, item: Row) -> str:  # noqa: ARG002 - the same for all rows
        return 'Think step by step and then finish your answer with "the answer is (X)" where X is the correct letter choice.'

    def _get_instruction_text(self, item: Row) -> str:
        return f"{self._asked(item)}\n"

    def _get_cue_text(self, item: Row) -> str:  # noqa: ARG002 - the same for all rows
        return "Let's think step by step:"

    def _get_ground_truth(self, item: Row) -> str:
        return _LABELS[self._get_correct_index(item)]

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f"The answer is ({self._get_ground_truth(item)})."


def _cleaned(text: str | None) -> str:
    """An option without white space around it and doubled blanks; `[title]` ends a sentence."""
    return (text or "").strip().replace(" [title]", ". ").replace("  ", " ")
