"""Benchmarks whose headline is customarily the mean of their subjects."""

import pytest

from eval_dagster.task_defs import TASKS


@pytest.mark.parametrize("name", ["bbh", "bbh_cot", "wmt24pp"])
def test_subjects_count_alike_in_the_headline(name: str) -> None:
    assert TASKS[name].HEADLINE_AGGREGATION == "macro"


def test_questions_count_alike_in_the_headline_of_mmlu() -> None:
    assert TASKS["mmlu"].HEADLINE_AGGREGATION == "micro"
