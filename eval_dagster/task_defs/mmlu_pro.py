"""MMLU-Pro."""

from eval_dagster.metrics.completion import ChoiceLetter
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import MCStyle, get_n_letters

_FIELDS = (
    "biology, business, chemistry, computer science, economics, engineering, health, history, law, math, other, philosophy, physics, "
    "psychology"
)
_CUE = "Answer: Let's think step by step."


class _MMLUPro(BaseTask[str]):
    """The rows and the examples, shared by all variants. Examples are the authors' first ones of the same field of knowledge."""

    DATASET_PATH = "TIGER-Lab/MMLU-Pro"
    DATASET_REVISION = "b189ec765aa7ed75c8acfea42df31fdae71f97be"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "validation"
    FEWSHOT_STRATEGY = "first"
    NUM_FEWSHOT = 5  # Wang et al. 2024; lm-eval
    SUBJECT_FIELD = "category"
    SUBJECTS = tuple(_FIELDS.split(", "))
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/TIGER-Lab/MMLU-Pro (MIT)"

    def _get_initial_prompt_text(self, item: Row) -> str:
        return f"The following are multiple choice questions (with answers) about {item['category']}."


class MMLUPro(_MMLUPro):
    """Hard questions with up to ten options in 14 fields, reasoned about before a letter is named (Wang et al. 2024, arXiv:2406.01574).

    Published results have 5 examples. As in the paper, they are the first ones of the same field.
    """

    NAME = "MMLU-Pro"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ChoiceLetter,)
    STOP_SEQUENCES = ("Question:",)
    MAX_TOKENS = 2048

    def _get_initial_prompt_text(self, item: Row) -> str:
        rule = 'Think step by step and then finish your answer with "the answer is (X)" where X is the correct letter choice.'
        return f"{super()._get_initial_prompt_text(item)} {rule}"

    def _get_instruction_text(self, item: Row) -> str:
        labels = get_n_letters(len(item["options"]))
        options = "".join(f"{label}. {option}\n" for label, option in zip(labels, item["options"], strict=True))
        return f"Question:\n{item['question']}\nOptions:\n{options}"

    def _get_cue_text(self, item: Row) -> str:  # noqa: ARG002 - the same for all rows
        return _CUE

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["answer"])

    def _get_fewshot_target_text(self, item: Row) -> str:
        reasoning = (item.get("cot_content") or "").removeprefix("A: Let's think step by step.")
        return _CUE + (reasoning or f" The answer is ({item['answer']}).")


class MMLUProMC(_MMLUPro):
    """MMLU-Pro without reasoning: the letters are scored, asked as in OLMES (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "MMLU-Pro (multiple choice)"
    TASK_STYLER = MCStyle(space_prefixed_labels=True)
    METRICS = (AccuracyLoglikelihood,)

    def _get_raw_question(self, item: Row) -> str:
        return str(item["question"]).strip()

    def _get_choices(self, item: Row) -> list[str]:
        return list(item["options"])

    def _get_correct_index(self, item: Row) -> int:
        return int(item["answer_index"])


class MMLUProIDK(IDKMixin, MMLUProMC):
    """MMLU-Pro without reasoning, and with one more answer: not to know."""

    NAME = "MMLU-Pro (I don't know)"
