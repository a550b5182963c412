"""A sound quiz, a model that is right on most of it, and faults to be planted into one of the two."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.project import Project
from eval_dagster.records import Check, Status

QUIZ = """
    import random

    from eval_dagster import BaseTask, Message, ResponseType, Role
    from eval_dagster.metrics.base import CompletionMetric
    from eval_dagster.metrics.completion import ChoiceLetter, ExactNumber
    from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood

    class Long(CompletionMetric):
        NAME = "long"
        BOUNDS = (0.0, 1.0)

        def calculate(self, response):
            return float(len(response.completion_text) > 3)

    class Brief(CompletionMetric):
        NAME = "brief"

        def calculate(self, response):
            return 1.0 if len(response.completion_text) < 400 else 0.25

    class Compared(AccuracyLoglikelihood):
        COMPARES_TEXTS = True

    class Sums(BaseTask[str]):
        NAME = "Sums"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactNumber, Long]
        SUBJECTS = ["all"]
        ID_FIELD = "n"
        MAX_TOKENS = 400

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(100)]}

        def _get_instruction_text(self, item):
            return f"What is {item['n']} + 7? Question {item['n']}"

        def _get_ground_truth(self, item):
            return str(item["n"] + 7)

    class Letters(Sums):
        METRICS = [ChoiceLetter]

        def _get_ground_truth(self, item):
            return "ABCD"[item["n"] * 7 % 4]

    class Doubled(Sums):
        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in [*range(50), *range(50)]]}

    class Torn(Sums):
        def _load_dataset(self, subject):
            return {"test": [{"n": n, "more": more} for n in range(50) for more in (7, 8)]}

        def _get_ground_truth(self, item):
            return str(item["n"] + item["more"])

    class Told(Letters):
        def _get_instruction_text(self, item):
            return f"Key {self._get_ground_truth(item)}. Which letter? Question {item['n']}"

    class Unasked(Sums):
        def _get_instruction_text(self, item):
            asked = "" if item["n"] % 10 == 0 else f"what is {item['n']} + 7?"
            return f"Number: {item['n']}\\nAsked: {asked}\\nQuestion {item['n']}"

    class Hidden(Sums):
        def _get_instruction_text(self, item):
            return "What is the sum? Question 0"

    class Unanswered(Sums):
        METRICS = [Long]

        def _get_ground_truth(self, item):
            return " " if item["n"] % 10 == 0 else str(item["n"] + 7)

    class Free(Sums):
        METRICS = [Long]

    class Unbounded(Sums):
        METRICS = [Brief]

    class Choices(Sums):
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood]

        def _get_possible_completions(self, item):
            return [" A", " B", " C", " D"]

        def _get_ground_truth(self, item):
            return " " + "ABCD"[item["n"] * 7 % 4]

    class First(Choices):
        def _get_ground_truth(self, item):
            return " A"

    class Shuffled(Choices):
        def _get_ground_truth(self, item):
            return " " + random.Random(item["n"] + 1000).choice("ABCD")

    class Lost(Choices):
        def _get_ground_truth(self, item):
            return super()._get_ground_truth(item) + "." * (item["n"] % 10 == 0)

    class Spaced(Choices):
        METRICS = [Compared]

        def _get_ground_truth(self, item):
            return super()._get_ground_truth(item).strip()

    class Lengths(Choices):
        def _get_possible_completions(self, item):
            gold = item["n"] * 7 % 4
            return [f" {item['n']} and {place}{', which is more than usual' * (place == gold)}" for place in range(4)]

        def _get_ground_truth(self, item):
            return self._get_possible_completions(item)[item["n"] * 7 % 4]

    class Equal(Choices):
        def _get_possible_completions(self, item):
            places = ("0122", "0012", "0112")[item["n"] % 3] if item["n"] % 10 == 0 else "0123"
            return [f" {item['n']} and {place}" for place in places]

        def _get_ground_truth(self, item):
            return self._get_possible_completions(item)[item["n"] * 7 % 4]

    class Classes(Choices):
        FEWSHOT_SPLIT = "train"
        SUBJECT_FIELD = "letter"
        SUBJECTS = ["A", "B", "C", "D"]

        def _load_dataset(self, subject):
            rows = [{"n": n, "letter": "ABCD"[n * 7 % 4]} for n in range(200)]
            own = [row for row in rows if row["letter"] == subject]
            return {"test": [row for row in own if row["n"] < 100], "train": [row for row in own if row["n"] >= 100]}

    class Drawn(Sums):
        FEWSHOT_SPLIT = "train"

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(100)], "train": [{"n": n} for n in range(100, 110)]}

        def _get_example_messages(self, item):
            own = item if item["n"] % 10 == 0 else {"n": 200 + item["n"]}
            pairs = [({"n": 101}, "108"), (own, str(own["n"] + 7))]
            return [
                Message(role, text)
                for row, answer in pairs
                for role, text in ((Role.USER, self._get_instruction_text(row)), (Role.ASSISTANT, answer))
            ]

    class Counted(Choices):
        def _get_instruction_text(self, item):
            return f"Question {item['n']} . {item['n'] + 2}, {item['n'] + 3}, {item['n'] + 4}, {item['n'] + 5},"

        def _get_possible_completions(self, item):
            return [f" {item['n'] + 6 + (place - item['n'] * 7) % 4 * 13}" for place in range(4)]

        def _get_ground_truth(self, item):
            return f" {item['n'] + 6}"

    class CountedShuffled(Counted):
        def _get_ground_truth(self, item):
            return random.Random(item["n"] + 1000).choice(self._get_possible_completions(item))

    class CountedMoved(Counted):
        def _get_ground_truth(self, item):
            return self._get_possible_completions(item)[(item["n"] * 7 + 1) % 4]

    class Few(Choices):
        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(7)]}

    class FewFirst(First):
        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(5)]}
