"""The `transformers` backend: a causal language model, of text or of text and images, run on this machine.

Torch and transformers take seconds to import, more than the rest of a run whose answers are all cached. So the modules that need them are
imported only to load a tokenizer or weights, or to look for a device other than the processor.
"""

import gc
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_dagster.config.models import FolderSource, HubSource, StoreSource, TransformersModel
from eval_dagster.errors import ConfigError, ModelError, ModelNotFoundError
from eval_dagster.models.base import ModelHandle
from eval_dagster.models.transformers.encoding import chat_template
from eval_dagster.models.transformers.network.devices import device_kind, device_of, device_problem, device_title
from eval_dagster.models.transformers.weights.checkpoint import Checkpoint
from eval_dagster.models.transformers.weights.sources import open_checkpoint, require_packages
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.records import Message
from eval_dagster.versions.hashes import code_version, package_versions, stable_hash

if TYPE_CHECKING:
    from eval_dagster.models.transformers.model import LoadedModel

ENGINE_VERSION = 1
"""Version of the code that computes answers: all modules of this folder that a loaded model runs.

Raise it with every change after which a log-probability, a logit or a text may differ by more than rounding, because cached answers are
used as long as the version of a model is the same. Golden answers fail where numbers changed and this version did not. Do not raise it for
moved code, messages or speed, because each rise makes all answers of all homes be computed again.
"""

PACKAGES = ("llguidance", "pillow", "tokenizers", "torch", "transformers")
"""Packages that can change an answer."""


class CheckpointHandle(ModelHandle):
    """A model of a checkpoint, not yet loaded, whose tokenizer or processor renders conversations."""

    def __init__(self, name: str, checkpoint: Checkpoint) -> None:
        """`name` is the model's in evals.yaml."""
        self._name = name
        self._checkpoint = checkpoint

    def must_prepare(self) -> bool:
        """Whether the tokenizer has to be fetched or converted first."""
        return not self._checkpoint.has_tokenizer()

    def template_version(self) -> str:
        """Hash of tokenizer and chat template, and of what renders it."""
        return stable_hash(
            {
                "template": self._checkpoint.template_fingerprint(),
                "packages": package_versions(("jinja2", "transformers")),
                "code": code_version(chat_template.render),
            }
        )

    def _rendered(self, owner: Any, messages: Sequence[Message], *, in_parts: bool, images: int, tools: Sequence[str]) -> str:
        """Messages by the template of a tokenizer or a processor. Raises `ModelError` if it has none, or refuses these messages."""
        if not owner.chat_template:
            raise ModelError(f"Model {self._name!r} has no chat template. Set `prompt_format: plain` for it in evals.yaml.")
        try:
            return chat_template.render(owner, messages, in_parts=in_parts, images=images, tools=tools)
        except ModelError as error:
            raise ModelError(f"Model {self._name!r}: {error}") from error


