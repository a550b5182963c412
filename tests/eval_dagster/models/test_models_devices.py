"""Which device `auto` is, and when torch has to be asked for it."""

import ctypes
import importlib.util
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

from eval_dagster.models.transformers.network import devices


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    devices._may_have_accelerator.cache_clear()
    yield
    devices._may_have_accelerator.cache_clear()


def test_auto_is_what_torch_finds() -> None:
    found = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert devices.device_of("auto") == found
    assert devices.device_of("cuda:1") == "cuda:1"


@pytest.mark.parametrize(
    ("build", "has_driver", "has_card", "is_asked"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", True, True, False),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None", False, False, False),
        ("cuda = '13.0'\nhip = None", True, False, True),
        ("cuda = '13.0'\nhip = None", False, True, True),
        ("cuda = None\nhip = '7.1'", False, False, True),
        ("", True, False, True),
        (None, False, False, True),
    ],
    ids=[
        "built for the processor",
        "nothing",
        "driver",
        "card",
        "another maker's",
        "unknown",
        "no file",
    ],
)
def test_torch_is_asked_only_where_it_may_find_a_device(
    build: str | None, has_driver: bool, has_card: bool, is_asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if build is not None:
        (tmp_path / "version.py").write_text(build)
    card = tmp_path / "card"
    if has_card:
        card.touch()
    monkeypatch.setattr(devices, "_CUDA_DEVICES", (str(card),))

    def load(name: str) -> None:
        assert name == "libcuda.so.1"
        if not has_driver:
            raise OSError(name)

    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None, origin=str(tmp_path / "__init__.py")))
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.device_of("auto") == ("cuda" if is_asked else "cpu")


def test_a_device_that_is_not_there_is_named() -> None:
    count = torch.cuda.device_count()
    problem = devices.device_problem(f"cuda:{count}")
    assert problem is not None
    assert f"'cuda:{count}' is not there" in problem
    assert devices.device_problem("cpu") is None
