"""This project's side: `python engine_side.py WORK.json RESULT.json FOLDER [BACKEND] [DTYPE] [LONGEST]`.

A process of its own for each measurement.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval_dagster.config.models import ModelConfig, TransformersModel, VllmModel
from eval_dagster.models.base import Model
from eval_dagster.models.registry import open_model
from eval_dagster.records import GenerationSettings, ModelResponse, Request

# isort: split
import meter  # imports torch, before which the package chooses how its threads wait


def main(work_file: str, result_file: str, folder: str, backend: str = "transformers", dtype: str = "float32", longest: str = "") -> None:
    work = json.loads(Path(work_file).read_text("utf-8"))
    requests = [request_of(work, item, str(number)) for number, item in enumerate(work["items"])]
    with tempfile.TemporaryDirectory() as home:
        started = time.perf_counter()
        model = open_model("benchmark", section(folder, backend, dtype, longest), folder=Path(home), home=Path(home)).load()
        loading = time.perf_counter() - started
        # The first request of each kind has the engine check its ways on this model, which belongs to loading it.
        warm = [
            Request(request_id="choices", prompt="Once upon a", choices=(" time", " day")),
            Request(request_id="text", prompt="Once upon a", generation=GenerationSettings(max_tokens=2)),
        ]
        before: list[int] = []

        def warm_up() -> None:
            list(model.respond(warm))
            before.append(_computed(model))

        result = meter.measure(lambda: answers_of(model, requests, work["kind"]), warm_up)
    usages = [usage for usage in model.usage() if usage.requests]
    counted: dict[str, Any] = {}
    if backend == "vllm":
        # No module of this process is called by vLLM.
        counted = {"tokens": _computed(model) - before[0], "peak_bytes": None}
    ways = {usage.kind: f"{usage.path}: {usage.reason}" for usage in usages}
    packages = ("vllm",) if backend == "vllm" else ("torch", "transformers")
    meter.write(result_file, {**result, **counted, "loading_s": loading, "ways": ways, "versions": meter.versions(*packages)})


def _computed(model: Model) -> int:
    return sum(usage.computed() for usage in model.usage())


def section(folder: str, backend: str, dtype: str, longest: str) -> ModelConfig:
    """A model as evals.yaml has it."""
    settings: dict[str, Any] = {"source": {"folder": folder}, "dtype": dtype, **({"max_length": int(longest)} if longest else {})}
    if backend == "vllm":
        return VllmModel.model_validate({"backend": "vllm", **settings})
    return TransformersModel.model_validate({"backend": "transformers", **settings})


def request_of(work: dict[str, Any], item: dict[str, Any], name: str) -> Request:
    if work["kind"] == "choices":
        return Request(request_id=name, prompt=item["context"], choices=tuple(item["continuations"]))
    if work["kind"] == "perplexity":
        return Request(request_id=name, prompt=item["context"], perplexity=True)
    settings = GenerationSettings(max_tokens=work["max_tokens"], stop_sequences=tuple(work["stops"]))
    return Request(request_id=name, prompt=item["context"], generation=settings)


def answers_of(model: Model, requests: Sequence[Request], kind: str) -> list[Any]:
    """One an item: log-probabilities of its choices, the log-probability of its text, or a text with its tokens."""
    found: dict[str, Any] = {}
    for request, response in model.respond(requests):
        if response.error is not None:
            raise RuntimeError(f"request {request.request_id}: {response.error}")
        found[request.request_id] = _answer(response, kind)
    return [found[request.request_id] for request in requests]


def _answer(response: ModelResponse, kind: str) -> Any:
    if kind == "choices":
        return list(response.logprobs)
    if kind == "perplexity":
        return sum(response.logprobs)
    return {"text": response.text[0], "input_tokens": list(response.input_tokens), "output_tokens": list(response.output_tokens[0])}


if __name__ == "__main__":
    main(*sys.argv[1:])
