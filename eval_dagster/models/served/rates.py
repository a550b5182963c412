"""Limits of requests and tokens a minute."""

_BURST_S = 2.0
"""What may be sent at once after a quiet time, in seconds of the rate."""
_MINUTE_S = 60.0


class RateLimit:
    """A token bucket (Turner 1986, IEEE Communications Magazine 24(10)). It has no clock: times are passed in.

    The bucket and what flows into it within a minute are the limit together, so no minute, wherever it begins, has more than the limit.
    What is taken is an estimate at first. `correct` counts the difference afterwards, by which the bucket can come into debt.
    """

    def __init__(self, per_minute: float) -> None:
        self._per_minute = per_minute
        self._size, self._flow = _bucket(per_minute)
        self._content = self._size
        self._seen: float | None = None

    def share_among(self, holders: int) -> None:
        """Let so many processes have equal parts of the limit from now on."""
        self._size, self._flow = _bucket(self._per_minute / holders)
        self._content = min(self._content, self._size)

    def delay(self, now: float, amount: float) -> float:
        """Seconds until this amount may be taken; 0 if it may be taken now. The bucket grows to an amount that it could not hold."""
        if self._seen is not None:
            self._content = min(max(self._size, amount), self._content + (now - self._seen) * self._flow)
        self._seen = now
        return max(0.0, (amount - self._content) / self._flow)

    def take(self, amount: float) -> None:
        """Take an amount."""
        self._content -= amount

    def correct(self, taken: float, used: float) -> None:
        """Count what was used in place of what was taken."""
        self._content += taken - used


def _bucket(per_minute: float) -> tuple[float, float]:
    """The size of the bucket, and what flows into it in a second. The bucket holds one request at least."""
    size = per_minute * _BURST_S / _MINUTE_S
    if size < 1:
        return 1.0, per_minute / _MINUTE_S
    return size, (per_minute - size) / _MINUTE_S
