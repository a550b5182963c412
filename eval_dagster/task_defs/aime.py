"""AIME of the years 2024 to 2026."""

from collections.abc import Sequence
from typing import ClassVar

from eval_dagster.metrics.base import BaseMetric
from eval_dagster.metrics.math_equal import MathEqual
from eval_dagster.metrics.repeated import avg_at_k, maj_at_k, pass_at_k
from eval_dagster.records import ResponseType, Row
from eval_dagster.task_defs.math_500 import BOXED
from eval_dagster.tasks.base import BaseTask


class AIME24(BaseTask[str]):
    """The 30 problems of the American Invitational Mathematics Examination of 2024, whose answers are integers from 0 to 999.

    The benchmark is a contest without a paper. The prompt is the one of lm-eval's tasks with these names.
    """

    NAME = "AIME 2024"
    DATASET_PATH = "HuggingFaceH4/aime_2024"
    DATASET_REVISION = "2fe88a2f1091d5048c0f36abc874fb997b3dd99a"
    SAMPLE_SPLIT = "train"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS: ClassVar[Sequence[type[BaseMetric]]] = (MathEqual,)
    SUBJECTS = ("default",)
    STOP_SEQUENCES: ClassVar[Sequence[str]] = ("Question:",)
    MAX_TOKENS = 32768
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/HuggingFaceH4/aime_2024 (problems of the Mathematical Association of America)"

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: {item['problem']}\nAnswer:"

    def _get_ground_truth(self, item: Row) -> str:
        return str(int(item["answer"]))  # 033 is 33

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {self._get_ground_truth(item)}"


class AIME25(AIME24):
    """The problems of 2025."""

    NAME = "AIME 2025"
    DATASET_PATH = "math-ai/aime25"
    DATASET_REVISION = "563bb8404243c5f09de6ec262f2db674fe5bce9b"
    SAMPLE_SPLIT = "test"
    SOURCE = "https://huggingface.co/datasets/math-ai/aime25 (Apache-2.0)"


class AIME26(AIME25):
    """The problems of 2026."""

    NAME = "AIME 2026"
    DATASET_PATH = "math-ai/aime26"
    DATASET_REVISION = "79037aebdb6580008fb960d17cb21fd3099083e3"
    SOURCE = "https://huggingface.co/datasets/math-ai/aime26"


class _SixteenTimes(AIME24):
    """Sixteen answers to each problem, since thirty problems alone tell little. The prompt is for chat models, which reason first."""

    METRICS = (avg_at_k(MathEqual, 16), pass_at_k(MathEqual, 16), maj_at_k(MathEqual, 16))
    STOP_SEQUENCES = ()
    NUM_SAMPLES = 16

    def _get_instruction_text(self, item: Row) -> str:
        return f"{item['problem']}\n{BOXED}"


class AIME24AvgAt16(_SixteenTimes):
    """AIME 2024 with sixteen answers to each problem."""

    NAME = "AIME 2024 (avg@16)"


class AIME25AvgAt16(_SixteenTimes, AIME25):
    """AIME 2025 with sixteen answers to each problem."""

    NAME = "AIME 2025 (avg@16)"


class AIME26AvgAt16(_SixteenTimes, AIME26):
    """AIME 2026 with sixteen answers to each problem."""

    NAME = "AIME 2026 (avg@16)"
