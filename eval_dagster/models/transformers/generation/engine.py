"""Generates texts: requests with the same settings in one batch, and samples that do not depend on their neighbours.

Prompts with images, and models whose rows cannot join and leave a batch, get left-padded batches by transformers' own `generate`.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from eval_dagster.models.transformers.encoding.tokenization import Codec
from eval_dagster.models.transformers.generation.decoding import Decoder
from eval_dagster.models.transformers.generation.jobs import (
    NOT_FINITE,
    Pending,
    Sample,
    Text,
    TextPlan,
    ends_of,
    foreseen,
    require_texts,
    settle,
)
from eval_dagster.models.transformers.generation.logits_processors import (
    GrammarRows,
    Grammars,
    GumbelNoise,
    PassCounter,
    RawLogits,
    RowEnds,
    warpers,
)
from eval_dagster.models.transformers.generation.row_network import RowNetwork, why_not
from eval_dagster.models.transformers.generation.turn_store import TurnStore
from eval_dagster.models.transformers.network.architecture import constant_length
from eval_dagster.models.transformers.network.batching import BatchRunner, Failure, Outcome, refusal
from eval_dagster.models.transformers.network.resources import release_memory
from eval_dagster.models.usage import GenerationUsage
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import GenerationSettings, ModelResponse, Request

_log = logging.getLogger(__name__)
_CHECK_TEXT = "Seven large boats sail past 42 old harbours; who counted them, and why? def f(x): return x * 3.14"
"""Ordinary text of many different tokens."""


class PaddedGenerator:
    """Generates the texts of whole batches: each lasts as long as its longest text."""

    def __init__(self, network: Any, codec: Codec, runner: BatchRunner, *, device: str, pad_token: int, usage: GenerationUsage):
        self._network = network
        self._codec = codec
        self._runner = runner
        # Prompts with images have different inputs beside their tokens, so each has a batch of its own.
        self._single = BatchRunner(rows=1, tokens=None)
        self._device = device
        self._pad_token = pad_token
        self._usage = usage

    def run(self, samples: Sequence[Sample], plan: TextPlan, *, alone: bool = False) -> Iterator[list[Outcome[Sample, Text]]]:
        """Generate texts, the longest prompts first; each in a batch of its own if `alone`.

        A prompt that leaves room for fewer tokens than others also has its own batch, because a finished row goes on to the end of its
        batch and would exceed the context. Where only the context ends a text, a batch ends if its first row reaches the context. A text
        that was cut by this is generated again alone.
        """
        most = plan.settings.max_tokens
        apart = [sample for sample in samples if alone or (most is not None and sample.owner.prompt.max_tokens < most)]
        chosen = set(map(id, apart))
        for outcomes in self._run(self._runner, [sample for sample in samples if id(sample) not in chosen], plan):
            apart += [outcome.item for outcome in outcomes if _is_cut_short(outcome)]
            yield [outcome for outcome in outcomes if not _is_cut_short(outcome)]
        yield from self._run(self._single, apart, plan)

    def _run(self, runner: BatchRunner, samples: Sequence[Sample], plan: TextPlan) -> Iterator[list[Outcome[Sample, Text]]]:
        return runner.run(
            sorted(samples, key=lambda sample: len(sample.prompt), reverse=True),
            length=lambda sample: len(sample.prompt) + foreseen(sample, plan),
            forward=lambda batch: self._generate(batch, plan),
        )

    @torch.inference_mode()
    def _generate(self, batch: Sequence[Sample], plan: TextPlan) -> list[Text | Failure]:
        settings = plan.settings
        # The tokens are padded on the left.
        prompts = [sample.owner.prompt for sample in batch]
        start = max(len(prompt.tokens) for prompt in prompts)
        padding = [start - len(prompt.tokens) for prompt in prompts]
        ids = [[*[self._pad_token] * count, *prompt.tokens] for count, prompt in zip(padding, prompts, strict=True)]
        mask = [[0] * count + [1] * (start - count) for count in padding]
        inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
        for prompt in prompts:
            inputs.update(prompt.tensors)
        raw = RawLogits(len(batch), self._device, keep=any(sample.owner.request.use_logits for sample in batch))
        grammar = None if plan.matcher is None else GrammarRows(plan.matcher, len(batch))
        stop = RowEnds(self._codec, settings.stop_sequences, grammar, prompt_length=start, rows=len(batch))
        # Generators of the CPU give the same numbers whatever the device.
        generators = [torch.Generator().manual_seed(sample.seed(settings)) for sample in batch]
        noise = [*warpers(settings), GumbelNoise(generators)] if settings.temperature else []
        output = self._network.generate(
            **{name: tensor.to(self._device) for name, tensor in inputs.items()},
            generation_config=GenerationConfig(
                max_new_tokens=min(sample.owner.prompt.max_tokens for sample in batch),
                do_sample=False,
                num_beams=1,
                use_cache=True,
                pad_token_id=self._pad_token,
                eos_token_id=list(plan.ends) or None,
            ),
            logits_processor=LogitsProcessorList([PassCounter(self._usage, start), raw, *([grammar] if grammar else []), *noise]),
            stopping_criteria=StoppingCriteriaList([stop]),
        )
        bad = raw.is_bad.tolist()
        failures = [NOT_FINITE if bad[row] else grammar.failure(row) if grammar else None for row in range(len(batch))]
        rows = zip(batch, output[:, start:].tolist(), raw.chosen(output), stop.ends, padding, failures, strict=True)
        return [failure or plan.text(self._codec, *row, padding=count) for *row, count, failure in rows]


def _is_cut_short(outcome: Outcome[Sample, Text]) -> bool:
    """Whether a text ends if its batch did, with room left for more of its own."""
    text, most = outcome.result, outcome.item.owner.prompt.max_tokens
    return isinstance(text, Text) and text.finish_reason == "length" and len(text.tokens) < most


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
            alone=partial(self._padded.run, alone=True),  # a lambda would refer to self: a cycle, in which the weights outlive the model
        )
        self._is_checked = False
        self._may_keep: bool | None = None  # not checked yet
        # Beyond so many tokens of prompt and text, positions depend on the length of the sequence.
        self._constant = constant_length(network.config.get_text_config(decoder=True))

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Within the block, keep the keys and values of texts, so that a prompt that continues one is not read again from its start.

        The memory is freed at the end of the block. Networks whose rows cannot come and go keep nothing; the reason of `usage` says so.
        """
        network, store = self._decoder.network, TurnStore(self._device)
        network.store = store
        try:
            yield
        finally:
            network.store = None
            if store.given_up:
                self.usage.reason += f", but for {store.given_up:,} tokens that found no memory"
            release_memory()

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
            require_texts(settings)
            ends = ends_of(settings, self._codec, self._end_tokens)
            matcher = None if settings.grammar is None else self._grammars.compile(settings.grammar, ends)
            plan = TextPlan(settings=settings, ends=ends, matcher=matcher)
        except Exception as error:
            yield from ((request, refusal(error)) for request in requests)
            return
        for request in requests:
            try:
                pending.append(Pending(request, self._codec.encode_prompt(request, settings.max_tokens)))
            except Exception as error:
                yield request, refusal(error)
        capped = sum(settings.max_tokens is not None and owner.prompt.max_tokens < settings.max_tokens for owner in pending)
        if capped:
            _log.warning(
                "%d of %d requests may have fewer than their max_tokens=%d: the context of %d tokens holds no more beside their prompts",
                *(capped, len(pending), settings.max_tokens, self._codec.max_length),
            )
        self.usage.requests += len(pending)
        self.usage.prompt_tokens_asked += sum(
            (settings.num_samples - owner.request.first_text) * len(owner.prompt.tokens) for owner in pending
        )
        samples = [Sample(owner=owner, index=index) for owner in pending for index in range(owner.request.first_text, settings.num_samples)]
        with_images = any(request.images for request in requests)
        alone = [sample for sample in samples if with_images or self._may_change(sample)]
        together = [] if with_images else [sample for sample in samples if not self._may_change(sample)]
        engine = self._decoder if together and self._can_decode() else self._padded
        self.usage.elsewhere += len(alone) if self.usage.path == "rows" else 0
        if alone and not with_images:
            _log.warning(
                "%d of %d texts are generated by themselves: beyond %d tokens of prompt and text, this model computes all positions anew.",
                *(len(alone), len(samples), self._constant),
            )
        for outcomes in chain(engine.run(together, plan), self._padded.run(alone, plan, alone=True)):
            yield from settle(outcomes, settings.num_samples)

    def _may_change(self, sample: Sample) -> bool:
        """Whether a text may become so long that its positions, and the positions of all rows computed with it, change."""
        return self._constant is not None and len(sample.prompt) + sample.owner.prompt.max_tokens > self._constant

    def _can_decode(self) -> bool:
        """Whether rows can join and leave a batch of this network; checked once, before the first text.

        Whether their columns may be kept is checked once, too, if that is asked for.
        """
        network, store = self._decoder.network, self._decoder.network.store
        if not self._is_checked:
            network.store = None
            reason = self._why_not()
            network.store = store
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
        is_by_rows = self.usage.path == "rows"
        if store is not None and self._may_keep is None:
            reason = "texts are not generated in rows"
            if is_by_rows:
                network.store = TurnStore(self._device)
                reason = self._why_not()
            self._may_keep = reason is None
            how = "kept between turns" if reason is None else f"not kept between turns, for {reason}"
            self.usage.reason += f"; keys and values are {how}"
        network.store = store if self._may_keep else None
        return is_by_rows

    def _why_not(self) -> str | None:
        """Why rows cannot come and go, or cannot be kept if there is a store; None if they can."""
        tokens = self._codec.tokenizer(_CHECK_TEXT, add_special_tokens=False)["input_ids"]
        before = replace(self.usage)
        with current_reporter().track("check how texts can be generated", total=1, unit="model") as advance:
            reason = why_not(self._decoder.network, self._network, tokens=tokens, device=self._device)
            advance()
        # The check does not count as work.
        self.usage.prompt_tokens_computed, self.usage.tokens_decoded = before.prompt_tokens_computed, before.tokens_decoded
        self.usage.passes = before.passes
        return reason
