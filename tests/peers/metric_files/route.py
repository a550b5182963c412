"""A project of a user: copies of metric files, tasks that name them as metrics, rows, and a scripted model."""

import json
import shutil
import textwrap
from pathlib import Path
from typing import Any

from writing import Case, asked, choices, context, text

FILES = (
    "completion/code_assertion",
    "completion/json_format",
    "completion/length_control",
    "completion/math_reasoning_completion",
    "completion/rouge_geometric_mean",
    "completion/rouge_l",
    "completion/text_counter",
    "loglikelihood/bits_per_byte",
    "loglikelihood/dcs",
    "loglikelihood/probability_mass",
    "loglikelihood/ternary",
)
CHOICES = {" bark": -1.0, " meow": -2.5, " I don't know": -2.0}
LENGTH = '{"count": 3, "unit": "words", "type": "target"}'
SCHEMA = '{"json_schema": {"type": "object", "required": ["name"]}, "expected_output": {"name": "Ada"}}'
ROWS: dict[str, list[tuple[str, Any]]] = {
    "rouges": [("the quick brown fox", "a quick fox"), ("no", "a quick fox"), ("a quick fox", "a quick fox")],
    "lengths": [("one two three", LENGTH), ("one two", LENGTH), ("one", "not JSON"), ("one two three four five", LENGTH)],
    "objects": [('{"name": "Ada"}', SCHEMA), ("no object", SCHEMA), ('So: {"age": 3}', SCHEMA)],
    "sounds": [("", " bark"), ("", " meow"), ("", " I don't know")],
    "words": [("One two. Three!", 3), ("One.", 3), ("One two three four", 5)],
    "sums": [("\\frac{1}{2}", "0.5"), ("x=3", "3"), ("4", "5"), ("\\sqrt{8}", "2\\sqrt{2}")],
    "programs": [("print(2 > 1)", ""), ("print(2 < 1)", ""), ("nonsense(", "")],
}
"""The answer of the model and the gold answer of each row, by eval."""
METRICS = {
    "rouges": {"completion.rouge_l": ["ROUGE_L"], "completion.rouge_geometric_mean": ["ROUGE_GEOMETRIC_MEAN"]},
    "lengths": {"completion.length_control": ["LengthControl"]},
    "objects": {"completion.json_format": ["JsonFormat"]},
    "sounds": {
        "loglikelihood.bits_per_byte": ["BitsPerByteLoglikelihood"],
        "loglikelihood.dcs": ["DistributionalCorrectnessScore"],
        "loglikelihood.probability_mass": ["ProbabilityMass", "ProbabilityMassNorm"],
        "loglikelihood.ternary": ["TernaryScore"],
    },
    "words": {"completion.text_counter": ["WordCounter", "ResponseToOriginalLengthRatio"]},
    "sums": {"completion.math_reasoning_completion": ["MathReasoningCompletion"]},
    "programs": {"completion.code_assertion": ["CodeCompletionAssertion"]},
}
NATIVE = """
from eval_dagster import BaseTask, ResponseType
{imports}


class Asked(BaseTask[str]):
    NAME = "{eval}"
    DATASET_PATH = "somebody/{eval}"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.{kind}
    METRICS = [{metrics}]

    def _get_instruction_text(self, item):
        return item["question"]

    def _get_ground_truth(self, item):
        return item["answer"]

    def _get_possible_completions(self, item):
        return item["choices"]
"""
FOREIGN = """
from eval_framework.tasks.base import NO_SUBJECT, BaseTask, Language, ResponseType
from text_counter import WordCounterMetricContext
{imports}


class Asked(BaseTask[str]):
    NAME = "{eval}"
    DATASET_PATH = "somebody/{eval}"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "test"
    SUBJECTS = [NO_SUBJECT]
    LANGUAGE = Language.ENG
    RESPONSE_TYPE = ResponseType.{kind}
    METRICS = [{metrics}]

    def _get_instruction_text(self, item):
        return item["question"]

    def _get_ground_truth(self, item):
        return item["answer"]

    def _get_context(self, item):
        return WordCounterMetricContext(comparison="at least", word_count=item["number"])
"""
MODEL = """
import json
from pathlib import Path

REPLIES = {replies}


def answer(request):
    reply = next(reply for question, reply in REPLIES.items() if question in request.prompt)
    return [reply[choice] for choice in request.choices] if request.choices else reply
"""


def question(name: str, place: int) -> str:
    """The question of a row."""
    return f"Question {place} of {name}?"


def write_project(metrics: Path, folder: Path) -> None:
    """Write all files."""
    for file in FILES:
        shutil.copy(metrics / f"{file}.py", folder)
    replies: dict[str, Any] = {}
    for name, rows in ROWS.items():
        replies |= {question(name, place): CHOICES if name == "sounds" else reply for place, (reply, _) in enumerate(rows)}
        data = folder / "mirror/somebody" / name / "default"
        data.mkdir(parents=True)
        (data / "test.jsonl").write_text("".join(f"{json.dumps(_row(name, place))}\n" for place in range(len(rows))))
        template = FOREIGN if name in ("words", "sums", "programs") else NATIVE
        names = [f"from {module.rpartition('.')[2]} import {', '.join(found)}" for module, found in METRICS[name].items()]
        listed = ", ".join(each for found in METRICS[name].values() for each in found)
        kind = "LOGLIKELIHOODS" if name == "sounds" else "COMPLETION"
        written = {"eval": name, "imports": "\n".join(names), "metrics": listed, "kind": kind}
        (folder / f"{name}.py").write_text(template.format(**written))
    (folder / "model.py").write_text(MODEL.format(replies=repr(replies)))
    evals = "".join(f"  {name}: {{task: '{name}.py:Asked'}}\n" for name in ROWS)
    head = """
        datasets: {mirror: mirror}
        sandbox: {allow_code_execution: true}
        models:
          table: {backend: scripted, function: "model.py:answer"}
        evals:
    """
    (folder / "evals.yaml").write_text(f"{textwrap.dedent(head).strip()}\n{evals}")


def _row(name: str, place: int) -> dict[str, Any]:
    answer = ROWS[name][place][1]
    is_number = isinstance(answer, int)
    return {
        "question": question(name, place),
        "answer": str(answer),
        "choices": list(CHOICES),
        "number": answer if is_number else 1,
    }


def cases() -> list[Case]:
    """The same responses for the package: a case for each metric of an eval."""
    found = []
    for name, by_module in METRICS.items():
        responses = [_response(name, place) for place in range(len(ROWS[name]))]
        found += [
            {"module": module, "class": metric, "arguments": {}, "eval": name, "responses": responses}
            for module, metrics in by_module.items()
            for metric in metrics
        ]
    return found


def _response(name: str, place: int) -> Case:
    reply, answer = ROWS[name][place]
    if name == "sounds":
        return choices(CHOICES, [answer])
    counted = context("completion.text_counter:WordCounterMetricContext", comparison="at least", word_count=_row(name, place)["number"])
    return text(reply, str(answer), messages=asked(question(name, place)), context=counted)
