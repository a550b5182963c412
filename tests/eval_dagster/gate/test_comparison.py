"""Two materializations against each other, from a lake that the stages wrote."""

import textwrap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from eval_dagster.errors import UsageError
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.results.comparison import MetricComparison, changed_samples, compare_points
from eval_dagster.results.materializations import Materialization, MaterializationName, history, previous_materialization
from eval_dagster.stages.partition import STAGES, StageResult

TASK = """
    from eval_dagster.metrics.base import CompletionMetric
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.metrics.translation import ChrF
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Judged(CompletionMetric):
        NAME = "judged"

        def calculate(self, response):
            return {judged}

    class Sums(BaseTask[str]):
        NAME = "Sums"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch, ChrF, Judged]
        SUBJECTS = ["small", "large"]
        HEADLINE_AGGREGATION = "{headline}"

        def _load_dataset(self, subject):
            first = 1 if subject == "small" else 100
            return {{"test": [{{"n": first + n, "answer": f"word {{first + n}}"}} for n in range({rows})]}}

        def _get_instruction_text(self, item):
            return f"{question} {{item['n']}}"

        def _get_ground_truth(self, item):
            return item["answer"]
"""
ANSWERS = """
    def answer(request):
        number = request.prompt.split()[-1]
        return "wrong" if number in {wrong!r} else f"word {{number}}"
"""
CONFIG = """
    models:
      one: {backend: scripted, function: "answers.py:answer"}
      two: {backend: scripted, function: "others.py:answer"}
    evals:
      sums: {task: "sums.py:Sums"}
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Project]:
    """Evaluate with these wrong answers, rows and words, and return the project."""

    def run_it(
        wrong: tuple[str, ...] = (),
        other: tuple[str, ...] = (),
        rows: object = 5,
        headline: str = "micro",
        question: str = "Say",
        judged: str = "1.0",
        models: tuple[str, ...] = ("one",),
    ) -> Project:
        (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
        (tmp_path / "sums.py").write_text(textwrap.dedent(TASK.format(rows=rows, headline=headline, question=question, judged=judged)))
        (tmp_path / "answers.py").write_text(textwrap.dedent(ANSWERS.format(wrong=wrong)))
        (tmp_path / "others.py").write_text(textwrap.dedent(ANSWERS.format(wrong=other)))
        project = Project.open(tasks={}, config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
        partitions = [("sums", model) for model in models]
        outcomes = list(evaluate(project, partitions, stages=set(STAGES), run_id="test", reporter=SilentReporter()))
        assert all(isinstance(outcome, StageResult) for outcome in outcomes), outcomes
        return project

    return run_it


def compared(project: Project) -> dict[str, MetricComparison]:
    """The current materialization with the one before its last change."""
    points = history(project.lake, "sums", "one")
    before = previous_materialization(points)
    assert before is not None
    return _by_metric(points[-1], before, project)


def compared_with(project: Project) -> dict[str, MetricComparison]:
    """The last two materializations, whatever differs."""
    *_, before, now = history(project.lake, "sums", "one")
    return _by_metric(now, before, project)


def _by_metric(now: Materialization, before: Materialization, project: Project) -> dict[str, MetricComparison]:
    return {each.metric: each for each in compare_points(now, before, project.task("sums").METRICS)}


@pytest.mark.long
def test_a_model_that_got_worse(run: Callable[..., Project]) -> None:
    run(wrong=("1",))
    project = run(wrong=("1", "2", "100"))
    found = compared(project)
    exact = found["exact_match"]
    assert exact.causes == ("model",)
    assert (exact.higher_is_better, exact.is_headline) == (True, True)
    assert (exact.comparison.value_a, exact.comparison.value_b, exact.comparison.n_common) == (0.7, 0.9, 10)
    assert exact.comparison.difference == pytest.approx(-0.2)
    # Two samples flipped, both the same way: 2 * (1/2)^2.
    assert exact.comparison.p_value == pytest.approx(0.5)
    corpus = found["chrf"].comparison
    assert corpus.value_a is not None
    assert corpus.value_b is not None
    assert corpus.value_a < corpus.value_b
    assert corpus.n_common == 10
    a, b = exact.a, exact.b
    changes = list(changed_samples(a, b, "exact_match"))
    assert [(change.subject, change.gold, change.value, change.baseline_value) for change in changes] == [
        ("small", ("word 2",), 0.0, 1.0),
        ("large", ("word 100",), 0.0, 1.0),
    ]
    assert [(change.prompt, change.answer, change.baseline_answer) for change in changes] == [
        ("Say 2\n", "wrong", "word 2"),
        ("Say 100\n", "wrong", "word 100"),
    ]


@pytest.mark.long
def test_changed_prompts_are_the_cause(run: Callable[..., Project]) -> None:
    run()
    assert compared(run(question="Tell me"))["exact_match"].causes == ("prompt",)


@pytest.mark.long
def test_rows_that_are_new_are_another_choice_of_samples_and_are_listed(run: Callable[..., Project]) -> None:
    run(rows=5)
    (exact, *_) = compared(run(rows=6)).values()
    assert exact.causes == ("samples",)
    assert exact.comparison.n_common == 10
    assert exact.comparison.n_only_a == 2
    assert exact.comparison.difference == 0
    changes = list(changed_samples(exact.a, exact.b, "exact_match"))
    assert [(change.prompt, change.value, change.baseline_value, change.baseline_answer) for change in changes] == [
        ("Say 6\n", 1.0, None, None),
        ("Say 105\n", 1.0, None, None),
    ]


@pytest.mark.long
def test_rows_that_are_new_are_listed_for_a_metric_of_a_corpus_too(run: Callable[..., Project]) -> None:
    run(rows=5)
    chrf = compared(run(rows=6, wrong=("1",)))["chrf"]
    changes = list(changed_samples(chrf.a, chrf.b, "chrf"))
    assert [(change.prompt, change.value, change.answer) for change in changes] == [
        ("Say 6\n", None, "word 6"),
        ("Say 105\n", None, "word 105"),
    ]


@pytest.mark.long
def test_changed_code_of_a_metric_is_the_cause(run: Callable[..., Project]) -> None:
    run(judged="1.0")
    found = compared_with(run(judged="0.0"))
    assert (found["judged"].causes, found["judged"].comparison.difference) == (("metric",), -1)
    # Its module holds another metric's base alone: that one's code is the same.
    assert (found["exact_match"].causes, found["exact_match"].comparison.difference) == ((), 0)


@pytest.mark.long
def test_a_macro_headline_is_compared_as_such(run: Callable[..., Project]) -> None:
    """Four wrong of five, and one of two: of the samples 2/7 are right, of the mean of the subjects 0.35."""
    rows = "5 if subject == 'small' else 2"
    run(headline="macro", rows=rows)
    found = compared(run(wrong=("1", "2", "3", "4", "100"), headline="macro", rows=rows))
    assert found["exact_match"].is_headline
    assert found["exact_match"].comparison.value_a == pytest.approx((1 / 5 + 1 / 2) / 2)
    assert not found["chrf"].is_headline
    assert found["judged"].comparison.n_common == 7


@pytest.mark.long
def test_two_models(run: Callable[..., Project]) -> None:
    project = run(wrong=("1", "2"), other=("2", "3", "4"), models=("one", "two"))
    one, two = (MaterializationName.parse(name, ["one", "two"]).find(project.lake, "sums") for name in ("one", "two"))
    assert one is not None
    assert two is not None
    exact = compare_points(one, two, project.task("sums").METRICS)[0]
    assert exact.comparison.difference == pytest.approx(0.1)
    assert (exact.comparison.n_higher, exact.comparison.n_lower) == (2, 1)
    same = compare_points(one, one, project.task("sums").METRICS)[0]
    assert (same.causes, same.comparison.difference) == ((), 0)
    assert list(changed_samples(one, one, "exact_match")) == []


@pytest.mark.long
def test_points_are_named_by_model_and_time(run: Callable[..., Project]) -> None:
    run(wrong=("1",))
    project = run()
    lake = project.lake
    first, last = history(lake, "sums", "one")
    assert MaterializationName.parse("one", ["one"]).find(lake, "sums") == last
    assert MaterializationName.parse(last.name(), ["one"]).find(lake, "sums") == last
    assert MaterializationName.parse("one@previous", ["one"]).find(lake, "sums") == first
    between = first.materialized_at + (last.materialized_at - first.materialized_at) / 2
    assert MaterializationName.parse(f"one@{between.isoformat()}", ["one"]).find(lake, "sums") == first
    today = datetime.now(UTC).date()
    assert MaterializationName.parse(f"one@{today}", ["one"]).find(lake, "sums") == last
    assert MaterializationName.parse(f"one@{today - timedelta(days=1)}", ["one"]).find(lake, "sums") is None
    assert MaterializationName.parse("two", ["one", "two"]).find(lake, "sums") is None
    assert MaterializationName.parse("a@b", ["a@b"]).model == "a@b"
    with pytest.raises(UsageError, match=r"'yesterday' is no time; expected a date \(2026-01-31\)"):
        MaterializationName.parse("one@yesterday", ["one"])


def test_what_was_removed_from_the_lake_is_left_out(run: Callable[..., Project]) -> None:
    run(wrong=("1",))
    project = run()
    first, last = history(project.lake, "sums", "one")
    for table in ("prompts", "responses"):
        for file in project.lake.history(table, "sums", "one")[:-1]:
            file.path.unlink()
    (change,) = changed_samples(last, first, "exact_match")
    assert (change.answer, change.baseline_answer) == ("word 1", None)
    assert change.prompt == "Say 1\n"
