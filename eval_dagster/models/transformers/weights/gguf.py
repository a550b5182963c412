"""Converts a GGUF file to a safetensors folder once. Dequantising takes many seconds, loading the result two.

The folder holds the checksum of each of its files.
"""

import functools
import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.metadata import version as package_version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import xxhash

from eval_dagster.errors import ModelError, ModelNotFoundError
from eval_dagster.models.transformers.weights.checkpoint import Checkpoint, Digests, header_length, layout_problem
from eval_dagster.progress.reporting import current_reporter
from eval_dagster.stores.locks import locked

_RECORD = "checksums.json"
_BLOCK = 1 << 24
"""Bytes that are read at once."""
_MAGIC = b"GGUF"
_CONVERSION_VERSION = 1
"""Raise it with every change of `_convert` after which a weight, the configuration or the tokenizer may differ."""


def record(folder: Path) -> None:
    """Write the checksums of all files of a folder into it."""
    sums = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
    (folder / _RECORD).write_text(json.dumps(sums, indent=1), "utf-8")


def damage(folder: Path, *, weights: bool = True) -> str | None:
    """The difference between a folder and its checksums; None for a sound folder.

    All bytes are read, because a lost block of a disk changes no time of its file. A folder without checksums counts as damaged.

    Args:
        folder: A folder that a GGUF file was converted to.
        weights: Whether to read the weights, too.
    """
    if not (folder / _RECORD).is_file():
        return f"{folder} has no {_RECORD}, as folders that an earlier version converted"
    try:
        sums = json.loads((folder / _RECORD).read_text("utf-8"))
        for name, expected in sums.items():
            if (weights or not name.endswith(".safetensors")) and _checksum(folder / name) != expected:
                return f"{folder / name} has changed since it was converted"
        extra = sorted(path.name for path in folder.iterdir() if path.name not in {_RECORD, *sums})
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ValueError, AttributeError) as error:
        return f"{folder / _RECORD} or a file that it names cannot be read: {type(error).__name__}: {error}"
    return f"{folder / extra[0]} was not there when the folder was converted" if extra else None


def converted_folders(home: Path) -> Iterator[Path]:
    """The folders of a home that GGUF files were converted to."""
    folders = (path for path in (home / "models").glob("*/") if path.suffix != ".partial")
    return (path for path in sorted(folders) if path.is_dir())


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


