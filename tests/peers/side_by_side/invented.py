"""Invented rows and answers for the benchmarks of eval-framework. Both environments import this file; it needs Python alone."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from programs import multipl_e

Row = dict[str, Any]
WORDS = [
    "amber",
    "basalt",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heron",
    "iris",
    "jade",
    "kelp",
    "lark",
    "maple",
    "north",
    "oasis",
    "pearl",
    "quartz",
    "river",
    "slate",
    "thyme",
]
LETTERS = "ABCDEFGHIJ"
SPLITS = ("train", "validation", "test", "dev", "v0.1.4", "v0.1.2")
COUNT = 9
REAL = os.environ.get("REAL_ROWS")
"""A folder of datasets, `<path>/<configuration>/<split>-*.parquet`, whose rows are compared instead of invented ones."""


def word(number: int, place: int = 0) -> str:
    """One of the words, by hash."""
    return WORDS[int(hashlib.sha256(f"{number}/{place}".encode()).hexdigest(), 16) % len(WORDS)]


def phrase(number: int, place: int = 0, length: int = 3) -> str:
    """Some words."""
    return " ".join(word(number, 31 * place + each) for each in range(length))


def choices(number: int, count: int) -> list[str]:
    """Different choices, one of them with an umlaut and one with two words."""
    return [f"{word(number, place)} {place}{'ä' if place == 1 else ''}{' two' if place == 2 else ''}" for place in range(count)]


def _lettered(number: int, count: int = 4) -> Row:
    return {"text": choices(number, count), "label": list(LETTERS[:count])}


def _arc(n: int) -> Row:
    numbered = {"text": choices(n, 3), "label": ["1", "2", "3"]}
    return {
        "id": str(n),
        "question": f" What is {phrase(n)}?",
        "choices": numbered if n % 4 == 0 else _lettered(n),
        "answerKey": "2" if n % 4 == 0 else LETTERS[n % 4],
    }


def _arc_de(n: int) -> Row:
    return {"question_de": f"Was ist {phrase(n)}?", "choices_de": _lettered(n), "answerKey": LETTERS[n % 4]}


def _program(n: int) -> str:
    return f"    return x + {n % 5}\n"


def _bigcode(n: int) -> Row:
    prompt = f'import math\ndef task_func(x):\n    """Add {n % 5}: {phrase(n)}."""\n'
    tests = (
        "import unittest\nclass TestCases(unittest.TestCase):\n    def test_case_1(self):\n"
        f"        self.assertEqual(task_func(1), {1 + n % 5})\n"
    )
    return {
        "complete_prompt": prompt,
        "instruct_prompt": f"Write task_func that adds {n % 5} to {phrase(n)}.",
        "canonical_solution": _program(n),
        "code_prompt": "import math\ndef task_func(x):\n",
        "test": tests,
    }


def _copa(n: int) -> Row:
    first, second = choices(n, 2)
    return {
        "premise": f"The {phrase(n)} fell.",
        "choice1": f"It {first}.",
        "choice2": f"It {second}.",
        "question": ["cause", "effect"][n % 2],
        "label": n % 2,
    }


def _csqa(n: int) -> Row:
    return {"question": f"Where is {phrase(n)}?", "choices": _lettered(n, 5), "answerKey": LETTERS[n % 5]}


def _drop(n: int) -> Row:
    date = {"day": "", "month": "May" if n % 3 == 2 else "", "year": "1912" if n % 3 == 2 else ""}
    answer = {"number": str(n) if n % 3 == 0 else "", "spans": [word(n), word(n, 1)] if n % 3 == 1 else [], "date": date}
    return {
        "passage": f"The {phrase(n)} has {n} parts.  ",
        "question": f"How many {word(n, 3)}?",
        "answer": answer,
        "validated_answers": {"number": [f"{n}.0"], "date": [{"day": "", "month": "", "year": ""}], "spans": [[]]},
    }


def _drop_choices(n: int) -> Row:
    row = {"passage_original": f"The {phrase(n)}.", "question_original": f"Which {word(n)}?", "choices": _lettered(n, 5)}
    return {**row, "answerKey": LETTERS[n % 5]}


def _global_mmlu(n: int) -> Row:
    options = dict(zip(("option_a", "option_b", "option_c", "option_d"), choices(n, 4), strict=True))
    return {
        "question": f" Wozu dient {phrase(n)}? ",
        **options,
        "answer": LETTERS[n % 4],
        "subject": "abstract_algebra" if n % 3 else "anatomy",
    }


def _gpqa(n: int) -> Row:
    wrong = {f"Incorrect Answer {place}": f" {text} [x]" for place, text in enumerate(choices(n, 3), 1)}
    question = f"Which {phrase(n)}?\n"
    if n == 4:
        question = (
            "Hello, you are embarking on a new project. You need to produce the HP1alpha protein in E. coli. "
            "Which of these plasmids will you choose?"
        )
    return {"Question": question, "Correct Answer": f"{phrase(n, 7)}  right", **wrong}


def _gsm8k(n: int) -> Row:
    return {"question": f"How many {phrase(n)} are {n} and 1,000?", "answer": f"First {n} + 1000.\nThen {n + 1000}.\n#### {n + 1000:,}"}


def _hellaswag(n: int) -> Row:
    return {
        "ind": n,
        "activity_label": f"{word(n).title()} work",
        "ctx_a": f"A {phrase(n)} [title] starts.",
        "ctx_b": f"the {word(n, 5)}",
        "endings": [f"{each} [step] and  ends." for each in choices(n, 4)],
        "label": str(n % 4),
    }


def _humaneval(n: int) -> Row:
    return {
        "task_id": f"HumanEval/{n}",
        "prompt": f'\ndef add_{n}(x):\n    """Add {n % 5} to {word(n)}."""\n',
        "canonical_solution": _program(n),
        "test": f"def check(candidate):\n    assert candidate(1) == {1 + n % 5}\n",
        "entry_point": f"add_{n}",
    }


def _ifeval(n: int) -> Row:
    kinds: list[tuple[str, Row]] = [
        ("punctuation:no_comma", {}),
        ("length_constraints:number_words", {"num_words": 5.0, "relation": "at least"}),
        ("keywords:existence", {"keywords": [word(n)]}),
        ("detectable_format:number_bullet_lists", {"num_bullets": 2}),
        ("change_case:english_lowercase", {}),
        ("startend:quotation", {}),
        ("detectable_content:number_placeholders", {"num_placeholders": 1}),
        ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}),
        ("combination:repeat_prompt", {"prompt_to_repeat": f"Write of {word(n)}."}),
    ]
    chosen = [kinds[n % len(kinds)], kinds[(n + 3) % len(kinds)]]
    names = {name for _, given in kinds for name in given}
    rows = [{name: given.get(name) for name in sorted(names)} for _, given in chosen]
    return {"key": 1000 + n, "prompt": f"Write of {word(n)}.", "instruction_id_list": [kind for kind, _ in chosen], "kwargs": rows}


def _math(n: int) -> Row:
    answers = [str(n), f"\\frac{{{n}}}{{7}}", f"{n}\\text{{ cm}}", f"x={n}", "1,000", f"\\sqrt{{{n + 2}}}", "50\\%", "(1,2)", "\\pi"]
    answer = answers[n % len(answers)]
    return {
        "problem": f"Find ${word(n)}_{n}$.",
        "solution": f"We see ${n}+1$. So the answer is $\\boxed{{{answer}}}$.",
        "answer": answer,
        "level": "Level 5" if n % 3 else "Level 1",
        "question": f"Find {n}.",
        "id": n,
    }


def _mbpp(n: int) -> Row:
    code = f"def add_{n}(x):\n    return x + {n % 5}"
    tests = [f"assert add_{n}(1) == {1 + n % 5}", f"assert add_{n}(0) == {n % 5}"]
    return {"task_id": n, "text": f"Add {n % 5} to {word(n)}. ", "prompt": f"Add {n % 5}.", "code": code, "test_list": tests}


def _medqa(n: int) -> Row:
    return {"question": f"A {phrase(n)}?", "choices": choices(n, 4), "answer_idx": n % 4}


def _mmlu(n: int) -> Row:
    return {"question": f" What {phrase(n)}? ", "subject": "abstract_algebra", "choices": choices(n, 4), "answer": n % 4}


def _mmlu_pro(n: int) -> Row:
    category = ["engineering", "physics", "math", "law"][n % 2]
    return {
        "question": f"What {phrase(n)}? ",
        "options": choices(n, 10 - n % 3),
        "answer": LETTERS[n % 7],
        "answer_index": n % 7,
        "category": category,
    }


def _nq_open(n: int) -> Row:
    return {"question": f"who is {phrase(n)}", "answer": [phrase(n, 2), word(n, 9)]}


def _nq_choices(n: int) -> Row:
    return {"question": f"who is {phrase(n)}", "choices": _lettered(n), "answerKey": LETTERS[n % 4]}


def _piqa(n: int) -> Row:
    return {"goal": f"To {phrase(n)}", "sol1": phrase(n, 1), "sol2": phrase(n, 2), "label": n % 2}


def _sciq(n: int) -> Row:
    wrong = {f"distractor{place}": text for place, text in enumerate(choices(n, 3), 1)}
    return {"question": f"What {phrase(n)}?", **wrong, "correct_answer": phrase(n, 8), "support": f"{phrase(n, 3)}. " if n % 3 else ""}


def _social(n: int) -> Row:
    answers = dict(zip(("answerA", "answerB", "answerC"), choices(n, 3), strict=True))
    return {"context": f"{word(n).title()} went.", "question": f"Why {word(n, 1)}?", **answers, "label": str(n % 3 + 1)}


def _squad(n: int) -> Row:
    texts = [phrase(n, 1), phrase(n, 1), word(n, 2)] if n % 3 else []
    row = {"id": str(n), "title": f"{word(n)}_{n}", "context": f"{phrase(n, 0, 12)}.", "question": f"What {word(n)}?"}
    return {**row, "answers": {"text": texts, "answer_start": [0] * len(texts)}}


def _squad_1(n: int) -> Row:
    return _squad(3 * n + 1)


def _winogrande(n: int) -> Row:
    return {
        "sentence": f"The {word(n)} met _  because {phrase(n)}.",
        "option1": f"{word(n, 1)} one",
        "option2": f"{word(n, 2)} two",
        "answer": str(n % 2 + 1),
    }


_BY_PATH: dict[str, Callable[[int], Row]] = {
    "allenai/ai2_arc": _arc,
    "LeoLM/ArcChallenge_de": _arc_de,
    "bigcode/bigcodebench": _bigcode,
    "bigcode/bigcodebench-hard": _bigcode,
    "aps/super_glue": _copa,
    "tau/commonsense_qa": _csqa,
    "EleutherAI/drop": _drop,
    "allenai/drop-gen2mc": _drop_choices,
    "CohereLabs/Global-MMLU": _global_mmlu,
    "Idavidrein/gpqa": _gpqa,
    "openai/gsm8k": _gsm8k,
    "Rowan/hellaswag": _hellaswag,
    "PleIAs/GoldenSwag": _hellaswag,
    "openai/openai_humaneval": _humaneval,
    "google/IFEval": _ifeval,
    "LumiOpen/ifeval_mt": _ifeval,
    "jzhang86/de_ifeval": _ifeval,
    "google-research-datasets/mbpp": _mbpp,
    "davidheineman/medqa-en": _medqa,
    "cais/mmlu": _mmlu,
    "TIGER-Lab/MMLU-Pro": _mmlu_pro,
    "google-research-datasets/nq_open": _nq_open,
    "allenai/nq-gen2mc": _nq_choices,
    "ybisk/piqa": _piqa,
    "allenai/sciq": _sciq,
    "allenai/social_i_qa": _social,
    "rajpurkar/squad": _squad_1,
    "rajpurkar/squad_v2": _squad,
    "allenai/winogrande": _winogrande,
}


def rows_of(path: str, config: str | None) -> dict[str, list[Row]]:
    """The rows of a dataset by split. The last row of a split repeats its first."""
    if REAL and is_real(path):
        configs = {folder.name: folder for folder in (Path(REAL) / path).iterdir()}
        return _real_rows(configs[config] if config in configs else next(iter(configs.values())))
    is_program = path == "nuprl/MultiPL-E"
    make = multipl_e(str(config).partition("-")[2]) if is_program else _BY_PATH.get(path, _math)
    found = {}
    for place, split in enumerate(SPLITS):
        first = 20 * place + len(config or "") % 3
        rows = [make(first + number) for number in range(COUNT)]
        found[split] = [*rows, make(first)]
    return found


def is_real(path: str) -> bool:
    """Whether the folder of real rows has a dataset."""
    return bool(REAL) and (Path(str(REAL)) / path).is_dir()


def _real_rows(folder: Path) -> dict[str, list[Row]]:
    import pyarrow.parquet as parquet

    rows = {file.name.partition("-")[0]: parquet.read_table(file).to_pylist() for file in sorted(folder.glob("*.parquet"))}
    some = next(iter(rows.values()))
    return {split: rows.get(split, some) for split in SPLITS}  # a folder need not have all splits
