"""Invented rows for tasks of eval-framework, by task: a subject, and the row of a number."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.peers.packages.lighteval_rows import choices, word, words


def mmlu(i: int) -> dict[str, Any]:
    return {"question": f"Which {word(i)} {i}?", "subject": "anatomy", "choices": words(i, 4), "answer": i % 4}


def arc(i: int) -> dict[str, Any]:
    return {"id": str(i), "question": f"Which {word(i)} is it {i}?", "choices": choices(i, 4), "answerKey": "ABCD"[i % 4]}


def swag(i: int) -> dict[str, Any]:
    return {
        "activity_label": word(i),
        "ctx": f"Somebody lifts a {word(i)}. then she",
        "ctx_a": f"Somebody lifts a {word(i)}.",
        "ctx_b": f"then she {i}",
        "endings": words(i, 4),
        "label": str(i % 4),
    }


def piqa(i: int) -> dict[str, Any]:
    return {"goal": f"Lift a {word(i)} {i}", "sol1": word(i + 1), "sol2": word(i + 2), "label": i % 2}


def gsm8k(i: int) -> dict[str, Any]:
    return {"question": f"What is {i} plus {i + 2}?", "answer": f"{i} + {i + 2} = <<{i}+{i + 2}={2 * i + 2}>>{2 * i + 2}\n#### {2 * i + 2}"}


def global_mmlu(i: int) -> dict[str, Any]:
    options = {f"option_{letter}": text for letter, text in zip("abcd", words(i, 4), strict=True)}
    subject = ("anatomy", "astronomy")[i % 2]
    return {"question": f"Quel {word(i)} {i} ?", "subject": subject, **options, "answer": "ABCD"[i // 2 % 4]}


def mmlu_pro(i: int) -> dict[str, Any]:
    category = ("engineering", "law")[i % 2]
    return {
        "question": f"Which {word(i)} {i}?",
        "options": words(i, 10),
        "answer": "ABCDEFGHIJ"[i % 10],
        "answer_index": i % 10,
        "category": category,
    }


def gpqa(i: int) -> dict[str, Any]:
    wrong = {f"Incorrect Answer {place}": text for place, text in zip((1, 2, 3), words(i + 50, 3), strict=True)}
    return {"Question": f"Why a {word(i)} {i}?", "Correct Answer": word(i), **wrong}


def squad(i: int) -> dict[str, Any]:
    answers = {"text": [word(i)] if i % 3 else [], "answer_start": [4] if i % 3 else []}
    return {
        "id": str(i),
        "title": word(i),
        "context": f"The {word(i)} is {i} years old.",
        "question": f"What is old {i}?",
        "answers": answers,
    }


def squad_answered(i: int) -> dict[str, Any]:
    return {**squad(i), "answers": {"text": [word(i)], "answer_start": [4]}}


def science(i: int) -> dict[str, Any]:
    wrong = {f"distractor{place}": f"{i + place}" for place in (1, 2, 3)}
    return {"support": f"A {word(i)}.", "question": f"How old is a {word(i)} {i}?", **wrong, "correct_answer": str(i)}


def social(i: int) -> dict[str, Any]:
    answers = {f"answer{letter}": text for letter, text in zip("ABC", words(i, 3), strict=True)}
    return {"context": f"Kim has a {word(i)} {i}.", "question": "Why?", **answers, "label": str(i % 3 + 1)}


def winogrande(i: int) -> dict[str, Any]:
    options = {"option1": f"the {word(i)}", "option2": f"the {word(i + 1)}"}
    return {"sentence": f"The {word(i)} met the {word(i + 1)}, and _ was {i} years old.", **options, "answer": str(i % 2 + 1)}


def commonsense(i: int) -> dict[str, Any]:
    return {"id": str(i), "question": f"Where is the {word(i)} {i}?", "choices": choices(i, 5), "answerKey": "ABCDE"[i % 5]}


NONE = "no_subject"
ROWS: Mapping[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "ARC": ("ARC-Easy", arc),
    "ARC_IDK": ("ARC-Easy", arc),
    "ARC_OLMES": ("ARC-Challenge", arc),
    "COPA_OLMES": (
        "copa",
        lambda i: {"premise": f"A {word(i)} fell {i}.", "choice1": "It broke.", "choice2": "It sang.", "question": "cause", "label": i % 2},
    ),
    "CommonsenseQAMC_OLMES": (NONE, commonsense),
    "FullTextMMLU": ("anatomy", mmlu),
    "GOLDENSWAG": (NONE, swag),
    "GPQA_OLMES": ("gpqa_extended", gpqa),
    "GSM8KBPB": ("main", gsm8k),
    "GSM8KReasoning": ("main", gsm8k),
    "GSM8K_OLMES": ("main", gsm8k),
    "GlobalMMLU": ("('fr', 'anatomy')", global_mmlu),
    "HELLASWAG": (NONE, swag),
    "HELLASWAG_OLMES": (NONE, swag),
    "MMLU": ("anatomy", mmlu),
    "MMLU_COT": ("anatomy", mmlu),
    "MMLU_IDK": ("anatomy", mmlu),
    "MMLU_OLMES": ("anatomy", mmlu),
    "MMLU_PRO": ("engineering", mmlu_pro),
    "MMLU_PRO_COT": ("law", mmlu_pro),
    "NaturalQsOpen": (NONE, lambda i: {"question": f"who has a {word(i)} {i}", "answer": words(i, 2)}),
    "PIQA": (NONE, piqa),
    "PIQA_IDK": (NONE, piqa),
    "SCIQ_OLMES": (NONE, science),
    "SQuAD2_MA": (NONE, squad),
    "SQuAD_OLMES": (NONE, squad_answered),
    "WINOGRANDECloze": ("winogrande_xl", winogrande),
}
