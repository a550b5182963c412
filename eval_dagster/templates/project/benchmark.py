"""A benchmark of your own: the rows, the question, the correct answer and the metric.

`eval-dagster tasks units` shows one prompt and checks the benchmark.
"""

from eval_dagster import BaseTask, ExactNumber, ResponseType, Row

# The rows that are evaluated. A benchmark can also read files or a dataset of the Hugging Face Hub.
ROWS: list[Row] = [
    {"question": "How many minutes are 3 hours?", "answer": 180},
    {"question": "How many grams are 2 kilograms?", "answer": 2000},
    {"question": "How many centimetres are 4 metres?", "answer": 400},
    {"question": "How many days are 5 weeks?", "answer": 35},
    {"question": "How many seconds are 10 minutes?", "answer": 600},
    {"question": "How many months are 6 years?", "answer": 72},
    {"question": "How many metres are 7 kilometres?", "answer": 7000},
    {"question": "How many hours are 2 days?", "answer": 48},
]

# The rows of few-shot examples. They are never evaluated.
EXAMPLES: list[Row] = [
    {"question": "How many minutes are 2 hours?", "answer": 120},
    {"question": "How many days are 3 weeks?", "answer": 21},
]


class Units(BaseTask[str]):
    """Conversions of units with one correct number."""

    NAME = "Units"
    DATASET_PATH = "units"  # a word for the rows that _load_dataset returns
    SAMPLE_SPLIT = "test"  # what is evaluated
    FEWSHOT_SPLIT = "train"  # where few-shot examples are drawn from
    RESPONSE_TYPE = ResponseType.COMPLETION  # the model writes a text; LOGLIKELIHOODS has it choose among given texts
    METRICS = (ExactNumber,)  # the first metric is the one of the leaderboard
    SUBJECTS = ("all",)
    STOP_SEQUENCES = ("\n",)
    MAX_TOKENS = 16

    def _load_dataset(self, subject: str) -> dict[str, list[Row]]:
        return {"test": ROWS, "train": EXAMPLES}

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: {item['question']}\nAnswer:"

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["answer"])

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {item['answer']}"
