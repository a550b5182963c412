"""Keeps a served model under its caps: a call is sent where it fits under them, with the calls that are under way.

Near a cap, calls are sent one by one. So the total ends within one call of the cap, above or below.
"""

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import NotEvaluatedError, StoreError
from eval_dagster.models.served.amounts import Amount, Estimate, Estimates
from eval_dagster.models.served.answers import BadAnswerError, Reply
from eval_dagster.models.served.bodies import Call
from eval_dagster.models.served.client import Client, PushbackError, StoppedError
from eval_dagster.models.served.ledger import Ledger, utc_day
from eval_dagster.models.served.secrets import Headers

_POLL_S = 0.25
"""How often a call that has no room looks whether calls of other processes have ended."""


class CapReachedError(StoppedError, NotEvaluatedError):
    """A cap of the model is reached."""

    @property
    def lets_others_end(self) -> bool:
        """Yes: calls that are under way had room."""
        return True


@dataclass(kw_only=True)
class _Sent:
    """A call that is under way."""

    call: Call
    estimate: Estimate
    number: int | None
    """In the ledger; null without a daily cap."""


class Spend:
    """What a loaded model spends in a run."""

    def __init__(self, name: str, config: OpenAIModel, folder: Path) -> None:
        """`name` is that of the model in evals.yaml, and `folder` that of the endpoint in the home."""
        self._name = name
        self._run_cap = _cap(config.cost_per_run, config.tokens_per_run)
        self._day_cap = _cap(config.cost_per_day, config.tokens_per_day)
        self._config = config
        self._folder = folder
        self._estimates = Estimates(config.price)
        self._sent: dict[int, _Sent] = {}
        self.spent = Amount()
        """In this run, with what calls of unknown usage are estimated to have used."""
        self.unknown = 0
        """Calls of unknown usage that may have been billed."""

    @contextmanager
    def ledger(self) -> Iterator[Ledger | None]:
        """The ledger of the day; None without a daily cap."""
        if self._day_cap is None:
            yield None
            return
        with Ledger(self._folder, self._name) as ledger:
            self._estimates.expect(ledger.known())
            yield ledger

    def too_little_for(self, calls: Sequence[Call]) -> str | None:
        """Why calls beside the requests must wait: they may need more than half of what a cap leaves. None where they need not."""
        needed = self._estimates.most_of(calls)
        caps = [("this run", self._run_cap, self.spent)]
        if self._day_cap is not None:
            with Ledger(self._folder, self._name) as ledger:
                caps.append(("today", self._day_cap, ledger.spent()))
        for when, cap, spent in caps:
            if cap is not None and not (spent + needed + needed).is_within(cap):
                return (
                    f"its canaries may need ${needed.cost:.6f} and {needed.tokens:,.0f} tokens, more than half of what the caps leave for "
                    f"{when}. They are asked when a cap can bear them; `canaries: 0` switches them off"
                )
        return None

    def take(self, call: Call, ledger: Ledger | None) -> _Sent | None:
        """Count a call that is about to be sent; None where it has no room at present."""
        estimate = self._estimates.of(call, len(self._sent))
        if self._run_cap is not None and not self._fits_run(estimate, self._run_cap):
            return None
        number = None
        if ledger is not None and self._day_cap is not None:
            number = ledger.take(estimate, self._day_cap)
            if number is None:
                return None
        sent = _Sent(call=call, estimate=estimate, number=number)
        self._sent[id(sent)] = sent
        return sent

    def answered(self, sent: _Sent, reply: Reply, ledger: Ledger | None) -> None:
        """Count what a call used."""
        used = self._estimates.used(sent.call, reply)
        self.unknown += used is None or None in (reply.prompt_tokens, reply.output_tokens)
        self._end(sent, sent.estimate.unknown if used is None else used, ledger)

    def lost(self, sent: _Sent, ledger: Ledger | None) -> None:
        """Count a call without an answer, which may have been billed."""
        self.unknown += 1
        self._end(sent, sent.estimate.unknown, ledger)

    def rejected(self, sent: _Sent, ledger: Ledger | None) -> None:
        """Forget a call that the server did not take."""
        self._end(sent, Amount(), ledger)

    def can_wait(self, call: Call, ledger: Ledger | None) -> bool:
        """Whether calls are under way whose end may give room to this one. What other processes have learnt is heeded from now on."""
        if self._sent:
            return True
        if ledger is None or (self._run_cap is not None and not self._fits_run(self._estimates.of(call, 0), self._run_cap)):
            return False
        self._estimates.expect(ledger.known())
        return ledger.count_under_way() > 0

    def reached(self, call: Call, ledger: Ledger | None) -> CapReachedError:
        """The error of a call that has no room."""
        config, estimate = self._config, self._estimates.of(call, 0)
        is_of_run = self._run_cap is not None and not self._fits_run(estimate, self._run_cap)
        if is_of_run or ledger is None:
            spent, cap, when, then = self.spent, self._run_cap or Amount(), "in this run", "run again at any time"
            keys = ("cost_per_run", config.cost_per_run), ("tokens_per_run", config.tokens_per_run)
        else:
            spent, cap, when, then = ledger.spent(), self._day_cap or Amount(), f"on {utc_day()} (UTC)", "run again from 00:00 UTC on"
            keys = ("cost_per_day", config.cost_per_day), ("tokens_per_day", config.tokens_per_day)
        after = spent + estimate.expected
        is_of_cost = math.isinf(cap.tokens) or after.cost > cap.cost
        key, most = keys[0] if is_of_cost else keys[1]
        so_far, more = [f"${each.cost:.6f}" if is_of_cost else f"{each.tokens:,.0f} tokens" for each in (spent, estimate.expected)]
        return CapReachedError(
            f"Model {self._name!r}: the cap `{key}: {most:g}` of evals.yaml is reached: {so_far} were spent {when}, and the next request "
            f"needs about {more}. Raise the cap, or {then}; answers so far are kept."
        )

    def _fits_run(self, estimate: Estimate, cap: Amount) -> bool:
        sent = [each.estimate.most for each in self._sent.values()]
        under_way = Amount(cost=sum(most.cost for most in sent), tokens=sum(most.tokens for most in sent))
        return estimate.fits(cap, self.spent, under_way, len(self._sent))

    def _end(self, sent: _Sent, used: Amount, ledger: Ledger | None) -> None:
        del self._sent[id(sent)]
        self.spent += used
        if ledger is not None and sent.number is not None:
            ledger.settle(sent.number, used, self._estimates.known())


