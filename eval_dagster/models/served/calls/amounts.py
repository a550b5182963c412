"""Amounts that calls to a served model use: dollars and tokens, estimated before the answer and known after it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eval_dagster.config.models import Price
from eval_dagster.models.served.calls.answer_records import Reply, Text
from eval_dagster.models.served.calls.bodies import Call

_BYTES_PER_TOKEN = 3
"""Most texts have more bytes a token, so that an estimate is rather too high."""
_PROMPT_MARGIN = 1.5
"""The largest prompt that is expected, by its estimate."""
_OUTPUT_MARGIN = 4
"""The longest answer that is expected, by the longest one so far."""
_UNSEEN_TOKENS = 1024
"""Tokens of an answer without a maximum that is lost before any length is known."""
_ROUNDING = 1e-9
Known = Mapping[str, tuple[int, float]]
"""What processes tell each other about answers: for each maximum of tokens the longest answer, and the extra tokens of prompts."""


@dataclass(frozen=True, kw_only=True)
class Amount:
    """Dollars and tokens."""

    cost: float = 0.0
    """US dollars; 0 without a price."""
    tokens: float = 0.0
    """Of prompts and answers."""

    def __add__(self, other: "Amount") -> "Amount":
        """The sum."""
        return Amount(cost=self.cost + other.cost, tokens=self.tokens + other.tokens)

    def is_within(self, cap: "Amount") -> bool:
        """Whether neither the dollars nor the tokens exceed a cap."""
        return self.cost <= cap.cost + _ROUNDING and self.tokens <= cap.tokens + _ROUNDING


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The most that a call may use."""

    expected: Amount
    """With an answer as long as the longest one so far."""
    most: Amount
    """With the longest answer that it may have; infinite if no length is known."""
    unknown: Amount
    """What counts if the usage stays unknown."""

    def fits(self, cap: Amount, spent: Amount, under_way: Amount, count: int) -> bool:
        """Whether a call may be sent beside `count` others that may use `under_way`. A call alone may exceed what is expected of it."""
        return (spent + under_way + self.most if count else spent + self.expected).is_within(cap)


@dataclass
class _Seen:
    """The answers to the calls with one maximum of tokens, which are taken for alike."""

    count: int = 0
    """Answers in this process; 1 for those of all other processes."""
    longest: int = 0
    """Tokens of the longest answer."""
    extra: float = 0.0
    """Most tokens that a prompt had above its size in bytes, such as those of a template or of images."""


@dataclass
class Estimates:
    """Estimates of calls, by the calls that were answered."""

    price: Price | None
    _seen: dict[int | None, _Seen] = field(default_factory=dict)

    def of(self, call: Call, under_way: int) -> Estimate:
        """The estimate of a call beside so many others.

        An answer has at most its maximum of tokens. Once as many answers with this maximum are known as calls are under way, it is taken to
        have at most four times the tokens of the longest. Before the first answer, no call is sent beside others.
        """
        maximum = call.most_output
        seen = self._seen.get(maximum, _Seen())
        by_answers = _OUTPUT_MARGIN * seen.longest if seen.count > under_way else math.inf
        by_maximum = math.inf if maximum is None or seen.longest > maximum else maximum
        most = min(by_answers, by_maximum) if self._seen else math.inf
        prompt = _prompt_size(call) + seen.extra
        return Estimate(
            expected=self._amount(prompt, seen.longest),
            most=self._amount(prompt * _PROMPT_MARGIN if call.token_ids is None else prompt, most),
            unknown=self._amount(prompt, seen.longest or maximum or _UNSEEN_TOKENS),
        )

    def most_of(self, calls: Sequence[Call]) -> Amount:
        """The most that some calls may use, if each has a maximum."""
        amounts = [self._amount(_prompt_size(call), call.most_output or 0) for call in calls]
        return Amount(cost=math.fsum(each.cost for each in amounts), tokens=math.fsum(each.tokens for each in amounts))

    def known(self) -> Known:
        """The estimates for other processes."""
        return {str(maximum): (seen.longest, seen.extra) for maximum, seen in self._seen.items()}

    def expect(self, known: Known) -> None:
        """Expect what other processes know."""
        for text, (longest, extra) in known.items():
            seen = self._seen.setdefault(None if text == "None" else int(text), _Seen())
            seen.longest, seen.extra = max(seen.longest, longest), max(seen.extra, extra)
            seen.count = max(seen.count, 1)

    def used(self, call: Call, reply: Reply) -> Amount | None:
        """The amount that an answered call used. Later estimates learn from it. If the server gives no counts, from the size of its answer.

        None if that is unknown too.
        """
        output, content = reply.output_tokens, reply.content
        if output is None and content is None:
            return None
        if output is None:  # a call that scores has one token
            is_text = isinstance(content, Text)
            output = math.ceil(_text_tokens([content.text, content.reasoning or "", *content.tool_calls])) if is_text else 1
        size = _prompt_size(call)
        prompt = size if reply.prompt_tokens is None else reply.prompt_tokens
        seen = self._seen.setdefault(call.most_output, _Seen())
        seen.count += 1
        seen.longest, seen.extra = max(seen.longest, output), max(seen.extra, prompt - size)
        return self._amount(prompt, output, reply.cached_tokens or 0)

    def _amount(self, prompt: float, output: float, cached: int = 0) -> Amount:
        return Amount(cost=0.0 if self.price is None else dollars(self.price, prompt, output, cached), tokens=prompt + output)


def dollars(price: Price, prompt: float, output: float, cached: int) -> float:
    """The cost of tokens. `cached` of the tokens of the prompt were in the server's cache."""
    cached_price = price.input if price.cached_input is None else price.cached_input
    of_output = output * price.output if price.output else 0.0  # the tokens may be infinite
    return ((prompt - cached) * price.input + cached * cached_price + of_output) / 1_000_000


def _prompt_size(call: Call) -> float:
    """About how many tokens a prompt has, by its size."""
    return _text_tokens(call.texts) if call.token_ids is None else float(call.token_ids)


def _text_tokens(texts: list[str]) -> float:
    return max(1.0, sum(len(text.encode()) for text in texts) / _BYTES_PER_TOKEN)
