"""A table with the values that were used last. It needs the standard library alone."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Values by key, of which the one that was not used for longest goes when there are too many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[str, T] = {}

    def get(self, key: str) -> T | None:
        """The value of a key; None if it has gone."""
        value = self.pop(key)
        if value is not None:
            self._values[key] = value  # the last one is the most recent
        return value

    def put(self, key: str, value: T) -> None:
        """Add a value."""
        self._values[key] = value
        while len(self._values) > self._most:
            del self._values[next(iter(self._values))]

    def pop(self, key: str) -> T | None:
        """The value of a key, which goes; None if it has gone."""
        return self._values.pop(key, None)
