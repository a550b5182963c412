"""A fall that cut-off answers explain has the cause `budget`, and one that unreadable answers explain `format`: neither is the model's."""

import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from no_mlflow import NoMlflow

from eval_dagster.gate.judgement import judge
from eval_dagster.gate.results import write_result
from eval_dagster.gate.wording import cause_text, evidence
from eval_dagster.pages.report.contents import collect
from eval_dagster.pages.report.page import render
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records.judgements import Regression, Verdict
from eval_dagster.stages.partition import STAGES, StageFailure

MODEL = """
    from eval_dagster.models.scripted import CutText

    def answer(request):
        number = int(request.prompt.split()[-1])
        {change}
        text = f"{{'So I think: ' if number % 2 else ''}}the answer is {{'ABCD'[number * 7 % 4 if number % 9 else 0]}}"
        words = text.split()
        most = request.generation.max_tokens
        return text if len(words) <= most else CutText(" ".join(words[:most]))
"""
TASK = """
    from eval_dagster.metrics.completion import ChoiceLetter
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Letters(BaseTask[str]):
        NAME = "Letters"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ChoiceLetter]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(60)]}

        def _get_instruction_text(self, item):
            return f"Which letter has {item['n']}"

        def _get_ground_truth(self, item):
            return "ABCD"[item["n"] * 7 % 4]
"""
CONFIG = """
    models:
      one: {{backend: scripted, function: "one.py:answer", generation: {{max_tokens: {most}}}}}
    evals:
      left: {{task: "left.py:Letters"}}
    suites:
      nightly: {{evals: [left], models: [one], baseline: last_passed}}
"""


@pytest.fixture
def night(tmp_path: Path) -> Callable[..., Regression]:
    """Evaluates and judges a suite of one eval on a model that says a letter within so many words."""

    def judged(*, most: int = 20, change: str = "pass") -> Regression:
        files = {"left.py": TASK, "one.py": MODEL.format(change=change), "evals.yaml": CONFIG.format(most=most)}
        for name, text in files.items():
            (tmp_path / name).write_text(textwrap.dedent(text))
        project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
        project = replace(project, tracker=NoMlflow(home=tmp_path / "home", tracking_uri=None, experiment="nights"))
        outcomes = list(evaluate(project, [("left", "one")], stages=set(STAGES), run_id="night", reporter=SilentReporter()))
        assert not [each for each in outcomes if isinstance(each, StageFailure)]
        result = judge(project, "nightly", run_id="gate")
        write_result(project.lake, result)
        (tmp_path / "report.html").write_text(render(collect(project, result)))
        [row] = result.regressions
        return row

    return judged


@pytest.mark.long
def test_a_lowered_limit_of_tokens_is_named_as_the_budget(night: Callable[..., Regression], tmp_path: Path) -> None:
    assert night().verdict is Verdict.FIRST_RESULT
    assert "that completed" not in (tmp_path / "report.html").read_text()
    red = night(most=6)
    assert red.verdict is Verdict.REGRESSED
    assert red.cause is not None
    assert "budget" in red.cause.split(", ")
    assert "model" not in red.cause.split(", ")
    assert "budget (answers were cut off at the limit of tokens)" in cause_text(red.cause)
    assert "budget (" in evidence(red)
    report = (tmp_path / "report.html").read_text()
    assert "of 50 % that completed · between " in report
    assert "⚠ findings: cut_off, format_changed" in report


@pytest.mark.long
def test_a_model_that_rambles_has_spent_its_budget(night: Callable[..., Regression]) -> None:
    night()
    red = night(change="return CutText('So I think of the letters again and') if number % 3 else 'the answer is ' + 'ABCD'[number * 7 % 4]")
    assert (red.verdict, red.cause) == (Verdict.REGRESSED, "budget")


@pytest.mark.long
@pytest.mark.parametrize("text", ["'the fourth of them'", "''", "' '"], ids=["other words", "empty", "blank"])
def test_an_answer_in_another_form_is_named_as_the_format(text: str, night: Callable[..., Regression]) -> None:
    night()
    red = night(change=f"return {text} if number % 3 else 'the answer is ' + 'ABCD'[number * 7 % 4]")
    assert (red.verdict, red.cause) == (Verdict.REGRESSED, "format")


def test_wrong_answers_stay_the_models(night: Callable[..., Regression]) -> None:
    night()
    wrong = "'ABCD'[(number * 7 + 1) % 4]"
    # A few answers in another form do not explain many that are wrong.
    red = night(change=f"return 'none' if number < 3 else 'the answer is ' + {wrong}")
    assert (red.verdict, red.cause) == (Verdict.REGRESSED, "model")
