from math import log

import numpy as np
import pytest

from eval_dagster.errors import DataError
from eval_dagster.metrics.perplexity import GreedyAccuracy, TargetPerplexity
from eval_dagster.records import Loglikelihood


def response(values: list[float], gold: list[int], is_greedy: list[bool]) -> Loglikelihood:
    return Loglikelihood(loglikelihoods=values, gold_indices=gold, choices=[" one", " two words"][: len(values)], is_greedy=is_greedy)


def test_what_the_model_would_write_is_accurate_however_probable_it_is() -> None:
    assert GreedyAccuracy().calculate(response([-2.0], [0], [True])) == 1
    assert GreedyAccuracy().calculate(response([-0.1], [0], [False])) == 0
    # Of two choices the correct one counts, and of two correct ones either.
    assert GreedyAccuracy().calculate(response([-2.0, -1.0], [0], [False, True])) == 0
    assert GreedyAccuracy().calculate(response([-2.0, -1.0], [0, 1], [False, True])) == 1


def test_a_model_that_does_not_say_what_it_would_write_is_not_wrong() -> None:
    with pytest.raises(DataError, match="of 0 choices whether the model would write them, but has 1"):
        GreedyAccuracy().calculate(response([-2.0], [0], []))
    with pytest.raises(DataError, match="no choice is marked as correct"):
        GreedyAccuracy().calculate(response([-2.0], [], [True]))


def test_the_perplexity_counts_choices_and_not_their_words() -> None:
    # Probabilities 1/2 and 1/8: exp((ln 2 + ln 8) / 2) = 4, the geometric mean of 2 and 8, as in lm-evaluation-harness.
    found = [TargetPerplexity().calculate(response([-log(2)], [0], [])), TargetPerplexity().calculate(response([0.0, -log(8)], [1], []))]
    sums = np.array([[each[name] for name in TargetPerplexity.STATISTICS] for each in found]).sum(axis=0)
    assert sums[1] == 2
    assert float(TargetPerplexity.aggregate(sums)) == pytest.approx(4)
