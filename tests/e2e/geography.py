"""Short questions on capitals, countries and continents: a benchmark that the 135M model answers in seconds and half knows."""

from random import Random

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.records import ResponseType, Row
from eval_dagster.task_defs.capitals import CONTINENTS, COUNTRIES
from eval_dagster.tasks.base import BaseTask


class Geography(BaseTask[str]):
    """Which of four."""

    NAME = "Geography"
    DATASET_PATH = "./geography"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood,)
    SUBJECTS = ("default",)

    def _get_instruction_text(self, item: Row) -> str:
        return str(item["question"])

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [f" {choice}" for choice in item["choices"]]

    def _get_ground_truth(self, item: Row) -> str:
        return f" {item['answer']}"


def rows() -> list[Row]:
    """Three questions on each of 140 countries."""
    chance = Random(0)
    found: list[Row] = []
    for place, country in enumerate(COUNTRIES):
        others = chance.sample([other for other in COUNTRIES if other.continent == country.continent and other != country], 3)
        continents = chance.sample([continent for continent in CONTINENTS if continent != country.continent], 3)
        if place % 9 < 7:
            found += [
                _row(f"The capital of {country.name} is", country.capital, [other.capital for other in others]),
                _row(f"{country.capital} is the capital of", country.name, [other.name for other in others]),
                _row(f"{country.name} is a country in", country.continent, continents),
            ]
    return found


def _row(question: str, answer: str, others: list[str]) -> Row:
    return {"question": question, "answer": answer, "choices": sorted([answer, *others])}
