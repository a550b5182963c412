"""The decoding loop: a finished text leaves the batch at once, and the next prompt joins. Shared beginnings are computed once."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from time import perf_counter

import torch

from eval_dagster.models.transformers.encoding.tokenization import Codec, by_prefix
from eval_dagster.models.transformers.generation.jobs import NOT_FINITE, RESERVE, Sample, Text, TextPlan, foreseen
from eval_dagster.models.transformers.generation.logits_processors import GrammarRows, GumbelNoise, StopText, warpers
from eval_dagster.models.transformers.generation.row_network import RowNetwork
from eval_dagster.models.transformers.network.batching import Failure, Outcome, check_device, failure_of, is_out_of_memory
from eval_dagster.models.transformers.network.resources import release_memory

_LOG = logging.getLogger(__name__)

_CHUNK = 2048
"""Most tokens of a prompt computed at a time. It bounds the memory of the activations."""

_SMALLEST_CHUNK = 64
"""Fewest tokens of a prompt computed at a time. If the memory is too small for them, the prompt fails."""

_NO_IDS = torch.empty((0, 0), dtype=torch.long)
"""No tokens, for logits processors that read the logits alone."""

Outcomes = list[Outcome[Sample, Text]]


class Decoder:
    """Generates texts with one network, in rows that come and go."""

    def __init__(self, network: RowNetwork, codec: Codec, *, rows: int, alone: Callable[[Sequence[Sample], TextPlan], Iterable[Outcomes]]):
        """`rows` are the most of a batch, halved after running out of memory. `alone` generates texts one by one after a failure."""
        self.network = network
        self.codec = codec
        self.rows = rows
        self.chunk = _CHUNK
        self.alone = alone

    def run(self, samples: Sequence[Sample], plan: TextPlan) -> Iterator[Outcomes]:
        """Generate texts. Yields each as soon as it is finished."""
        ordered = by_prefix(samples, lambda sample: sample.prompt)
        if self.network.store is not None:
            self.network.store.begin({sample.prompt for sample in samples})
        longest = max((len(sample.prompt) + foreseen(sample, plan) for sample in samples), default=0)
        is_scarce = self.network.rows_in_memory(longest) < min(self.rows, len(samples))
        try:
            for part in _by_length(ordered) if is_scarce else [ordered]:
                yield from _Batch(self, plan, part).run()
        finally:
            self.network.clear()


def _by_length(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Split the samples if all later prompts are at most half as long, since each row takes the memory of the longest prompt."""
    longest_left = list(accumulate((len(sample.prompt) for sample in reversed(samples)), max))[::-1]
    parts: list[list[Sample]] = []
    longest = 0
    for sample, left in zip(samples, longest_left, strict=True):
        if not parts or 2 * left <= longest:
            longest = left
            parts.append([])
        parts[-1].append(sample)
    return parts


class _Row:
    """A text that is being generated."""

    def __init__(self, sample: Sample, plan: TextPlan):
        self.sample = sample
        self.tokens: list[int] = []
        self.logits: list[float] = []
        self.seconds = 0.0
        # Generators of the CPU give the same numbers whatever the device.
        self.generator = torch.Generator().manual_seed(sample.seed(plan.settings))
        self.grammar = None if plan.matcher is None else GrammarRows(plan.matcher, 1)


