"""Counts of ids in little memory."""

import random
from collections import Counter

import pytest

from eval_dagster.versions.seen_ids import SeenIds


def test_each_id_is_counted_as_often_as_it_came() -> None:
    drawn = random.Random(1)
    names = [f"{drawn.getrandbits(64):016x}" for _ in range(4000)] + ["0" * 16, "", "no hash", "½" * 16, "f" * 16, "-" + "0" * 15]
    names += [drawn.choice(names) for _ in range(8000)]
    seen, expected = SeenIds(), Counter[str]()
    for name in names:
        expected[name] += 1
        assert seen.times(name) == expected[name], name


@pytest.mark.long
def test_ids_that_share_their_last_bits_are_told_apart() -> None:
    seen = SeenIds()
    names = [f"{number << 40:016x}" for number in range(1, 3000)]
    assert {seen.times(name) for name in names} == {1}
    assert {seen.times(name) for name in names} == {2}
