"""Continuous batching by transformers itself: `python continuous_side.py WORK.json RESULT.json FOLDER`, beside this project's own way."""

import json
import sys
from pathlib import Path
from typing import Any

import meter
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig


def main(work_file: str, result_file: str, folder: str) -> None:
    work = json.loads(Path(work_file).read_text("utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(meter.DEVICE).eval()
    prompts = [tokenizer.encode(item["context"]) for item in work["items"]]

    def generate(inputs: list[list[int]], tokens: int) -> list[dict[str, Any]]:
        settings = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=tokenizer.eos_token_id)
        found = sorted(network.generate_batch(inputs, generation_config=settings).items(), key=lambda pair: int(pair[0].rpartition("_")[2]))
        return [
            {
                "text": tokenizer.decode(output.generated_tokens, skip_special_tokens=True),
                "input_tokens": output.prompt_ids,
                "output_tokens": output.generated_tokens,
            }
            for _, output in found
        ]

    meter.write(result_file, meter.measure(lambda: generate(prompts, work["max_tokens"]), lambda: generate([prompts[0][:8]], 2)))


if __name__ == "__main__":
    main(*sys.argv[1:])
