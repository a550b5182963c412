from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.metrics.base import CompletionMetric, response_kind
from eval_dagster.metrics.completion import F1, ExactMatch, ExactNumber
from eval_dagster.metrics.repeated import avg_at_k, maj_at_k, pass_at_k
from eval_dagster.metrics.translation import TER
from eval_dagster.records import Completion
from eval_dagster.versions.hashes import code_version


def texts(*answers: str, truth: str = "7") -> list[Completion]:
    return [Completion(completion_text=each, ground_truths=[truth]) for each in answers]


def outcomes(*right: bool) -> list[Completion]:
    return texts(*("7" if each else "8" for each in right))


@pytest.mark.parametrize(
    ("count", "correct", "k", "expected"),
    [
        # Chen et al. 2021, equation 1, by hand.
        (5, 2, 1, 2 / 5),
        (5, 2, 2, 1 - 3 / 10),
        (5, 2, 4, 1),
        (4, 0, 2, 0),
        (4, 4, 2, 1),
        (2, 1, 2, 1),
        (1, 1, 1, 1),
        # 1 - C(197, 100) / C(200, 100) = 1 - (100 * 99 * 98) / (200 * 199 * 198): floats of these binomials would not do.
        (200, 3, 100, 1 - (100 * 99 * 98) / (200 * 199 * 198)),
    ],
)
def test_pass_at_k_by_hand(count: int, correct: int, k: int, expected: float) -> None:
    responses = outcomes(*[True] * correct, *[False] * (count - correct))
    assert pass_at_k(ExactNumber, k)().calculate_all(responses) == pytest.approx(expected)


@given(right=st.lists(st.booleans(), min_size=1, max_size=8), data=st.data())
def test_pass_at_k_is_the_part_of_draws_that_hold_a_correct_text(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    draws = [any(draw) for draw in combinations(right, k)]
    value = pass_at_k(ExactMatch, k)().calculate_all(outcomes(*right))
    assert value == pytest.approx(float(Fraction(sum(draws), len(draws))))
    assert value == pass_at_k(ExactMatch, k)().calculate_all(outcomes(*data.draw(st.permutations(right))))
    # More draws can only help; one draw is the mean.
    assert value >= pass_at_k(ExactMatch, 1)().calculate_all(outcomes(*right)) - 1e-12
    assert pass_at_k(ExactMatch, 1)().calculate_all(outcomes(*right)) == pytest.approx(sum(right) / len(right))


def test_avg_at_k_is_the_mean_of_the_first_texts() -> None:
    # F1 with "a b": 1, 2/3 (precision 1, recall 1/2) and 0; the fourth is not asked for.
    responses = texts("x y", "x", "z", "x y", truth="x y")
    assert avg_at_k(F1, 3)().calculate_all(responses) == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert avg_at_k(F1, 1)().calculate_all(responses) == 1
    assert avg_at_k(ExactMatch, 4)().calculate_all(responses) == 1 / 2


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["7", "8", "7"], 1),
        (["8", "8", "7"], 0),
        # Answers vote and not texts: these are two times the same number.
        (["8", "so 7.0", "It is 7"], 1),
        # Of equally many the first counts.
        (["7", "8"], 1),
        (["8", "7"], 0),
        (["9", "8", "7", "7", "8"], 0),
        # Who has no answer has no vote, however many they are.
        (["none", "none", "none", "7"], 1),
        (["none", "?"], 0),
    ],
)
def test_the_majority_decides(answers: list[str], expected: float) -> None:
    assert maj_at_k(ExactNumber, len(answers))().calculate_all(texts(*answers)) == expected


def test_only_the_first_k_texts_vote() -> None:
    assert maj_at_k(ExactNumber, 3)().calculate_all(texts("7", "7", "8", "8", "8")) == 1
    assert maj_at_k(ExactNumber, 5)().calculate_all(texts("7", "7", "8", "8", "8")) == 0


