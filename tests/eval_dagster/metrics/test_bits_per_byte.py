from math import log

import pytest

from eval_dagster.errors import DataError
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.records import Loglikelihood


def bits_per_byte(bits: list[float], gold: list[int], choices: list[str]) -> float:
    return BitsPerByteLoglikelihood().calculate(
        Loglikelihood(loglikelihoods=[-number * log(2) for number in bits], gold_indices=gold, choices=choices)
    )


def test_bits_by_bytes() -> None:
    # P = 2 ** -6 and " é" has three bytes.
    assert bits_per_byte([6], [0], [" é"]) == pytest.approx(2)


def test_only_correct_choices_count() -> None:
    # 12 bits by 4 bytes, whatever the other one has.
    assert bits_per_byte([1, 12], [1], ["abcd", "wxyz"]) == pytest.approx(3)


def test_of_several_correct_choices_the_best_counts() -> None:
    # 4 bits by 2 bytes are 2, 10 bits by 10 bytes are 1, although the first is more probable.
    assert bits_per_byte([4, 10, 0], [0, 1], ["ab", "abcdefghij", "x"]) == pytest.approx(1)


def test_defect_3_duplicates_have_their_own_values() -> None:
    assert bits_per_byte([2, 8], [0], ["ab", "ab"]) == pytest.approx(1)
    assert bits_per_byte([2, 8], [1], ["ab", "ab"]) == pytest.approx(4)


def test_a_sure_text_needs_no_bits() -> None:
    assert bits_per_byte([0], [0], ["a"]) == 0


def test_less_is_better() -> None:
    assert not BitsPerByteLoglikelihood.HIGHER_IS_BETTER


def test_an_empty_text_has_no_bits_per_byte() -> None:
    with pytest.raises(DataError, match="a correct choice is empty"):
        bits_per_byte([1, 2], [0, 1], ["", "a"])
    assert bits_per_byte([1, 2], [1], ["", "a"]) == pytest.approx(2)


def test_without_texts_there_are_no_bytes() -> None:
    with pytest.raises(DataError, match="expected those of the choices, to count bytes"):
        bits_per_byte([1], [0], [])
