"""Finds the device of a model. Torch is not imported where only the CPU is possible."""

import ctypes
import importlib.util
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

_CUDA_DEVICES = ("/dev/nvidiactl", "/dev/nvhost-gpu", "/dev/dxg")
"""Devices of cards, of Tegra boards, and of the Windows Subsystem for Linux."""


def device_of(setting: str) -> str:
    """The device of the setting `auto` on this machine; any other setting unchanged."""
    if setting != "auto":
        return setting
    if not _may_have_accelerator():
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def device_problem(device: str) -> str | None:
    """Why a device cannot be used; None if it can."""
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return None
    import torch

    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        return f"device {device!r} is not there: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices"
    if kind == "mps" and not torch.backends.mps.is_available():
        return f"device 'mps' is not there: torch {torch.__version__} finds no Apple GPU"
    return None


def device_title(device: str, setting: str) -> str:
    """A device and the reason for it, for people. `setting` is the key `device` of the model."""
    why = f"`device: {setting}`"
    if device == "cpu":
        return f"the CPU ({why} found no GPU)" if setting == "auto" else f"the CPU ({why})"
    return f"{device}, {device_kind(device)[1]} ({why})"


def device_kind(device: str) -> tuple[str, ...]:
    """The kind of a device, as far as numbers depend on it: `cpu`, or kind, name and architecture of a GPU, without its index.

    The kernels that a library chooses differ from one kind of GPU to another, and so does their rounding. Of CUDA it is also the version
    that the driver compiles kernels for, and the settings of torch by which kernels round: a caller may have changed them.
    """
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return (kind,)
    import torch

    if kind == "cuda":
        found = torch.cuda.get_device_properties(int(index or 0))
        number = ctypes.c_int()
        try:
            ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
            driver = str(number.value)
        except (OSError, AttributeError):  # it does not say which version of CUDA it supports, as a driver of AMD
            driver = ""
        architecture = getattr(found, "gcnArchName", None) if torch.version.hip else f"{found.major}.{found.minor}"
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        return (
            *(kind, str(found.name), str(architecture), f"driver {driver}"),
            f"tf32 {_rounds_to_tf32(matmul)} {_rounds_to_tf32(getattr(cudnn, 'conv', cudnn))}",
            f"reduced precision {matmul.allow_bf16_reduced_precision_reduction} {matmul.allow_fp16_reduced_precision_reduction}",
            f"half accumulation {getattr(matmul, 'allow_fp16_accumulation', False)}",
            f"deterministic {torch.are_deterministic_algorithms_enabled()} {cudnn.deterministic} {cudnn.benchmark}",
            f"workspace {os.environ.get('CUBLAS_WORKSPACE_CONFIG', '')}",
        )
    return (kind, str(torch.backends.mps.get_name())) if kind == "mps" else (kind,)


def _rounds_to_tf32(owner: Any) -> bool:
    """Whether products of float32 have fewer digits. Torch refuses to read `allow_tf32` if its newer name was used to set it."""
    found = getattr(owner, "fp32_precision", None)
    return bool(owner.allow_tf32) if found is None else found == "tf32"


@cache
def _may_have_accelerator() -> bool:
    """False if torch was built without an accelerator, or for CUDA and the machine has neither its device nor its driver."""
    spec = importlib.util.find_spec("torch")
    if sys.platform != "linux" or spec is None or spec.origin is None:
        return True
    try:
        text = Path(spec.origin).with_name("version.py").read_text("utf-8")
    except OSError:
        return True
    built = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *(\S+)", text, re.MULTILINE))
    if built.get("hip", "None") != "None":
        return True
    if built.get("cuda") == "None":
        return False
    if any(Path(device).exists() for device in _CUDA_DEVICES):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
