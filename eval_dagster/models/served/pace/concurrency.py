"""Finds how many requests a server should have under way at once.

The number, here called the level, is found from the answers and the pushbacks alone:

1. Double it while the throughput gains 10 % or more.
2. Then stay, and compare now and then with a level a quarter higher and with one a fifth lower. A gain of 6 % starts the doubling again.
3. Halve it on pushback: the server rejects a request or closes its connection. Then rise again by one an answer, up to the number of
   requests that the server had accepted. If it had accepted none, go back to rule 1.

Throughput is level x tokens / seconds, where tokens and seconds are sums over the requests that were answered (Little's law: Little 1961,
Operations Research 9(3)). This sum has much less noise than the tokens that come in within a time, because long answers take longer.
Latency alone does not show when a server is full, since it follows the length of the answers and the size of the server's batches.
Halving and rising by one is the congestion control of TCP (Jacobson 1988, SIGCOMM).
"""

import math
from dataclasses import dataclass
from enum import Enum

_GAIN = 1.10
"""Throughput at a higher level by that of the lower one, from which the higher one is kept."""
_CLEAR_GAIN = 1.45
"""A gain that early answers can show. Those that are sent just after a full server's level has doubled wait less than later ones."""
_UP, _DOWN = 1.25, 0.8
"""The levels that are compared with a level that was found, as factors."""
_STEP_GAIN = 1.06
"""Throughput at the higher of two such levels by that of the lower one, from which the higher one is kept."""
_FIRST_ROUNDS, _ROUNDS = 0.25, 2.0
"""Answers of a measurement by level: at least, if the result is clear, and otherwise."""
_FULL = 0.9
"""Requests under way by level, from which an answer shows what the level is good for."""
_FEWEST = 4
"""Answers of a measurement, at least."""
_SMALL_ERROR = 0.1
"""Relative error of a speed that early answers can show."""
_FOLLOWED_S = 1.0
"""Seconds until the other processes have a new level, about."""
_STAY, _LONGEST_STAY = 4, 64
"""Rounds of answers between comparisons, and after pushbacks at most: each one doubles them."""


class _Phase(Enum):
    DOUBLING = "doubling"
    STAYING = "staying"
    COMPARED = "compared"
    """Measures the level like the two that it is compared with: the first answers after a change are short ones."""
    HIGHER = "higher"
    LOWER = "lower"
    RECOVERING = "recovering"


@dataclass
class _Measurement:
    """Sums over the answered requests that were sent at one level."""

    since: float
    is_second: bool = False
    """Whether an earlier measurement at this level left open if it gains."""
    answers: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    _tokens_squared: float = 0.0
    _products: float = 0.0
    _seconds_squared: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.answers += 1
        self.tokens += tokens
        self.seconds += seconds
        self._tokens_squared += tokens * tokens
        self._products += tokens * seconds
        self._seconds_squared += seconds * seconds

    def speed(self) -> float:
        """Tokens a second of one request."""
        return self.tokens / self.seconds

    def error(self) -> float:
        """Relative standard error of the speed, which is a ratio of sums."""
        speed = self.speed()
        residuals = self._tokens_squared - 2 * speed * self._products + speed * speed * self._seconds_squared
        return math.sqrt(max(0.0, residuals) * self.answers / (self.answers - 1)) / self.tokens


