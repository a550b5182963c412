"""What the time of this engine goes into: `python profile_side.py WORK.json RESULT.json FOLDER BACKEND DTYPE LONGEST`."""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine_side import answers_of, request_of, section

from eval_dagster.models.registry import open_model

# isort: split
import meter
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_TOP = 10
"""Operators that are named."""


def main(work_file: str, result_file: str, folder: str, backend: str, dtype: str, longest: str) -> None:
    work = json.loads(Path(work_file).read_text("utf-8"))
    requests = [request_of(work, item, str(number)) for number, item in enumerate(work["items"])]
    with tempfile.TemporaryDirectory() as home:
        model = open_model("benchmark", section(folder, backend, dtype, longest), folder=Path(home), home=Path(home)).load()
        answers_of(model, requests[:2], work["kind"])
        on_gpu = meter.DEVICE == "cuda"
        started = time.perf_counter()
        with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as found:
            answers_of(model, requests, work["kind"])
            if on_gpu:
                torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    meter.write(result_file, {"seconds": seconds, **_parts(found.key_averages(), on_gpu=on_gpu)})


def _parts(events: Any, *, on_gpu: bool) -> dict[str, Any]:
    """The seconds in operators of the device, and of the operators that take most of them."""
    # On a GPU an operator has the time of its kernels, which are events of their own.
    counted = [event for event in events if not on_gpu or event.device_type != DeviceType.CPU]
    seconds = {event.key: (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6 for event in counted}
    ordered = sorted(seconds.items(), key=lambda part: part[1], reverse=True)
    return {"in_operators_s": sum(seconds.values()), "operators": dict(ordered[:_TOP])}


if __name__ == "__main__":
    main(*sys.argv[1:])
