"""The worker of a package that the tests write: it runs in the environment that has `quizbook`."""

import os
import runpy
import sys
import time
from enum import Enum
from typing import Any

import quizbook


class Kind(Enum):
    """A member of it, as of the subjects of a task, is sent as its value."""

    QUIZ = "quiz"


def names() -> dict[str, str]:
    return dict.fromkeys(quizbook.QUIZZES, "task")


def describe(name: str) -> dict[str, Any]:
    print("a line on stdout", flush=True)  # noqa: T201
    os.write(1, b"and one of the descriptor\n")
    if ".py:" in name:
        file, _, variable = name.rpartition(":")
        quizbook.QUIZZES[name] = runpy.run_path(file)[variable]
    if name not in quizbook.QUIZZES:
        raise LookupError(f"quizbook has no quiz {name!r}")
    return {
        "description": "A quiz.",
        "subjects": ["all"],
        "response_type": "completion",
        "metrics": [{"name": "right", "runs_programs": name == "many"}, {"name": "longest", "is_mean": False}],
        "version": [quizbook.VERSION, name, Kind.QUIZ],
    }


def rows(name: str, subject: str, splits: Any, fewshot: bool) -> dict[str, Any]:
    return {"evaluated": [{"question": question, "answer": answer} for question, answer in quizbook.QUIZZES[name]]}


def render(name: str, subject: str, rows: Any, examples: Any, settings: Any) -> Any:
    for row in rows:
        yield [{"prompt": f"{row['question']} =", "response_type": "completion", "ground_truth": row["answer"], "max_tokens": 8}]


def score(name: str, subject: str, row: Any, answers: Any) -> dict[str, Any]:
    text = answers[0]["texts"][0].strip()
    if text == "crash":
        os._exit(7)
    if text == "fetch":
        from evaluate import load

        load("planted")
    if text == "garbage":
        sys.modules["__main__"]._line.answers.write("no answer\n")
    if text.startswith("ask"):
        found = sys.modules["__main__"].ask("doubled", {"text": text.removeprefix("ask ")})
        return {"right": float(found == 2 * text.removeprefix("ask ")), "longest": {"text": found}}
    if text == "slow":
        time.sleep(600)
    if text == "grow":
        held = [b"x" * 2**28 for _ in range(40)]
        time.sleep(600 + len(held))
    if text == "raise":
        raise ValueError("this answer cannot be scored")
    right = {"$error": "no text"} if not text else float(text == row["answer"])
    return {"right": right, "longest": {"text": text}}


def aggregate(name: str, metric: str, items: Any) -> float:
    return float(max(len(item["text"]) for item in items))
