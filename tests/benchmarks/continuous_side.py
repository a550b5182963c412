"""Continuous batching by transformers itself: `python continuous_side.py WORK.json RESULT.json FOLDER`, beside this project's own way."""

import json
import sys
from pathlib import Path
from typing import Any

import meter
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

_PAGE = 256
_BATCH_TOKENS = 2048


def main(work_file: str, result_file: str, folder: str) -> None:
    work = json.loads(Path(work_file).read_text("utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(meter.DEVICE).eval()
    prompts = [tokenizer.encode(item["context"]) for item in work["items"]]

    def generate(inputs: list[list[int]], tokens: int) -> list[dict[str, Any]]:
        settings = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=tokenizer.eos_token_id)
        # As much cache as the work takes: the default is most of the memory, which would be filled with zeros first.
        blocks = sum(-(-(len(tokens_in) + tokens) // _PAGE) + 1 for tokens_in in inputs)
        sizes = ContinuousBatchingConfig(page_size=_PAGE, num_blocks=blocks, max_batch_tokens=_BATCH_TOKENS)
        found = list(network.generate_batch(inputs, generation_config=settings, continuous_batching_config=sizes).values())
        failed = [output.error for output in found if output.error]
        if failed or len(found) < len(inputs):
            raise RuntimeError(f"{len(inputs) - len(found)} prompts have no answer, {len(failed)} an error: {failed[:1]}")
        return [
            {
                "text": tokenizer.decode(output.generated_tokens, skip_special_tokens=True),
                "input_tokens": output.prompt_ids,
                "output_tokens": output.generated_tokens,
            }
            for output in found
        ]

    meter.write(result_file, meter.measure(lambda: generate(prompts, work["max_tokens"]), lambda: generate([prompts[0][:8]], 2)))


if __name__ == "__main__":
    main(*sys.argv[1:])
