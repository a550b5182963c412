"""The peak memory of a block of work."""

import sys
import threading
from types import TracebackType
from typing import Any, Self

import psutil

_EVERY_S = 0.05
"""Seconds between two samples. A shorter peak may be missed."""
ON_GPU = "allocated on the GPUs, above what was allocated before"
ON_CPU = f"resident memory of the process, looked at every {_EVERY_S * 1000:.0f} ms, above what was resident before"


class PeakMemory:
    """Measures the peak memory inside a `with` block.

    If the process uses GPUs, this is the exact peak of PyTorch's allocations on them. Otherwise a thread samples the memory of the process,
    because the operating system knows only the peak since the process started.
    """

    def __init__(self) -> None:
        self.bytes = 0
        """Peak in bytes above the memory at the start; set after the block."""
        self.measured = ON_CPU
        """The method of the measurement, in words."""
        self._process = psutil.Process()
        self._is_over = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="peak memory", daemon=True)

    def __enter__(self) -> Self:
        """Begin to measure."""
        torch = sys.modules.get("torch")  # not imported here, because not every model needs it
        is_on_gpu = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
        self._cuda: Any = torch.cuda if torch is not None and is_on_gpu else None
        if self._cuda is not None:
            self.measured = ON_GPU
            self._before = [self._cuda.memory_allocated(device) for device in range(self._cuda.device_count())]
            for device in range(self._cuda.device_count()):
                self._cuda.reset_peak_memory_stats(device)
        else:
            self._resident = self._process.memory_info().rss
            self._sampler.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Take the last sample."""
        if self._cuda is not None:
            self.bytes = sum(self._cuda.max_memory_allocated(device) - before for device, before in enumerate(self._before))
            return
        self._is_over.set()
        self._sampler.join()
        self._look()

    def _sample(self) -> None:
        while not self._is_over.wait(_EVERY_S):
            self._look()

    def _look(self) -> None:
        self.bytes = max(self.bytes, self._process.memory_info().rss - self._resident)
