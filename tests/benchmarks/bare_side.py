"""How fast the model itself is: `python bare_side.py RESULT.json FOLDER TOKENS SCORED`, forward passes and nothing else.

Without cache or mask, in the shape of batch that gives most tokens a second: once with the output head at one position of a row, and once
at as many as make up the share of the tokens that the work scores, since the head of a small model with a large vocabulary costs much.
"""

import sys
import time
from collections.abc import Sequence

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

    def rates(shape: tuple[int, int], least: int, heads: Sequence[int] = (1,)) -> list[float]:
        """Tokens a second for each number of positions that the head is applied to; in turns, since a machine's speed changes."""
        ids = torch.randint(0, network.config.vocab_size, shape, device=meter.DEVICE)
        passes = -(-least // ids.numel())
        seconds = [0.0] * len(heads)
        for _ in range(passes):
            for index, head in enumerate(heads):
                started = time.perf_counter()
                network(input_ids=ids, use_cache=False, logits_to_keep=head).logits[0, 0, 0].item()
                seconds[index] += time.perf_counter() - started
        return [passes * ids.numel() / each for each in seconds]

    rates((1, 8), 1)
    trials = {shape: rates(shape, _TRIAL)[0] for shape in _SHAPES}
    best = max(trials, key=trials.__getitem__)
    bare, with_head = rates(best, int(tokens), (1, max(1, round(best[1] * float(scored)))))
    meter.write(result_file, {"shape": list(best), "rate": bare, "rate_with_head": with_head})


if __name__ == "__main__":
    main(*sys.argv[1:])
