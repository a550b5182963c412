"""What one side of a benchmark does: its seconds, its peak memory, and the tokens that go through its model.

Runs in the environment of either side: needs torch alone.
"""

import gc
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# Asking for a GPU must not keep a process from being forked: lm-eval starts vLLM so.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def measure(work: Callable[[], Any], warm_up: Callable[[], Any]) -> dict[str, Any]:
    """Run a piece of work once.

    Args:
        work: Gives answers that JSON has a form for.
        warm_up: Makes sure that the weights are in memory and whatever is set up once is set up.

    Returns:
        The answers with `seconds`, `cpu_seconds` (of all threads of the process), `peak_bytes` (above what was there before the work,
        weights included) and `tokens` (computed by the model, padding included).
    """
    warm_up()
    gc.collect()
    tokens: Counter[int] = Counter()

    def count(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, torch.nn.Embedding):
            tokens[id(module)] += inputs[0].numel()

    hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
    base = _restart_peak()
    started, cpu_started = time.perf_counter(), time.process_time()
    answers = work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    peak = _peak() - base
    hook.remove()
    # A model with learned positions has a second embedding, through which as many go.
    computed = max(tokens.values(), default=0)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak, "tokens": computed, "answers": answers}


def versions(*packages: str) -> dict[str, str]:
    """The installed versions, by package; vLLM has another package for CPUs."""
    found = {}
    for name in (*packages, *(f"{package}-cpu" for package in packages)):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def write(path: str, result: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(result), "utf-8")


def _restart_peak() -> int:
    """Forget the peak so far; bytes in use now."""
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    return _status("VmRSS")


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if DEVICE == "cuda" else _status("VmHWM")


def _status(name: str) -> int:
    """A figure of Linux about this process, in bytes."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024
