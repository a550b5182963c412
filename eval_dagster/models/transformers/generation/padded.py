"""Generates texts in left-padded batches by transformers' own `generate`.

It serves prompts with images, and models whose rows cannot join and leave a batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from eval_dagster.models.transformers.encoding.tokenization import Codec, EncodedPrompt
from eval_dagster.models.transformers.generation.grammar import GrammarRows
from eval_dagster.models.transformers.generation.jobs import NOT_FINITE, Sample, Text, TextPlan, foreseen
from eval_dagster.models.transformers.generation.logits_processors import GumbelNoise, PassCounter, RawLogits, warpers
from eval_dagster.models.transformers.generation.stopping import RowEnds
from eval_dagster.models.transformers.network.batching import BatchRunner, Failure, Outcome
from eval_dagster.models.usage import GenerationUsage


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
        inputs = self._inputs([sample.owner.prompt for sample in batch])
        start = inputs["input_ids"].shape[1]
        raw = RawLogits(len(batch), self._device, keep=any(sample.owner.request.use_logits for sample in batch))
        grammar = None if plan.matcher is None else GrammarRows(plan.matcher, len(batch))
        stop = RowEnds(self._codec, settings.stop_sequences, grammar, prompt_length=start, rows=len(batch))
        # Generators of the CPU give the same numbers whatever the device.
        generators = [torch.Generator().manual_seed(sample.seed(settings)) for sample in batch]
        noise = [*warpers(settings), GumbelNoise(generators)] if settings.temperature else []
        output = self._network.generate(
            **inputs,
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
        rows = zip(batch, output[:, start:].tolist(), raw.chosen(output), stop.ends, failures, strict=True)
        return [
            failure or plan.text(self._codec, tokens, logits, end, padding=start - len(sample.prompt))
            for sample, tokens, logits, end, failure in rows
        ]

    def _inputs(self, prompts: Sequence[EncodedPrompt]) -> dict[str, torch.Tensor]:
        """A batch's tokens, padded on the left, with their mask and the inputs beside them."""
        longest = max(len(prompt.tokens) for prompt in prompts)
        padding = [longest - len(prompt.tokens) for prompt in prompts]
        ids = [[*[self._pad_token] * count, *prompt.tokens] for count, prompt in zip(padding, prompts, strict=True)]
        mask = [[0] * count + [1] * (longest - count) for count in padding]
        tensors = {name: tensor for prompt in prompts for name, tensor in prompt.tensors.items()}
        inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), **tensors}
        return {name: tensor.to(self._device) for name, tensor in inputs.items()}


def _is_cut_short(outcome: Outcome[Sample, Text]) -> bool:
    """Whether a text ends if its batch did, with room left for more of its own."""
    text, most = outcome.result, outcome.item.owner.prompt.max_tokens
    return isinstance(text, Text) and text.finish_reason == "length" and len(text.tokens) < most
