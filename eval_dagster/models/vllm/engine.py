"""vLLM's offline engine, asked request by request: the only module that knows vLLM's names."""

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from eval_dagster.config.models import VllmModel
from eval_dagster.errors import ModelError
from eval_dagster.models.vllm.adapter import Adapter
from eval_dagster.records import GenerationSettings
from eval_dagster.versions.hashes import stable_hash

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Its processes find each other by this address, and would else listen on all interfaces.
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

_WAITING = 1024
"""Requests that vLLM has at once. It computes as many of them together as its memory holds."""

Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class Call(Generic[Key]):
    """A request to vLLM."""

    key: Key
    """What the caller knows it by."""
    tokens: tuple[int, ...]
    """The prompt."""
    arguments: Mapping[str, object]
    """Those of `SamplingParams`."""
    grammar: Mapping[str, object] = field(default_factory=dict)
    """Those of `StructuredOutputsParams`; empty without a grammar."""


_set_here: set[str] = set()
"""Variables that `set_environment` has set."""


def environment_of(config: VllmModel) -> dict[str, str]:
    """The variables for a model, unless the user has set them. vLLM reads them when it is imported, and when a model is loaded."""
    # In one process, the engine ends with the model, and its order of work depends on nothing else.
    in_process = {} if config.tensor_parallel > 1 else {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    # The attention for float32 on a GPU is Triton's, which else multiplies with the ten bits of TF32.
    whole = {"TRITON_F32_DEFAULT": "ieee"} if config.dtype == "float32" else {}
    return {**_ENVIRONMENT, **in_process, **whole}


def variables(config: VllmModel, names: Iterable[str]) -> dict[str, str]:
    """The values that variables will have when the model is loaded. Those without a value are left out."""
    users = {name: value for name, value in os.environ.items() if name not in _set_here}
    found = {**environment_of(config), **users}
    return {name: found[name] for name in names if name in found}


def set_environment(config: VllmModel) -> None:
    """Set the variables for a model, in place of those for the last one."""
    for name in _set_here:
        os.environ.pop(name, None)
    _set_here.clear()
    for name, value in environment_of(config).items():
        if name not in os.environ:
            os.environ[name] = value
            _set_here.add(name)


def engine_arguments(config: VllmModel, folder: Path, length: int) -> dict[str, object]:
    """The arguments of `vllm.LLM` for a model whose prompts have at most `length` tokens."""
    return {
        "model": str(folder),
        "dtype": config.dtype,
        "quantization": config.quantization,
        "tensor_parallel_size": config.tensor_parallel,
        "gpu_memory_utilization": config.gpu_memory_share,
        "max_model_len": length + 1,
        "enable_prefix_caching": True,
        # The log-probabilities are those of the network: before temperature, top_k and top_p.
        "logprobs_mode": "raw_logprobs",
        "load_format": "safetensors",
        "trust_remote_code": False,
        # The sampling defaults of the checkpoint must not replace settings that a request omits.
        "generation_config": "vllm",
        "seed": 0,
        "disable_log_stats": True,
    }


def adapter_arguments(adapter: Adapter | None) -> dict[str, object]:
    """The further arguments of `vllm.LLM` for a model with an adapter. Without one, vLLM computes without them, as it always did."""
    return {} if adapter is None else {"enable_lora": True, "max_loras": 1, "max_lora_rank": adapter.most_rank()}


def generation_arguments(settings: GenerationSettings, ends: Iterable[int], max_tokens: int, seed: int) -> dict[str, object]:
    """The arguments of `SamplingParams` for one text, without its grammar."""
    is_sampled = settings.temperature > 0
    return {
        "max_tokens": max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p if is_sampled and settings.top_p is not None else 1.0,
        "top_k": settings.top_k if is_sampled and settings.top_k is not None else 0,
        "seed": seed % 2**63 if is_sampled else None,
        "stop": [stop for stop in settings.stop_sequences if stop],
        "stop_token_ids": list(ends),
        "skip_special_tokens": True,
        "spaces_between_special_tokens": False,
    }


def grammar_arguments(settings: GenerationSettings) -> dict[str, object]:
    """The arguments of `StructuredOutputsParams`; empty without a grammar."""
    if settings.grammar is None:
        return {}
    return {"json" if settings.grammar.kind == "json_schema" else "regex": settings.grammar.value}


def last_token_arguments(tokens: Iterable[int]) -> dict[str, object]:
    """The arguments of `SamplingParams` for the log-probabilities of tokens that may follow a prompt. The prefix cache serves them."""
    return {"max_tokens": 1, "temperature": 0.0, "logprob_token_ids": sorted(set(tokens)), "detokenize": False}


def prompt_arguments(tokens: Iterable[int], *, from_cache: bool) -> dict[str, object]:
    """The same, with the log-probability of each token of the prompt that is not read from the prefix cache.

    vLLM reads nothing from its cache for log-probabilities of a prompt, unless it is told to. It then leaves out the cached tokens.
    """
    return {**last_token_arguments(tokens), "prompt_logprobs": 0, "skip_reading_prefix_cache": not from_cache}


class Shared:
    """vLLM itself, which models with equal arguments share.

    It ends when none of them is left, when a model with other arguments is loaded, and with the first model that is loaded after it failed.
    """

    def __init__(self, arguments: Mapping[str, object]):
        """Load the weights."""
        import vllm

        self.arguments = arguments
        self._adapters: dict[str, object] = {}
        # In a list, so that its end leaves no reference to the weights.
        self._held: list[Any] = [vllm.LLM(**arguments).llm_engine]
        # Without a call of `shutdown`, vLLM frees neither memory nor processes before the end of this process.
        self.end = weakref.finalize(self, _shut_down, self._held)
        self.end.atexit = False
        self.requests = 0
        """The number of requests so far."""
        self.has_failed = False
        """Whether it failed as a whole."""

    @property
    def engine(self) -> Any:
        """vLLM's `LLMEngine`; null after its end."""
        return self._held[0] if self._held else None

    def adapter(self, adapter: Adapter) -> Any:
        """The `LoRARequest` of an adapter, whose weights are loaded. The keys of vLLM's prefix cache hold its name and path."""
        from vllm.lora.request import LoRARequest

        name = stable_hash(adapter.fingerprint())
        if name not in self._adapters:
            request = LoRARequest(name, len(self._adapters) + 1, str(adapter.folder()))
            # vLLM would load it with the first request. What it refuses of an adapter would then end all of its requests.
            self.engine.engine_core.add_lora(request)
            self._adapters[name] = request
        return self._adapters[name]


_LOADED: "weakref.WeakSet[Shared]" = weakref.WeakSet()


def _shared(arguments: Mapping[str, object]) -> Shared:
    """That which is loaded, if its arguments are the same; else a new one, after the end of the other, whose memory it needs."""
    for other in list(_LOADED):
        if other.engine is not None and not other.has_failed and other.arguments == arguments:
            return other
        _LOADED.discard(other)
        other.end()
    made = Shared(arguments)
    _LOADED.add(made)
    return made


class Engine:
    """A model in vLLM's offline engine, which answers one call of `run` at a time."""

    def __init__(self, name: str, config: VllmModel, folder: Path, length: int, adapter: Adapter | None = None):
        """Load the weights, or share them with a loaded model. Any other model of vLLM ends.

        `name` is the model's in evals.yaml. Raises `ModelError` if vLLM refuses the model or the adapter.
        """
        set_environment(config)
        import vllm
        from vllm.sampling_params import StructuredOutputsParams

        self._name = name
        self._params: Any = vllm.SamplingParams
        self._grammar: Any = StructuredOutputsParams
        arguments = engine_arguments(config, folder, length) | adapter_arguments(adapter)
        try:
            self._shared = _shared(arguments)
        except Exception as error:
            raise ModelError(
                f"Model {name!r}: vLLM cannot load {folder} ({_reason(error)}). If that is not about keys or files: `gpu_memory_share` "
                "is vLLM's part of the device's memory, and `max_length` the tokens of context, which need some of it."
            ) from error
        try:
            self._adapter = {} if adapter is None else {"lora_request": self._shared.adapter(adapter)}
        except Exception as error:
            raise ModelError(
                f"Model {name!r}: vLLM refuses its adapter ({_reason(error)}). Check that it was made for this model, and that vLLM adds "
                "adapters to the modules that it changes."
            ) from error

    def run(self, calls: Iterable[Call[Key]]) -> Iterator[tuple[Call[Key], Any]]:
        """Yield each call with its `RequestOutput` as soon as it is done, or with the exception by which vLLM refused it.

        Raises:
            ModelError: The engine failed as a whole, or ended when another model was loaded.
        """
        shared, queue = self._shared, iter(calls)
        if shared.engine is None:
            raise ModelError(f"Model {self._name!r}: vLLM ended it when it loaded another model. Load it again.")
        open_calls: dict[str, Call[Key]] = {}
        try:
            while True:
                for call in islice(queue, _WAITING - len(open_calls)):
                    shared.requests += 1
                    try:
                        prompt = {"prompt_token_ids": list(call.tokens)}
                        grammar = {"structured_outputs": self._grammar(**call.grammar)} if call.grammar else {}
                        params = self._params(**call.arguments, **grammar)
                        shared.engine.add_request(str(shared.requests), prompt, params, **self._adapter)
                    except Exception as error:
                        yield call, error.with_traceback(None)
                    else:
                        open_calls[str(shared.requests)] = call
                if not open_calls:
                    return
                try:
                    outputs = shared.engine.step()
                except Exception as error:
                    shared.has_failed = True
                    raise ModelError(f"Model {self._name!r}: vLLM's engine failed ({type(error).__name__}: {error})") from error
                for output in outputs:
                    if output.finished:
                        yield open_calls.pop(output.request_id), output
        finally:
            # Interrupted: vLLM must not go on with what nobody waits for.
            if open_calls and shared.engine is not None:
                shared.engine.abort_request(list(open_calls))


def _reason(error: Exception) -> str:
    """Class and message of an exception of vLLM, on one line; of wrong arguments, what vLLM says of each, without their values."""
    if isinstance(error, ValidationError):
        return "; ".join(each["msg"] for each in error.errors(include_url=False, include_input=False))
    return " ".join(f"{type(error).__name__}: {error}".split())


def _shut_down(held: list[Any]) -> None:
    """End an engine, so that the next model finds the memory of the device free."""
    from vllm.distributed import cleanup_dist_env_and_memory

    try:
        held[0].engine_core.shutdown()
    finally:
        # What holds adapters refers to the weights, until the engine itself is gone.
        held.clear()
        cleanup_dist_env_and_memory()
