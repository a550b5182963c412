"""A causal language model in vLLM's offline engine: the texts that it generates, and the log-probabilities of choices and texts.

Each sample is a request of its own, so that its seed does not depend on the other samples.

The input of a span lacks its last token. vLLM gives the log-probabilities of the tokens that may follow an input. So all choices of one
token after a prompt are a single request, which reads the prompt from the prefix cache.

The earlier tokens of a span stand in its input. vLLM gives their log-probabilities too, but not for tokens that it reads from the
cache: at their places it leaves what its memory held before. If the cache holds a scored token, the input is computed without it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

from eval_dagster.config.models import VllmModel
from eval_dagster.errors import ModelError
from eval_dagster.models.base import Model, is_scored
from eval_dagster.models.transformers.encoding.tokenization import Codec, Span, by_prefix
from eval_dagster.models.transformers.generation.jobs import Pending, Sample, Text, TextPlan, ends_of, require_texts, settle
from eval_dagster.models.transformers.network.batching import Failure, Outcome, failure_of, refusal
from eval_dagster.models.transformers.network.devices import device_of
from eval_dagster.models.transformers.scoring import PendingJob, ScoringJob, choices_job, perplexity_job
from eval_dagster.models.transformers.scoring.spans import NOT_FINITE, SpanScore, TokenScore, span_score
from eval_dagster.models.usage import GenerationUsage, ScoringUsage
from eval_dagster.models.vllm.adapter import Adapter
from eval_dagster.models.vllm.engine import Call, Engine, generation_arguments, grammar_arguments, last_token_arguments, prompt_arguments
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import GenerationSettings, ModelResponse, Request

_DEFAULT_LENGTH = 2048
"""Tokens of context if the model states none, as in lm-evaluation-harness."""
_INCOMPLETE = Failure(error="ModelError: vLLM left out log-probabilities of the prompt.", retryable=True)
_NEXT_TOKENS = 128
"""Most tokens whose log-probabilities vLLM gives after one prompt: its `MAX_LOGPROB_TOKEN_IDS`."""
_WINDOW = 2**22
"""Tokens of the inputs that are encoded together. It bounds the memory for them, and the time to the first answer."""
_ASKED_BY_ONE = 2**27
"""Most tokens in the inputs of a request that is asked token by token. They take a gibibyte."""


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
        plan = TextPlan(settings=settings, ends=ends_of(settings, self._codec, self._end_tokens))
        samples: list[Sample] = []
        for request in requests:
            try:
                if request.images:
                    raise ModelError(
                        "The request has images, and the backend vllm sends text alone. Use the backend `transformers` for it."
                    )
                if request.use_logits:
                    raise ModelError("The request asks for logits, which vLLM does not give. Use the backend `transformers` for it.")
                require_texts(settings)
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
                result = plan.text(self._codec, call.key, tokens, (), end)
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
        yield from self._scorer.respond([request for request in requests if is_scored(request)], self._scoring_job)
        yield from self._generator.respond([request for request in requests if not is_scored(request)])

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


class _Input:
    """A distinct input, the spans that it answers, and those who wait for them."""

    def __init__(self, tokens: tuple[int, ...]):
        self.tokens = tokens
        self.spans: list[tuple[PendingJob, int, tuple[int, ...]]] = []
        self.next_tokens: set[int] = set()

    def first(self) -> int:
        """Position of the first token of the input that is scored; the input's length if none is."""
        return len(self.tokens) + 1 - max(len(span) for *_, span in self.spans)

    def add(self, owner: PendingJob, index: int, span: tuple[int, ...]) -> None:
        self.spans.append((owner, index, span))
        self.next_tokens.add(span[-1])

    def takes(self, token: int) -> bool:
        return len(self.next_tokens | {token}) <= _NEXT_TOKENS

    def has_long_prompt(self) -> bool:
        """Whether most of it stands before the first scored token, so that the cache may save something."""
        return 2 * self.first() > len(self.tokens)


