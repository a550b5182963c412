"""CommonsenseQA."""

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.records import Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle


class _CommonsenseQA(BaseTask[str]):
    """The rows and their parts, shared by all variants. The answers of the test split are not published."""

    DATASET_PATH = "tau/commonsense_qa"
    DATASET_REVISION = "94630fe30dad47192a8546eb75f094926d47e155"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "train"
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)
    SUBJECTS = ("default",)
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/tau/commonsense_qa (MIT)"

    def _get_raw_question(self, item: Row) -> str:
        return str(item["question"]).strip()

    def _get_choices(self, item: Row) -> list[str]:
        return list(item["choices"]["text"])

    def _get_correct_index(self, item: Row) -> int:
        return list(item["choices"]["label"]).index(item["answerKey"])


class CommonsenseQA(_CommonsenseQA):
    """Questions of common sense with five options, which stand in the prompt (Talmor et al. 2018, arXiv:1811.00937)."""

    NAME = "CommonsenseQA"
    TASK_STYLER = MCStyle()
    NUM_FEWSHOT = 7  # Llama 3's evaluation details
    METRICS = (AccuracyLoglikelihood,)


class CommonsenseQACloze(_CommonsenseQA):
    """CommonsenseQA without the options in the prompt: the whole text of each is scored."""

    NAME = "CommonsenseQA (cloze)"
    TASK_STYLER = ClozeStyle()


class CommonsenseQABPB(_CommonsenseQA):
    """CommonsenseQA by the bits per byte of the correct option."""

    NAME = "CommonsenseQA (bits per byte)"
    TASK_STYLER = BPBStyle()


class CommonsenseQAIDK(IDKMixin, CommonsenseQA):
    """CommonsenseQA with a sixth answer: not to know."""

    NAME = "CommonsenseQA (I don't know)"
