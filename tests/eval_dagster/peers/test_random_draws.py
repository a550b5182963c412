"""A call that draws at random can be repeated alone."""

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from eval_dagster.peers.workers import random_draws


@pytest.fixture(autouse=True)
def _kept_states() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def nothing() -> None:
    return None


def shuffled() -> list[int]:
    numbers = list(range(10))
    random.shuffle(numbers)
    return numbers


CALLS: list[Callable[[], object]] = [
    lambda: random.randint(0, 3),
    nothing,
    shuffled,
    lambda: int(np.random.randint(0, 4)),
    lambda: [random.random(), float(np.random.random())],
    lambda: random.sample(range(100), 5),
    nothing,
    lambda: np.random.permutation(8).tolist(),
]


def test_each_call_is_repeated_without_those_before() -> None:
    counter = random_draws.Counter()
    noted = []
    for call in CALLS * 50:
        before = counter.drawn
        noted.append((call, before, call(), counter.advance()))
    random.seed(random_draws.SEED)
    np.random.seed(random_draws.SEED)
    assert [result for _, _, result, _ in noted] == [call() for call in CALLS * 50]
    assert [is_drawn for *_, is_drawn in noted] == [call is not nothing for call in CALLS * 50]
    for call, before, result, _ in reversed(noted):
        random_draws.start(before)
        assert call() == result


def test_a_call_that_seeds_the_generator_is_refused() -> None:
    counter = random_draws.Counter()
    random.seed(5)
    with pytest.raises(NotImplementedError, match="its prompts depend on other rows"):
        counter.advance()