class VllmScorer:
    """Scores requests by an engine."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self.usage = ScoringUsage(path="vllm", reason="vLLM computes what its prefix cache does not hold", layers="vLLM's own")

    def respond(self, requests: Sequence[Request], prepare: Callable[[Request], ScoringJob]) -> Iterator[tuple[Request, ModelResponse]]:
        """Answer requests, those with a common beginning one after another. An exception of `prepare` is the request's error."""
        ordered = sorted(requests, key=lambda request: (request.prompt, request.choices or ()))
        latest: dict[tuple[int, ...], _Input] = {}
        inputs: list[_Input] = []
        size = 0
        for request in ordered:
            try:
                owner = PendingJob(prepare(request))
            except Exception as error:
                yield request, refusal(error)
                continue
            self.usage.requests += 1
            for index, span in enumerate(owner.spans()):
                self.usage.tokens_asked += len(span.input)
                found = latest.get(span.input)
                if found is None or not found.takes(span.tokens[-1]):
                    found = latest[span.input] = _Input(span.input)
                    inputs.append(found)
                    size += len(span.input)
                found.add(owner, index, span.tokens)
            if size > _WINDOW:
                yield from self._run(inputs, from_cache=True)
                latest, inputs, size = {}, [], 0
        yield from self._run(inputs, from_cache=True)

    def _run(self, inputs: Sequence[_Input], *, from_cache: bool) -> Iterator[tuple[Request, ModelResponse]]:
        again: list[_Input] = []
        before = perf_counter()

        def calls() -> Iterator[Call[_Input]]:
            for item in inputs:
                tokens = item.next_tokens
                if item.first() == len(item.tokens):
                    arguments = last_token_arguments(tokens)
                else:
                    arguments = prompt_arguments(tokens, from_cache=from_cache and item.has_long_prompt())
                yield Call(key=item, tokens=item.tokens, arguments=arguments)

        for call, output in self._engine.run(calls()):
            item = call.key
            seconds = perf_counter() - before
            self.usage.seconds += seconds
            for owner, *_ in item.spans:
                owner.seconds += seconds / len(item.spans)
            if not isinstance(output, Exception):
                self.usage.count_pass(len(item.tokens) - (output.num_cached_tokens or 0))
                if from_cache and not _is_whole(item, output):
                    again.append(item)
                    before = perf_counter()
                    continue
            for owner, index, span in item.spans:
                owner.scores[index] = _score(span, item, output)
                if owner.is_done():
                    yield owner.job.request, owner.response()
            # The time that the caller takes with an answer does not count as the model's.
            before = perf_counter()
        self.usage.elsewhere += len(again)
        if again:
            yield from self._run(again, from_cache=False)


def token_by_token(job: ScoringJob) -> ScoringJob:
    """The same job, with each token of its spans as a span of its own: it needs no log-probabilities of prompts.

    With an adapter, vLLM fails when it computes those (0.32.0: its adapters expect the logits of last tokens alone). The prefix cache holds
    nearly all of each input. Raises `ModelError` if the inputs would take too much memory.
    """
    spans = (*job.spans, *job.shared)
    scored = sum(len(span.tokens) for span in spans)
    if sum(len(span.tokens) * (len(span.input) - len(span.tokens) // 2) for span in spans) > _ASKED_BY_ONE:
        raise ModelError(
            f"The request scores {scored} tokens. With an adapter each is a request of its own, and their inputs would take more than a "
            f"gibibyte. Set `max_length: {_ASKED_BY_ONE // scored}` or less in evals.yaml, so that it is scored in shorter windows."
        )

    def respond(scores: Sequence[SpanScore], shared: Sequence[SpanScore]) -> ModelResponse:
        return job.response(_joined(job.spans, scores), _joined(job.shared, shared))

    return replace(job, spans=_split(job.spans), shared=_split(job.shared), response=respond)


def _split(spans: Sequence[Span]) -> list[Span]:
    return [
        replace(span, input=(*span.context, *span.tokens[:place]), tokens=(token,))
        for span in spans
        for place, token in enumerate(span.tokens)
    ]


def _joined(spans: Sequence[Span], scores: Sequence[SpanScore]) -> list[SpanScore]:
    found, left = [], iter(scores)
    for span in spans:
        parts = list(islice(left, len(span.tokens)))
        found.append(
            SpanScore(
                logprobs=tuple(logprob for part in parts for logprob in part.logprobs),
                logits=tuple(logit for part in parts for logit in part.logits),
                is_greedy=all(part.is_greedy for part in parts),
            )
        )
    return found


def _is_whole(item: _Input, output: Any) -> bool:
    """Whether the scored tokens of an input have their log-probabilities, and not what vLLM's memory held before."""
    # The first computed token is predicted by a cached one, whose logits are not there.
    is_computed = item.first() == len(item.tokens) or item.first() > (output.num_cached_tokens or 0)
    return is_computed and all(
        item.tokens[place] in _found_at(place, item, output) for place in range(max(1, item.first()), len(item.tokens))
    )


def _found_at(place: int, item: _Input, output: Any) -> Mapping[int, Any]:
    """The log-probabilities at a place of an input; empty if vLLM read the place from its cache.

    On a GPU vLLM leaves those places out (its model runner 2); elsewhere they hold what its memory held before.
    """
    left_out = len(item.tokens) - len(output.prompt_logprobs)
    return (output.prompt_logprobs[place - left_out] if place >= left_out else None) or {}


def _score(span: tuple[int, ...], item: _Input, output: Any) -> SpanScore | Failure:
    if isinstance(output, Exception):
        return failure_of(output, retryable=False)
    start = len(item.tokens) + 1 - len(span)
    if not _is_whole(item, output):
        return _INCOMPLETE
    found = [_found_at(start + offset, item, output)[token] for offset, token in enumerate(span[:-1])]
    scores: list[TokenScore] = [(each.logprob, float("nan"), each.rank == 1) for each in found]
    (written,) = output.outputs
    last = written.logprobs[0][span[-1]]
    scores.append((last.logprob, float("nan"), written.token_ids[0] == span[-1]))
    return span_score(scores) if all(isfinite(logprob) for logprob, *_ in scores) else NOT_FINITE
