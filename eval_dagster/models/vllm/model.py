"""A causal language model in vLLM's offline engine, and the texts that it generates.

Each sample is a request of its own, so that its seed does not depend on the other samples.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from eval_dagster.config.models import VllmModel
from eval_dagster.errors import ModelError
from eval_dagster.models.base import Model
from eval_dagster.models.transformers.encoding.tokenization import Codec, by_prefix
from eval_dagster.models.transformers.generation.jobs import Pending, Sample, Text, TextPlan, settle
from eval_dagster.models.transformers.network.batching import Failure, Outcome, failure_of, refusal
from eval_dagster.models.transformers.network.devices import device_of
from eval_dagster.models.transformers.scoring import ScoringJob, choices_job, perplexity_job
from eval_dagster.models.usage import GenerationUsage, ScoringUsage
from eval_dagster.models.vllm.adapter import Adapter
from eval_dagster.models.vllm.engine import Call, Engine, generation_arguments, grammar_arguments
from eval_dagster.models.vllm.scoring import VllmScorer, token_by_token
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import GenerationSettings, ModelResponse, Request

_DEFAULT_LENGTH = 2048
"""Tokens of context if the model states none, as in lm-evaluation-harness."""


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
                if request.images:
                    raise ModelError(
                        "The request has images, and the backend vllm sends text alone. Use the backend `transformers` for it."
                    )
                if request.use_logits:
                    raise ModelError("The request asks for logits, which vLLM does not give. Use the backend `transformers` for it.")
                if settings.num_samples < 1 or (settings.max_tokens is not None and settings.max_tokens < 1):
                    raise ModelError(
                        f"num_samples is {settings.num_samples} and max_tokens {settings.max_tokens}; both must be 1 at least."
                    )
                if settings.num_samples > 1 and settings.temperature == 0:
                    raise ModelError(
                        f"num_samples is {settings.num_samples} at temperature 0, where every text would be the same; set a temperature "
                        "above 0."
                    )
                owner = Pending(request, self._codec.encode_prompt(request, settings.max_tokens))
            except Exception as error:
                yield request, refusal(error)
                continue
            self.usage.requests += 1
            self.usage.prompt_tokens_asked += (settings.num_samples - request.first_text) * len(owner.prompt.tokens)
            samples += [Sample(owner=owner, index=index) for index in range(request.first_text, settings.num_samples)]

        def calls() -> Iterator[Call[Sample]]:
            grammar = grammar_arguments(settings)
            for sample in by_prefix(samples, lambda sample: sample.prompt):
                arguments = generation_arguments(settings, plan.ends, sample.owner.prompt.max_tokens, sample.seed(settings))
                yield Call(key=sample, tokens=sample.prompt, arguments=arguments, grammar=grammar)

        before = perf_counter()
        for call, output in self._engine.run(calls()):
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
            # The time that the caller takes with an answer does not count as the model's.
            before = perf_counter()


class LoadedVllmModel(Model):
    """A causal language model in vLLM's engine."""

    def __init__(self, engine: Engine, codec: Codec, *, end_tokens: Sequence[int], gpus: int, has_adapter: bool = False):
        self._codec = codec
        self._gpus = gpus
        self._has_adapter = has_adapter
        self._scorer = VllmScorer(engine)
        self._generator = VllmGenerator(engine, codec, end_tokens=end_tokens)

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        """Answer every request once, in any order, each as soon as it is done."""
        yield from self._scorer.respond([request for request in requests if _is_scored(request)], self._scoring_job)
        yield from self._generator.respond([request for request in requests if not _is_scored(request)])

    def usage(self) -> tuple[ScoringUsage, GenerationUsage]:
        """The work of scoring and of generation so far."""
        return replace(self._scorer.usage), replace(self._generator.usage)

    def gpus(self) -> int:
        """The number of GPUs that it uses; 0 on a CPU."""
        return self._gpus

    def _scoring_job(self, request: Request) -> ScoringJob:
        if request.use_logits:
            raise ModelError("The request asks for logits, which vLLM does not give. Use the backend `transformers` for it.")
        job = perplexity_job(request, self._codec) if request.choices is None else choices_job(request, self._codec)
        return token_by_token(job) if self._has_adapter else job


def load_model(
    name: str, config: VllmModel, folder: Path, tokenizer: Any, context: int | None, adapter: Adapter | None = None
) -> LoadedVllmModel:
    """Load the weights of a folder, and of an adapter. `context` is the model's context in tokens, null if it states none.

    Raises `ModelError` where vLLM cannot load the model.
    """
    # vLLM has room for at least one token after each prompt.
    length = config.max_length or (context or _DEFAULT_LENGTH) - 1
    with current_reporter().track(f"load {name} with vLLM", total=1, unit="model") as advance:
        engine = Engine(name, config, folder, length, adapter)
        advance()
    codec = Codec(tokenizer, max_length=length, truncate=config.truncate)
    gpus = 0 if device_of("auto") == "cpu" else config.tensor_parallel
    return LoadedVllmModel(engine, codec, end_tokens=end_tokens(folder, tokenizer), gpus=gpus, has_adapter=adapter is not None)


def end_tokens(folder: Path, tokenizer: Any) -> list[int]:
    """The tokens that end a text, by the checkpoint's files and its tokenizer."""
    files = [folder / name for name in ("generation_config.json", "config.json")]
    stated = [json.loads(file.read_text("utf-8")).get("eos_token_id") for file in files if file.is_file()]
    first: Any = next((tokens for tokens in stated if tokens is not None), [])
    found = [*(first if isinstance(first, list) else [first]), tokenizer.eos_token_id]
    return list(dict.fromkeys(int(token) for token in found if token is not None))


def _is_scored(request: Request) -> bool:
    return request.choices is not None or request.perplexity
