import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.errors import DataError
from eval_dagster.metrics.completion import ChoiceLetter
from eval_dagster.records import Completion


class FourLetters(ChoiceLetter):
    NAME = "four_letters"
    LETTERS = "ABCD"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        # What is boxed, before all else and the last of several.
        (r"So the answer is A: \boxed{B}", "B"),
        (r"\boxed{A} no, \boxed{\text{(d)}}", "D"),
        (r"$\boxed{C. 42}$", "C"),
        # What is called the answer.
        ("The answer is (B).", "B"),
        ("**Answer:** C", "C"),
        ("Answer:\n\nD) because A is too small", "D"),
        ("Therefore, the correct answer is option C", "C"),
        ("The answer is most likely **D**", "D"),
        ("the best choice would be E", "E"),
        ("The answer is A. Wait, no: the answer is B.", "B"),
        ("Answer: A because I say so", "A"),
        ("answer: b", "B"),
        ("the answer is (b), I think", "B"),
        # What is called correct.
        ("A is wrong. C is the correct one, not D", "C"),
        ("B: 12 meters is right", "B"),
        # Options, lines, labels, letters alone.
        ("I would go for option C, as B is too large", "C"),
        ("It depends.\nD\nThat is all about A", "D"),
        ("B. Paris, since F is nowhere", "B"),
        ("(C) Paris", "C"),
        ("I'd say it's D!", "D"),
        ("not B but C", "C"),
        ("Ｂ", "B"),
        ("Ａｎｓｗｅｒ：（Ｃ）", "C"),
        ("b)", "B"),
        ("J", "J"),
    ],
)
def test_the_letter_of_a_text(text: str, letter: str) -> None:
    assert ChoiceLetter().answer_of(text) == letter


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "Paris",
        "none of these",
        "A cat sat on the mat.",
        "I think so",
        "The answer is a good one",
        "Answer: I think it is too hard",
        "the answer is unknown",
        "not B",
        "K",
        "U.S.A",
        "the U.S.A. and its D.C.",
        "a B.Sc. in physics",
        "don't B'e",
        "你好，世界",
    ],
)
def test_a_text_may_choose_none(text: str) -> None:
    assert ChoiceLetter().answer_of(text) is None
    assert ChoiceLetter().calculate(Completion(completion_text=text, ground_truths=["A"])) == 0


def test_a_list_of_the_choices_is_no_choice_of_the_first() -> None:
    assert ChoiceLetter().answer_of("A) red\nB) blue\nThe answer is A") == "A"
    assert ChoiceLetter().answer_of("A) red\nB) blue\n\nB it is") == "B"


def test_only_letters_of_the_choices_count() -> None:
    assert FourLetters().answer_of("The answer is E") is None
    assert FourLetters().answer_of("Vitamin E, so D") == "D"
    assert ChoiceLetter().answer_of("Vitamin E") == "E"


def test_the_gold_answer_is_read_as_the_text_is() -> None:
    metric = ChoiceLetter()
    assert metric.calculate(Completion(completion_text="The answer is B", ground_truths=[" B"])) == 1
    assert metric.calculate(Completion(completion_text="(B)", ground_truths=["(A) red", "(B) blue"])) == 1
    assert metric.calculate(Completion(completion_text="(B)", ground_truths=["(A) red"])) == 0
    with pytest.raises(DataError, match="the gold answer 'blue' holds no letter of a choice"):
        metric.calculate(Completion(completion_text="B", ground_truths=["blue"]))


@pytest.mark.parametrize("head", ["The answer", "Answer is the", "B", "(", "", "The best choice:", r"\boxed{"])
@pytest.mark.parametrize("filling", ["\n", " ", "\t\n", "*", " *", "the "])
def test_a_long_text_takes_little_time(head: str, filling: str) -> None:
    began = time.process_time()
    ChoiceLetter().answer_of(f"{head}{filling * 5000}?")
    assert time.process_time() - began < 10  # by a power of the length it would be hours


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is" + "\n" * 5000 + "B", "B"),
        ("Answer" + " " * 5000 + ":" + " \n" * 5000 + "**C**", "C"),
        ("A is wrong." + "\n" * 50 + "C" + " " * 500 + "is the correct one, not D", "C"),
        ("It depends." + "\n" * 500 + "D" + "\n" * 500 + "That is all about A", "D"),
        ("C, I think,\nis correct, and not A", "C"),
    ],
)
def test_white_space_changes_no_letter(text: str, letter: str) -> None:
    assert ChoiceLetter().answer_of(text) == letter


LETTERS = st.sampled_from(ChoiceLetter.LETTERS)
WAYS = st.sampled_from(
    ["The answer is {}", "Answer: {}", "**{}**", "({})", "{}.", r"\boxed{{{}}}", "option {}", "The correct answer is {}."]
)


@given(letter=LETTERS, way=WAYS, padding=st.sampled_from(["", " ", "\n", "\n\n  "]))
def test_every_letter_is_found_however_it_is_said(letter: str, way: str, padding: str) -> None:
    text = f"{padding}{way.format(letter)}{padding}"
    assert ChoiceLetter().answer_of(text) == letter
    assert ChoiceLetter().calculate(Completion(completion_text=text, ground_truths=[letter])) == 1


@given(letter=LETTERS, text=st.text(alphabet="abcdefghij klmnop,é你\n", max_size=60))
def test_what_is_called_the_answer_does_not_depend_on_what_is_said_before(letter: str, text: str) -> None:
    assert ChoiceLetter().answer_of(f"{text} B? No.\nThe answer is {letter}") == letter


@pytest.mark.long
@given(text=st.text())
def test_any_text_has_a_letter_or_none(text: str) -> None:
    assert ChoiceLetter().answer_of(text) in (None, *ChoiceLetter.LETTERS)


@given(text=st.text(alphabet="klmnopqrstuvwxyz éü你,.\n"))
def test_words_without_the_letters_choose_none(text: str) -> None:
    assert ChoiceLetter().answer_of(text) is None
