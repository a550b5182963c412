"""The AI2 Reasoning Challenge, easy and hard."""

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.records import Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle


class _ARC(BaseTask[str]):
    """The rows and their parts, shared by all variants. The options are labelled A to E or 1 to 5."""

    DATASET_PATH = "allenai/ai2_arc"
    DATASET_REVISION = "210d026faf9955653af8916fad021475a3f00453"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    SUBJECTS = ("ARC-Easy",)
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/allenai/ai2_arc (CC-BY-SA-4.0)"

    def _get_raw_question(self, item: Row) -> str:
        return str(item["question"])

    def _get_choices(self, item: Row) -> list[str]:
        return list(item["choices"]["text"])

    def _get_correct_index(self, item: Row) -> int:
        return list(item["choices"]["label"]).index(item["answerKey"])


class ARCEasy(_ARC):
    """Science questions of grade school that simple systems could answer (Clark et al. 2018, arXiv:1803.05457)."""

    NAME = "ARC Easy"
    TASK_STYLER = ClozeStyle()
    METRICS = (AccuracyLoglikelihood, AccuracyNormLoglikelihood)


class ARCEasyMC(_ARC):
    """ARC Easy with the options in the prompt, as OLMES asks it (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "ARC Easy (multiple choice)"
    TASK_STYLER = MCStyle(space_prefixed_labels=True)
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)


class ARCEasyBPB(_ARC):
    """ARC Easy by the bits per byte of the correct option."""

    NAME = "ARC Easy (bits per byte)"
    TASK_STYLER = BPBStyle()
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)


class ARCEasyIDK(IDKMixin, ARCEasyMC):
    """ARC Easy with one more answer: not to know."""

    NAME = "ARC Easy (I don't know)"


class ARCChallenge(_ARC):
    """Science questions of grade school that simple systems got wrong (Clark et al. 2018, arXiv:1803.05457).

    The headline is the accuracy by characters, as published results give it.
    """

    NAME = "ARC Challenge"
    TASK_STYLER = ClozeStyle()
    NUM_FEWSHOT = 25  # Open LLM Leaderboard; Llama 3's evaluation details
    METRICS = (AccuracyNormLoglikelihood, AccuracyLoglikelihood)
    SUBJECTS = ("ARC-Challenge",)


class ARCChallengeMC(ARCEasyMC):
    """ARC Challenge with the options in the prompt, as OLMES asks it (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "ARC Challenge (multiple choice)"
    SUBJECTS = ("ARC-Challenge",)


class ARCChallengeBPB(ARCEasyBPB):
    """ARC Challenge by the bits per byte of the correct option."""

    NAME = "ARC Challenge (bits per byte)"
    SUBJECTS = ("ARC-Challenge",)


class ARCChallengeIDK(ARCEasyIDK):
    """ARC Challenge with one more answer: not to know."""

    NAME = "ARC Challenge (I don't know)"
    SUBJECTS = ("ARC-Challenge",)