class TransformersHandle(CheckpointHandle):
    """A causal language model, not yet loaded."""

    SECTION = TransformersModel

    def __init__(self, name: str, config: TransformersModel, *, folder: Path, home: Path):
        """`folder` is the folder of evals.yaml, `home` the folder of all state."""
        super().__init__(name, open_checkpoint(name, config.source, folder=folder, home=home))
        self._config = config

    @classmethod
    def open(cls, name: str, config: TransformersModel, *, folder: Path, home: Path) -> "TransformersHandle":
        """The handle of a section of evals.yaml, which lies in `folder`; nothing is checked or loaded yet."""
        return cls(name, config, folder=folder, home=home)

    def check(self) -> None:
        """Refuse a model that cannot be loaded.

        Raises:
            ConfigError: `max_length` exceeds the context.
            ModelNotFoundError: Weights or device are not there.
            RequirementError: A package of the extra `transformers` is not installed.
        """
        require_packages(self._name)
        self._checkpoint.check()
        self._check_length()
        self._device()

    def _check_length(self) -> None:
        most = self._config.max_length
        length = None if most is None else self._checkpoint.context_length()
        if most is not None and length is not None and most > length:
            raise ConfigError(
                f"Model {self._name!r}: `max_length: {most}` is more than the {length} tokens of the model's context. "
                "Lower it in evals.yaml, or omit it."
            )

    def version(self) -> str:
        """Hash of everything that can change an output, except the batch size and the generation settings, which each request has.

        Raises `ModelNotFoundError` if the weights or the device are not there.
        """
        return stable_hash(
            {
                "backend": self._config.backend,
                "checkpoint": self._checkpoint.fingerprint(),
                "dtype": self._config.dtype,
                "max_length": self._config.max_length,
                "truncate": self._config.truncate,
                "engine": ENGINE_VERSION,
                "packages": package_versions(PACKAGES),
                "device": device_kind(self._device()),
            }
        )

    def content_version(self) -> str:
        """Hash of weights, configuration, tokenizer and chat template. Raises `ModelNotFoundError` if they are not there."""
        fingerprint = self._checkpoint.fingerprint()
        if isinstance(self._config.source, HubSource | FolderSource | StoreSource):
            return stable_hash(fingerprint)
        return stable_hash(fingerprint["gguf"].partition("-")[0])  # the hash of the file, without the versions of its conversion

    def engine(self) -> str:
        """The engine and device that would compute the answers, and why. Raises `ModelNotFoundError` if the device is not there."""
        return f"transformers {self._config.dtype} on {device_title(self._device(), self._config.device)}"

    def answers_vary(self) -> bool:
        """Whether it computes on a GPU, if the size of a batch or of a piece follows from the free memory."""
        return device_of(self._config.device) != "cpu"

    def image_mark(self) -> str:
        """The text that stands for one image in a plain prompt. Raises `ModelError` if the model takes no images."""
        from eval_dagster.models.transformers.encoding.vision import image_mark

        return image_mark(self._processor)

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0, tools: Sequence[str] = ()) -> str:
        """Render messages by the model's own template; a last assistant message is left open, to be continued.

        Raises `ModelError` if the model has no chat template, its template refuses these messages, or the model takes no images.
        """
        in_parts = images > 0 or self._takes_images
        owner = self._processor if in_parts else self._tokenizer
        return self._rendered(owner, messages, in_parts=in_parts, images=images, tools=tools)

    def load(self) -> "LoadedModel":
        """Load tokenizer and weights. Raises `ModelError` if they cannot be loaded."""
        self.check()
        with current_reporter().track("import torch and transformers", total=1, unit="package") as advance:
            from eval_dagster.models.transformers.model import load_model
            from eval_dagster.models.transformers.network.resources import release_memory

            advance()
        # Networks of some architectures refer to themselves, so that without this the weights of the last model would stay in memory.
        gc.collect()
        # Their blocks may be too small for the next weights, and no other process could take them.
        release_memory()
        return load_model(self._name, self._config, self._checkpoint.folder(), self._tokenizer, lambda: self._processor)

    def _device(self) -> str:
        require_packages(self._name)
        device = device_of(self._config.device)
        problem = device_problem(device)
        if problem:
            raise ModelNotFoundError(f"Model {self._name!r}: {problem}. Set `device: auto` or one that this machine has.")
        return device

    @cached_property
    def _tokenizer(self) -> Any:
        require_packages(self._name)
        from eval_dagster.models.transformers.weights.loading import load_tokenizer

        self._check_length()
        return load_tokenizer(self._name, self._checkpoint.tokenizer_folder())

    @cached_property
    def _takes_images(self) -> bool:
        from eval_dagster.models.transformers.weights.loading import takes_images

        self._check_length()
        return takes_images(self._checkpoint.tokenizer_folder())

    @cached_property
    def _processor(self) -> Any:
        from eval_dagster.models.transformers.weights.loading import load_processor

        folder = self._checkpoint.tokenizer_folder()
        if not self._takes_images:
            raise ModelError(f"Model {self._name!r} takes no images: it is a model of text alone, or its processor is not there.")
        try:
            return load_processor(folder)
        except Exception as error:
            raise ModelError(
                f"Model {self._name!r}: the processor in {folder} cannot be loaded ({type(error).__name__}: {error}). "
                "Check that its files are complete and need no remote code. A processor of videos also "
                "needs the torchvision that belongs to this torch."
            ) from error
