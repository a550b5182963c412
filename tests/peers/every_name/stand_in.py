"""Invented rows and answers for each benchmark of a release of eval-framework with a contract. Both environments import this file; it needs
Python alone.
"""

import hashlib
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "side_by_side"))
import invented
from invented import choices, phrase, word
from programs import MULTIPL_E

Row = dict[str, Any]
SUBJECTS = 2
"""Subjects of a benchmark that are compared."""
SAMPLES = 9
"""Samples of a subject that are compared at most."""
KINDS = ("right", "stated", "wrong", "empty", "odd", "program")
"""Kinds of answers."""


def _distracted(n: int) -> Row:
    correct, *others = choices(n, 4)
    solved = f"{word(n, 7)} passt"
    return {
        "question": f" Was ist {phrase(n)}?",
        "context": f"Jemand sieht {phrase(n)}.",
        "activity": f" {word(n).title()} putzen ",
        "goal": f"Ziel {phrase(n)}",
        "correct_answer": correct,
        "answer": correct,
        "correct_ending": correct,
        "correct_solution": solved,
        "easy_distractor": f"{word(n, 8)} nicht",
        "hard_distractor": f"{word(n, 9)} kaum",
        "easy_distractors": others,
        "hard_distractors": [f"{each} schwer" for each in others],
        "incorrect_answers": others,
        "is_diamond": n % 3 > 0,
        "answer_type": "multipleChoice" if n % 3 else "exactMatch",
    }


def _arc(n: int) -> Row:
    return {
        "question": f"Was ist {phrase(n)}?",
        "choices": choices(n, 4),
        "answer_key": "ABCD"[n % 4] if n % 2 else str(n % 4 + 1),
        "arc_config": ("ARC-Easy", "ARC-Challenge")[n % 2],
    }


def _gsm8k(n: int) -> Row:
    return {"question": f"Wie viele {phrase(n)} sind {n}?", "solution": f"Erst {n}, dann {n + 1000}.", "final_answer": f"{n + 1000:,}"}


def _math(n: int) -> Row:
    row = invented._math(n)
    lines = "\n\n" if n % 4 == 0 else " "
    return {**row, "solution": f"Wir sehen $x$.{lines}{row['solution']}", "extracted_answer": row["answer"], "subject": "Algebra"}


def _winogrande(n: int) -> Row:
    return {**invented._winogrande(n), "correct_answer": f"{word(n, 1)} one", "incorrect_answer": f"{word(n, 2)} two"}


_BY_PATH = {
    "ellamind/arc-multilingual": _arc,
    "ellamind/gsm8k-platinum-multilingual": _gsm8k,
    "ellamind/hendrycks-math-multilingual": _math,
    "ellamind/humaneval-multilingual": invented._humaneval,
    "ellamind/mbpp-multilingual": invented._mbpp,
    "ellamind/winogrande-multilingual": _winogrande,
    "evalplus/humanevalplus": invented._humaneval,
    **dict.fromkeys(
        (f"ellamind/{name}-multilingual" for name in ("csqa", "gpqa", "hellaswag", "hle", "piqa", "simpleqa-verified", "siqa")), _distracted
    ),
}
_SUBJECTS = {
    "TIGER-Lab/MMLU-Pro": ("category", ("engineering", "physics")),
    "CohereLabs/Global-MMLU": ("subject", ("abstract_algebra", "anatomy")),
}
SPLITS = (*invented.SPLITS, "eval")
COUNT = 16


def rows_of(path: str, config: str | None) -> dict[str, list[Row]]:
    """The rows of a dataset by split."""
    if path not in _BY_PATH:
        found = invented.rows_of(path, config)
        field, subjects = _SUBJECTS.get(path, ("", ()))
        if field:  # each split has rows of two subjects
            found = {split: [{**row, field: subjects[n % 2]} for n, row in enumerate(rows)] for split, rows in found.items()}
        return found
    make = _BY_PATH[path]
    return {split: [make(20 * place + number) for number in range(COUNT)] for place, split in enumerate(SPLITS)}


def _number(*parts: str) -> int:
    return int(hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:8], 16)


def loglikelihoods(kind: str, prompt: str, offered: list[str], truths: list[str]) -> list[float]:
    """Log-probabilities of the choices: the right one is the best, or another one, or all are equal, or they are drawn."""
    drawn = [-(_number(prompt, choice) % 997) / 31 - 1 for choice in offered]
    if kind == "empty":
        return [-2.5] * len(offered)
    changed = {"right": lambda _: -0.125, "stated": lambda value: 0.5 * value, "wrong": lambda value: 4 * value}.get(kind)
    if changed is not None:
        return [changed(value) if choice in truths else value for choice, value in zip(offered, drawn, strict=True)]
    return drawn


def text(kind: str, prompt: str, truths: list[str]) -> str:
    """An answer to a prompt."""
    gold = str(truths[0]) if truths else word(_number(prompt) % 100)
    if kind == "right":
        return gold
    if kind == "stated":
        letter = gold.strip().strip("()")
        return (
            f"Let us see. Therefore, the answer is ({letter}). Final Answer: The final answer is ${gold}$. I hope it is correct. "
            f"So it is $\\boxed{{{gold}}}$.\n"
            f"Answer: {gold.strip()}\nTherefore, the answer is: {gold.strip()}. The best answer is ({gold.strip()})."
        )
    if kind == "wrong":
        return f"Die Antwort ist ({'ABCD'[_number(prompt) % 4]}), denn {phrase(_number(prompt) % 50)}. Therefore, the answer is: B"
    if kind == "empty":
        return ""
    if kind == "odd":
        return "```python\n{}[]\\boxed{\n```\n" + "é漢\u200b🙂 " * 20 + "\n\nQuestion: nothing\n1,000.50 %"
    return _program(prompt)


def _program(prompt: str) -> str:
    for start, body, _ in MULTIPL_E.values():
        if prompt.rstrip().endswith(start.rstrip()):
            return body
    if named := re.findall(r"assert (add_\d+)\(1\) == (\d+)", prompt):
        return f"def {named[-1][0]}(x):\n    return x + {int(named[-1][1]) - 1}\n"
    added = re.findall(r"Add (\d)[: ]", prompt)
    if added and "Markdown" in prompt:
        return f"```python\n{re.findall('def .*', prompt)[-1]}\n    return x + {added[-1]}\n```"
    return f"    return x + {added[-1]}\n" if added else "    return x\n"
