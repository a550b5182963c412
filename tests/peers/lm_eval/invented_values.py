"""Values of many kinds for the fields of invented rows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

WORDS = [
    "apple",
    "river",
    "stone",
    "cloud",
    "candle",
    "window",
    "garden",
    "pencil",
    "mountain",
    "letter",
    "orange",
    "silver",
    "harbour",
    "meadow",
    "lantern",
    "violin",
    "bridge",
    "forest",
]
LETTERS = "ABCDE"
LABELS = re.compile(r"label|gold|idx|index|correct|class|target_scores|answerkey", re.IGNORECASE)
ANSWERS = re.compile(r"answer|target|output|solution|response|completion", re.IGNORECASE)
LISTS = re.compile(r"choices|options|endings|candidates|answers|targets|labels|alternatives|tokens|sentences$", re.IGNORECASE)


@dataclass
class Field:
    """A field of a row: its kind of value, and the fields within it."""

    kind: str
    inner: dict[str, "Field"] = field(default_factory=dict)


Fields = dict[str, Field]


def value(of: Field, name: str, rng: Random, number: int, row: Mapping[str, Any], constants: Sequence[str]) -> Any:
    """A value of a kind."""
    if of.kind == "dict":
        return {each: value(inner, each, rng, number, row, constants) for each, inner in of.inner.items()}
    if of.kind == "list_of_dicts":
        return [{each: value(inner, each, rng, number, row, constants) for each, inner in of.inner.items()} for _ in range(3)]
    if of.kind == "constant":
        return constants[rng.randrange(len(constants))] if constants else text(rng, number)
    if of.kind == "member":
        listed = [each for each in row.values() if isinstance(each, list) and each and isinstance(each[0], str)]
        listed += [each["text"] for each in row.values() if isinstance(each, dict) and isinstance(each.get("text"), list)]
        return rng.choice(listed[0]) if listed else text(rng, number)
    return _SIMPLE[of.kind](rng, number)


def text(rng: Random, number: int) -> str:
    """A short text that no other row has, with a gap to fill."""
    return f"{rng.choice(WORDS)} {rng.choice(WORDS)} _ {rng.choice(WORDS)} {number}{rng.randrange(100)}"


def _texts(rng: Random, number: int, count: int = 5) -> list[str]:
    return [f"{each} {number}" for each in rng.sample(WORDS, count)]


_SIMPLE: dict[str, Any] = {
    "text": text,
    "texts": _texts,
    "index": lambda rng, _: rng.randrange(4),
    "bit": lambda rng, _: rng.randrange(2),
    "one_based": lambda rng, _: rng.randrange(1, 5),
    "letter": lambda rng, _: rng.choice("ABCD"),
    "small_letter": lambda rng, _: rng.choice("abcd"),
    "one_two": lambda rng, _: rng.choice(["1", "2"]),
    "digit": lambda rng, _: str(rng.randrange(4)),
    "digit_from_one": lambda rng, _: str(rng.randrange(1, 5)),
    "labelled": lambda rng, number: {"text": _texts(rng, number), "label": list(LETTERS)},
    "lettered": lambda rng, number: dict(zip(LETTERS, _texts(rng, number), strict=True)),
    "literal": lambda rng, number: repr(_texts(rng, number)),
    "bool": lambda rng, _: rng.random() < 0.5,
    "yes": lambda rng, _: rng.choice(["yes", "no"]),
    "true": lambda rng, _: rng.choice(["True", "False"]),
    "number": lambda rng, _: rng.randrange(100) / 4,
    "indices": lambda rng, _: [rng.randrange(4)],
    "bits": lambda rng, _: [1, 0, 0, 0],
    "span": lambda rng, number: {"text": _texts(rng, number, 2), "answer_start": [0, 0]},
    "hashes": lambda rng, number: f"{text(rng, number)} #### {rng.randrange(99)}",
    "boxed": lambda rng, number: f"{text(rng, number)} \\boxed{{{rng.randrange(99)}}}",
    "sentences": lambda rng, number: f"{text(rng, number)}. {text(rng, number)}! {text(rng, number)} _ ?\n{text(rng, number)}",
    "scores": lambda rng, number: {each: int(not index) for index, each in enumerate(_texts(rng, number))},
    "lists": lambda rng, number: [_texts(rng, number), _texts(rng, number)],
    "turns": lambda rng, number: [{"role": "user", "content": text(rng, number)}, {"role": "assistant", "content": text(rng, number)}],
}
ALL = [*_SIMPLE, "member", "constant", "list_of_dicts"]


def kinds(name: str) -> list[str]:
    """The kinds that a name suggests, the likeliest first."""
    if LABELS.search(name):
        return ["index", "bit", "letter", "digit", "constant", "text", "member"]
    if LISTS.search(name):
        return ["texts", "labelled", "lettered", "literal", "text", "indices", "lists"]
    if ANSWERS.search(name):
        return ["member", "letter", "index", "bit", "text", "texts", "hashes", "boxed", "constant", "span", "digit"]
    return ["text", "texts", "sentences", "constant", "index", "list_of_dicts"]
