"""Capitals of the world: small tasks that bring their own rows, so that a first run needs no download."""

import unicodedata

from eval_dagster.metrics.completion import ExactMatch, NormalizedExactMatch
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.records import ResponseType, Row
from eval_dagster.task_defs.countries import CONTINENTS, COUNTRIES, Country
from eval_dagster.tasks.base import BaseTask
from eval_dagster.versions import stable_hash


class _Capitals(BaseTask[str]):
    """What the two tasks share: their rows and their question."""

    DATASET_PATH = "capitals"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "test"
    SUBJECTS = CONTINENTS
    LANGUAGE = "en"
    SOURCE = "facts, compiled for this project (Apache-2.0)"

    def _load_dataset(self, subject: str) -> dict[str, list[Row]]:
        here = [country for country in COUNTRIES if country.continent == subject]
        return {"test": [_row(country, here) for country in here]}

    def _get_instruction_text(self, item: Row) -> str:
        return f"Q: What is the capital of {item['country']}?\nA:"

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {item['capital']}"


class CapitalsChoice(_Capitals):
    """Which of four cities is a country's capital; the others are capitals of the same continent."""

    NAME = "Capitals (choice)"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood, AccuracyNormLoglikelihood)

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [f" {city}" for city in item["choices"]]

    def _get_ground_truth(self, item: Row) -> str:
        return f" {item['capital']}"


class CapitalsCompletion(_Capitals):
    """A country's capital in free text; it counts without accents and without a district, too."""

    NAME = "Capitals (completion)"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (NormalizedExactMatch, ExactMatch)
    STOP_SEQUENCES = ("\n",)
    MAX_TOKENS = 16

    def _get_ground_truth(self, item: Row) -> list[str]:
        capital = item["capital"]
        return list(dict.fromkeys([capital, _without_accents(capital), capital.partition(",")[0]]))


def _row(country: Country, continent: list[Country]) -> Row:
    # Hashes stand in for a random generator: a country added to the table leaves most other rows as they are.
    others = sorted((other.capital for other in continent if other != country), key=lambda city: stable_hash([country.name, city]))
    choices = sorted([country.capital, *others[:3]], key=lambda city: stable_hash(["order", country.name, city]))
    return {"country": country.name, "capital": country.capital, "choices": choices}


def _without_accents(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text.replace("ʻ", ""))
    return "".join(letter for letter in letters if not unicodedata.combining(letter))
