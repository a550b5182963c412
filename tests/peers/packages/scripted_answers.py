"""Answers that depend on the prompt alone, for a package by itself and for its bridge. The standard library alone."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "every_name"))
import stand_in


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


def text_or_program(prompt: str, golds: Sequence[str]) -> str:
    """The answer of `text`; where a program is asked for, one that is right for about half of the prompts."""
    program = stand_in.text("program", prompt, list(golds))
    if program == "    return x\n":
        return text(prompt, golds)
    return program if number(prompt) % 2 else program.replace("+", "-")