class GGUFCheckpoint(Checkpoint):
    """A GGUF file and the float32 safetensors folder prepared from it under `<home>/models`."""

    def __init__(self, name: str, locate: Callable[[], Path], home: Path, digests: Digests):
        """`locate` gives the file's path, or raises `ModelNotFoundError`."""
        self._name = name
        self._locate = locate
        self._prepared_root = home / "models"
        self._digests = digests

    def check(self) -> None:
        """Raise `ModelNotFoundError` unless there is a GGUF file."""
        self._file()

    def fingerprint(self) -> Any:
        """Hash of the file, and the versions of what dequantises it; nothing is converted."""
        return {"gguf": self._key()}

    def context_length(self) -> int | None:
        """Tokens of context that the file's header states."""
        return header_length(self._file())

    def has_tokenizer(self) -> bool:
        """Whether the prepared folder is there."""
        return layout_problem(self._prepared_root / self._key()) is None

    def folder(self) -> Path:
        """The prepared folder, every byte of which is compared with its checksum. Raises `ModelError` if it cannot be prepared.

        The first call prepares it, while other processes wait; so does a call that finds it damaged.
        """
        return self._sound(self._prepared_root / self._key(), weights=True)

    def tokenizer_folder(self) -> Path:
        """The prepared folder, without reading its weights."""
        return self._sound(self._prepared_root / self._key(), weights=False)

    def tokenizer_alone(self) -> Path:
        """A folder with the tokenizer, for which no weights are read. Raises `ModelError` if it cannot be prepared."""
        whole = self._prepared_root / self._key()
        if layout_problem(whole) is None and damage(whole, weights=False) is None:
            return whole
        return self._sound(whole.with_name(f"{whole.name}.tokenizer"), weights=None)

    def _sound(self, folder: Path, *, weights: bool | None) -> Path:
        """Prepare a folder unless it is sound. `weights`: whether to read them; None for a folder with the tokenizer alone."""

        def is_sound() -> bool:
            return (weights is None or layout_problem(folder) is None) and damage(folder, weights=bool(weights)) is None

        if not is_sound():
            with locked(folder.with_name(f"{folder.name}.lock")):
                if not is_sound():
                    self._prepare(folder, tokenizer_alone=weights is None)
        return folder

    def _prepare(self, folder: Path, *, tokenizer_alone: bool) -> None:
        # The lock makes this process the only writer, so whatever lies here was left by one that was killed, or is damaged.
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        file = self._file()
        what = f"read the tokenizer of {file.name}, once" if tokenizer_alone else f"convert {file.name} to safetensors, once"
        try:
            with current_reporter().track(what, total=1, unit="file") as advance:
                (_save_tokenizer if tokenizer_alone else _convert)(file, partial)
                record(partial)
                partial.rename(folder)
                advance()
        except Exception as error:
            shutil.rmtree(partial, ignore_errors=True)
            if tokenizer_alone:
                raise ModelError(
                    f"Model {self._name!r}: the tokenizer of the GGUF file {file} cannot be read ({type(error).__name__}: "
                    f"{error}). Name another source of this tokenizer in evals.yaml, e.g. `tokenizer: {{folder: ...}}`."
                ) from error
            raise ModelError(
                f"Model {self._name!r}: the GGUF file {file} cannot be converted to safetensors in {folder} "
                f"({type(error).__name__}: {error}). Check that transformers supports its architecture and that the disk has room."
            ) from error

    def _file(self) -> Path:
        file = self._locate()
        with file.open("rb") as stream:
            magic = stream.read(len(_MAGIC))
        if magic != _MAGIC:
            raise ModelNotFoundError(
                f"Model {self._name!r}: {file} is no GGUF file: it starts with {magic!r}, expected {_MAGIC!r}. Download it again, or "
                "use `source: {folder: ...}` for a safetensors folder."
            )
        return file

    def _key(self) -> str:
        # Other packages or another conversion may dequantise differently, so each combination has a folder of its own.
        packages = f"{package_version('transformers')}-{package_version('gguf')}"
        return f"{self._digests.of(self._file())}-{packages}-v{_CONVERSION_VERSION}"


@contextmanager
def _alone(file: Path) -> Iterator[Path]:
    """Yield a folder with a link to the file and nothing else, since the model's version does not cover what lies beside the file."""
    # The dequantiser draws a progress bar that no setting turns off.
    with TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        (Path(folder) / file.name).symlink_to(file.absolute())
        yield Path(folder)


@contextmanager
def _read_once() -> Iterator[None]:
    """Give transformers one reader of a file. It asks for three, for tokenizer, configuration and weights, which take seconds each."""
    import gguf

    reader = gguf.GGUFReader
    vars(gguf)["GGUFReader"] = functools.cache(reader)
    try:
        yield
    finally:
        vars(gguf)["GGUFReader"] = reader


def _save_tokenizer(file: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    from eval_dagster.models.transformers.weights.loading import from_folder

    with _alone(file) as source:
        from_folder(AutoTokenizer, source, gguf_file=file.name).save_pretrained(folder)


def _convert(file: Path, folder: Path) -> None:
    # Imported here: torch takes seconds, and a file is converted once.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from eval_dagster.models.transformers.weights.loading import from_folder, quiet

    with _alone(file) as place, _read_once(), quiet():
        tokenizer = from_folder(AutoTokenizer, place, gguf_file=file.name)
        source, report = from_folder(AutoModelForCausalLM, place, gguf_file=file.name, dtype=torch.float32, output_loading_info=True)
        if report["missing_keys"]:
            raise ValueError(f"the file lacks the weights {sorted(report['missing_keys'])[:5]}")
        # A model with a configuration of its quantization cannot be saved.
        del source.config.quantization_config
        model = AutoModelForCausalLM.from_config(source.config, dtype=torch.float32, trust_remote_code=False)
        model.load_state_dict(source.state_dict())
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