class ConcurrencyLevel:
    """The number of requests that may be under way at a server, by the rule of this module. It has no clock: times are passed in.

    Several processes can share it. One of them leads, which means that its answers move the level; the others follow.
    """

    def __init__(self, *, start: int = 8, most: int = 1024, least: int = 1) -> None:
        """Begin at a level. Where `least` is `most`, the level is constant."""
        self._least, self._most = least, most
        self.level = self._within(start)
        """Requests under way at once, of all processes together."""
        self.ceiling: int | None = None
        """Requests that the server had accepted when it last pushed back; None before."""
        self.leads = True
        self.holders = 1
        """Processes that share the level."""
        self._stay = _STAY
        self._found_level, self._found_rate = self.level, 0.0
        self._sent_before = 0
        """Requests under way now that were sent before the last halving, at most."""
        self._accepted = 0
        """Requests under way at the last halving that were not rejected since."""
        self._has_answer = True
        """Whether a request was answered since the last halving."""
        self._phase = _Phase.DOUBLING
        self._is_quick = True
        self._measured = _Measurement(-math.inf)

    @property
    def share(self) -> int:
        """Requests that this process may have under way."""
        return max(1, self.level // self.holders)

    def answered(self, now: float, sent: float, tokens: float, under_way: int) -> None:
        """Count an answer.

        Args:
            now: The time in seconds.
            sent: When the request was sent.
            tokens: Work of the request, in tokens or another unit that its time is about proportional to.
            under_way: Requests of this process that were under way, with this one. If fewer than its share, the answer shows nothing.
        """
        self._sent_before -= 1
        self._has_answer = True
        if not self.leads:
            return
        if self._phase is _Phase.RECOVERING:
            ceiling = self._within(self.ceiling or self.level)
            self.level = self._within(min(self.level + self.holders, max(self.level, ceiling)))
            if self.level >= ceiling:
                self._sent_before = 0
                self._go(now, _Phase.STAYING, self.level)
        elif under_way >= _FULL * self.share and sent >= self._measured.since:
            self._measured.add(max(tokens, 1.0), max(now - sent, 1e-6))
            self._decide(now)

    def failed(self) -> None:
        """Count a request that ended without an answer or a pushback."""
        self._sent_before -= 1

    def pushed_back(self, now: float, under_way: int) -> bool:
        """Halve the level, once for the requests that are under way together.

        Returns:
            Whether this is the first pushback of those requests.
        """
        self._sent_before -= 1
        is_first = self._sent_before < 0
        if is_first:
            self._sent_before = self._accepted = under_way - 1
            self._stay = min(2 * self._stay, _LONGEST_STAY)
            self._is_quick = False
            self._go(now, _Phase.RECOVERING, self.level / 2)
            has_answer, self._has_answer = self._has_answer, False
        else:
            self._accepted -= 1
            has_answer = True
        if self._accepted <= 0 or not has_answer:
            # Find the level anew from here: a server that rejects everything shows no bound. It restarts, or a limit of time is spent.
            self.ceiling = None
            self._stay, self._is_quick, self._found_rate = _STAY, True, 0.0
            self._go(now, _Phase.DOUBLING, self.level)
        elif self._phase is _Phase.RECOVERING:
            self.ceiling = max(self.level, self._accepted * self.holders)
        return is_first

    def follow(self, now: float, level: int, ceiling: int | None) -> None:
        """Take the level and the ceiling that another process found. A lower level is a pushback that the other process got."""
        phase = _Phase.RECOVERING if level < self.level and ceiling is not None else self._phase
        if self._within(level) != self.level:
            self._go(now, phase, level)
        self.ceiling = ceiling

    def shared_among(self, now: float, holders: int) -> None:
        """Share the level among so many processes from now on."""
        if holders != self.holders:
            self.holders = holders
            self._measured = _Measurement(now)

    def _within(self, level: float) -> int:
        return max(self._least, min(self._most, int(level)))

    def _go(self, now: float, phase: _Phase, level: float) -> None:
        self._phase = phase
        self.level = self._within(level)
        self._measured = _Measurement(now + (_FOLLOWED_S if self.holders > 1 else 0.0))

    def _decide(self, now: float) -> None:
        """Move to another level, or another phase, if the measurement is long enough."""
        measured, rounds = self._measured, self._measured.answers / self.share
        if measured.answers < _FEWEST or rounds < _FIRST_ROUNDS:
            return
        rate = self.level * measured.speed()
        is_clear = rate > _CLEAR_GAIN * self._found_rate
        if self._phase is _Phase.STAYING:
            if rounds >= self._stay:
                self._go(now, _Phase.COMPARED, self.level)
        elif self._phase is _Phase.COMPARED:
            if rounds >= _ROUNDS:
                self._found_level, self._found_rate = self.level, rate
                self._go(now, _Phase.HIGHER, max(self.level + 1, self.level * _UP))
        elif self._phase is _Phase.LOWER:
            if rounds >= _ROUNDS:
                self._go(now, _Phase.STAYING, self.level if rate * _STEP_GAIN > self._found_rate else self._found_level)
        elif rounds >= _ROUNDS or (self._is_quick and is_clear and measured.error() < _SMALL_ERROR):
            least = _GAIN if self._phase is _Phase.DOUBLING else _STEP_GAIN
            if rate < least * self._found_rate:
                if self._is_quick:  # the rate that was found is of early answers, most of them short, and may be too high
                    self._is_quick, self._found_rate = False, 0.0
                    self._go(now, _Phase.DOUBLING, self._found_level)
                elif self._phase is _Phase.DOUBLING:
                    self._go(now, _Phase.STAYING, self._found_level * _UP)
                else:
                    self._go(now, _Phase.LOWER, self._found_level * _DOWN)
            elif is_clear or measured.is_second or self._phase is _Phase.HIGHER:
                # Keep the level, and try twice as many, or a quarter more if the server has pushed back before.
                self._stay = _STAY
                self._found_level, self._found_rate = self.level, rate
                if self.ceiling is None:
                    self._go(now, _Phase.DOUBLING, self.level * 2)
                else:
                    self._go(now, _Phase.HIGHER, max(self.level + 1, self.level * _UP))
            else:
                self._measured = _Measurement(measured.since, is_second=True)
