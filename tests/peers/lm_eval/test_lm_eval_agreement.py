"""Evals of lm-eval's tasks over invented rows, against lm-eval's own evaluation: strings, values of documents, aggregates."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from eval_dagster.errors import TaskDefinitionError
from tests.peers.lm_eval.comparison import Report, compare
from tests.peers.lm_eval.drawn_names import drawn_names

SMALL = {
    "arc_easy": "choices of a row",
    "boolq": "choices of the configuration",
    "winogrande": "several prompts a row, one choice",
    "gpqa_main_zeroshot": "process_docs that shuffles, no examples",
    "gsm8k_cot": "two filters, examples of the configuration",
    "truthfulqa_mc2": "scores by a function",
    "wmt16-en-de": "items and an aggregate",
    "lambada_openai": "log-likelihood, examples from the evaluated split",
    "wikitext": "perplexity of a whole text",
    "squad_completion": "a class",
    "prost": "files that the configuration names",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Report]:
    return compare(list(SMALL), tmp_path_factory.mktemp("lm_eval"))


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_tasks_of_all_types_agree(name: str, reports: Sequence[Report]) -> None:
    found = [each for each in reports if each.task == name]
    assert {each.model for each in found} == {"plain", "chat"}
    assert [(each.shots, each.model, difference) for each in found for difference in each.differences[:3]] == []
    assert all(each.requests and each.values for each in found)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_drawn_tasks_agree(tmp_path: Path) -> None:
    """Tasks that are refused, or that no invented rows fit, are drawn too; of the others the first hundred are compared."""
    names = drawn_names()
    compared: list[str] = []
    skipped: list[str] = []
    differences: list[tuple[str, int, str, str]] = []
    for name in names:
        try:
            reports = compare([name], tmp_path / name)
        except (TaskDefinitionError, LookupError) as error:
            skipped.append(str(error))
            continue
        compared.append(name)
        differences += [(each.task, each.shots, each.model, found) for each in reports for found in each.differences[:1]]
        if len(compared) == 100:
            break
    assert differences == []
    assert len(compared) == 100, skipped
