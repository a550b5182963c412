"""A causal language model in memory, of text or of text and images. It has an engine for scoring and one for generation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from eval_dagster.config.models import TransformersModel
from eval_dagster.errors import ModelError
from eval_dagster.models.base import Model, is_scored
from eval_dagster.models.transformers.encoding.tokenization import Codec
from eval_dagster.models.transformers.encoding.vision import ProcessorCodec
from eval_dagster.models.transformers.generation.engine import GenerationEngine
from eval_dagster.models.transformers.network.batching import BatchRunner
from eval_dagster.models.transformers.network.devices import device_of
from eval_dagster.models.transformers.network.packed_linear import pack_linears
from eval_dagster.models.transformers.network.resources import set_threads
from eval_dagster.models.transformers.scoring.engine import ScoringEngine, choices_job, perplexity_job
from eval_dagster.models.transformers.scoring.prefix_tree import piece_limits
from eval_dagster.models.transformers.weights.checkpoint import LENGTH_NAMES
from eval_dagster.models.transformers.weights.loading import load_network
from eval_dagster.models.usage import GenerationUsage, ScoringUsage
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import ModelResponse, Request

_CPU_TOKENS = 2048
"""Most tokens of a batch on a CPU. Larger batches are not faster a token there, and answers would come minutes apart."""

_CPU_ROWS = 16
_GPU_ROWS = 256
"""Most rows of a batch if the configuration names none. Fewer on a GPU whose memory is smaller; more gain little on a CPU."""

_DEFAULT_LENGTH = 2048
"""Tokens of context if the model states none, as in lm-evaluation-harness."""

_CHECK_TEXT = "The quick brown fox jumps over 13 lazy dogs; who could say, in the end, why they let it happen twice?"
"""Ordinary text for the self-checks of the engine."""


class LoadedModel(Model):
    """A causal language model in memory."""

    def __init__(self, network: Any, codec: Codec, *, end_tokens: Sequence[int], device: str, batch_size: int | None, layers: str):
        """`layers` describes how the network's linear layers are computed. Without a batch size, the device's memory decides."""
        tokenizer = codec.tokenizer
        ends = [*end_tokens, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])]
        # Padding is masked and may be any token of the network. Some tokenizers pad with a token that the network lacks.
        known = network.get_input_embeddings().weight.shape[0]
        pad = next((token for token in (tokenizer.pad_token_id, *ends) if token is not None and token < known), 0)
        is_cpu = device == "cpu"
        rows = batch_size or (_CPU_ROWS if is_cpu else _GPU_ROWS)
        tokens = _CPU_TOKENS if is_cpu else piece_limits(network, device).tokens
        self._codec = codec
        self._gpus = int(device != "cpu")
        self._scorer = ScoringEngine(
            network,
            BatchRunner(rows=rows, tokens=tokens),
            device=device,
            pad_token=pad,
            tokens=_check_tokens(tokenizer),
            longest=codec.max_length,
        )
        # A batch takes as long as its longest text, so small batches waste less where each row costs time.
        self._generator = GenerationEngine(
            network,
            codec,
            BatchRunner(rows=rows, tokens=2 * tokens if is_cpu else piece_limits(network, device, most=2**40).tokens),
            device=device,
            pad_token=pad,
            end_tokens=ends,
        )
        self._scorer.usage.layers = self._generator.usage.layers = layers

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        """Answer every request once, in any order, each as soon as its batches are done."""
        scored = [request for request in requests if is_scored(request)]
        codec = self._codec
        yield from self._scorer.respond(
            scored, lambda request: perplexity_job(request, codec) if request.choices is None else choices_job(request, codec)
        )
        yield from self._generator.respond([request for request in requests if not is_scored(request)])

    def conversing(self) -> AbstractContextManager[None]:
        """Within the block, keys and values of texts are kept for the prompts that continue them, as far as memory allows."""
        return self._generator.keeping()

    def usage(self) -> tuple[ScoringUsage, GenerationUsage]:
        """The work of scoring and of generation so far, and the way of computing."""
        return replace(self._scorer.usage), replace(self._generator.usage)

    def gpus(self) -> int:
        """1 on a GPU, since the whole network is on one device; 0 on the CPU."""
        return self._gpus


def load_model(name: str, config: TransformersModel, folder: Path, tokenizer: Any, load_processor: Callable[[], Any]) -> LoadedModel:
    """Load a model from its folder with safetensors weights. `name` is for messages.

    `load_processor` loads the processor of its images at the first request with images. Raises `ModelError` if the weights cannot be
    loaded, or `max_length` is more than the model's context.
    """
    device = device_of(config.device)
    if device == "cpu":
        set_threads()
    reporter = current_reporter()
    try:
        with reporter.track(f"read the weights of {name}", total=1, unit="model") as advance:
            network, end_tokens = load_network(folder, config.dtype, device)
            advance()
    except Exception as error:
        raise ModelError(
            f"Model {name!r}: the weights in {folder} cannot be loaded ({type(error).__name__}: {error}). Check that the files "
            f"are complete, that transformers supports the architecture without remote code, and that {device} has the memory."
        ) from error
    length = context_length(network, tokenizer)
    if config.max_length is not None and length is not None and config.max_length > length:
        raise ModelError(
            f"Model {name!r}: `max_length: {config.max_length}` is more than the {length} tokens of the model's context. "
            "Lower it, or leave it out."
        )
    most = config.max_length or length or _DEFAULT_LENGTH
    layers = "the device's own"
    if device == "cpu":
        with reporter.track(f"pack the layers of {name}", total=1, unit="model") as advance:
            layers = pack_linears(network, _check_tokens(tokenizer)[: most - 1])
            advance()
    codec = Codec(
        tokenizer,
        max_length=most,
        truncate=config.truncate,
        images=lambda: ProcessorCodec(load_processor(), max_length=most, dtype=network.dtype),
    )
    with reporter.track(f"check how {name} can be scored", total=1, unit="model") as advance:
        loaded = LoadedModel(network, codec, end_tokens=end_tokens, device=device, batch_size=config.batch_size, layers=layers)
        advance()
    return loaded


def _check_tokens(tokenizer: Any) -> list[int]:
    tokens: list[int] = tokenizer(_CHECK_TEXT, add_special_tokens=False)["input_ids"]
    return tokens


def context_length(network: Any, tokenizer: Any) -> int | None:
    """Tokens of a model's context, if it states them."""
    # A vision-language model has a configuration for its text within its own.
    config = network.config.get_text_config(decoder=True)
    lengths = [getattr(config, name, None) for name in LENGTH_NAMES]
    found = next((length for length in lengths if isinstance(length, int)), None)
    if found is None and tokenizer.model_max_length < 10**9:
        # Tokenizers that know no limit state an astronomical one.
        return int(tokenizer.model_max_length)
    return found
