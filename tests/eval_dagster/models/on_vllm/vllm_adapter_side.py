"""A base and two adapters one after the other in one process: `python vllm_adapter_side.py BASE ADAPTER OTHER HOME RESULT`."""

import gc
import json
import sys
from pathlib import Path

from vllm_side import TOPIC

from eval_dagster.config.models import VllmModel
from eval_dagster.models.registry import open_model
from eval_dagster.records import GenerationSettings, Request

REQUESTS = [
    *(Request(request_id=f"ends-{n}", prompt=f"{TOPIC}A man {n} walks", choices=(" into the bar", " on the moon", " A")) for n in range(4)),
    Request(request_id="text", prompt="It was a bright cold day in April, and the clocks were striking thirteen.", perplexity=True),
    Request(request_id="count", prompt=f"{TOPIC}Count: 1, 2,", generation=GenerationSettings(max_tokens=16)),
]


def main(base: str, adapter: str, other: str, home: str, result: str) -> None:
    found, kept = {}, None
    folders = {"base": None, "adapter": adapter, "other": other, "adapter again": adapter, "base again": None}
    for name, folder in folders.items():
        section = {"backend": "vllm", "source": {"folder": base}, "dtype": "float32", "max_length": 1000, "gpu_memory_share": 0.5}
        added = {"adapter": {"folder": folder}} if folder else {}
        # The adapters share an engine. Any other model needs the memory of the one before, which the pipeline keeps so long.
        kept = model = open_model(name, VllmModel.model_validate({**section, **added}), folder=Path(home), home=Path(home)).load()
        answers = {request.request_id: answer for request, answer in model.respond(REQUESTS)}
        found[name] = {
            "engine": id(model._scorer._engine._shared.engine),
            "answers": {
                key: {"error": each.error, "logprobs": list(each.logprobs), "text": list(each.text)} for key, each in answers.items()
            },
        }
    del kept, model
    gc.collect()
    found["left"] = [type(each).__name__ for each in gc.get_objects() if type(each).__name__ in ("LLMEngine", "LlamaForCausalLM")]
    Path(result).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
