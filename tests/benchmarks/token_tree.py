"""The least that could be computed: every distinct prefix of the requests' token sequences, once."""

from collections.abc import Iterable, Sequence
from typing import Any


def count_nodes(sequences: Iterable[Sequence[int]]) -> int:
    """Nodes of the tree that the sequences form, the root not counted."""
    nodes = 0
    before: tuple[int, ...] = ()
    for sequence in sorted(map(tuple, sequences)):
        nodes += len(sequence) - _shared(before, sequence)
        before = sequence
    return nodes


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((index for index, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def inputs_of(asked: dict[str, Any], answers: Sequence[Any], tokenizer: Any) -> list[list[int]]:
    """What a model must be given for the requests of a work; of texts, what was generated is part of it."""
    items = asked["items"]
    if asked["kind"] == "choices":
        return [tokens for item in items for tokens in _choice_inputs(tokenizer, item["context"], item["continuations"])]
    if asked["kind"] == "perplexity":
        return [_text_input(tokenizer, item["context"]) for item in items]
    # The last token that was generated is nobody's input.
    return [[*tokenizer.encode(item["context"]), *answer["output_tokens"][:-1]] for item, answer in zip(items, answers, strict=True)]


def count_scored(asked: dict[str, Any], answers: Sequence[Any], tokenizer: Any) -> int:
    """The positions at which a model's output is asked for; the same position of several choices once."""
    items = asked["items"]
    if asked["kind"] == "text":
        return sum(len(answer["output_tokens"]) for answer in answers)
    if asked["kind"] == "perplexity":
        return sum(len(_text_input(tokenizer, item["context"])) for item in items)
    scored: set[tuple[int, ...]] = set()
    for item in items:
        start = len(tokenizer.encode(item["context"].rstrip()))
        for tokens in _choice_inputs(tokenizer, item["context"], item["continuations"]):
            scored.update(tuple(tokens[:end]) for end in range(start, len(tokens) + 1))
    return len(scored)


def _choice_inputs(tokenizer: Any, context: str, continuations: Iterable[str]) -> list[list[int]]:
    """What a model must be given to score each continuation, by the rule of lm-eval: all tokens but the last, which is predicted only."""
    stripped = context.rstrip()
    space = context[len(stripped) :]
    return [tokenizer.encode(stripped + space + continuation)[:-1] for continuation in continuations]


def _text_input(tokenizer: Any, text: str) -> list[int]:
    """What a model must be given to score a text as a whole: a token to start with, and all of its own but the last."""
    prefix = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return [prefix, *tokenizer.encode(text, add_special_tokens=False)[:-1]]
