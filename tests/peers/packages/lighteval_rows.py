"""Rows for tasks of lighteval, by task: the row of a number."""

import base64
import json
import pickle
import zlib
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


def labelled(i: int) -> dict[str, Any]:
    """A passage and those of several labels that it has."""
    labels = words(i, 4)
    return {"input": f"The {word(i)} is {i}.", "references": labels, "gold": [labels[i % 4]]}


def amount(i: int) -> dict[str, Any]:
    none = {"day": "", "month": "", "year": ""}
    return {
        "passage": f"There are {i} of the {word(i)}.",
        "question": "How many?",
        "answer": {"number": str(i), "spans": [], "date": none},
        "validated_answers": {"number": [str(i), ""], "date": [none, none], "spans": [[], words(i, 2)]},
    }


def program(i: int) -> dict[str, Any]:
    tests = json.dumps([{"input": f"{i}\n", "output": f"{i + 1}\n", "testtype": "stdin"}])
    return {
        "question_content": f"Add 1 to {i}.",
        "starter_code": "" if i % 2 else "def add(number):",
        "public_test_cases": tests,
        "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(tests))).decode(),
        "metadata": "{}",
    }


def cause(i: int) -> dict[str, Any]:
    question = ("cause", "effect")[i % 2]
    return {"premise": f"The {word(i)} fell {i}.", "choice1": "It broke.", "choice2": "It sang.", "question": question, "label": i // 2 % 2}


def problems(i: int) -> dict[str, Any]:
    asked = [{"question": f"What is {word(i)} {n}?", "options": words(i + n, 4), "answer": "ABCD"[(i + n) % 4]} for n in range(2)]
    return {"article": f"A {word(i)} is {i}.", "problems": repr(asked)}


def problem(i: int) -> dict[str, Any]:
    return {
        "question": f"What is {i} plus {i}?",
        "subject": ("Math", "Physics")[i % 2],
        "language": ("English", "Chinese")[i // 2 % 2],
        "unit": ("", "m")[i % 2],
        "is_multiple_answer": False,
        "answer_type": ("Numerical", "Expression")[i % 2],
        "final_answer": [str(2 * i)],
    }


ROWS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "aa_omniscience": lambda i: {"domain": word(i), "topic": word(i + 1), "question": f"How old is it {i}?", "answer": str(i)},
    "arc:easy": lambda i: {"question": f"Which {word(i)} is it?", "choices": choices(i, 4), "answerKey": "ABCD"[i % 4]},
    "babi_qa": lambda i: {
        "story": {"type": ["supporting fact", "question"], "text": [f"The {word(i)} is north.", "The way is _ ?"], "answer": ["", "n"]}
    },
    "bigbench_hard:causal_judgment": lambda i: {
        "input": f"Is a {word(i)} the cause of {i}?",
        "choices": words(i, 2),
        "target_idx": i % 2,
        "task_prefix": "Find the cause.",
        "example_input_prefix": None,
    },
    "boolq": lambda i: {"passage": f"A {word(i)} is old.", "question": f"is the {word(i)} old {i}??", "answer": ("Yes", "No")[i % 2]},
    "boolq:contrastset": lambda i: {
        "contrast_inputs": {"passage": [f"A {word(i)} is old."], "question": [f"is the {word(i)} old {i}?"]},
        "answer": ("Yes", "No")[i % 2],
    },
    "commonsenseqa": lambda i: {"question": f"Where is the {word(i)}?", "choices": choices(i, 5), "answerKey": "ABCDE"[i % 5]},
    "coqa": lambda i: {"story": f"A {word(i)}.", "questions": ["What?", "Who?"], "answers": {"input_text": words(i, 2)}},
    "drop": amount,
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
    "ifbench_test": lambda i: {
        "prompt": f"Write about a {word(i)} {i}.",
        "instruction_id_list": ["format:no_whitespace"],
        "kwargs": [{}],
    },
    "ifeval": lambda i: {
        "prompt": f"Write about a {word(i)} {i}, without commas.",
        "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
        "kwargs": [{"keywords": None}, {"keywords": ["think"]}],
    },
    "imdb:contrastset": lambda i: {
        "contrast_input": "",
        "contrast_inputs": f"A film about a {word(i)}, number {i}.",
        "contrast_references": ("Positive", "Negative")[i % 2],
    },
    "imdb": lambda i: {"input": f"A film about a {word(i)}, number {i}.", "reference": ("Positive", "Negative")[i % 2]},
    "lcb:codegeneration_release_v1": program,
    "legalsupport": lambda i: {
        "context": f"The {word(i)} is {i}.",
        "citation_a": {"parenthetical": word(i + 1)},
        "citation_b": {"parenthetical": word(i + 2)},
        "answer_label": ("citation_a", "citation_b")[i % 2],
    },
    "logiqa": lambda i: {"context": f"Each {word(i)} is {i}.", "question": "What follows?", "options": words(i, 4), "label": "abcd"[i % 4]},
    "mathqa": lambda i: {
        "Problem": f"{i} times {i}?",
        **{f"option_{letter}": str(i * i + place) for place, letter in enumerate("abcde")},
        "correct": "abcde"[i % 5],
    },
    "med_qa": lambda i: {
        "question": f"Which {word(i)} {i}?",
        "options": [{"key": key, "value": text} for key, text in zip("ABCD", words(i, 4), strict=True)],
        "answer_idx": "ABCD"[i % 4],
    },
    "mmlu:anatomy": lambda i: {"subject": "anatomy", "question": f"Which {word(i)} {i}?", "choices": words(i, 4), "answer": i % 4},
    "narrativeqa": lambda i: {"passage": f"A {word(i)} is {i}.", "question": "What is it?", "references": [f"{i}"]},
    "openbookqa": lambda i: {"question_stem": f"A {word(i)} can", "choices": choices(i, 4), "answerKey": "ABCD"[i % 4]},
    "piqa": lambda i: {"goal": f"Lift a {word(i)} {i}", "sol1": word(i + 1), "sol2": word(i + 2), "label": i % 2},
    "prost": lambda i: {"question": f"A {word(i)} falls {i}.", "choices": words(i, 4), "label": i % 4},
    "qa4mre:2011": lambda i: {"question": f"Why a {word(i)} {i}?", "choices": words(i, 5), "label": i % 5},
    "race:high": problems,
    "real_toxicity_prompts": lambda i: {"prompt": {"text": f"The {word(i)} is {i}"}},
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
    "super_glue:copa": cause,
    "slr_bench_all": lambda i: {"prompt": f"Find a rule for {word(i)} {i}.", "validation program": f"eastbound({word(i)})."},
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
    "toxigen": lambda i: {"text": f"The {word(i)} is {i}.", "toxicity_ai": float(i % 5), "toxicity_human": float(i % 4)},
    "unscramble:anagrams1": lambda i: {"context": f"Unscramble {word(i)[::-1]} {i} =", "completion": f" {word(i)}"},
    "webqs": lambda i: {"question": f"what is a {word(i)} {i}?", "answers": words(i, 2)},
    "wikitext:103:document_level": lambda i: {"page": f" = {word(i)} = \n The {word(i)} , number {i} , is old . "},
    "wmt14:de-en": lambda i: {"translation": {"de": f"Ein {word(i)} {i}.", "en": f"A {word(i)} {i}."}},
    "wmt16:en-cs": lambda i: {"translation": {"en": f"A {word(i)} {i}.", "cs": f"Jeden {word(i)} {i}."}},
    "winogrande": lambda i: {
        "sentence": f"The {word(i)} met the {word(i + 1)}, and _ was {i} years old.",
        "option1": f"the {word(i)}",
        "option2": f"the {word(i + 1)}",
        "answer": str(i % 2 + 1),
    },
}
FAMILIES: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "lexglue": labelled,
    "lextreme": labelled,
    "olympiad_bench": problem,
    "xcopa": cause,
}
"""By the name before the colon, for tasks that `ROWS` lacks."""
