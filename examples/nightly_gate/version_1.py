"""Version 1 of the model: it adds, subtracts and multiplies correctly."""

import re

from eval_dagster import Request

_OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def answer(request: Request) -> str:
    """Answer the last question of the prompt; those before it are few-shot examples."""
    first, sign, second = re.findall(r"(\d+) ([-+*]) (\d+)\?", request.prompt)[-1]
    return f" {_OPERATIONS[sign](int(first), int(second))}"
