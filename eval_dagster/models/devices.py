"""The device that a model runs on, told without importing torch where nothing but the processor is possible."""

import ctypes
import importlib.util
import runpy
import sys
from functools import cache
from pathlib import Path


def device_of(setting: str) -> str:
    """The device that `auto` stands for here; any other setting as it is."""
    if setting != "auto":
        return setting
    if not _may_have_accelerator():
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def device_problem(device: str) -> str | None:
    """Say why a device cannot be used; nothing if it can."""
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return None
    import torch

    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        return f"device {device!r} is not there: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices"
    if kind == "mps" and not torch.backends.mps.is_available():
        return f"device 'mps' is not there: torch {torch.__version__} finds no Apple GPU"
    return None


@cache
def _may_have_accelerator() -> bool:
    """Whether torch has to be asked: true unless it was built without one, or the driver that its build needs is not there."""
    spec = importlib.util.find_spec("torch")
    if sys.platform != "linux" or spec is None or spec.origin is None:
        return True
    build = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    if build.get("hip") is not None or build.get("cuda") is None:
        return build.get("hip") is not None
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
