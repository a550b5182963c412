"""Generated texts: requests with the same settings together, samples that do not depend on their neighbours."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from eval_dagster.errors import ModelError
from eval_dagster.models.batching import BatchRunner, refusal
from eval_dagster.models.decoding import Decoder
from eval_dagster.models.generation_jobs import Pending, Sample, TextPlan, settle
from eval_dagster.models.grammar import Grammars
from eval_dagster.models.padded_generation import PaddedGenerator
from eval_dagster.models.row_check import why_not
from eval_dagster.models.row_network import RowNetwork
from eval_dagster.models.tokenization import Codec
from eval_dagster.models.usage import GenerationUsage
from eval_dagster.records import GenerationSettings, ModelResponse, Request

_log = logging.getLogger(__name__)

_CHECK_TEXT = "Seven large boats sail past 42 old harbours; who counted them, and why? def f(x): return x * 3.14"
"""Ordinary text of many different tokens."""


class GenerationEngine:
    """Generates texts with one network."""

    def __init__(self, network: Any, codec: Codec, runner: BatchRunner, *, device: str, pad_token: int, end_tokens: Sequence[int]):
        self.usage = GenerationUsage()
        self._network = network
        self._codec = codec
        self._grammars = Grammars(codec.tokenizer)
        self._device = device
        self._end_tokens = tuple(end_tokens)
        self._padded = PaddedGenerator(network, codec, runner, device=device, pad_token=pad_token, usage=self.usage)
        self._decoder = Decoder(
            RowNetwork(network, self.usage, device=device),
            codec,
            rows=runner.rows,
            alone=lambda samples, plan: self._padded.run(samples, plan, alone=True),
        )
        self._is_checked = False

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        """Answer requests that ask for text: those with the same settings together."""
        groups: dict[GenerationSettings, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.generation or GenerationSettings(), []).append(request)
        for settings, group in groups.items():
            yield from self._respond_group(settings, [request for request in group if not request.images])
            for request in group:
                if request.images:
                    yield from self._respond_group(settings, [request])

    def _respond_group(self, settings: GenerationSettings, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        pending: list[Pending] = []
        try:
            plan = self._plan(settings)
        except Exception as error:
            yield from ((request, refusal(error)) for request in requests)
            return
        for request in requests:
            try:
                pending.append(Pending(request, self._codec.encode_prompt(request, settings.max_tokens)))
            except Exception as error:
                yield request, refusal(error)
        capped = sum(owner.prompt.max_tokens < settings.max_tokens for owner in pending)
        if capped:
            _log.warning(
                "%d of %d requests may have fewer than their max_tokens=%d: the context of %d tokens holds no more beside their prompts",
                *(capped, len(pending), settings.max_tokens, self._codec.max_length),
            )
        self.usage.requests += len(pending)
        self.usage.prompt_tokens_asked += settings.num_samples * sum(len(owner.prompt.tokens) for owner in pending)
        samples = [Sample(owner=owner, index=index) for owner in pending for index in range(settings.num_samples)]
        if any(request.images for request in requests):
            batches = self._padded.run(samples, plan, alone=True)
        elif samples and self._can_decode():
            batches = self._decoder.run(samples, plan)
        else:
            batches = self._padded.run(samples, plan)
        for outcomes in batches:
            yield from settle(outcomes, settings.num_samples)

    def _plan(self, settings: GenerationSettings) -> TextPlan:
        if settings.num_samples < 1 or settings.max_tokens < 1:
            raise ModelError(f"num_samples is {settings.num_samples} and max_tokens {settings.max_tokens}; both must be 1 at least.")
        if settings.num_samples > 1 and settings.temperature == 0:
            raise ModelError(
                f"num_samples is {settings.num_samples} at temperature 0, where every text would be the same; set a temperature above 0."
            )
        ends = self._ends(settings.stop_sequences)
        matcher = None if settings.grammar is None else self._grammars.compile(settings.grammar, ends)
        return TextPlan(settings=settings, ends=ends, matcher=matcher)

    def _can_decode(self) -> bool:
        """Whether the rows of this network can come and go; tried out once, before the first text."""
        if not self._is_checked:
            tokens = self._codec.tokenizer(_CHECK_TEXT, add_special_tokens=False)["input_ids"]
            reason = why_not(self._decoder.network, self._network, tokens=tokens, device=self._device)
            # What the check took is no part of the work.
            self.usage.prompt_tokens_computed = self.usage.tokens_decoded = self.usage.passes = 0
            self.usage.path = "rows" if reason is None else "padded"
            self.usage.reason = reason or "checked: rows that come and go have the logits of each text by itself"
            self._is_checked = True
            if reason is not None:
                _log.warning(
                    "%s: texts are generated in padded batches, without sharing the beginnings of prompts: rows of this model "
                    "cannot come and go, for %s.",
                    type(self._network).__name__,
                    reason,
                )
        return self.usage.path == "rows"

    def _ends(self, stop_sequences: Sequence[str]) -> tuple[int, ...]:
        # A stop sequence that is a special token never shows in decoded text.
        special = self._codec.tokenizer.get_added_vocab()
        return tuple(dict.fromkeys([*self._end_tokens, *(special[stop] for stop in stop_sequences if stop in special)]))
