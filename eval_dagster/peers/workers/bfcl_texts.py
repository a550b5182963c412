"""Which texts bfcl-eval evaluates when it reads calls in them. It needs the standard library alone."""

from __future__ import annotations

import ast
import re

_EVALUATED = (ast.BinOp, ast.Lambda)
"""The nodes of an argument that the package passes to `eval`."""
_TAGGED = re.compile(r"<TOOLCALL>(.*?)</TOOLCALL>", re.DOTALL)


def may_be_evaluated(text: object, *, has_tag: bool) -> bool:
    """Whether the package may evaluate a part of an answer.

    Args:
        text: The answer.
        has_tag: Whether the package reads only what is within the tag, as in half of its formats.

    Returns:
        False only if all that the package reads is calls in Python with other arguments. It parses the text as the package does, since
        a bracket or a quotation mark more or less could make code a comment.
    """
    if not isinstance(text, str):
        return True
    bracketed = text.strip("`\n ")
    bracketed = f"{'' if bracketed.startswith('[') else '['}{bracketed}"
    bracketed = f"{bracketed}{'' if bracketed.endswith(']') else ']'}"
    read: list[str] = _TAGGED.findall(bracketed) if has_tag else [bracketed]
    try:
        nodes = [node for each in read for node in ast.walk(ast.parse(each.strip().strip("'"), mode="eval"))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    return not nodes or any(isinstance(node, _EVALUATED) for node in nodes)
