"""Answers of a model by one backend, in an environment that has vLLM: `python vllm_side.py BACKEND FOLDER HOME RESULT`."""

import json
import sys
from pathlib import Path

from eval_dagster.config.models import TransformersModel, VllmModel
from eval_dagster.models.registry import open_model
from eval_dagster.records import GenerationSettings, Grammar, Request

TOPIC = "The following are questions about the world. " * 30
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"], "additionalProperties": False}


def requests() -> list[Request]:
    ends = (" into the bar and says hello", " into the bar", " on the moon", " into the bar and says hello to all")
    return [
        *(Request(request_id=f"letters-{n}", prompt=f"{TOPIC}What is {n}+1?\nAnswer:", choices=(" A", " B", " C")) for n in range(6)),
        *(Request(request_id=f"ends-{n}", prompt=f"{TOPIC}A man {n} walks", choices=ends) for n in range(6)),
        # Its choices are so long that the cache holds parts of them the second time.
        *(Request(request_id=f"long-{n}", prompt=TOPIC, choices=(" it was late" * 60, " it was late" * 60 + " again")) for n in range(2)),
        Request(
            request_id="text", prompt="It was a bright cold day in April, and the clocks were striking thirteen. " * 10, perplexity=True
        ),
        Request(request_id="prior", prompt="Two plus two?\nA:", choices=(" four", " it is five"), unconditioned_prompt="A:"),
        Request(request_id="too-long", prompt="x y z " * 5000, choices=(" a",)),
        *(
            Request(
                request_id=f"count-{n}",
                prompt=f"{TOPIC}Count: {n}, {n + 1},",
                generation=GenerationSettings(max_tokens=24, stop_sequences=("\n",)),
            )
            for n in range(3)
        ),
        Request(
            request_id="number",
            prompt="My number is ",
            generation=GenerationSettings(max_tokens=10, grammar=Grammar(kind="regex", value="[0-9]{3}")),
        ),
        Request(
            request_id="json",
            prompt="A person as JSON:",
            generation=GenerationSettings(max_tokens=40, grammar=Grammar(kind="json_schema", value=json.dumps(SCHEMA))),
        ),
        Request(
            request_id="sampled",
            prompt="Once upon a time",
            generation=GenerationSettings(max_tokens=12, temperature=0.8, top_k=20, num_samples=3, seed=1),
        ),
    ]


def main(backend: str, folder: str, home: str, result: str) -> None:
    section = {"backend": backend, "source": {"folder": folder}, "dtype": "float32", "max_length": 2000}
    config = (
        VllmModel.model_validate({**section, "gpu_memory_share": 0.3}) if backend == "vllm" else TransformersModel.model_validate(section)
    )
    model = open_model("side", config, folder=Path(home), home=Path(home)).load()
    # Twice: the second time the prefix cache is full.
    found = [{request.request_id: response for request, response in model.respond(requests())} for _ in range(2)]
    scoring = model.usage()[0]
    Path(result).write_text(
        json.dumps(
            {
                "answers": [
                    {
                        name: {
                            "error": each.error,
                            "token_logprobs": [list(values) for values in each.token_logprobs],
                            "prior": list(each.unconditioned_logprobs or ()),
                            "greedy": list(each.argmax_logits_eq_gold),
                            "text": list(each.text),
                            "finish_reason": list(each.finish_reason),
                        }
                        for name, each in answers.items()
                    }
                    for answers in found
                ],
                "asked": scoring.inputs_asked(),
                "computed": scoring.inputs_computed(),
            }
        ),
        "utf-8",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
