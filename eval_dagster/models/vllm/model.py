"""A causal language model in vLLM's offline engine."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eval_dagster.config.models import VllmModel
from eval_dagster.errors import ModelError
from eval_dagster.models.transformers.encoding.tokenization import Codec
from eval_dagster.models.transformers.network.devices import device_of
from eval_dagster.models.transformers.scoring import ScoringJob, choices_job, perplexity_job
from eval_dagster.models.usage import GenerationUsage, ScoringUsage
from eval_dagster.models.vllm.adapter import Adapter
from eval_dagster.models.vllm.engine import Engine
from eval_dagster.models.vllm.generation import VllmGenerator
from eval_dagster.models.vllm.scoring import VllmScorer, token_by_token
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import ModelResponse, Request

_DEFAULT_LENGTH = 2048
"""Tokens of context if the model states none, as in lm-evaluation-harness."""


class LoadedVllmModel:
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
