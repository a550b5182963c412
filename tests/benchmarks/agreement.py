"""Whether both sides gave the same results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

TOLERANCE = 1e-3
"""Most that two log-probabilities, or the two best logits where greedy texts part, may differ."""
_RELATIVE = 3e-6
"""The same for the sum over a text of thousands of tokens: the float32 log-softmax of torch, which lm-eval takes, loses the smallest of
many summands, and so is too high by some 6e-6 a token."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How two sides compare."""

    is_equal: bool
    summary: str


def compare(work: dict[str, Any], ours: Sequence[Any], theirs: Sequence[Any], folder: str) -> Agreement:
    """Compare the answers to a work; `folder` is that of the model, which judges where texts part."""
    if work["kind"] == "choices":
        return compare_choices(work["items"], ours, theirs)
    if work["kind"] == "perplexity":
        worst = max(abs(one - other) / max(abs(other), 1) for one, other in zip(ours, theirs, strict=True))
        return Agreement(is_equal=worst <= _RELATIVE, summary=f"log-probability of a text to {worst:.0e} of it")
    return _compare_texts(ours, theirs, folder)


def compare_choices(items: Sequence[dict[str, Any]], ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Agreement:
    """Compare log-probabilities, one list an item, and the share of the items whose best choice is `gold`."""
    pairs = [pair for one, other in zip(ours, theirs, strict=True) for pair in zip(one, other, strict=True)]
    worst = max(abs(one - other) for one, other in pairs)
    accuracies = [_accuracy(items, answers) for answers in (ours, theirs)]
    is_equal = worst <= TOLERANCE and accuracies[0] == accuracies[1]
    return Agreement(is_equal=is_equal, summary=f"log-probabilities to {worst:.0e}, accuracy {accuracies[0]:.3f} and {accuracies[1]:.3f}")


def _accuracy(items: Sequence[dict[str, Any]], answers: Sequence[Sequence[float]]) -> float:
    right = [scores.index(max(scores)) in item["gold"] for item, scores in zip(items, map(list, answers), strict=True)]
    return sum(right) / len(right)


def _compare_texts(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]], folder: str) -> Agreement:
    different = [(one, other["text"]) for one, other in zip(ours, theirs, strict=True) if one["text"] != other["text"]]
    gaps = [_gap_where_they_part(one, other, folder) for one, other in different]
    summary = f"{len(ours) - len(different)} of {len(ours)} texts equal"
    if gaps:
        summary += f", the others part where the two best logits differ by {max(gaps):.0e} at most"
    return Agreement(is_equal=all(gap <= TOLERANCE for gap in gaps), summary=summary)


def _gap_where_they_part(ours: dict[str, Any], theirs: str, folder: str) -> float:
    """How far the two best tokens are apart at the first place where two texts to the same prompt differ."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    output = ours["output_tokens"]
    # The longest beginning of our tokens whose text their text begins with.
    kept = next((count for count in range(len(output), 0, -1) if theirs.startswith(tokenizer.decode(output[:count]))), 0)
    with torch.inference_mode():
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        logits = network(torch.tensor([[*ours["input_tokens"], *output[:kept]]]), logits_to_keep=1).logits[0, -1]
    best = logits.topk(2).values
    return float(best[0] - best[1])
