"""Answers that depend on the prompt alone, for a package by itself and for its bridge. The standard library alone."""

import hashlib
from collections.abc import Sequence


def number(*parts: str) -> int:
    return int(hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:8], 16)


def loglikelihood(prompt: str, choice: str) -> float:
    return -(number(prompt, choice) % 1000) / 100 - 0.01


def is_greedy(prompt: str, choice: str) -> bool:
    return number(choice, prompt) % 2 == 0


def text(prompt: str, golds: Sequence[str]) -> str:
    """The correct answer for about half of the prompts."""
    drawn = number(prompt)
    if golds and drawn % 2:
        return golds[0]
    return f"I think that it is {drawn % 10}."


def texts(prompt: str, golds: Sequence[str], count: int) -> list[str]:
    """Several answers to a prompt; the first is that of `text`."""
    return [text(prompt + "#" * each, golds) for each in range(count)]