"""
MODEL = """
    import random

    from eval_dagster.models.scripted import CutText

    def text(n, is_right):
        return f"The numbers are added, and the sum is {n + 7 if is_right else n}"

    def answer(request):
        n = int(request.prompt.rpartition("Question ")[2].split()[0])
        is_right = random.Random(n).random() < 0.8
        gold = n * 7 % 4
        if request.choices is not None:
            chosen = gold if is_right else (gold + 1) % 4
            {choices}
            values = [0.0 if place == chosen else -3.0 - place for place in range(4)]
            {values}
            return values
        said = text(n, is_right)
        letter = "ABCD"[gold if is_right else (gold + 1) % 4]
        {texts}
        return said
"""
ANSWERS = "answers.json"
MODEL_OF_ANSWERS = f"""
    import json
    import random
    from pathlib import Path

    from eval_dagster.models.scripted import CutText

    ANSWERS = json.loads(Path(__file__).with_name("{ANSWERS}").read_text())

    def answer(request):
        n = int(request.prompt.rpartition("Question ")[2].split()[0])
        known = ANSWERS[n]
        gold = n * 7 % 4
        if request.choices is not None:
            values = list(known)
            best = chosen = values.index(max(values))
            {{choices}}
            values[chosen], values[best] = values[best], values[chosen]
            {{values}}
            return values
        said = letter = known
        {{texts}}
        return said
"""
CONFIG = """
    models:
      one: {{backend: scripted, function: "model.py:answer"}}
    evals:
      quiz: {{task: "quiz.py:{task}", num_fewshot: {shots}}}
"""


def model_code(task: str, fault: str = "pass", *, template: str = MODEL) -> str:
    """The model with a statement in the place where what it changes is known: `chosen`, `values`, or `said` and `letter`."""
    places = {"choices": "chosen =", "values": "values =", "texts": "said ="}
    texts = "said = letter" if task == "Letters" and fault == "pass" else "pass"
    code = {"choices": "pass", "values": "pass", "texts": texts}
    code |= {place: fault for place, word in places.items() if fault.startswith(word)}
    found = textwrap.dedent(template)
    for place, statement in code.items():
        found = found.replace(f"{{{place}}}", statement)
    return found


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, and the checks that find it: one, unless the fault has several parts."""

    task: str
    """The class of the quiz."""
    model: str = "pass"
    """A statement of the model."""
    checks: frozenset[Check]
    status: Status = Status.FOUND
    shots: int = 0
    is_sound_before: bool = False
    """Whether the eval has an earlier result without the fault."""


def _fault(task: str, model: str, *checks: Check, status: Status = Status.FOUND, shots: int = 0, is_sound_before: bool = False) -> Fault:
    return Fault(task=task, model=model, checks=frozenset(checks), status=status, shots=shots, is_sound_before=is_sound_before)