class CappedClient(Client):
    """A client that sends a call only where it fits under the caps of the model."""

    def __init__(self, name: str, config: OpenAIModel, headers: Headers, spend: Spend) -> None:
        """`name` is that of the model in evals.yaml."""
        super().__init__(name, config.base_url, headers, config.timeout_s)
        self._spend = spend
        self._problem: StoreError | None = None
        """Why the ledger cannot be written to."""

    async def __aenter__(self) -> Self:
        """Open the connections, and the ledger where there is a daily cap."""
        self._first, self._end = asyncio.Lock(), asyncio.Event()
        with ExitStack() as stack:
            self._ledger = stack.enter_context(self._spend.ledger())
            await super().__aenter__()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close them."""
        with self._stack:
            await super().__aexit__(kind, error, trace)

    async def ask(self, call: Call) -> Reply:
        """Send a call once, as soon as there is room for it.

        Raises:
            CapReachedError: There is none, and there will be none.
            BadAnswerError, PushbackError, StoppedError: As `Client.ask`.
        """
        sent = await self._admitted(call)
        try:
            reply = await super().ask(call)
        except BaseException as error:
            self._count_failure(sent, error)
            raise
        else:
            try:
                self._spend.answered(sent, reply, self._ledger)
            except StoreError as error:  # the answer is there, and the next call is not sent
                self._problem = error
            return reply
        finally:
            self._end.set()

    async def _admitted(self, call: Call) -> _Sent:
        """Wait for room, first come first served."""
        async with self._first:
            if self._problem is not None:
                raise self._problem
            while (sent := self._spend.take(call, self._ledger)) is None:
                if not self._spend.can_wait(call, self._ledger):
                    sent = self._spend.take(call, self._ledger)
                    if sent is None:
                        raise self._spend.reached(call, self._ledger)
                    break
                self._end.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._end.wait(), _POLL_S)
            return sent

    def _count_failure(self, sent: _Sent, error: BaseException) -> None:
        if isinstance(error, BadAnswerError) and error.reply is not None:
            self._spend.answered(sent, error.reply, self._ledger)
        elif isinstance(error, StoppedError) or (isinstance(error, BadAnswerError | PushbackError) and not error.may_be_billed):
            self._spend.rejected(sent, self._ledger)
        else:
            self._spend.lost(sent, self._ledger)


def _cap(cost: float | None, tokens: int | None) -> Amount | None:
    if cost is None and tokens is None:
        return None
    return Amount(cost=math.inf if cost is None else cost, tokens=math.inf if tokens is None else tokens)
