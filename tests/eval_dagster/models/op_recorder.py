"""Records the operations of torch and runs them again on the same tensors, as a CUDA graph does with kernels.

What Python computes is not run again: a number that it read from an object, a shape, a branch. A recording refuses to read the value of a
tensor, as CUDA does.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_AT = torch.ops.aten
_READS = (_AT._local_scalar_dense.default, _AT.is_nonzero.default, _AT.item.default, _AT.equal.default, _AT.nonzero.default)


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if operation in _READS:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        found = operation(*arguments, **(options or {}))
        self.calls.append((operation, arguments, options or {}, found))
        return found

    def run_again(self) -> None:
        for operation, arguments, options, found in self.calls:
            again = operation(*arguments, **options)
            for old, new in zip(*map(_tensors, (found, again)), strict=True):
                # Views, and what was written in place, are on the same memory already.
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _tensors(found: Any) -> list[torch.Tensor]:
    return [item for item in (found if isinstance(found, tuple | list) else [found]) if isinstance(item, torch.Tensor)]


def record(compute: Callable[[], torch.Tensor], device: str) -> Callable[[], torch.Tensor]:
    """A `Recorder` for the CPU."""
    assert device == "cpu"
    compute()
    recording = _Recording()
    with recording:
        found = compute()

    def replay() -> torch.Tensor:
        with torch.inference_mode():
            recording.run_again()
        return found

    return replay
