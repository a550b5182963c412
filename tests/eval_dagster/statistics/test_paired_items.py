"""The comparison of metrics that are computed from one item a sample."""

from itertools import product
from statistics import fmean

import numpy as np
import pytest

from eval_dagster.statistics.paired import compare_items, compare_means


def matthews(items: list[tuple[int, int]]) -> float:
    """Matthews' correlation of (gold, predicted) pairs."""
    gold, predicted = np.array(items).T
    return float(np.corrcoef(gold, predicted)[0, 1])


def test_the_mean_of_items_is_compared_as_a_mean() -> None:
    generator = np.random.default_rng(5)
    b = generator.normal(0, 1, 400)
    a = b + generator.normal(0.1, 0.5, 400)
    ours, expected = compare_items(a.tolist(), b.tolist(), fmean), compare_means(a.tolist(), b.tolist())
    assert (ours.value_a, ours.difference) == pytest.approx((expected.value_a, expected.difference))
    assert expected.stderr is not None
    assert expected.p_value is not None
    assert ours.stderr == pytest.approx(expected.stderr, rel=0.1)
    assert ours.p_value == pytest.approx(expected.p_value, abs=0.01, rel=0.5)
    assert ours.test == "paired bootstrap"


def test_few_changes_are_swapped_exactly() -> None:
    gold = [0, 1] * 20
    a = [(each, each) for each in gold]
    b = [(each, 1 - each if number < 5 else each) for number, each in enumerate(gold)]
    found = compare_items(a, b, matthews)
    seen = abs(matthews(a) - matthews(b))
    by_hand = 0
    for swaps in product((False, True), repeat=5):
        chosen = [(y, x) if number < 5 and swaps[number] else (x, y) for number, (x, y) in enumerate(zip(a, b, strict=True))]
        by_hand += abs(matthews([x for x, _ in chosen]) - matthews([y for _, y in chosen])) >= seen - 1e-9
    assert found.test == "sign flips"
    assert found.p_value == by_hand / 32


def test_samples_without_an_item_are_left_out_and_counted() -> None:
    found = compare_items([1.0, None, 3.0, None], [1.0, 2.0, None, None], fmean)
    assert (found.n_common, found.n_only_a, found.n_only_b, found.n_neither) == (1, 1, 1, 1)
    assert (found.difference, found.p_value) == (0.0, None)


def test_no_common_sample_gives_no_value() -> None:
    assert compare_items([1.0, None], [None, 2.0], fmean).value_a is None


def test_clusters_are_swapped_and_drawn_together() -> None:
    a, b = [1.0] * 4 + [0.0] * 36, [0.0] * 40
    alone, together = compare_items(a, b, fmean), compare_items(a, b, fmean, clusters=[0] * 4 + [1 + number // 4 for number in range(36)])
    assert alone.p_value == pytest.approx(2 / 2**4)
    assert together.p_value == 1.0
    assert together.n_clusters == 10
