"""How fast the model itself is: `python bare_side.py RESULT.json FOLDER TOKENS SCORED`, forward passes and nothing else.

Without cache or mask, in the shape of batch that gives most tokens a second: once with the output head at one position of a row, and once
at as many as make up the share of the tokens that the work scores, since the head of a small model with a large vocabulary costs much.
"""

import sys
import time

import meter
import torch
from transformers import AutoModelForCausalLM

_SHAPES = ((1, 512), (1, 1024), (2, 512), (4, 256), (8, 128), (16, 64))
"""Rows by tokens."""
_TRIAL = 1024
"""Tokens by which the best shape is found."""


@torch.inference_mode()
def main(result_file: str, folder: str, tokens: str, scored: str) -> None:
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(meter.DEVICE).eval()

    def rate(shape: tuple[int, int], least: int, scored: int = 1) -> float:
        ids = torch.randint(0, network.config.vocab_size, shape, device=meter.DEVICE)
        passes = -(-least // ids.numel())
        started = time.perf_counter()
        for _ in range(passes):
            network(input_ids=ids, use_cache=False, logits_to_keep=scored).logits[0, 0, 0].item()
        return passes * ids.numel() / (time.perf_counter() - started)

    rate((1, 8), 1)
    trials = {shape: rate(shape, _TRIAL) for shape in _SHAPES}
    best = max(trials, key=trials.__getitem__)
    head = max(1, round(best[1] * float(scored)))
    meter.write(result_file, {"shape": list(best), "rate": rate(best, int(tokens)), "rate_with_head": rate(best, int(tokens), head)})


if __name__ == "__main__":
    main(*sys.argv[1:])
