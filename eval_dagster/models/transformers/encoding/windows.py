"""Cuts a long text into the windows that score it."""

from collections.abc import Sequence

from eval_dagster.models.transformers.encoding.tokenization import Span


def rolling_windows(prefix: int, tokens: Sequence[int], length: int) -> tuple[Span, ...]:
    """Cut a text into windows that score each of its tokens once, by the rule of lm-evaluation-harness.

    A window has `length` tokens: as many as the model's context holds. The first one begins with `prefix`, the token before the text. Each
    later one begins with the token before those that it scores, the last one with as many earlier tokens as fit.
    """
    windows = []
    for start in range(0, len(tokens), length):
        scored = tuple(tokens[start : start + length])
        end = start + len(scored)
        given = (prefix, *tokens[: end - 1]) if start == 0 else tuple(tokens[end - 1 - length : end - 1])
        windows.append(Span(input=given, tokens=scored))
    return tuple(windows)
