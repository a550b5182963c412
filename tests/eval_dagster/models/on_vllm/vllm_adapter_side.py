"""Two models of vLLM one after the other in one process: `python vllm_adapter_side.py BASE ADAPTER HOME RESULT`."""

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


def main(base: str, adapter: str, home: str, result: str) -> None:
    found = {}
    for name, added in (("base", {}), ("adapter", {"adapter": {"folder": adapter}}), ("base again", {})):
        section = {"backend": "vllm", "source": {"folder": base}, "dtype": "float32", "max_length": 1000, "gpu_memory_share": 0.5, **added}
        # On a GPU the second one would find no memory, had the first not ended.
        model = open_model(name, VllmModel.model_validate(section), folder=Path(home), home=Path(home)).load()
        found[name] = {
            request.request_id: {"error": answer.error, "logprobs": list(answer.logprobs), "text": list(answer.text)}
            for request, answer in model.respond(REQUESTS)
        }
        del model
        gc.collect()
    Path(result).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
