"""The `transformers` backend: a causal language model, of text or of text and images, run on this machine."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from eval_dagster.config import TransformersModel
from eval_dagster.errors import ModelError, ModelNotFoundError
from eval_dagster.models import (
    chat_template,
    decoding,
    generation,
    generation_jobs,
    grammar,
    loading,
    logits_processors,
    loglikelihood,
    memory,
    padded_generation,
    perplexity,
    plain_scoring,
    prefix_scoring,
    prefix_tree,
    prompt_order,
    row_cache,
    row_check,
    row_network,
    scoring,
    self_check,
    spans,
    stopping,
    tokenization,
    tree_attention,
    tree_scoring,
    vision,
)
from eval_dagster.models.batching import BatchRunner
from eval_dagster.models.generation import GenerationEngine
from eval_dagster.models.loading import device_of, device_problem, load_network, load_processor, load_tokenizer, takes_images
from eval_dagster.models.loglikelihood import choices_job
from eval_dagster.models.perplexity import perplexity_job
from eval_dagster.models.scoring import ScoringEngine, ScoringJob
from eval_dagster.models.sources import open_checkpoint
from eval_dagster.models.tokenization import Codec
from eval_dagster.models.usage import GenerationUsage, ScoringUsage, Usage
from eval_dagster.models.vision import ProcessorCodec
from eval_dagster.records import Message, ModelResponse, Request
from eval_dagster.versions import module_version, stable_hash

_ENGINE = (
    *(grammar, loading, logits_processors, stopping, tokenization, vision),
    *(decoding, generation, generation_jobs, padded_generation, prompt_order, row_cache, row_check, row_network),
    *(
        loglikelihood,
        memory,
        perplexity,
        plain_scoring,
        prefix_scoring,
        prefix_tree,
        scoring,
        self_check,
        spans,
        tree_attention,
        tree_scoring,
    ),
)
"""Modules that can change an output, beside this one."""

_PACKAGES = ("llguidance", "pillow", "tokenizers", "torch", "transformers")
"""Packages that can change an output."""

_CPU_TOKENS = 2048
"""Most tokens of a batch on a CPU: more are no faster a token there, and seconds would become minutes between answers."""

_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length")
"""What architectures call the tokens of their context."""

_CHECK_TEXT = "The quick brown fox jumps over 13 lazy dogs; who could say, in the end, why they let it happen twice?"
"""Ordinary text, of whose tokens the scoring engine makes the sequences by which it checks itself."""

_DEFAULT_LENGTH = 2048
"""Tokens of context where the model states none, as lm-evaluation-harness has it."""


class TransformersHandle:
    """A causal language model, not yet loaded."""

    def __init__(self, name: str, config: TransformersModel, *, folder: Path, home: Path):
        """`folder` is that of evals.yaml, `home` that of all state."""
        self._name = name
        self._config = config
        self._checkpoint = open_checkpoint(name, config.source, folder=folder, home=home)
        self._tokenizer: Any = None
        self._processor: Any = None

    def check(self) -> None:
        """Raise `ModelNotFoundError` if weights or device are not there; loads nothing."""
        self._checkpoint.check()
        problem = device_problem(device_of(self._config.device))
        if problem:
            raise ModelNotFoundError(f"Model {self._name!r}: {problem}. Set `device: auto` or one that this machine has.")

    def version(self) -> str:
        """Hash of all that can change an output. The batch size is not in it, nor the generation settings, which each request states."""
        return stable_hash(
            {
                "backend": self._config.backend,
                "checkpoint": self._checkpoint.fingerprint(),
                "dtype": self._config.dtype,
                "max_length": self._config.max_length,
                "truncate": self._config.truncate,
                "engine": module_version(*_ENGINE, sys.modules[__name__]),
                "packages": {name: _package_version(name) for name in _PACKAGES},
                "device": device_of(self._config.device).partition(":")[0],
            }
        )

    def template_version(self) -> str:
        """Hash of tokenizer and chat template, and of what renders it."""
        return stable_hash(
            {
                "template": self._checkpoint.template_fingerprint(),
                "transformers": package_version("transformers"),
                "code": module_version(chat_template),
            }
        )

    def image_mark(self) -> str:
        """The text that stands for one image in a plain prompt. Raises `ModelError` where the model takes no images."""
        return vision.image_mark(self._load_processor())

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0) -> str:
        """Render messages by the model's own template; a last assistant message is left open, to be continued.

        Raises:
            ModelError: The model has no chat template, its template refuses these messages, or the model takes no images.
        """
        in_parts = images > 0 or self._takes_images
        owner = self._load_processor() if in_parts else self._load_tokenizer()
        if not owner.chat_template:
            raise ModelError(f"Model {self._name!r} has no chat template. Set `prompt_format: plain` for it in evals.yaml.")
        try:
            return chat_template.render(owner, messages, in_parts=in_parts, images=images)
        except ModelError as error:
            raise ModelError(f"Model {self._name!r}: {error}") from error

    def load(self) -> "LoadedModel":
        """Load tokenizer and weights. Raises `ModelError` where they cannot be loaded."""
        self.check()
        device = device_of(self._config.device)
        tokenizer = self._load_tokenizer()
        folder = self._checkpoint.folder()
        try:
            network, end_tokens = load_network(folder, self._config.dtype, device)
        except Exception as error:
            raise ModelError(
                f"Model {self._name!r}: the weights in {folder} cannot be loaded ({type(error).__name__}: {error}). Check that the files "
                f"are complete, that transformers supports the architecture without remote code, and that {device} has the memory."
            ) from error
        length = self._max_length(network, tokenizer)
        codec = Codec(
            tokenizer,
            max_length=length,
            truncate=self._config.truncate,
            images=lambda: ProcessorCodec(self._load_processor(), max_length=length, dtype=network.dtype),
        )
        return LoadedModel(network, codec, end_tokens=end_tokens, device=device, batch_size=self._config.batch_size)

    def _load_tokenizer(self) -> Any:
        if self._tokenizer is None:
            folder = self._checkpoint.tokenizer_folder()
            try:
                self._tokenizer = load_tokenizer(folder)
            except Exception as error:
                raise ModelError(
                    f"Model {self._name!r}: the tokenizer in {folder} cannot be loaded ({type(error).__name__}: {error}). "
                    "Check that its files are complete and need no remote code."
                ) from error
        return self._tokenizer

    @cached_property
    def _takes_images(self) -> bool:
        return takes_images(self._checkpoint.tokenizer_folder())

    def _load_processor(self) -> Any:
        if self._processor is None:
            folder = self._checkpoint.tokenizer_folder()
            if not self._takes_images:
                raise ModelError(f"Model {self._name!r} takes no images: it is a model of text alone, or its processor is not there.")
            try:
                self._processor = load_processor(folder)
            except Exception as error:
                raise ModelError(
                    f"Model {self._name!r}: the processor in {folder} cannot be loaded ({type(error).__name__}: {error}). "
                    "Check that its files are complete and need no remote code. Where it lacks a package: "
                    "pip install 'eval_dagster[vision]', and for a processor of videos the torchvision that belongs to this torch."
                ) from error
        return self._processor

    def _max_length(self, network: Any, tokenizer: Any) -> int:
        own = context_length(network, tokenizer)
        if self._config.max_length is not None and own is not None and self._config.max_length > own:
            raise ModelError(
                f"Model {self._name!r}: `max_length: {self._config.max_length}` is more than the {own} tokens of the model's context. "
                "Lower it, or leave it out."
            )
        return self._config.max_length or own or _DEFAULT_LENGTH


class LoadedModel:
    """A causal language model in memory."""

    def __init__(self, network: Any, codec: Codec, *, end_tokens: Sequence[int], device: str, batch_size: int):
        tokenizer = codec.tokenizer
        ends = [*end_tokens, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])]
        pad = next((token for token in (tokenizer.pad_token_id, *ends) if token is not None), 0)
        tokens = _CPU_TOKENS if device == "cpu" else None
        self._codec = codec
        self._scorer = ScoringEngine(
            network,
            BatchRunner(rows=batch_size, tokens=tokens),
            device=device,
            pad_token=pad,
            tokens=tokenizer(_CHECK_TEXT, add_special_tokens=False)["input_ids"],
            longest=codec.max_length,
        )
        # A batch of texts takes as long as its longest, so small ones waste less where rows are not for free.
        self._generator = GenerationEngine(
            network, codec, BatchRunner(rows=batch_size, tokens=tokens and 2 * tokens), device=device, pad_token=pad, end_tokens=ends
        )

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        """Answer every request once, in any order, each as soon as its batches are done."""
        scored = [request for request in requests if _is_scored(request)]
        yield from self._scorer.respond(scored, self._scoring_job)
        yield from self._generator.respond([request for request in requests if not _is_scored(request)])

    def usage(self) -> Sequence[Usage]:
        """What scoring and generating took so far."""
        return self.scoring_usage(), self.generation_usage()

    def scoring_usage(self) -> ScoringUsage:
        """What scoring took so far, and by which way it goes."""
        return replace(self._scorer.usage)

    def generation_usage(self) -> GenerationUsage:
        """What generating took so far, and by which way it goes."""
        return replace(self._generator.usage)

    def _scoring_job(self, request: Request) -> ScoringJob:
        return perplexity_job(request, self._codec) if request.choices is None else choices_job(request, self._codec)


def _is_scored(request: Request) -> bool:
    return request.choices is not None or request.perplexity


def _package_version(name: str) -> str | None:
    try:
        return package_version(name)
    except PackageNotFoundError:  # the first two are optional
        return None


def context_length(network: Any, tokenizer: Any) -> int | None:
    """Tokens of a model's context, if it states them."""
    # A vision-language model has a configuration for its text within its own.
    config = network.config.get_text_config(decoder=True)
    lengths = [getattr(config, name, None) for name in _LENGTH_NAMES]
    found = next((length for length in lengths if isinstance(length, int)), None)
    if found is None and tokenizer.model_max_length < 10**9:
        # Tokenizers that know no limit state an astronomical one.
        return int(tokenizer.model_max_length)
    return found
