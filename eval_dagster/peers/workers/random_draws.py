"""Counts what functions draw from the global generators of Python and NumPy, so that one call can be repeated without those before it."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SEED = 1234
"""With which lighteval seeds both generators before it makes documents."""
NONE = (0, 0)
_MOST = 10_000
"""Words that one call may draw."""


def start(drawn: Sequence[int] = NONE) -> None:
    """Put both generators where they are after so many words of 32 bits: of Python's, of NumPy's."""
    random.seed(SEED)
    random.getrandbits(32 * drawn[0])
    np.random.seed(SEED)
    if drawn[1]:  # a request for no bytes draws a word
        np.random.bytes(4 * drawn[1])


class Counter:
    """Counts the words that were drawn since `start()`."""

    def __init__(self) -> None:
        start()
        self.drawn = NONE
        self._states = _states()

    def advance(self) -> bool:
        """Count what was drawn since the last call; whether it was anything."""
        before, self._states = self._states, _states()
        python, numpy = random.Random(), np.random.RandomState()  # noqa: S311
        python.setstate(before[0])
        numpy.set_state(before[1])
        first = _count(lambda: python.getstate() == self._states[0], lambda: python.getrandbits(32))
        second = _count(lambda: _equal(numpy.get_state(), self._states[1]), lambda: numpy.bytes(4))
        self.drawn = (self.drawn[0] + first, self.drawn[1] + second)
        return first + second > 0


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _equal(first: Any, second: Any) -> bool:
    return bool(first[2] == second[2] and np.array_equal(first[1], second[1]))


def _count(is_there: Callable[[], bool], step: Callable[[], object]) -> int:
    for count in range(_MOST):
        if is_there():
            return count
        step()
    raise NotImplementedError(
        f"its prompt function seeds a global generator, or draws more than {_MOST} numbers for a row, so its prompts depend on other rows"
    )
