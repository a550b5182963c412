"""The side of lm-eval, in its own environment: `python lm_eval_side.py WORK.json RESULT.json FOLDER BATCH_SIZE MEMORY_BYTES [DTYPE]`.

Asks its model class for exactly the requests of the work, as its evaluator would, with the defaults of `--model hf`.
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import meter
from lm_eval.api.instance import Instance


def main(work_file: str, result_file: str, folder: str, batch_size: str, memory: str, dtype: str = "float32") -> None:
    from lm_eval.models.huggingface import HFLM

    work = json.loads(Path(work_file).read_text("utf-8"))
    if meter.DEVICE == "cpu":
        # A batch that is too large is to fail as it would on a GPU, rather than have the machine end some process.
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    started = time.perf_counter()
    model = HFLM(pretrained=folder, dtype=dtype, batch_size=int(batch_size), device=meter.DEVICE)
    loading = time.perf_counter() - started
    warm = [instance("loglikelihood", ("Once upon a", " time"), 0)]
    try:
        result = meter.measure(lambda: answers(model, work), lambda: model.loglikelihood(warm, disable_tqdm=True))
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    meter.write(result_file, {**result, "loading_s": loading, "versions": meter.versions("lm_eval", "torch", "transformers")})


def answers(model: Any, work: dict[str, Any]) -> list[Any]:
    """One an item: log-probabilities of its continuations, the log-probability of its text, or a text."""
    items = work["items"]
    if work["kind"] == "choices":
        pairs = [(item["context"], text) for item in items for text in item["continuations"]]
        scores = model.loglikelihood([instance("loglikelihood", pair, number) for number, pair in enumerate(pairs)], disable_tqdm=True)
        values = iter([float(logprob) for logprob, _ in scores])
        return [[next(values) for _ in item["continuations"]] for item in items]
    if work["kind"] == "perplexity":
        texts = [instance("loglikelihood_rolling", (item["context"],), number) for number, item in enumerate(items)]
        return [float(value) for value in model.loglikelihood_rolling(texts, disable_tqdm=True)]
    settings = {"until": work["stops"], "max_gen_toks": work["max_tokens"], "do_sample": False, "temperature": 0.0}
    asked = [instance("generate_until", (item["context"], dict(settings)), number) for number, item in enumerate(items)]
    return [{"text": text} for text in model.generate_until(asked, disable_tqdm=True)]


def instance(kind: str, arguments: tuple[Any, ...], number: int) -> Instance:
    """A request as lm-eval has it."""
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=number)


if __name__ == "__main__":
    main(*sys.argv[1:])
