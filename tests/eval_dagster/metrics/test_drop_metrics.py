"""The metrics of DROP against the test cases that its authors publish with their script (allennlp, tools/drop_eval_test.py)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import CompletionMetric
from eval_dagster.metrics.completion import DropExactMatch, DropF1
from eval_dagster.records import Completion


def scores(spans: list[str], *truths: list[str]) -> tuple[float, float]:
    response = Completion(completion_text="\n".join(spans), ground_truths=["\n".join(truth) for truth in truths])
    return DropExactMatch().calculate(response), DropF1().calculate(response)


@pytest.mark.parametrize(
    ("spans", "truth", "exact", "f1"),
    [
        (["78"], ["78.0"], 1, 1),
        # As many spans count as there are more of.
        (["td"], ["td", "td"], 0, 1 / 2),
        (["td", "td"], ["td"], 0, 1 / 2),
        # Articles, word order, punctuation, spaces, hyphens and case.
        (["td"], ["the td"], 1, 1),
        (["the a NOT an ARTICLE the an a"], ["NOT ARTICLE"], 1, 1),
        (["John Elton"], ["Elton John"], 0, 1),
        (["50 yard"], ["yard 50"], 0, 1),
        (["Per.i.o.d...."], [".P....e.r,,i;;;o...d,,"], 1, 1),
        (["Spa     c  e   s     "], ["    Spa c     e s"], 1, 1),
        (["78-yard"], ["78 yard"], 1, 1),
        (["78"], ["78-yard"], 0, 2 / 3),
        (["This was a triumph"], ["tHIS Was A TRIUMPH"], 1, 1),
        (["Green", "bay", "packers"], ["Green", "bay", "packers"], 1, 1),
        ([""], ["army"], 0, 0),
        (["packers"], ["Green bay packers"], 0, 1 / 2),
        (["packers"], ["Green bay"], 0, 0),
        # Numbers that differ make all else worthless; one that agrees weighs no more than a word.
        (["yard"], ["36 yard td"], 0, 0),
        (["23 yards"], ["43 yards"], 0, 0),
        (["56 yards"], ["56 yd"], 0, 1 / 2),
        (["26"], ["26 yard td"], 0, 1 / 2),
        # 1, 2/3, 0, 0, 0, 0 of six spans.
        (["78-yard", "56", "28", "40", "44", "touchdown"], ["78-yard", "56 yard", "1 yard touchdown"], 0, 5 / 18),
        (["23", "23 yard"], ["23-yard", "56 yards"], 0, 1 / 2),
        (["John Karman", "Joe Hardy"], ["Joe Karman", "John Hardy"], 0, 1 / 2),
        (["ottoman", "Kantakouzenous"], ["ottoman", "army of Kantakouzenous"], 0, 3 / 4),
        # "a" is an article and so no word, and stands for no other answer.
        (["b"], ["a", "b"], 0, 1 / 2),
        (["12.0"], ["  1.2e1  "], 1, 1),
        (["S.K. Singh"], ["sk singh"], 1, 1),
    ],
)
def test_published_cases(spans: list[str], truth: list[str], exact: float, f1: float) -> None:
    assert scores(spans, truth) == (exact, pytest.approx(f1))


def test_the_best_correct_answer_counts() -> None:
    assert scores(["17 August"], ["August"], ["17"]) == (0, pytest.approx(2 / 3))
    assert scores(["1"], ["0"], ["1"]) == (1, 1)
    assert scores(["span1"], ["span1", "span2"], ["span2"]) == (0, 1 / 2)


def test_numbers_are_numbers_and_words_are_not() -> None:
    assert scores(["1,000"], ["1000"]) == (1, 1)
    assert scores(["-5"], ["5"]) == (1, 1)  # as in the script: a hyphen parts words
    assert scores(["five"], ["5"]) == (0, 0)
    assert scores(["٥"], ["5"]) == (1, 1)


def test_spans_are_exact_as_a_set_and_as_many() -> None:
    # As in the script, which does not count how often each is there; F1 does: 1, 1 and 0 of three spans.
    assert scores(["red", "red", "blue"], ["red", "blue", "blue"]) == (1, pytest.approx(2 / 3))
    assert scores(["red", "red", "blue"], ["red", "blue"]) == (0, pytest.approx(2 / 3))


def test_blank_lines_are_no_spans() -> None:
    assert scores(["", "red", "", "blue", ""], ["blue", "red"]) == (1, 1)
    assert scores([""], [""]) == (1, 1)
    assert scores(["the"], [""]) == (1, 1)


WORDS = st.sampled_from(["red", "blue", "5", "5.0", "the", "a", "été", "你好", "-", "7-yard", "", "!"])
SPANS = st.lists(st.lists(WORDS, max_size=4).map(" ".join), min_size=1, max_size=4)


@given(spans=SPANS, truths=st.lists(SPANS, min_size=1, max_size=3), data=st.data())
def test_bounds_and_invariances(spans: list[str], truths: list[list[str]], data: st.DataObject) -> None:
    exact, f1 = scores(spans, *truths)
    assert exact in (0, 1)
    assert 0 <= f1 <= 1 + 1e-12
    # Of single spans F1 is the more lenient.
    one_exact, one_f1 = scores(spans[:1], truths[0][:1])
    assert one_f1 >= one_exact - 1e-12
    # Neither the order of the spans nor that of the correct answers matters, nor does a repeated one.
    assert scores(data.draw(st.permutations(spans)), *truths) == (exact, pytest.approx(f1))
    assert scores(spans, *reversed(truths), truths[0]) == (exact, pytest.approx(f1))
    # One more correct answer can only help, the text itself most of all.
    assert scores(spans, *truths, spans) == (1, pytest.approx(1))


@given(text=st.text())
def test_any_text_is_itself(text: str) -> None:
    assert scores([text], [text]) == (1, pytest.approx(1))


@pytest.mark.parametrize("metric", [DropExactMatch(), DropF1()])
def test_without_a_gold_answer_there_is_no_value(metric: CompletionMetric) -> None:
    with pytest.raises(DataError, match="no gold answer"):
        metric.calculate(Completion(completion_text="5"))
