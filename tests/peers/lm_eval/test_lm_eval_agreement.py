"""Evals of lm-eval's tasks over invented rows, against lm-eval's own evaluation: strings, values of documents, aggregates."""

from pathlib import Path

import pytest

from eval_dagster.errors import TaskDefinitionError
from tests.peers.lm_eval.comparison import compare
from tests.peers.lm_eval.drawn_names import drawn_names

SMALL = {
    "arc_easy": "choices of a row",
    "boolq": "choices of the configuration",
    "winogrande": "several prompts a row, one choice",
    "gpqa_main_zeroshot": "process_docs that shuffles",
    "gsm8k": "two filters",
    "gsm8k_cot": "examples of the configuration",
    "truthfulqa_mc2": "scores by a function",
    "wmt16-en-de": "items and an aggregate",
    "lambada_openai": "log-likelihood, examples from the evaluated split",
    "wikitext": "perplexity of a whole text",
    "squad_completion": "a class",
    "prost": "named files, mutual information",
}


@pytest.mark.parametrize("name", SMALL)
def test_tasks_of_all_types_agree(name: str, tmp_path: Path) -> None:
    reports = compare([name], tmp_path)
    assert reports
    assert [(each.shots, each.model, difference) for each in reports for difference in each.differences[:3]] == []
    assert all(each.requests and each.values for each in reports)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_drawn_tasks_agree(tmp_path: Path) -> None:
    """Tasks that are refused, or that no invented rows fit, are drawn too; they are counted, and a hundred others are compared."""
    refused, without_rows, agreed, differences = [], [], [], []
    for name in drawn_names():
        try:
            reports = compare([name], tmp_path / name)
        except TaskDefinitionError:
            refused.append(name)
        except LookupError:
            without_rows.append(name)
        else:
            agreed.append(name)
            differences += [(each.task, each.shots, each.model, found) for each in reports for found in each.differences[:1]]
        if len(agreed) == 100:
            break
    print(f"{len(agreed)} tasks compared; refused: {', '.join(refused)}; no rows invented: {', '.join(without_rows)}")  # noqa: T201
    assert differences == []
    assert len(agreed) == 100
