"""Tasks that the package registers: which word follows?"""

from eval_dagster import AccuracyLoglikelihood, BaseTask, ExactMatch, ResponseType, Row

_ROWS: list[Row] = [
    {"text": "the cat sat", "next": "on", "others": ["is", "to"]},
    {"text": "the dog ran", "next": "to", "others": ["on", "was"]},
    {"text": "the sun is", "next": "warm", "others": ["door", "wet"]},
    {"text": "the sea was", "next": "wet", "others": ["mat", "warm"]},
    {"text": "the cat sat on the", "next": "mat", "others": ["cat", "sea"]},
]


class _NextWords(BaseTask[str]):
    """What the two tasks share: their rows and their question."""

    DATASET_PATH = "next_words"
    SAMPLE_SPLIT = "test"

    def _load_dataset(self, subject: str) -> dict[str, list[Row]]:
        return {"test": _ROWS}

    def _get_instruction_text(self, item: Row) -> str:
        return str(item["text"])


class NextWordChoice(_NextWords):
    """Which of three words follows a text."""

    NAME = "Next word (choice)"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood,)

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [f" {word}" for word in sorted([item["next"], *item["others"]])]

    def _get_ground_truth(self, item: Row) -> str:
        return f" {item['next']}"


class NextWord(_NextWords):
    """The word that follows a text, generated."""

    NAME = "Next word"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ExactMatch,)
    MAX_TOKENS = 1

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["next"])


TASKS = {"next_word_choice": NextWordChoice, "next_word": NextWord}
