"""llama.cpp as a server of the demo model, whose weights it has in float32."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np

from eval_dagster.stores.locks import locked
from servers.processes import RunningServer, running_server

MODEL = "smollm2-135m"
"""The name under which the demo model is served."""
_FORMAT = 1
"""Raise it if the written file changes."""
_FILES = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "BF16": "MOSTLY_BF16", "Q8_0": "MOSTLY_Q8_0"}
_HEADER = ("general.architecture", "GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")
"""Fields that the writer adds itself."""


@contextmanager
def llama_cpp_server(file: Path, folder: Path, **settings: int | bool) -> Iterator[RunningServer]:
    """Serve a GGUF file; the log lies in the folder. `settings` are those of `llama_cpp_program`."""
    with running_server("llama_cpp_program", str(file), MODEL, json.dumps(settings), model=MODEL, folder=folder) as server:
        yield server


def float32_file(source: Path, folder: Path) -> Path:
    """A GGUF file's weights as a float32 GGUF file in the folder (540 MB for the demo model), written once for each source.

    Files of other sources are deleted.
    """
    with source.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()[:16]
    target = folder / f"{digest}-{version('gguf')}-v{_FORMAT}.gguf"
    with locked(folder / "float32.lock"):
        if not target.exists():
            for other in folder.glob("*.gguf*"):
                other.unlink()
            partial = target.with_suffix(".gguf.partial")
            write_weights(weights_of(source), source, partial)
            partial.rename(target)
    return target


def weights_of(source: Path) -> dict[str, np.ndarray]:
    """The weights of a GGUF file in float32."""
    return {each.name: gguf.dequantize(each.data, each.tensor_type).astype(np.float32) for each in gguf.GGUFReader(source).tensors}


def write_weights(weights: Mapping[str, np.ndarray], source: Path, target: Path, kind: str = "F32") -> None:
    """Write weights as a GGUF file with the tokenizer and settings of another one. `kind` is F32, F16, BF16 or Q8_0."""
    chosen, float32 = gguf.GGMLQuantizationType[kind], gguf.GGMLQuantizationType.F32
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name not in _HEADER:
            of, inner = field.types[0], field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            value = gguf.LlamaFileType[_FILES[kind]] if field.name == "general.file_type" else field.contents()
            writer.add_key_value(field.name, value, of, sub_type=inner)
    for name, values in weights.items():
        as_kind = chosen if values.ndim > 1 else float32
        writer.add_tensor(name, values if as_kind == float32 else gguf.quantize(values, as_kind), raw_dtype=as_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
