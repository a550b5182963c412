"""A LoRA adapter that vLLM adds to a model: `adapter_config.json` and `adapter_model.safetensors`, as the library peft saves them."""

import json
from pathlib import Path
from typing import Any

from eval_dagster.config.models import FolderSource, HubSource
from eval_dagster.errors import ConfigError, ModelError, ModelNotFoundError
from eval_dagster.models.transformers.weights.checkpoint import Digests

_CONFIG = "adapter_config.json"
_FILES = (_CONFIG, "adapter_model.safetensors")

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM makes room: its `MaxLoRARanks`."""


class Adapter:
    """An adapter in a local folder, or in a repository on the Hugging Face Hub at one commit."""

    def __init__(self, name: str, source: FolderSource | HubSource, *, folder: Path, home: Path):
        """`name` is the model's, `folder` the folder of evals.yaml, `home` the folder of all state."""
        self._name = name
        self._source = source
        self._folder = folder
        self._digests = Digests(home / "models" / "digests.json")

    def check(self) -> None:
        """Check that a folder holds an adapter that vLLM can add; what is on the Hub is checked when it is loaded.

        Raises:
            ModelNotFoundError: The files are not there.
            ConfigError: They are not a LoRA adapter, or its rank is greater than vLLM's.
        """
        if isinstance(self._source, FolderSource):
            self.most_rank()

    def fingerprint(self) -> Any:
        """JSON-like value that differs where configuration or weights differ. Raises `ModelNotFoundError` if they are not there."""
        if isinstance(self._source, HubSource):
            return {"hub": self._source.hub, "commit": self._source.revision}
        folder = self.folder()
        return {name: self._digests.of(folder / name) for name in _FILES}

    def folder(self) -> Path:
        """The folder to load from, downloaded if necessary.

        Raises:
            ModelNotFoundError: The files are not there.
            ModelError: The download failed.
        """
        source = self._source
        if isinstance(source, HubSource):
            # Imported here: it takes long.
            from huggingface_hub import snapshot_download

            try:
                folder = Path(snapshot_download(source.hub, revision=source.revision, allow_patterns=list(_FILES)))
            except Exception as error:
                raise ModelError(
                    f"Model {self._name!r}: the adapter {source.hub} at commit {source.revision} could not be downloaded "
                    f"({type(error).__name__}: {error}). Check its name, the network and your access, or copy it and name its `folder`."
                ) from error
        else:
            folder = (self._folder / Path(source.folder).expanduser()).absolute()
        self._check_files(folder)
        return folder

    def most_rank(self) -> int:
        """The least rank of vLLM's that holds the adapter. Raises `ConfigError` if it is not a LoRA adapter, or of a greater rank."""
        file = self.folder() / _CONFIG
        where = f"Model {self._name!r}: the adapter {file}"
        try:
            config = json.loads(file.read_text("utf-8"))
            kind, has_magnitudes = config.get("peft_type"), config.get("use_dora")
        except (ValueError, AttributeError) as error:
            raise ConfigError(f"{where} is no configuration of a LoRA adapter ({type(error).__name__}: {error}).") from error
        if kind != "LORA":
            raise ConfigError(f"{where} has the `peft_type` {kind!r}; expected LORA, the only one that vLLM adds.")
        if has_magnitudes:
            raise ConfigError(
                f"{where} has `use_dora`, which vLLM does not add. Merge it into the model's weights, and name these as `source`."
            )
        try:
            # Some modules may have ranks of their own.
            ranks = [int(rank) for rank in (config["r"], *(config.get("rank_pattern") or {}).values())]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{where} has no rank that can be read ({type(error).__name__}: {error}); expected whole numbers.") from error
        found = next((most for most in RANKS if max(ranks) <= most), None)
        if min(ranks) < 1 or found is None:
            wrong = max(ranks) if found is None else min(ranks)
            raise ConfigError(
                f"{where} has the rank {wrong}; expected 1 to {RANKS[-1]}, for which vLLM has room. Merge a greater one into the model's "
                "weights, and name these as `source`."
            )
        return found

    def _check_files(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ModelNotFoundError(
                f"Model {self._name!r}: the adapter's folder {folder} does not exist; correct the adapter in evals.yaml."
            )
        missing = [name for name in _FILES if not (folder / name).is_file()]
        if missing:
            is_pickled = (folder / "adapter_model.bin").is_file()
            why = " Pickled weights (adapter_model.bin) are refused because loading them can run code: save them as safetensors."
            raise ModelNotFoundError(
                f"Model {self._name!r}: the adapter {folder} holds no {' and no '.join(missing)}. Expected a folder as peft's "
                f"`save_pretrained` writes it; correct the adapter in evals.yaml.{why if is_pickled else ''}"
            )
