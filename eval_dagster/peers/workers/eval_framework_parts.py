"""Parts that are put into an eval of eval-framework: the loader of its rows, the rows, and the generator that orders them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Generator", "Item", "Loader", "Splits"]


class Item(dict[str, object]):
    """A row that says when the eval comes to it: an eval notes the subject in each row before it makes the samples of it."""

    begun: Callable[[Item], None] | None = None

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "subject" and self.begun is not None:
            self.begun(self)
        super().__setitem__(key, value)


class Loader:
    """Gives the splits of a subject instead of the loader of an eval."""

    def __init__(self, load: Callable[[str | None], Mapping[str, object]], own: Any) -> None:
        self._load, self._own = load, own

    def load(self, name: str | None) -> Mapping[str, object]:
        """The splits."""
        return self._load(name)

    def metadata(self) -> Mapping[str, str]:
        """The metadata that the eval's own loader has."""
        found: Mapping[str, str] = self._own.metadata()
        return found


class Splits(dict[str, list[Any]]):
    """Splits by name; one that was not sent is empty."""

    def __missing__(self, name: str) -> list[Any]:
        return []


class Generator(random.Random):
    """The random generator of an eval. The eval first uses it to shuffle its rows; `ordered` does that instead."""

    def __init__(self, seed: int, ordered: Callable[[Generator, list[Any]], None]) -> None:
        super().__init__(seed)
        self._ordered: Callable[[Generator, list[Any]], None] | None = ordered

    def shuffle(self, x: Any) -> None:
        """Shuffle a list. `ordered` gets the first one."""
        if self._ordered is None:
            super().shuffle(x)
        else:
            ordered, self._ordered = self._ordered, None
            ordered(self, x)
