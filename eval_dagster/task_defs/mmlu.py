"""MMLU."""

from typing import ClassVar

from eval_dagster.metrics.completion import ChoiceLetter
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, get_n_letters

_LABELS = "ABCD"
_SUBJECTS = """
    abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry college_computer_science
    college_mathematics college_medicine college_physics computer_security conceptual_physics econometrics electrical_engineering
    elementary_mathematics formal_logic global_facts high_school_biology high_school_chemistry high_school_computer_science
    high_school_european_history high_school_geography high_school_government_and_politics high_school_macroeconomics
    high_school_mathematics high_school_microeconomics high_school_physics high_school_psychology high_school_statistics
    high_school_us_history high_school_world_history human_aging human_sexuality international_law jurisprudence logical_fallacies
    machine_learning management marketing medical_genetics miscellaneous moral_disputes moral_scenarios nutrition philosophy
    prehistory professional_accounting professional_law professional_medicine professional_psychology public_relations
    security_studies sociology us_foreign_policy virology world_religions
"""


class _MMLU(BaseTask[str]):
    """The rows and their introduction, shared by all variants."""

    DATASET_PATH = "cais/mmlu"
    DATASET_REVISION = "c30699e8356da336a370243923dbaf21066bb9fe"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT: ClassVar[str | None] = "dev"
    NUM_FEWSHOT = 5  # Hendrycks et al. 2020
    FEWSHOT_STRATEGY = "first"  # dev holds the five of the paper, in their order
    SUBJECTS = tuple(_SUBJECTS.split())
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/cais/mmlu (MIT)"

    def _get_initial_prompt_text(self, item: Row) -> str:
        return f"The following are multiple choice questions (with answers) about {_subject_of(item)}."

    def _get_choices(self, item: Row) -> list[str]:
        return list(item["choices"])

    def _get_correct_index(self, item: Row) -> int:
        return int(item["answer"])

    def _listed(self, item: Row) -> str:
        """The question, then a line for each option."""
        choices = self._get_choices(item)
        options = [f"{label}. {choice}" for label, choice in zip(get_n_letters(len(choices)), choices, strict=True)]
        return "\n".join([item["question"].strip(), *options])


class MMLU(_MMLU):
    """Exam questions with four options in 57 subjects (Hendrycks et al. 2020, arXiv:2009.03300)."""

    NAME = "MMLU"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood,)

    def _get_instruction_text(self, item: Row) -> str:
        return f"{self._listed(item)}\nAnswer:"

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [f" {label}" for label in get_n_letters(len(self._get_choices(item)))]

    def _get_ground_truth(self, item: Row) -> str:
        return f" {_LABELS[self._get_correct_index(item)]}"


class MMLUIDK(IDKMixin, MMLU):
    """MMLU with a fifth answer: not to know."""

    NAME = "MMLU (I don't know)"


class MMLUCloze(_MMLU):
    """MMLU without the options in the prompt: the whole text of each is scored."""

    NAME = "MMLU (cloze)"
    TASK_STYLER = ClozeStyle()

    def _get_initial_prompt_text(self, item: Row) -> str:
        return f"The following are questions (with answers) about {_subject_of(item)}."

    def _get_raw_question(self, item: Row) -> str:
        return str(item["question"]).strip()


class MMLUBPB(MMLUCloze):
    """MMLU by the bits per byte of the correct option."""

    NAME = "MMLU (bits per byte)"
    TASK_STYLER = BPBStyle()


class MMLUCoT(_MMLU):
    """MMLU with reasoning (Wei et al. 2022, arXiv:2201.11903) before a letter is named; no examples, since the rows hold no reasoning.

    The introduction states the rule of MMLU-Pro (Wang et al. 2024, arXiv:2406.01574).
    """

    NAME = "MMLU (chain of thought)"
    FEWSHOT_SPLIT = None
    NUM_FEWSHOT = 0  # its rows hold no reasoning
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ChoiceLetter,)
    STOP_SEQUENCES = ("Question:",)
    MAX_TOKENS = 2048

    def _get_initial_prompt_text(self, item: Row) -> str:
        rule = 'Think step by step and then finish your answer with "the answer is (X)" where X is the correct letter choice.'
        return f"{super()._get_initial_prompt_text(item)} {rule}"

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: {self._listed(item)}\n"

    def _get_cue_text(self, item: Row) -> str:  # noqa: ARG002 - the same for all rows
        return "Answer: Let's think step by step."

    def _get_ground_truth(self, item: Row) -> str:
        return _LABELS[self._get_correct_index(item)]

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f"The answer is ({_LABELS[self._get_correct_index(item)]})."


def _subject_of(item: Row) -> str:
    return str(item["subject"]).replace("_", " ")
