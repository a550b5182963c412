"""llama.cpp as a server of the demo model, whose weights it has in float32."""

import hashlib
from collections.abc import Iterator
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
_HEADER = ("general.architecture", "GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")
"""Fields that the writer adds itself."""


@contextmanager
def llama_cpp_server(file: Path, folder: Path) -> Iterator[RunningServer]:
    """Serve a GGUF file; the log lies in the folder."""
    with running_server("llama_cpp_program", str(file), MODEL, model=MODEL, folder=folder) as server:
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
            _write_float32(source, partial)
            partial.rename(target)
    return target


def _write_float32(source: Path, target: Path) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name not in _HEADER:
            kind, inner = field.types[0], field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            value = gguf.LlamaFileType.ALL_F32 if field.name == "general.file_type" else field.contents()
            writer.add_key_value(field.name, value, kind, sub_type=inner)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values, raw_dtype=gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
