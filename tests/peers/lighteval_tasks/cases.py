"""Invented rows in the form of the data sets of lighteval's tasks: some tasks of each kind of prompt, answer and metric."""

from typing import Any

Row = dict[str, Any]

_OPTIONS = {
    "What do bees make?": (["Wool", "Honey", "Glass", "Salt"], 1),
    "Where do ships land?": (["In a harbour", "In a forest", "On a roof", "In a lake of sand"], 0),
    "Which is a metal?": (["Wood", "Paper", "Cotton", "Iron"], 3),
    "What falls in winter?": (["Leaves", "Sand", "Snow", "Apples"], 2),
    "Which animal barks?": (["A dog", "A hen", "A carp", "A snail"], 0),
    "What is frozen water?": (["Steam", "Ice", "Fog", "Dew"], 1),
}
_CHOICE_ROWS = [(question, choices, gold) for question, (choices, gold) in _OPTIONS.items()]
_PAIRS = [
    ("The cat sat on the mat.", "On the mat sat the cat.", 1),
    ("It rains in Oslo.", "The bread is fresh.", 0),
    ("She sold the car.", "The car was sold by her.", 1),
    ("Bulls run fast.", "Bulls can run quickly.", 1),
    ("A red door.", "A blue window.", 0),
    ("He reads a book.", "He burns a book.", 0),
]
_SUMS = [
    ("Ann has 3 apples and buys 4.", "How many has she?", "7"),
    ("Bo had 20 coins and lost 5.", "How many are left?", "15"),
    ("Cy runs 2 miles on each of 6 days.", "How many miles?", "12"),
    ("A box of 9 eggs, 3 broken.", "How many are whole?", "6"),
]
_TEXTS = ["The old mill stands by the river . It has no wheel .", "Clouds gather ; the wind turns .", "One two  three.\nFour five six."]


def _arc() -> list[Row]:
    return [
        {"question": question, "choices": {"text": choices, "label": list("ABCD")}, "answerKey": "ABCD"[gold]}
        for question, choices, gold in _CHOICE_ROWS
    ]


def _choices_of(**names: str) -> list[Row]:
    """Rows with a question, choices and a position under these names."""
    return [
        {names["question"]: question, names["choices"]: choices, names["gold"]: gold, "subject": "world_facts"}
        for question, choices, gold in _CHOICE_ROWS
    ]


def _hellaswag() -> list[Row]:
    return [
        {"activity_label": "Day", "ctx_a": question, "ctx_b": "then WHAT", "endings": choices, "label": str(gold)}
        for question, choices, gold in _CHOICE_ROWS
    ]


def _truthful() -> list[Row]:
    return [
        {
            "question": question,
            "mc1_targets": {"choices": choices, "labels": [1, 0, 0, 0]},
            "mc2_targets": {"choices": [*choices, "None of these"], "labels": [1, 1, 0, 0, gold % 2]},
        }
        for question, choices, gold in _CHOICE_ROWS
    ]


def _drop() -> list[Row]:
    date = {"day": "", "month": "", "year": ""}
    return [
        {
            "passage": f"{story} {question}",
            "question": question,
            "answer": {"number": answer, "spans": [], "date": date},
            "validated_answers": {"number": [answer, ""], "date": [date, date], "spans": [[], ["a few", "some"]]},
        }
        for story, question, answer in _SUMS
    ]


CASES: dict[tuple[str, str], list[Row]] = {
    ("arc", "arc:challenge"): _arc(),
    ("openbookqa", "openbookqa"): [{**row, "question_stem": row["question"]} for row in _arc()],
    ("commonsenseqa", "commonsenseqa"): _arc(),
    ("hellaswag", "hellaswag"): _hellaswag(),
    ("mmlu", "mmlu:anatomy"): _choices_of(question="question", choices="choices", gold="answer"),
    ("mmlu_redux", "mmlu_redux_2:anatomy"): _choices_of(question="question", choices="choices", gold="answer"),
    ("truthfulqa", "truthfulqa:mc"): _truthful(),
    ("winogrande", "winogrande"): [
        {"sentence": f"{first} So _ was glad.", "option1": "the cat", "option2": "the dog", "answer": str(1 + same)}
        for first, _, same in _PAIRS
    ],
    ("piqa", "piqa"): [{"goal": first, "sol1": second, "sol2": "Do nothing.", "label": same} for first, second, same in _PAIRS],
    ("boolq", "boolq"): [{"passage": first, "question": f"{second}??", "answer": ["No", "Yes"][same]} for first, second, same in _PAIRS],
    ("blimp", "blimp:adjunct_island"): [{"sentence_good": first, "sentence_bad": second} for first, second, _ in _PAIRS],
    ("xcopa", "xcopa:en"): [
        {"premise": first, "question": ["cause", "effect"][same], "choice1": second, "choice2": "it snowed", "label": same}
        for first, second, same in _PAIRS
    ],
    ("glue", "glue:cola"): [{"sentence": first, "label": same} for first, _, same in _PAIRS],
    ("glue", "glue:mrpc"): [{"sentence1": first, "sentence2": second, "label": same} for first, second, same in _PAIRS],
    ("glue", "super_glue:cb"): [
        {"premise": first, "hypothesis": second, "label": index % 3} for index, (first, second, _) in enumerate(_PAIRS)
    ],
    ("imdb", "imdb"): [{"input": first, "reference": ["Negative", "Positive"][same]} for first, _, same in _PAIRS],
    ("gsm8k", "gsm8k"): [{"question": f"{a} {b}", "answer": f"We count.\n#### {answer}"} for a, b, answer in _SUMS],
    ("asdiv", "asdiv"): [{"body": a, "question": b, "answer": f"{answer} (things)"} for a, b, answer in _SUMS],
    ("math", "math:algebra"): [{"problem": f"{a} {b}", "solution": rf"So it is $\boxed{{{answer}}}$."} for a, b, answer in _SUMS],
    ("aime", "aime24"): [{"problem": f"{a} {b}", "answer": answer} for a, b, answer in _SUMS],
    ("drop_qa", "drop"): _drop(),
    ("jeopardy", "jeopardy"): [{"question": f"{a.lower()} ", "answer": answer} for a, _, answer in _SUMS],
    ("squad_v2", "squad_v2"): [
        {"question": b, "context": f"{a.lower()}  ", "answers": {"text": texts}}
        for (a, b, answer), texts in zip(_SUMS, (["seven", "seven", "a lot"], ["15", ""], ["twelve"], ["six."]), strict=True)
    ],
    ("triviaqa", "triviaqa"): [{"question": b, "answer": {"aliases": [f"The {answer}!", f"{answer}", "Many"]}} for _, b, answer in _SUMS],
    ("lambada", "lambada:standard"): [{"text": text} for text in _TEXTS],
    ("wikitext", "wikitext:103:document_level"): [{"page": text} for text in _TEXTS],
    ("the_pile", "the_pile:arxiv"): [{"text": text} for text in _TEXTS],
    ("bigbench", "bigbench:topical_chat"): [
        {"inputs": f"{a} {b}", "targets": [answer], "multiple_choice_scores": [], "multiple_choice_targets": []} for a, b, answer in _SUMS
    ],
    ("legal_summarization", "legal_summarization:billsum"): [{"text": f"{a} {b}", "summary": a} for a, b, _ in _SUMS],
}
"""Module and name of a task -> its rows."""
