"""A model's folder in the Hub's layout: its files, their completeness, the hash of their content, and the length of the context.

Large files are hashed once: a restart does not read gigabytes again. No weights are read for the length.
"""

import json
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from eval_dagster.errors import ModelNotFoundError
from eval_dagster.stores.whole_files import replaced
from eval_dagster.versions.hashes import file_hash

LENGTH_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length")
"""What architectures call the tokens of their context."""

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
"""Types of values in the header of a GGUF file."""
TOKENIZER_FILES = (
    "tokenizer*.json",
    "tokenizer.model",
    "*.jinja",
    "additional_chat_templates/*.jinja",
    "added_tokens.json",
    "chat_template.json",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "*.tiktoken",
    "tekken.json",
    "tiktoken.model",
    "spiece.model",
    "sentencepiece*.model",
)
"""Patterns of the files that turn text into tokens and messages into text."""
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""Names of the files that configure how a vision-language model reads images."""
TEMPLATE_FILES = (*TOKENIZER_FILES, *PROCESSOR_FILES)
MODEL_FILES = (*TEMPLATE_FILES, "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")
"""Patterns of all files that are downloaded, loaded and hashed, beside the weights in subfolders that an index names. Pickled weights and
code are not among them."""
_OUTSIDE = "is not in the folder; expected names of its files, because only these are part of the model's version"
_SETTLED_S = 2.0
"""A file changed more recently than this is hashed again next time: a second write may fall into the same tick of its clock."""


def configured_length(folder: Path) -> int | None:
    """The length in the `config.json` of a folder; None if it has none, for example because it is the architecture's default."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    # A vision-language model has a configuration for its text within its own.
    for part in (config.get("text_config") or {}, config):
        found = next((part[name] for name in LENGTH_NAMES if isinstance(part.get(name), int)), None)
        if found is not None:
            return int(found)
    return None


def header_length(file: Path) -> int | None:
    """The length in the header of a GGUF file; None if it has none or is damaged. The conversion of the file reports damage.

    The package `gguf` takes seconds, because it reads the whole header with its tens of thousands of tokens. The length stands before them.
    The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    with file.open("rb") as stream, suppress(struct.error, KeyError, OverflowError, MemoryError):
        _magic, _version, _tensors, count = struct.unpack("<4sIQQ", stream.read(24))
        for _ in range(count):
            name = _string(stream)
            (kind,) = struct.unpack("<I", stream.read(4))
            value = _value(stream, kind)
            if name.endswith(b".context_length"):
                return int(value)
    return None


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(stream)
    if kind == _ARRAY:
        item, length = struct.unpack("<IQ", stream.read(12))
        return [_value(stream, item) for _ in range(length)]
    form = _NUMBERS[kind]
    return struct.unpack(f"<{form}", stream.read(struct.calcsize(form)))[0]


def _string(stream: BinaryIO) -> bytes:
    (length,) = struct.unpack("<Q", stream.read(8))
    return stream.read(length)


def layout_problem(folder: Path) -> str | None:
    """The missing part of a folder that is to be loaded as a model; None for a complete folder."""
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    if not (folder / "config.json").is_file():
        return f"the folder {folder} holds no config.json, only {_listing(folder)}"
    try:
        named = named_weights(folder)
    except ValueError as error:
        return str(error)
    if not named and not any(folder.glob("*.safetensors")):
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        if pickled:
            return f"the folder {folder} holds only pickled weights ({', '.join(pickled)}), refused because loading them can run code"
        return f"the folder {folder} holds no weights (*.safetensors), only {_listing(folder)}"
    missing = [name for name in named if not (folder / name).is_file()]
    if missing:
        return f"the folder {folder} lacks weight files that its index names: {', '.join(missing)}"
    if not any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern)):
        return f"the folder {folder} holds no tokenizer, only {_listing(folder)}"
    return tokenizer_problem(folder)


class Digests:
    """File hashes remembered in a JSON file, keyed by path, size and times of change.

    A process that writes at the same time as another may lose entries; they are computed again.
    """

    def __init__(self, file: Path):
        self._file = file
        self._known = self._read()

    def of(self, path: Path) -> str:
        """Hash of a file's content."""
        stat = path.stat()
        # A copy that preserves the time of modification still gets a new time of change.
        key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"
        if key in self._known:
            return self._known[key]
        digest = file_hash(path)
        if time.time() - max(stat.st_mtime, stat.st_ctime) > _SETTLED_S:
            self._known = {**self._read(), **self._known, key: digest}
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with replaced(self._file) as made:
                made.write_text(json.dumps(self._known, indent=1, sort_keys=True), "utf-8")
        return digest

    def _read(self) -> dict[str, str]:
        # A damaged file costs time only, never a wrong hash: it is written again.
        with suppress(OSError, ValueError, AttributeError):
            return {str(key): str(value) for key, value in json.loads(self._file.read_text("utf-8")).items()}
        return {}


