"""Invented questions and a model that answers at once: what is left to measure is everything around the model."""

from collections.abc import Sequence
from random import Random

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.records import Request, ResponseType, Row
from eval_dagster.tasks.base import BaseTask

_WORDS = ("river", "stone", "lamp", "orchard", "winter", "engine", "letter", "harbour", "copper", "meadow", "signal", "bridge")
_EXAMPLES = 20


class InventedQuestions(BaseTask[str]):
    """So many questions with four choices each as the subject says, and a pool of examples."""

    NAME = "Invented questions"
    DATASET_PATH = "invented"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood, AccuracyNormLoglikelihood)
    SUBJECTS = ("10", "100", "300", "1000", "3000", "10000", "30000", "100000")

    def _load_dataset(self, subject: str) -> dict[str, list[Row]]:
        random = Random(subject)
        rows = [_row(random, number) for number in range(int(subject) + _EXAMPLES)]
        return {"test": rows[_EXAMPLES:], "train": rows[:_EXAMPLES]}

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: {item['question']}\nAnswer:"

    def _get_possible_completions(self, item: Row) -> list[str]:
        return [f" {choice}" for choice in item["choices"]]

    def _get_ground_truth(self, item: Row) -> str:
        return f" {item['choices'][item['answer']]}"


def _row(random: Random, number: int) -> Row:
    question = f"Number {number}: what stands beside {' and '.join(random.choices(_WORDS, k=24))}?"
    return {"question": question, "choices": [" ".join(pair) for pair in _pairs(random)], "answer": random.randrange(4)}


def _pairs(random: Random) -> list[tuple[str, str]]:
    firsts = random.sample(_WORDS, 4)
    return [(first, random.choice(_WORDS)) for first in firsts]


def answer(request: Request) -> Sequence[float]:
    """One log-probability a choice, different for each, made of nothing but its letters."""
    return [-(len(choice) + sum(map(ord, choice)) % 97 / 97) for choice in request.choices or ()]
