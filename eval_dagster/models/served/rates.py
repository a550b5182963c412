"""Limits of requests and tokens a minute."""

_BURST_S = 2.0
"""What may be sent at once after a quiet time, in seconds of the rate."""
_MINUTE_S = 60.0
_MEMORY = 0.98
"""Weight of an earlier request by that of the next one: some 50 count."""


class RateLimit:
    """A token bucket (Turner 1986, IEEE Communications Magazine 24(10)). It has no clock: times are passed in.

    The bucket and what flows into it within a minute are the limit together, so no minute, wherever it begins, has more than the limit.
    What is taken is an estimate at first: what the caller expects, times the part of it that earlier requests used. `correct` counts the
    difference afterwards, by which the bucket can come into debt.
    """

    def __init__(self, per_minute: float) -> None:
        self._per_minute = per_minute
        self._size, self._flow = _bucket(per_minute)
        self._content = self._size
        self._seen: float | None = None
        self._expected = self._used = 0.0

    def share_among(self, holders: int) -> None:
        """Let so many processes have equal parts of the limit from now on."""
        self._size, self._flow = _bucket(self._per_minute / holders)
        self._content = min(self._content, self._size)

    def delay(self, now: float, expected: float) -> float:
        """Seconds until a request may be sent; 0 if it may be sent now. The bucket grows to an amount that it could not hold."""
        amount = expected * self._factor()
        if self._seen is not None:
            self._content = min(max(self._size, amount), self._content + (now - self._seen) * self._flow)
        self._seen = now
        return max(0.0, (amount - self._content) / self._flow)

    def take(self, expected: float) -> float:
        """Take what a request is expected to use, and return the amount."""
        amount = expected * self._factor()
        self._content -= amount
        return amount

    def correct(self, expected: float, taken: float, used: float) -> None:
        """Count what a request used in place of what was taken for it."""
        self._content += taken - used
        self._expected = _MEMORY * self._expected + expected
        self._used = _MEMORY * self._used + used

    def _factor(self) -> float:
        return self._used / self._expected if self._used else 1.0


def _bucket(per_minute: float) -> tuple[float, float]:
    """The size of the bucket, and what flows into it in a second. The bucket holds one request at least."""
    size = per_minute * _BURST_S / _MINUTE_S
    if size < 1:
        return 1.0, per_minute / _MINUTE_S
    return size, (per_minute - size) / _MINUTE_S