FAULTS: Mapping[str, Fault] = {
    # Rows and prompts
    "a duplicated split": _fault("Doubled", "pass", Check.DUPLICATES),
    "questions with two gold answers": _fault("Torn", "pass", Check.CONTRADICTIONS),
    "the answer in the prompt": _fault("Told", "said = letter", Check.ANSWER_IN_PROMPT),
    "an example that is the question": _fault("Drawn", "pass", Check.EXAMPLE_IS_QUESTION, shots=2),
    "subjects that are the class": _fault("Classes", "pass", Check.EXAMPLES_TELL_GOLD, shots=3),
    "the gold answer always first": _fault("First", "pass", Check.GOLD_POSITION),
    "the gold answer always longest": _fault("Lengths", "pass", Check.LENGTH_TELLS_GOLD),
    "two equal choices": _fault("Equal", "pass", Check.EQUAL_CHOICES),
    "gold answers that are no choice to the letter": _fault("Spaced", "pass", Check.GOLD_IS_NO_CHOICE),
    "gold answers that are no choice": _fault("Lost", "pass", Check.ERRORS),
    "empty gold answers": _fault("Unanswered", "pass", Check.BLANK_TEXTS),
    "a template that hides a tenth of the questions": _fault("Unasked", "pass", Check.BLANK_TEXTS),
    # All prompts are one text, which has one answer.
    "a template that hides the question": _fault("Hidden", "pass", Check.CONTRADICTIONS, Check.ONE_ANSWER),
    # Answers
    "a budget cut at 37 %": _fault("Sums", "said = CutText(said[:20]) if n < 37 else said", Check.CUT_OFF),
    "one in ten cut within the words": _fault("Free", "said = CutText(said[:20]) if n % 10 == 0 else said", Check.CUT_OFF),
    "an empty tenth": _fault("Sums", "said = '' if n % 10 == 0 else said", Check.EMPTY_ANSWERS),
    "a blank tenth": _fault("Letters", "said = ' \\n' if n % 10 == 0 else letter", Check.EMPTY_ANSWERS),
    "refusals": _fault("Sums", "said = \"I'm sorry, but I can't help with 2 of these.\" if n % 8 == 0 else said", Check.REFUSALS),
    "refusals of an AI": _fault("Free", "said = 'As an AI language model, I cannot provide that.' if n % 8 == 0 else said", Check.REFUSALS),
    "loops": _fault("Sums", "said = said + ' and so on' * 60 if n % 5 == 0 else said", Check.REPEATED_TEXT),
    "loops of lines": _fault(
        "Free",
        "said = said + chr(10).join(f'{k}. The next number is {k}, because' for k in range(90)) if n % 5 == 0 else said",
        Check.REPEATED_TEXT,
    ),
    "errors": _fault("Sums", "said = said if n % 10 else 1 / 0", Check.ERRORS),
    # Scores
    "a template that hides the answer": _fault("Sums", "said = 'It is what it is' if n % 3 == 0 else said", Check.NO_ANSWER_FOUND),
    "letters in words": _fault("Letters", "said = 'the second one' if n % 3 == 0 else letter", Check.NO_ANSWER_FOUND),
    "letters always A": _fault("Letters", "said = 'A'", Check.ONE_ANSWER),
    "one text for all": _fault("Sums", "said = 'The answer is 42'", Check.ONE_ANSWER),
    "choices always the first": _fault("Choices", "chosen = 0", Check.ONE_ANSWER),
    "choices nearly always the last": _fault("Choices", "chosen = 3 if n % 20 else 1", Check.ONE_ANSWER),
    "choices that are the first for want of an answer": _fault(
        "Choices", "chosen = gold if random.Random(n).random() < 0.6 else 0", Check.POSITION_BIAS
    ),
    "letters that are A in half of the answers": _fault("Letters", "said = letter if n % 2 else 'A'", Check.POSITION_BIAS),
    "choices that are equal": _fault("Choices", "values = [0.0] * 4 if n % 10 == 0 else values", Check.TIES),
    "a metric without bounds": _fault("Unbounded", "said = said + '.' * 400 if n in (3, 50) else said", Check.NO_BOUNDS),
    # What was cut off, empty or not found is a sign of its own, too.
    "texts that are cut off since the last result": _fault(
        "Sums", "said = CutText(said[:20]) if n % 4 == 0 else said", Check.CUT_OFF, Check.FORMAT_CHANGED, is_sound_before=True
    ),
    "texts that are empty since the last result": _fault(
        "Sums", "said = '' if n % 4 == 0 else said", Check.EMPTY_ANSWERS, Check.FORMAT_CHANGED, is_sound_before=True
    ),
    "a form that changed since the last result": _fault(
        "Sums", "said = 'so be it' if n % 4 == 0 else said", Check.NO_ANSWER_FOUND, Check.FORMAT_CHANGED, is_sound_before=True
    ),
    # True of sound benchmarks and models, too
    "a shuffled gold column": _fault("Shuffled", "pass", Check.AT_CHANCE, status=Status.NOTE),
    "gold answers moved by one": _fault("Choices", "chosen = (gold + 1) % 4", Check.AT_CHANCE, status=Status.NOTE),
    "a score at the ceiling": _fault("Choices", "chosen = gold", Check.AT_CEILING, status=Status.NOTE),
    "all letters right": _fault("Letters", "said = 'ABCD'[gold]", Check.AT_CEILING, status=Status.NOTE),
}


def found(project: Project, status: Status = Status.FOUND, eval_name: str = "quiz") -> dict[str, dict[str, Any]]:
    """The rows of `eval_findings` with a status, by their checks."""
    query = "select * from eval_findings where status = $status and eval = $eval"
    return {row["check_name"]: row for row in read_rows(project.lake, query, {"status": status, "eval": eval_name})}


def shown(project: Project) -> dict[str, Any]:
    """The only row of the leaderboard."""
    [row] = read_rows(project.lake, "select * from leaderboard")
    return row
