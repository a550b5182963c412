"""Texts by vLLM: each sample is a request of its own, so that its seed does not depend on the other samples."""

from collections.abc import Iterator, Sequence
from time import perf_counter

from eval_dagster.errors import ModelError
from eval_dagster.models.transformers.encoding.prefixes import by_prefix
from eval_dagster.models.transformers.encoding.tokenization import Codec
from eval_dagster.models.transformers.generation.jobs import Pending, Sample, Text, TextPlan, settle
from eval_dagster.models.transformers.network.batching import Failure, Outcome, failure_of, refusal
from eval_dagster.models.usage import GenerationUsage
from eval_dagster.models.vllm.engine import Call, Engine, generation_arguments, grammar_arguments
from eval_dagster.records import GenerationSettings, ModelResponse, Request


class VllmGenerator:
    """Generates texts by an engine."""

    def __init__(self, engine: Engine, codec: Codec, *, end_tokens: Sequence[int]):
        self._engine = engine
        self._codec = codec
        self._end_tokens = tuple(end_tokens)
        self.usage = GenerationUsage(path="vllm", reason="vLLM's own batches", layers="vLLM's own")

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        """Answer requests that ask for text: those with the same settings together."""
        groups: dict[GenerationSettings, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.generation or GenerationSettings(), []).append(request)
        for settings, group in groups.items():
            yield from self._respond_group(settings, group)

    def _respond_group(self, settings: GenerationSettings, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        special = self._codec.tokenizer.get_added_vocab()
        stops = (special[stop] for stop in settings.stop_sequences if stop in special)
        plan = TextPlan(settings=settings, ends=tuple(dict.fromkeys([*self._end_tokens, *stops])))
        samples: list[Sample] = []
        for request in requests:
            try:
                _check(request, settings)
                owner = Pending(request, self._codec.encode_prompt(request, settings.max_tokens))
            except Exception as error:
                yield request, refusal(error)
                continue
            self.usage.requests += 1
            self.usage.prompt_tokens_asked += (settings.num_samples - request.first_text) * len(owner.prompt.tokens)
            samples += [Sample(owner=owner, index=index) for index in range(request.first_text, settings.num_samples)]
        before = perf_counter()
        for call, output in self._engine.run(self._calls(by_prefix(samples, lambda sample: sample.prompt), plan)):
            result: Text | Failure
            if isinstance(output, Exception):
                result = failure_of(output, retryable=False)
            else:
                (written,) = output.outputs
                tokens = list(written.token_ids)
                self.usage.passes += 1
                self.usage.prompt_tokens_computed += len(call.tokens) - (output.num_cached_tokens or 0)
                self.usage.tokens_decoded += max(0, len(tokens) - 1)
                end = len(tokens) if written.finish_reason == "stop" else None
                result = plan.text(self._codec, tokens, (), end, padding=0)
            yield from settle([Outcome(item=call.key, result=result, seconds=perf_counter() - before)], settings.num_samples)
            # What the caller does with an answer is no time of the model.
            before = perf_counter()

    def _calls(self, samples: Sequence[Sample], plan: TextPlan) -> Iterator[Call[Sample]]:
        grammar = grammar_arguments(plan.settings)
        for sample in samples:
            seed = sample.seed(plan.settings)
            arguments = generation_arguments(plan.settings, plan.ends, sample.owner.prompt.max_tokens, seed)
            yield Call(key=sample, tokens=sample.prompt, arguments=arguments, grammar=grammar)


def _check(request: Request, settings: GenerationSettings) -> None:
    """Raise `ModelError` for what this backend cannot answer."""
    if request.images:
        raise ModelError("The request has images, and the backend vllm sends text alone. Use the backend `transformers` for it.")
    if request.use_logits:
        raise ModelError("The request asks for logits, which vLLM does not give. Use the backend `transformers` for it.")
    if settings.num_samples < 1 or (settings.max_tokens is not None and settings.max_tokens < 1):
        raise ModelError(f"num_samples is {settings.num_samples} and max_tokens {settings.max_tokens}; both must be 1 at least.")
    if settings.num_samples > 1 and settings.temperature == 0:
        raise ModelError(
            f"num_samples is {settings.num_samples} at temperature 0, where every text would be the same; set a temperature above 0."
        )
