"""Invented rows for tasks of lighteval, by task: the row of a number."""

from collections.abc import Callable, Mapping
from typing import Any

WORDS = ("brook", "candle", "meadow", "lantern", "harbour", "thistle", "cobalt", "walnut", "ember", "gravel")


def word(number: int) -> str:
    return WORDS[number % len(WORDS)]


def words(number: int, count: int) -> list[str]:
    return [f"{word(number + 3 * each)} {number + each}" for each in range(count)]


def choices(number: int, count: int) -> dict[str, Any]:
    return {"text": words(number, count), "label": list("ABCDE"[:count])}


def pair(first: str, second: str) -> Callable[[int], dict[str, Any]]:
    return lambda i: {first: f"The {word(i)} of row {i}.", second: f"A {word(i + 1)} is here.", "label": i % 2}


ROWS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "arc:easy": lambda i: {"question": f"Which {word(i)} is it?", "choices": choices(i, 4), "answerKey": "ABCD"[i % 4]},
    "boolq": lambda i: {"passage": f"A {word(i)} is old.", "question": f"is the {word(i)} old {i}??", "answer": ("Yes", "No")[i % 2]},
    "commonsenseqa": lambda i: {"question": f"Where is the {word(i)}?", "choices": choices(i, 5), "answerKey": "ABCDE"[i % 5]},
    "glue:cola": lambda i: {"sentence": f"The {word(i)} sleeps {i} times.", "label": i % 2},
    "glue:mnli": lambda i: {"premise": f"A {word(i)}.", "hypothesis": f"It is a {word(i + i % 2)} {i}", "label": i % 3},
    "glue:mrpc": pair("sentence1", "sentence2"),
    "glue:qnli": pair("question", "sentence"),
    "glue:qqp": pair("question1", "question2"),
    "glue:rte": pair("sentence1", "sentence2"),
    "glue:sst2": lambda i: {"sentence": f"a {word(i)} , and it 's fine {i} .", "label": i % 2},
    "gsm8k": lambda i: {"question": f"What is {i} plus {i + 2}?", "answer": f"{i} + {i + 2} = {2 * i + 2}\n#### {2 * i + 2}"},
    "hellaswag": lambda i: {
        "activity_label": word(i),
        "ctx_a": f"Somebody lifts a {word(i)}.",
        "ctx_b": "then she",
        "endings": words(i, 4),
        "label": str(i % 4),
    },
    "imdb": lambda i: {"input": f"A film about a {word(i)}, number {i}.", "reference": ("Positive", "Negative")[i % 2]},
    "logiqa": lambda i: {"context": f"Each {word(i)} is {i}.", "question": "What follows?", "options": words(i, 4), "label": "abcd"[i % 4]},
    "mathqa": lambda i: {
        "Problem": f"{i} times {i}?",
        **{f"option_{letter}": str(i * i + place) for place, letter in enumerate("abcde")},
        "correct": "abcde"[i % 5],
    },
    "mmlu:anatomy": lambda i: {"subject": "anatomy", "question": f"Which {word(i)} {i}?", "choices": words(i, 4), "answer": i % 4},
    "openbookqa": lambda i: {"question_stem": f"A {word(i)} can", "choices": choices(i, 4), "answerKey": "ABCD"[i % 4]},
    "piqa": lambda i: {"goal": f"Lift a {word(i)} {i}", "sol1": word(i + 1), "sol2": word(i + 2), "label": i % 2},
    "prost": lambda i: {"question": f"A {word(i)} falls {i}.", "choices": words(i, 4), "label": i % 4},
    "qa4mre:2011": lambda i: {"question": f"Why a {word(i)} {i}?", "choices": words(i, 5), "label": i % 5},
    "sciq": lambda i: {
        "support": f"A {word(i)} is {i} years old." if i % 2 else "",
        "question": f"How old is a {word(i)}?",
        **{f"distractor{place}": f"{i + place}" for place in (1, 2, 3)},
        "correct_answer": str(i),
    },
    "siqa": lambda i: {
        "context": f"Kim has a {word(i)} {i}.",
        "question": "Why?",
        **{f"answer{letter}": text for letter, text in zip("ABC", words(i, 3), strict=True)},
        "label": str(i % 3 + 1),
    },
    "swag": lambda i: {
        "startphrase": f"He drops the {word(i)} {i}.",
        **{f"ending{place}": text for place, text in enumerate(words(i, 4))},
        "label": i % 4,
    },
    "triviaqa": lambda i: {"question": f"Who has a {word(i)} {i}?", "answer": {"aliases": words(i, 3)}},
    "truthfulqa:mc": lambda i: {
        "question": f"Is a {word(i)} {i} blue?",
        "mc1_targets": {"choices": words(i, 3), "labels": [1, 0, 0]},
        "mc2_targets": {"choices": words(i + 1, 4), "labels": [1, 1, 0, 0]},
    },
    "unscramble:anagrams1": lambda i: {"context": f"Unscramble {word(i)[::-1]} {i} =", "completion": f" {word(i)}"},
    "webqs": lambda i: {"question": f"what is a {word(i)} {i}?", "answers": words(i, 2)},
    "wikitext:103:document_level": lambda i: {"page": f" = {word(i)} = \n The {word(i)} , number {i} , is old . "},
    "winogrande": lambda i: {
        "sentence": f"The {word(i)} met the {word(i + 1)}, and _ was {i} years old.",
        "option1": f"the {word(i)}",
        "option2": f"the {word(i + 1)}",
        "answer": str(i % 2 + 1),
    },
}
