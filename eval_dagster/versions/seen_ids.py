"""Counts how often ids were seen, in little memory."""

import hashlib
from array import array

_LEAST_PLACES = 2**10
"""Places of a table of ids; always a power of 2."""
_DIGITS = 16


class SeenIds:
    """Counts how often ids were seen, in 16 to 32 bytes for each. A dictionary takes ten times as much."""

    def __init__(self) -> None:
        self._places = array("Q", bytes(8 * _LEAST_PLACES))
        """Ids as numbers, each at the first place that was free from the one that its last bits name; 0 where there is none."""
        self._count = 0
        self._repeated: dict[int, int] = {}

    def times(self, name: str) -> int:
        """How often this id was seen, with this time. Ids count as equal if 64 bits are, as the ids of `stable_hash` do."""
        number = _number(name)
        if self._is_new(number):
            return 1
        self._repeated[number] = self._repeated.get(number, 1) + 1
        return self._repeated[number]

    def __contains__(self, name: str) -> bool:
        """Whether this id was seen."""
        number, last = _number(name), len(self._places) - 1
        place = number & last
        while self._places[place]:
            if self._places[place] == number:
                return True
            place = (place + 1) & last
        return False

    def _is_new(self, number: int) -> bool:
        places, last = self._places, len(self._places) - 1
        place = number & last
        while places[place]:
            if places[place] == number:
                return False
            place = (place + 1) & last
        places[place] = number
        self._count += 1
        if 2 * self._count > last:
            self._places, self._count = array("Q", bytes(2 * 8 * len(places))), 0
            for each in filter(None, places):
                self._is_new(each)
        return True


def _number(name: str) -> int:
    """An id as a number of 64 bits that is not 0."""
    if len(name) == _DIGITS and name.isalnum():
        try:
            return int(name, 16) or 1
        except ValueError:
            pass
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()) or 1
