"""Social IQa."""

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.records import Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle, answer_key_to_index


class _SocialIQa(BaseTask[str]):
    """The rows and their parts, shared by all variants. Questions about one situation are a cluster.

    The commit is the Hub's conversion to Parquet. Commits of the main branch (the last is 8835ceb9141d7896d9d968634a9b21ae440e3ec5) hold a
    script, which is never run.
    """

    DATASET_PATH = "allenai/social_i_qa"
    DATASET_REVISION = "537a2ec8ec565adc0b70b70752893e59e024df26"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "train"
    SUBJECTS = ("default",)
    CLUSTER_FIELD = "context"
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/allenai/social_i_qa (CC-BY-4.0)"

    def _get_raw_question(self, item: Row) -> str:
        return f"{item['context']} {item['question']}"

    def _get_choices(self, item: Row) -> list[str]:
        return [item["answerA"], item["answerB"], item["answerC"]]

    def _get_correct_index(self, item: Row) -> int:
        return answer_key_to_index(item["label"])


class SocialIQa(_SocialIQa):
    """Questions about people's feelings, wishes and actions in a situation, by common sense (Sap et al. 2019, arXiv:1904.09728)."""

    NAME = "Social IQa"
    TASK_STYLER = ClozeStyle(question_prefix="Q: ", cue_text="A:")
    METRICS = (AccuracyLoglikelihood,)


class SocialIQaMC(_SocialIQa):
    """Social IQa with the options in the prompt, as OLMES asks it (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "Social IQa (multiple choice)"
    TASK_STYLER = MCStyle(space_prefixed_labels=True)
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)


class SocialIQaBPB(_SocialIQa):
    """Social IQa by the bits per byte of the right option."""

    NAME = "Social IQa (bits per byte)"
    TASK_STYLER = BPBStyle(question_prefix="Q: ", cue_text="A:")
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)


class SocialIQaIDK(IDKMixin, SocialIQaMC):
    """Social IQa with a fourth answer: not to know."""

    NAME = "Social IQa (I don't know)"
