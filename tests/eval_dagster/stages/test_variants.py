"""Variants of an eval's prompts: rendered and asked as one eval, with the score, its error bar and the spread over them."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_stages import run_all
from scipy.special import stdtrit

from eval_dagster.lake.catalog.catalog import read_rows as query
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.project import Project

TASK = """
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask
    from eval_dagster.tasks.style import ClozeStyle, MCStyle

    class Numbers(BaseTask[str]):
        NAME = "Numbers"
        DATASET_PATH = "numbers"
        SAMPLE_SPLIT = "test"
        FEWSHOT_SPLIT = "train"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(40)], "train": [{"n": n} for n in range(60, 100)]}

        def _get_initial_prompt_text(self, item):
            return "Read the number."

        def _get_instruction_text(self, item):
            return f"Say {item['n']}."

        def _get_ground_truth(self, item):
            return str(item["n"])
"""
ANSWER = """
    from pathlib import Path

    # Right for all numbers under 30 by default, for all under 10 if asked politely.
    def answer(request):
        with Path(__file__).with_name("asked.log").open("a") as log:
            log.write(request.request_id + "\\n")
        number = int(request.prompt.rpartition("Say ")[2].split(".")[0])
        return str(number) if number < (10 if "please" in request.prompt else 30) else "?"
"""
CONFIG = """
    models:
      scripted: {{backend: scripted, function: "numbers.py:answer"}}
    evals:
      numbers: {{task: "numbers_task.py:Numbers"{settings}}}
"""
POLITE = ', variants: {polite: {instruction: "Now please read."}}'


@pytest.fixture
def run(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Callable[..., Project]:
    def run_it(settings: str = "", config: str = CONFIG) -> Project:
        write("numbers_task.py", TASK)
        write("numbers.py", ANSWER)
        project = open_project(config.format(settings=settings))
        _, failures = run_all(project, [("numbers", "scripted")])
        assert not failures
        publish(project.lake)
        return project

    return run_it


def rows_of(project: Project, sql: str) -> list[dict[str, Any]]:
    return query(project.lake, sql)


def test_each_row_is_asked_in_each_variant_and_the_score_is_their_mean(run: Callable[..., Project], asked: Callable[[], list[str]]) -> None:
    project = run(POLITE)
    prompts = rows_of(project, "select sample_id, source_id, variant, prompt from prompts")
    assert Counter(row["variant"] for row in prompts) == {"default": 40, "polite": 40}
    assert len({row["sample_id"] for row in prompts}) == 80
    for row in prompts:
        ending, words = ("~polite", "Now please read.") if row["variant"] == "polite" else ("", "Read the number.")
        assert row["sample_id"] == row["source_id"] + ending
        assert row["prompt"].startswith(words)
    assert len(asked()) == 80
    [metric] = rows_of(project, "select value, stderr, n, n_clusters from metrics where subject is null")
    assert (metric["value"], metric["n"], metric["n_clusters"]) == (0.5, 80, 40)
    # Each row's mean is 1, 1/2 or 0: 10, 20 and 10 of them, with the mean 1/2, so that the variance is (10 + 10) / 4 / 39.
    assert metric["stderr"] == pytest.approx((5 / 39 / 40) ** 0.5), "a row counts once, in all its variants"


def test_the_score_by_variant_and_the_effect_of_the_prompt_are_those_of_the_script(run: Callable[..., Project]) -> None:
    project = run(POLITE)
    scores = rows_of(project, "select variant, value, stderr, n from variant_scores")
    assert [(row["variant"], row["value"], row["n"]) for row in scores] == [("default", 0.75, 40), ("polite", 0.25, 40)]
    assert [row["stderr"] for row in scores] == pytest.approx([(0.75 * 0.25 / 39) ** 0.5] * 2)
    [effect] = rows_of(project, "select * from prompt_sensitivity")
    assert (effect["n_variants"], effect["n_common"], effect["spread"]) == (2, 40, 0.5)
    assert (effect["lowest_variant"], effect["highest_variant"]) == ("polite", "default")
    # Of 40 rows 20 change by 1, so that the difference of two means has the variance (1/4) / 39.
    difference, own = 0.25 / 39, 0.75 * 0.25 / 39
    assert effect["spread_low"] == pytest.approx(0.5 - stdtrit(39, 0.975) * difference**0.5)
    assert effect["spread_high"] == pytest.approx(0.5 + stdtrit(39, 0.975) * difference**0.5)
    between = 0.5**2 / 2 - difference / 2
    assert effect["deviation"] == pytest.approx(between**0.5)
    assert effect["share"] == pytest.approx(between / (between + own))
    assert (effect["n_models"], effect["rank_stability"], effect["exceeds_models"]) == (1, None, None), "there is nothing to compare with"