class Checkpoint(ABC):
    """Weights and tokenizer that can be checked and named without being loaded."""

    @abstractmethod
    def check(self) -> None:
        """Raise `ModelNotFoundError` unless the weights are there. Reads no weights."""

    @abstractmethod
    def fingerprint(self) -> Any:
        """JSON-like value that differs where weights, configuration, tokenizer or chat template differ. Converts and downloads nothing."""

    def template_fingerprint(self) -> Any:
        """JSON-like value that differs where tokenizer or chat template differ."""
        return self.fingerprint()

    @abstractmethod
    def context_length(self) -> int | None:
        """Tokens of context that the configuration states; None without a configuration or a length in it. Prepares nothing."""

    @abstractmethod
    def has_tokenizer(self) -> bool:
        """Whether `tokenizer_folder` neither fetches nor converts anything."""

    @abstractmethod
    def folder(self) -> Path:
        """The folder to load from, prepared or downloaded if necessary. Raises `ModelError` if that fails."""

    def tokenizer_folder(self) -> Path:
        """A folder that holds at least the tokenizer. Raises `ModelError` if it cannot be prepared or downloaded."""
        return self.folder()


class FolderCheckpoint(Checkpoint):
    """Weights in a local folder."""

    def __init__(self, name: str, folder: Path, digests: Digests):
        self._name = name
        self._folder = folder
        self._digests = digests

    def check(self) -> None:
        """Raise `ModelNotFoundError` unless the folder is complete."""
        problem = layout_problem(self._folder)
        if problem:
            raise ModelNotFoundError(
                f"Model {self._name!r}: {problem}. Expected config.json, a tokenizer and *.safetensors weights there. "
                f"Correct `source.folder` in evals.yaml (relative to that file), or save the model with `save_pretrained`."
            )

    def fingerprint(self) -> Any:
        """Hash of each file that can change an output, by its name in the folder."""
        return self._hashes(MODEL_FILES)

    def template_fingerprint(self) -> Any:
        """Hash of each file of the tokenizer and the processor, the chat template included."""
        return self._hashes(TEMPLATE_FILES)

    def context_length(self) -> int | None:
        """Tokens of context that `config.json` states."""
        return configured_length(self._folder)

    def has_tokenizer(self) -> bool:
        """Always."""
        return True

    def folder(self) -> Path:
        """The folder to load from."""
        self.check()
        return self._folder

    def _hashes(self, patterns: tuple[str, ...]) -> dict[str, str]:
        self.check()
        files = {path for pattern in patterns for path in self._folder.glob(pattern)}
        if patterns is MODEL_FILES:
            files.update(self._folder / name for name in named_weights(self._folder))
        return {path.relative_to(self._folder).as_posix(): self._digests.of(path) for path in sorted(files)}


def tokenizer_problem(folder: Path) -> str | None:
    """The reason why a folder's tokenizer is not loaded: its configuration names files of other folders; None if there is none."""
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return None
    try:
        named = _object(file).get("fast_tokenizer_files")
    except ValueError as error:
        return str(error)
    names = map(str, named) if isinstance(named, Iterable) else ()
    outside = next((name for name in names if name != Path(name.replace("\\", "/")).name), None)
    return None if outside is None else f"{file} names the file {outside!r}, which {_OUTSIDE}"


def named_weights(folder: Path) -> list[str]:
    """The weight files of a folder that its indices and its `config.json` name, subfolders included, whether or not they are there.

    Raises:
        ValueError: One is outside the folder, or another file makes transformers load what no hash of this folder covers.
    """
    named: dict[str, str] = {}
    config = _object(folder / "config.json")
    explicit = config.get("transformers_weights")
    indices = {file.name for file in folder.glob("*.safetensors.index.json")}
    if isinstance(explicit, str):
        named[explicit] = "config.json"
        indices |= {explicit} if explicit.endswith(".index.json") else set()
    for index in sorted(indices):
        if (folder / index).is_file():
            weights = _object(folder / index).get("weight_map")
            if not isinstance(weights, dict):
                raise ValueError(f"{folder / index} is damaged: it has no `weight_map` from weights to files")
            named |= {str(name): index for name in weights.values()}
    for name, source in named.items():
        parts = PurePosixPath(name.replace("\\", "/"))
        if not name or parts.is_absolute() or ".." in parts.parts:
            raise ValueError(f"{folder / source} names the file {name!r}, which {_OUTSIDE}")
    if (folder / "adapter_config.json").is_file():
        raise ValueError(
            f"the folder {folder} holds an adapter (adapter_config.json) beside the weights, which would change them where peft is "
            "installed; expected it in a folder of its own, or merged into the weights"
        )
    return sorted(named)


def _object(file: Path) -> dict[str, object]:
    """The content of a JSON file that has to be an object. Raises `ValueError` with the file's path if it is none."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds no JSON object")
    return found


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "nothing"
