"""Tasks in the ways that eval-framework's guide shows: each scores as its reader expects, or a message says why not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from scored_tasks import IMPORTS, project_of, scored

from eval_dagster.cli.task_page import show_task
from eval_dagster.lake.catalog.catalog import read_rows

WORDS = [("hot", "cold"), ("big", "small"), ("early", "late"), ("full", "empty"), ("deep", "shallow"), ("loud", "quiet")] * 2
ROWS = [
    {
        "word": f"{word} {number}",
        "options": [opposite, "green", "seven"] if number % 3 else ["green", opposite, "seven"],
        "place": 0 if number % 3 else 1,
        "letter": "A" if number % 3 else "B",
    }
    for number, (word, opposite) in enumerate(WORDS)
]
TEXTS = {f"opposite of {row['word']}?": f" {WORDS[index][1]}" for index, row in enumerate(ROWS)}
LETTERS = {f"opposite of {row['word']}?": f" {row['letter']}" for row in ROWS}
BASE = """
class Opposites(BaseTask[str]):
    NAME = "Opposites"
    DATASET_PATH = "opposites"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = [%s]
    SUBJECTS = ["general"]

    def _get_instruction_text(self, item: dict[str, Any]) -> str:
        return f"What is the opposite of {item['word']}?\\nAnswer:"

    def _get_ground_truth(self, item: dict[str, Any]) -> str:
        return %s

    def _get_possible_completions(self, item: dict[str, Any]) -> list[str]:
        return %s
"""
SPACED = "[f' {option}' for option in item['options']]"
SLIP = ("item['options'][item['place']]", SPACED)
"""The choices have a space before them, the gold answer has none."""
EVERY = "AccuracyLoglikelihood, AccuracyNormLoglikelihood, ConfidenceWeightedAccuracy, ProbabilityMass, ProbabilityMassNorm"


@pytest.fixture
def open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    def opened(metrics: str, gold: str, choices: str, answers: dict[str, str] = TEXTS) -> object:
        monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
        monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
        return project_of(tmp_path, IMPORTS + BASE % (metrics, gold, choices), "Opposites", data={"general": ROWS}, answers=answers)

    return opened


@pytest.mark.long
@pytest.mark.parametrize(
    ("gold", "choices", "answers"),
    [
        ("item['options'][item['place']]", "item['options']", TEXTS),
        ("f\" {item['options'][item['place']]}\"", SPACED, TEXTS),
        ("f\" {item['letter']}\"", "[' A', ' B', ' C']", LETTERS),
    ],
)
def test_a_gold_answer_that_is_a_choice_scores(
    open_it: Callable[..., object], gold: str, choices: str, answers: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    project = open_it(EVERY, gold, choices, answers)
    found = scored(project)  # type: ignore[arg-type]
    assert found.errors == 0
    assert found.values["Accuracy Loglikelihood"] == found.values["Accuracy Normalized Loglikelihood"] == 1.0
    assert all(0.3 < value <= 1 for value in found.values.values()), found.values
    assert found.warnings == []
    if choices != "item['options']":  # these have no space between prompt and answer, which is another problem
        show_task("asked", None, None)
        assert "the gold answer scores best, a wrong one worse" in capsys.readouterr().out


@pytest.mark.long
def test_a_gold_answer_without_the_space_of_the_choices_is_found(
    open_it: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    """All twelve best choices are the gold ones, and the score is 0: eval-framework compares texts, and so does its metric here."""
    project = open_it("AccuracyLoglikelihood", *SLIP)
    found = scored(project)  # type: ignore[arg-type]
    assert found.values == {"Accuracy Loglikelihood": 0.0}
    [warning] = found.warnings
    assert warning.startswith("eval asked: gold_is_no_choice: in 12 of 12 samples, the gold answer ")
    assert "; did you mean ' " in warning
    [row] = read_rows(project.lake, "select findings from leaderboard_all")  # type: ignore[attr-defined]
    assert row["findings"] == ["gold_is_no_choice"]
    with pytest.raises(typer.Exit):
        show_task("asked", None, None)
    printed = capsys.readouterr()
    assert "the gold answer scores best" not in printed.out
    assert "is none of the choices (' " in " ".join((printed.out + printed.err).split())
    assert "did you mean ' " in printed.err


@pytest.mark.long
def test_metrics_that_fold_texts_take_the_slip(open_it: Callable[..., object]) -> None:
    found = scored(open_it("ConfidenceWeightedAccuracy, TernaryScore, DistributionalCorrectnessScore", *SLIP))  # type: ignore[arg-type]
    assert found.errors == 0
    assert found.warnings == []
    assert found.values["Ternary Score"] == 1.0


@pytest.mark.long
@pytest.mark.parametrize("gold", ["f\" {item['options'][item['place']]}\"", "[f\" {item['options'][item['place']]}\"]"])
def test_probability_mass_takes_a_text_and_a_list(open_it: Callable[..., object], gold: str) -> None:
    found = scored(open_it("ProbabilityMass, ProbabilityMassNorm", gold, SPACED))  # type: ignore[arg-type]
    assert found.errors == 0
    assert found.values["Probability Mass"] == pytest.approx(0.9)


def test_a_metric_whose_values_do_not_tell_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    code = IMPORTS + (
        """
from eval_framework.metrics.base import BaseMetric, MetricResult
from eval_framework.shared.types import Loglikelihood


class Choices(BaseMetric[Loglikelihood]):
    NAME = "Choices"

    def calculate(self, response):
        return [MetricResult(metric_name=self.NAME, value=len(response.loglikelihoods), higher_is_better=True)]


class Margin(BaseMetric[Loglikelihood]):
    NAME = "Margin"

    def calculate(self, response):
        gold = response.loglikelihoods[response.ground_truth]
        others = [value for text, value in response.loglikelihoods.items() if text != response.ground_truth]
        return [MetricResult(metric_name=self.NAME, value=gold - max(others), higher_is_better=True)]
"""
        + BASE % ("Margin, Choices", "f\" {item['options'][item['place']]}\"", SPACED)
    )
    project_of(tmp_path, code, "Opposites", data={"general": ROWS}, answers=TEXTS)
    show_task("asked", None, None)
    printed = " ".join(capsys.readouterr().out.split())
    assert "not checked: Choices, whose values do not show whether an answer is right: it gives the wrong answer ' green'" in printed
    assert "the gold answer scores best by Margin, a wrong one worse" in printed
