"""The side of lm-eval with vLLM: `python lm_eval_vllm_side.py WORK.json RESULT.json FOLDER DTYPE LONGEST`.

Asks its model class for exactly the requests of the work, with the defaults of `--model vllm`.
"""

import json
import sys
import time
from importlib import metadata
from pathlib import Path

import meter
from lm_eval_side import answers, instance


def main(work_file: str, result_file: str, folder: str, dtype: str, longest: str) -> None:
    # lm-eval asks for the version of the package `vllm`, which has another name where it is built for CPUs.
    # vLLM itself knows by that name what it computes on.
    from vllm.platforms import current_platform

    assert current_platform.device_type
    found = metadata.version
    metadata.version = lambda name: found(next(iter(meter.versions(name)), name))
    from lm_eval.models.vllm_causallms import VLLM

    metadata.version = found

    work = json.loads(Path(work_file).read_text("utf-8"))
    started = time.perf_counter()
    model = VLLM(pretrained=folder, dtype=dtype, max_model_len=int(longest), gpu_memory_utilization=0.9)
    loading = time.perf_counter() - started
    warm = [instance("loglikelihood", ("Once upon a", " time"), 0)]
    result = meter.measure(lambda: answers(model, work), lambda: model.loglikelihood(warm, disable_tqdm=True))
    # Its processes compute out of sight of the counters.
    meter.write(
        result_file, {**result, "loading_s": loading, "tokens": None, "peak_bytes": None, "versions": meter.versions("lm_eval", "vllm")}
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