class _Batch:
    """The texts of one group of requests: the waiting ones and those that are being generated."""

    def __init__(self, decoder: Decoder, plan: TextPlan, samples: Sequence[Sample]):
        self._decoder = decoder
        self._network = decoder.network
        self._plan = plan
        self._waiting = deque(samples)
        self._rows: list[_Row] = []
        self._longest = max((len(sample.prompt) for sample in samples), default=0)
        self._stop = StopText(decoder.codec, plan.settings.stop_sequences)
        self._warpers = warpers(plan.settings)
        self._start_again()

    def run(self) -> Iterator[Outcomes]:
        while self._waiting or self._rows:
            joins = bool(self._waiting) and len(self._rows) < self._network.rows
            try:
                done = self._join() if joins else self._step()
            except Exception as error:
                check_device(error)
                # The frames of the error hold tensors, which must be freed before the next attempt.
                yield from self._recover(error.with_traceback(None), joins=joins)
            else:
                if done:
                    yield done

    def _join(self) -> Outcomes:
        """Compute the next prompt and the first token after it."""
        started = perf_counter()
        sample = self._waiting[0]
        row = _Row(sample, self._plan)
        logits = self._network.prefill(sample.prompt, self._decoder.chunk)
        (result,) = self._choose([row], logits)
        if result is None:
            self._network.join()
            self._rows.append(row)
        elif isinstance(result, Text):
            self._network.keep(sample.prompt)
        self._waiting.popleft()
        row.seconds = perf_counter() - started
        return [] if result is None else [Outcome(item=sample, result=result, seconds=row.seconds)]

    def _step(self) -> Outcomes:
        """Compute the next token of each row. Finished rows leave the batch."""
        started = perf_counter()
        results = self._choose(self._rows, self._network.step([row.tokens[-1] for row in self._rows]))
        seconds = (perf_counter() - started) / len(self._rows)
        for row in self._rows:
            row.seconds += seconds
        done: Outcomes = []
        staying = list(self._rows)
        for place in reversed(range(len(staying))):
            result = results[place]
            if result is not None:
                row = staying[place]
                done.append(Outcome(item=row.sample, result=result, seconds=row.seconds))
                if isinstance(result, Text):
                    self._network.keep([*row.sample.prompt, *row.tokens], place)
                self._network.leave(place)
                staying[place] = staying[-1]
                staying.pop()
        # Only now, so that no row is lost if a line above fails.
        self._rows = staying
        return done

    @torch.inference_mode()
    def _choose(self, rows: Sequence[_Row], logits: torch.Tensor) -> list[Text | Failure | None]:
        """Give each row its next token. Returns the outcome of each; None for a row that goes on."""
        scores = logits
        if self._plan.matcher is not None:
            scores = torch.cat([row.grammar(_NO_IDS, scores[place : place + 1]) for place, row in enumerate(rows) if row.grammar])
        for warper in self._warpers:
            scores = warper(_NO_IDS, scores)
        if self._warpers:
            scores = GumbelNoise([row.generator for row in rows])(_NO_IDS, scores)
        best = scores.argmax(dim=-1)
        chosen = logits.gather(1, best[:, None]).squeeze(1).tolist()
        finite = torch.isfinite(logits.amax(dim=-1)).tolist()
        results: list[Text | Failure | None] = []
        for row, token, logit, is_number in zip(rows, best.tolist(), chosen, finite, strict=True):
            if not is_number:
                results.append(NOT_FINITE)
                continue
            row.tokens.append(token)
            if row.sample.owner.request.use_logits:
                row.logits.append(logit)
            # Each of a row's tokens must reach its grammar once, whatever its text holds.
            is_complete = row.grammar is not None and row.grammar.take(0, token)
            is_stopped = is_complete or self._stop.is_in(row.tokens)
            if not is_stopped and token not in self._plan.ends and len(row.tokens) < row.sample.owner.prompt.max_tokens:
                results.append(None)
                continue
            failure = row.grammar.failure(0) if row.grammar else None
            end = len(row.tokens) if is_stopped else None
            results.append(failure or self._plan.text(self._decoder.codec, row.sample, row.tokens, row.logits, end))
        return results

    def _recover(self, error: Exception, *, joins: bool) -> Iterator[Outcomes]:
        """Go on after a failure: with half the rows if memory ran out, without those that failed otherwise."""
        failed = [self._waiting.popleft()] if joins else [row.sample for row in self._rows]
        if not is_out_of_memory(error):
            if not joins:
                self._rows = []
                self._start_again()
            yield from self._decoder.alone(failed, self._plan)
            return
        running = [row.sample for row in self._rows] if joins else []
        self._rows = []
        # The first row to join makes room for all of them.
        tried = len(failed) + len(running) if running or not joins else self._network.rows
        if self._network.forget():
            _LOG.warning("out of memory with %d texts at once: what was kept of earlier turns is forgotten", tried)
        elif tried > 1:
            self._decoder.rows = tried // 2
            _LOG.warning("out of memory with %d texts at once: going on with %d at most", tried, self._decoder.rows)
        elif joins and self._decoder.chunk > _SMALLEST_CHUNK:
            self._decoder.chunk //= 2
            _LOG.warning("out of memory in a prompt: going on with %d of its tokens at a time", self._decoder.chunk)
        else:
            yield [Outcome(item=sample, result=failure_of(error, retryable=True), seconds=0.0) for sample in failed]
            failed = []
        self._waiting = deque(by_prefix([*running, *failed, *self._waiting], lambda sample: sample.prompt))
        self._start_again()

    def _start_again(self) -> None:
        ahead = min(self._plan.settings.max_tokens or RESERVE, RESERVE)
        self._network.clear(rows=max(min(self._decoder.rows, len(self._waiting)), 1), longest=self._longest, ahead=ahead)
        release_memory()
