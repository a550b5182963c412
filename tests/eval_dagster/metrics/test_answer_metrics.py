"""What metrics that find an answer share, the fields beside the answer, and the packages of the extra."""

import pytest

from eval_dagster.errors import DataError, RequirementError, UsageError
from eval_dagster.metrics.base import AnswerMetric, context_field, extra_module, find_field, gold_texts, require_field
from eval_dagster.records import Completion, Loglikelihood, MetricContext


class Colour(AnswerMetric):
    """The last colour that a text names."""

    NAME = "colour"
    ANSWER = "colour"

    def answer_of(self, text: str) -> str | None:
        found = [word for word in text.lower().split() if word in ("red", "green")]
        return found[-1] if found else None


@pytest.mark.parametrize(
    ("text", "truths", "expected"),
    [
        ("Not green but red", ["RED"], 1),
        ("red", ["green"], 0),
        ("red", ["green", "it is red"], 1),
        ("none", ["red"], 0),
        ("", ["red"], 0),
    ],
)
def test_the_answers_are_compared_and_not_the_texts(text: str, truths: list[str], expected: float) -> None:
    assert Colour().calculate(Completion(completion_text=text, ground_truths=truths)) == expected


@pytest.mark.parametrize("text", ["red", "none"])
def test_every_gold_answer_must_hold_an_answer(text: str) -> None:
    # Not even where the text has none either: no answer equals no answer, which must not count as correct.
    with pytest.raises(DataError, match="the gold answer 'blue' holds no colour; expected one for the metric colour"):
        Colour().calculate(Completion(completion_text=text, ground_truths=["red", "blue"]))


def test_without_a_gold_answer_there_is_nothing_to_compare_with() -> None:
    assert gold_texts(Completion(completion_text="", ground_truths=("a", "", "a"))) == ["a", "", "a"]
    with pytest.raises(DataError, match=r"no gold answer to compare with; expected at least one text from _get_ground_truth"):
        gold_texts(Completion(completion_text="red"))


@pytest.mark.parametrize("kind", [Completion, Loglikelihood])
def test_a_field_of_the_context_comes_before_that_of_the_row(kind: type[Completion] | type[Loglikelihood]) -> None:
    parts = {"row": {"a": "row", "b": "row", "c": None, "zero": 0}, "context": MetricContext(a="context", b=None, d="context", copy=1)}
    response = (
        Completion(completion_text="", **parts) if kind is Completion else Loglikelihood(loglikelihoods=[], **parts)  # type: ignore[arg-type]
    )
    # A null is no value; that of the row counts then.
    assert [find_field(response, name) for name in "abcde"] == ["context", "row", None, "context", None]
    assert [context_field(response, name) for name in "abcd"] == ["context", None, None, "context"]
    # What is false is a value, and a field may be called like a method of the record that holds it.
    assert require_field(response, "zero", "a number") == 0
    assert context_field(response, "copy") == 1


def test_a_context_of_several_parts_gives_the_first_that_has_the_field() -> None:
    contexts = [MetricContext(a=None), MetricContext(a=1, b=2), MetricContext(a=3)]
    assert context_field(Completion(completion_text="", context=contexts), "a") == 1
    assert context_field(Completion(completion_text="", context=[]), "a") is None
    assert context_field(Completion(completion_text=""), "a") is None


@pytest.mark.parametrize(("row", "names"), [({"x": 1, "y": 2}, "x, y"), ({}, "no fields"), ({"test": None}, "test")])
def test_a_missing_field_says_what_it_should_hold_and_which_there_are(row: dict[str, int], names: str) -> None:
    with pytest.raises(DataError, match=rf"there is no 'test' \(code\) in the metric's context or the row, which has {names}; return it"):
        require_field(Completion(completion_text="", row=row), "test", "code")


def test_a_module_of_the_extra() -> None:
    assert extra_module("json", "m").loads("[1]") == [1]
    with pytest.raises(
        RequirementError, match=r"the metric m needs the Python package of 'no_such_module'.*pip install 'eval_dagster\[metrics\]'"
    ):
        extra_module("no_such_module", "m")
    assert issubclass(RequirementError, UsageError)
