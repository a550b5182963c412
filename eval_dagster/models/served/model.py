"""A served model that answers: many calls under way at once, each repeated if that can help."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from eval_dagster.config.models import OpenAIModel
from eval_dagster.models.served.calls.answers import BadAnswerError
from eval_dagster.models.served.calls.bodies import Call
from eval_dagster.models.served.calls.secrets import Headers
from eval_dagster.models.served.calls.threads import Put, Stream, result_of
from eval_dagster.models.served.pace.pacing import Pace
from eval_dagster.models.served.replicas import Fleet, Replica
from eval_dagster.models.served.scoring.local_tokenizer import LocalTokenizer
from eval_dagster.models.served.scoring.responses import CallReply
from eval_dagster.models.served.series import Answered, Series
from eval_dagster.models.served.spend.spend import CappedClient, Spend
from eval_dagster.models.usage import GenerationUsage, Usage
from eval_dagster.progress.reporting import Reporter, current_reporter
from eval_dagster.records import Request


class ServedModel:
    """A model behind a server."""

    def __init__(
        self,
        name: str,
        config: OpenAIModel,
        headers: Headers,
        pace: Callable[[], AbstractAsyncContextManager[Pace]],
        spend: Spend,
        *,
        tokenizer: LocalTokenizer | None = None,
        context: int | None = None,
        replicas: Sequence[Replica] = (),
    ) -> None:
        """`pace` gives what decides when a call may be sent; it is opened for each series of requests. `spend` holds to the caps.

        `tokenizer` is the one that evals.yaml names, `context` the number of tokens that the server declares for a prompt and its answer.
        `replicas` are all servers of the model, with the one of `config`, if there are several. They divide the requests.
        """
        self._name = name
        self._config = config
        self._headers = headers
        self._pace = pace
        self._spend = spend
        self._tokenizer = tokenizer
        self._context = context
        self._replicas = replicas
        self._now: Pace | Fleet | None = None
        self._stream: Stream[Answered] | None = None
        self._is_ending = False
        addresses = ", ".join(each.config.base_url for each in replicas) or config.base_url
        self._usage = GenerationUsage(path="server", reason=f"asked at {addresses}")

    def respond(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """Answer every request once, in the order in which the server does.

        Raises:
            CapReachedError: A cap of the model is reached.
            StoppedError: No further request can succeed: the key is refused, the quota is spent, or the server is down.
        """
        reporter = current_reporter()  # a thread of its own has none

        ask = self._ask_all if self._replicas else self._ask_one
        self._stream = Stream(partial(ask, requests, reporter))
        return iter(self._stream)

    def end(self) -> None:
        """Begin no further request. `respond` ends when those under way are answered."""
        self._is_ending = True
        if self._stream is not None:
            self._stream.end(lambda: self._now is None or not self._now.under_way)

    async def _ask_one(self, requests: Sequence[Request], reporter: Reporter, put: Put[Answered]) -> None:
        config = self._config
        async with self._pace() as pace, CappedClient(self._name, config, self._headers, self._spend) as client:
            series = Series(self._name, config, client, pace, self._put_counted(put), self._tokenizer, is_ending=lambda: self._is_ending)
            self._now = pace
            try:
                await series.ask(requests, self._context, reporter)
            finally:
                self._now = None

    async def _ask_all(self, requests: Sequence[Request], reporter: Reporter, put: Put[Answered]) -> None:
        def client_of(replica: Replica) -> CappedClient:
            return CappedClient(self._name, replica.config, self._headers, self._spend)

        self._now = Fleet(
            self._name,
            self._replicas,
            client_of,
            self._put_counted(put),
            self._tokenizer,
            self._context,
            reporter,
            is_ending=lambda: self._is_ending,
        )
        try:
            await self._now.ask(requests)
        finally:
            self._now = None

    def replies(self, calls: Sequence[Call]) -> list[CallReply | BadAnswerError]:
        """The replies to single calls, or the reasons for missing ones, in the order of the calls. `usage` does not count them.

        Raises:
            CapReachedError, StoppedError: As `respond` does.
        """

        async def work() -> list[CallReply | BadAnswerError]:
            config = self._config
            async with self._pace() as pace, CappedClient(self._name, config, self._headers, self._spend) as client:
                series = Series(self._name, config, client, pace, lambda _: None, None)
                return await series.replies(calls)

        return result_of(work)

    def usage(self) -> Sequence[Usage]:
        """The tokens that the server counted."""
        now = self._now
        self._usage.state = "" if now is None else now.state()
        return (self._usage,)

    def _put_counted(self, put: Put[Answered]) -> Put[Answered]:
        def counted(item: Answered) -> None:
            report = item[1].report
            self._usage.requests += 1
            if report is not None:
                self._usage.passes += report.attempts
                self._usage.prompt_tokens_asked += report.prompt_tokens or 0
                self._usage.prompt_tokens_computed += (report.prompt_tokens or 0) - (report.cached_tokens or 0)
                self._usage.tokens_decoded += report.output_tokens or 0
            if self._config.price is not None:
                self._usage.cost, self._usage.cost_estimated = self._spend.spent.cost, self._spend.unknown
            put(item)

        return counted
