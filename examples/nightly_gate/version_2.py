"""Version 2 of the model: it is wrong by one where the result is a multiple of three."""

import re

from eval_dagster import Request

_OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def answer(request: Request) -> str:
    """Answer the last question of the prompt; those before it are few-shot examples."""
    first, sign, second = re.findall(r"(\d+) ([-+*]) (\d+)\?", request.prompt)[-1]
    result = _OPERATIONS[sign](int(first), int(second))
    return f" {result + (result % 3 == 0)}"