@given(answers=st.lists(st.sampled_from(["7", "7.0", "8", "9", "none"]), min_size=1, max_size=7), data=st.data())
def test_a_majority_does_not_depend_on_the_order(answers: list[str], data: st.DataObject) -> None:
    metric = maj_at_k(ExactNumber, len(answers))()
    votes = [answer.removesuffix(".0") for answer in answers if answer != "none"]
    value = metric.calculate_all(texts(*answers))
    others = [votes.count(answer) for answer in {"8", "9"}]
    if votes.count("7") != max(others):
        assert value == float(votes.count("7") > max(others))
        assert metric.calculate_all(texts(*data.draw(st.permutations(answers)))) == value
    assert value in (0, 1)


@pytest.mark.parametrize("make", [pass_at_k, avg_at_k, maj_at_k])
def test_too_few_texts_raise(make: Any) -> None:
    with pytest.raises(DataError, match=r"@3 needs 3 texts of each prompt, and there are 2; set num_samples: 3"):
        make(ExactNumber, 3)().calculate_all(texts("7", "7"))
    with pytest.raises(DataError, match="@3 needs 3 texts of each prompt, and there are 1"):
        make(ExactNumber, 3)().calculate(texts("7")[0])
    assert make(ExactNumber, 1)().calculate(texts("7")[0]) == 1


@pytest.mark.parametrize("make", [pass_at_k, avg_at_k, maj_at_k])
@pytest.mark.parametrize("k", [0, -1])
def test_no_texts_are_too_few_to_ask_for(make: Any, k: int) -> None:
    with pytest.raises(TaskDefinitionError, match=rf"@{k} asks for {k} texts; expected at least 1"):
        make(ExactNumber, k)


def test_what_it_can_be_made_of() -> None:
    with pytest.raises(TaskDefinitionError, match="cannot be made of F1, whose IS_PROPORTION is false"):
        pass_at_k(F1, 2)
    with pytest.raises(TaskDefinitionError, match="cannot be made of F1, which does not say what a text's answer is"):
        maj_at_k(F1, 2)  # type: ignore[type-var]


def test_values_must_be_what_the_metric_says() -> None:
    class Half(CompletionMetric):
        NAME = "half"
        IS_PROPORTION = True

        def calculate(self, response: Completion) -> Any:
            return 0.5 if response.completion_text == "half" else {"a": 1.0}

    with pytest.raises(DataError, match=r"the metric half gave \[0.5\]; expected 0 or 1 for every text"):
        pass_at_k(Half, 1)().calculate_all(texts("half"))
    with pytest.raises(DataError, match="expected one number a text, of which to make avg@1"):
        avg_at_k(Half, 1)().calculate_all(texts("?"))


def test_what_is_made_bears_the_traits_of_what_it_is_made_of() -> None:
    assert [make(ExactNumber, 5).NAME for make in (pass_at_k, avg_at_k, maj_at_k)] == ["pass@5", "avg@5", "maj@5"]
    assert pass_at_k(ExactNumber, 5, name="solved").NAME == "solved"
    assert response_kind(pass_at_k(ExactNumber, 5)) is Completion
    # A mean of votes is 0 or 1; an estimate of pass@k and a mean of texts lie between.
    assert maj_at_k(ExactNumber, 5).IS_PROPORTION
    assert not pass_at_k(ExactNumber, 5).IS_PROPORTION
    assert not avg_at_k(ExactNumber, 5).IS_PROPORTION


def test_metrics_of_several_texts_have_bounds() -> None:
    assert pass_at_k(ExactNumber, 5).BOUNDS == avg_at_k(ExactNumber, 5).BOUNDS == maj_at_k(ExactNumber, 5).BOUNDS == (0, 1)
    assert avg_at_k(F1, 5).BOUNDS == (0, 1)
    assert avg_at_k(ExactNumber, 5).HIGHER_IS_BETTER

    class Mistakes(F1):
        HIGHER_IS_BETTER = False
        BEST = 0.0

    assert not avg_at_k(Mistakes, 2).HIGHER_IS_BETTER
    assert avg_at_k(Mistakes, 2).BEST == 0
    assert TER.BEST == 0


def test_each_has_a_version_of_its_own() -> None:
    made = [pass_at_k(ExactNumber, 2), pass_at_k(ExactNumber, 3), pass_at_k(ExactMatch, 2), avg_at_k(ExactNumber, 2)]
    assert len({code_version(metric) for metric in made}) == 4
    assert code_version(pass_at_k(ExactNumber, 2)) == code_version(made[0])
