"""SciQ."""

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.records import Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle
from eval_dagster.versions.hashes import stable_hash


class _SciQ(BaseTask[str]):
    """The rows and their parts, shared by all variants. A passage, which may be empty, stands before the question."""

    DATASET_PATH = "allenai/sciq"
    DATASET_REVISION = "2c94ad3e1aafab77146f384e23536f97a4849815"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    SUBJECTS = ("default",)
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/allenai/sciq (CC-BY-NC-3.0)"

    def _get_raw_question(self, item: Row) -> str:
        return f"{item['support'].lstrip()}\nQuestion: {item['question']}"

    def _get_choices(self, item: Row) -> list[str]:
        return [item["distractor1"], item["distractor2"], item["distractor3"], item["correct_answer"]]

    def _get_correct_index(self, item: Row) -> int:
        return self._get_choices(item).index(item["correct_answer"])


class SciQ(_SciQ):
    """Questions of science exams, most of them after a passage that supports the answer (Welbl et al. 2017, arXiv:1707.06209)."""

    NAME = "SciQ"
    TASK_STYLER = ClozeStyle(question_prefix="")
    METRICS = (AccuracyLoglikelihood, AccuracyNormLoglikelihood)


class SciQBPB(_SciQ):
    """SciQ by the bits per byte of the correct option."""

    NAME = "SciQ (bits per byte)"
    TASK_STYLER = BPBStyle(question_prefix="")


class SciQMC(_SciQ):
    """SciQ with the options in the prompt, labelled as in OLMES (Gu et al. 2024, arXiv:2406.08446), in an order of each row's own."""

    NAME = "SciQ (multiple choice)"
    TASK_STYLER = MCStyle(question_prefix="", space_prefixed_labels=True)

    def _get_choices(self, item: Row) -> list[str]:
        return sorted(super()._get_choices(item), key=lambda choice: stable_hash([item["question"], choice]))


class SciQIDK(IDKMixin, SciQMC):
    """SciQ with a fifth answer: not to know."""

    NAME = "SciQ (I don't know)"
