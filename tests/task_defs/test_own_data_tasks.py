from typing import Any

import pytest

from eval_dagster.datasets.reader import DatasetReader
from eval_dagster.metrics.base import CompletionMetric, LoglikelihoodMetric
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Completion, Loglikelihood, Sample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.task_defs import TASKS
from eval_dagster.task_defs.capitals import CONTINENTS, COUNTRIES
from eval_dagster.task_files.loading import check_task
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.samples import build_samples

OWN = ["arithmetic", "capitals", "capitals_completion"]


def prompts_of(name: str, fewshot: int = 2) -> list[tuple[Sample, RenderedPrompt]]:
    task = TASKS[name](num_fewshot=fewshot)
    found = []
    for subject in task.SUBJECTS:
        samples = build_samples(DatasetReader(None).read(task, subject, fewshot=True), subject)
        pool = fewshot_pool(task, [sample for sample in samples if sample.split == task.FEWSHOT_SPLIT])
        rendering = Rendering(task=task, formatter=ConcatFormatter(), num_fewshot=fewshot).knowing(samples)
        found += [(sample, *render_sample(rendering, sample, pool)) for sample in samples if sample.split == task.SAMPLE_SPLIT]
    return found


def scores(task: type[BaseTask[Any]], prompt: RenderedPrompt, *, right: bool) -> list[Any]:
    """The metrics of an answer that is right, or of one that is wrong."""
    values: list[Any] = []
    for metric in [metric() for metric in task.METRICS]:
        if isinstance(metric, LoglikelihoodMetric):
            choices = prompt.request.choices or ()
            logprobs = [-1.0 if (index in prompt.gold_indices) == right else -100.0 for index in range(len(choices))]
            values.append(metric.calculate(Loglikelihood(loglikelihoods=logprobs, choices=choices, gold_indices=prompt.gold_indices)))
        if isinstance(metric, CompletionMetric):
            text = f" {prompt.ground_truths[0]}" + ("" if right else "7 no")
            values.append(metric.calculate(Completion(completion_text=text, ground_truths=prompt.ground_truths)))
    return values


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_complete_and_says_where_its_rows_come_from(name: str) -> None:
    task = TASKS[name]
    check_task(task)
    assert task.SOURCE
    assert task.__doc__
    if task._load_dataset is BaseTask._load_dataset:
        assert task.DATASET_REVISION
        assert len(task.DATASET_REVISION) == 40


@pytest.mark.parametrize("name", OWN)
def test_the_gold_answer_scores_one_and_a_wrong_one_nothing(name: str) -> None:
    for _, prompt in prompts_of(name):
        assert set(scores(TASKS[name], prompt, right=True)) == {1.0}
        assert set(scores(TASKS[name], prompt, right=False)) == {0.0}


@pytest.mark.long
@pytest.mark.parametrize("name", OWN)
def test_rows_are_distinct_the_same_every_time_and_never_their_own_example(name: str) -> None:
    first, second = prompts_of(name), prompts_of(name)
    assert first == second
    assert len({sample.content_id for sample, _ in first}) == len(first)
    assert all(sample.sample_id not in prompt.fewshot_ids for sample, prompt in first)


def test_choices_are_four_distinct_cities_of_one_continent_in_any_order() -> None:
    continent = {country.capital: country.continent for country in COUNTRIES}
    positions = [0, 0, 0, 0]
    for sample, prompt in prompts_of("capitals"):
        assert prompt.request.choices is not None
        assert len(set(prompt.request.choices)) == 4
        assert {continent[choice.strip()] for choice in prompt.request.choices} == {sample.subject}
        assert len(prompt.gold_indices) == 1
        positions[prompt.gold_indices[0]] += 1
    assert min(positions) > 30


def test_countries_are_many_and_known_ones_are_right() -> None:
    capitals = {country.name: country.capital for country in COUNTRIES}
    assert len(capitals) == len(COUNTRIES) >= 150
    assert len({country.capital for country in COUNTRIES}) == len(COUNTRIES)
    assert {country.continent for country in COUNTRIES} == set(CONTINENTS)
    known = {"France": "Paris", "Japan": "Tokyo", "Australia": "Canberra", "Brazil": "Brasília", "Kenya": "Nairobi", "Canada": "Ottawa"}
    assert known.items() <= capitals.items()
    assert all(country.name == country.name.strip() and country.capital == country.capital.strip() for country in COUNTRIES)


def test_accents_and_districts_may_be_left_out() -> None:
    truths = {sample.row["country"]: prompt.ground_truths for sample, prompt in prompts_of("capitals_completion", 0)}
    assert truths["Peru"] == ("Lima",)
    assert truths["Colombia"] == ("Bogotá", "Bogota")
    assert truths["the United States"] == ("Washington, D.C.", "Washington")


def test_arithmetic_is_right_and_its_examples_are_other_problems() -> None:
    task = TASKS["arithmetic"]
    for subject in task.SUBJECTS:
        rows = DatasetReader(None).read(task(), subject, fewshot=True)
        assert (len(rows["test"]), len(rows["train"])) == (100, 20)
        assert not [row for row in rows["train"] if row in rows["test"]]
        for row in rows["test"]:
            assert row["answer"] == {"+": row["a"] + row["b"], "-": row["a"] - row["b"], "*": row["a"] * row["b"]}[row["sign"]] >= 0
