"""A project in which users' code fails in every way at every place where it is called: a cell for each, and what becomes of it."""

import subprocess
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

FAULTS = {
    "raises": "raises",
    "exit0": "`sys.exit(0)`",
    "exit3": "`sys.exit(3)`",
    "dies": "`os._exit(0)`",
    "segfault": "segmentation fault",
    "loops": "endless loop",
    "wrong": "wrong type",
    "changes": "changes what it was given",
}
"""The ways to fail, with the heads of their columns."""
DEADLY = ("dies", "segfault", "loops")
EVAL, SAMPLE, NOTHING, NONE = "eval", "sample", "nothing", "–"
"""What fails: the eval with the model, one sample, nothing; no cell where the code is given nothing that it could change."""
PLACES = {
    "task": "task (import of its file)",
    "loader": "loader (`_load_dataset`)",
    "prompt": "prompt (hooks of the task)",
    "model": "model (function of a scripted one)",
    "post-processing": "post-processing",
    "metric": "metric",
    "aggregation": "aggregation (`aggregate`)",
}
"""The places, with the heads of their rows."""
_OF_SAMPLE = {**dict.fromkeys(FAULTS, SAMPLE), **dict.fromkeys(DEADLY, EVAL)}
EXPECTED: Mapping[str, Mapping[str, str]] = {
    "task": {**dict.fromkeys(FAULTS, EVAL), "changes": NONE},
    "loader": {**dict.fromkeys(FAULTS, EVAL), "changes": NONE},
    "prompt": {**_OF_SAMPLE, "changes": NOTHING},
    "model": _OF_SAMPLE,
    "post-processing": {**_OF_SAMPLE, "changes": NOTHING},
    "metric": {**_OF_SAMPLE, "changes": NOTHING},
    "aggregation": {**dict.fromkeys(FAULTS, EVAL), "changes": NOTHING},
}
STAGES = {
    "task": "dataset_snapshot",
    "loader": "dataset_snapshot",
    "prompt": "rendered_prompts",
    "model": "model_outputs",
    "post-processing": "sample_scores",
    "metric": "sample_scores",
    "aggregation": "task_metrics",
}
"""The stage at which the eval fails."""
SAMPLES = 5
_FAULTY = """
import ctypes, os, sys

PLACE, FAULT = {place!r}, {fault!r}

def faulty(place, right, wrong=5, change=lambda: None, i=3):
    if place != PLACE or i != 3:
        return right
    if FAULT == "raises":
        raise ValueError("broken")
    if FAULT in ("exit0", "exit3"):
        sys.exit(int(FAULT[-1]))
    if FAULT == "dies":
        os._exit(0)
    if FAULT == "segfault":
        ctypes.string_at(0)
    while FAULT == "loops":
        pass
    if FAULT == "changes":
        change()
    return wrong if FAULT == "wrong" else right
"""
_TASK = """
from eval_dagster import BaseTask, CompletionMetric, CorpusMetric
from eval_dagster.records import Completion, ResponseType

class Right(CompletionMetric):
    NAME = "right"
    IS_PROPORTION = True

    def calculate(self, response):
        row = response.row
        return faulty("metric", float(response.completion_text == row["answer"]), "ten", lambda: row.update(answer="x"), row["i"])

class Second(CompletionMetric):
    NAME = "second"
    IS_PROPORTION = True

    def calculate(self, response):
        return float(response.completion_text == response.row["answer"])

class Summed(CorpusMetric[Completion]):
    NAME = "summed"
    STATISTICS = ("right", "n")

    def calculate(self, response):
        return {{"right": response.completion_text == response.row["answer"], "n": 1}}

    @classmethod
    def aggregate(cls, sums):
        return faulty("aggregation", sums[..., 0] / sums[..., 1], "ten", lambda: sums.fill(99))

class Task(BaseTask[str]):
    NAME = "Task"
    DATASET_PATH = "rows"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [Right, Second, Summed]
    SUBJECTS = ["all"]

    def _load_dataset(self, subject):
        return faulty("loader", {{"test": [{{"i": i, "cell": f"{{PLACE}} {{FAULT}}", "answer": str(i + 1)}} for i in range({samples})]}})

    def _get_instruction_text(self, item):
        return faulty("prompt", f"{{item['i']}}+1=", change=lambda: item.update(answer="x"), i=item["i"])

    def _get_ground_truth(self, item):
        return item["answer"]

    def post_process_generated_completion(self, completion_text, sample):
        return faulty("post-processing", completion_text, change=lambda: sample.row.update(answer="x"), i=sample.row["i"])

Task = faulty("task", Task)
"""
_MODEL = """
def answer(request):
    i = int(request.prompt.rpartition("+")[0].split()[-1])
    def change():
        request.prompt = "another"
    return faulty("model", str(i + 1), change=change, i=i)
"""


def cells(places: Iterable[str] = PLACES, faults: Iterable[str] = FAULTS) -> list[tuple[str, str]]:
    """The places and faults that are cells of the table."""
    return [(place, fault) for place in places for fault in faults if EXPECTED[place][fault] != NONE]


def write_project(folder: Path, chosen: Iterable[tuple[str, str]], *, timeout_s: float = 5.0) -> None:
    """Write a project with an eval or a model for each cell, and with `good` ones. Its suite has all of them.

    Cells of the model are models of the suite `models`, which has the eval `good`; the others evals of `evals`, which has the model `good`.
    """
    evals, models = {"good": "good"}, {"good": "good"}
    for place, fault in [("", "good"), *chosen]:
        name = f"{place}-{fault}" if place else "good"
        faulty = textwrap.dedent(_FAULTY).format(place=place, fault=fault)
        if place in ("", "model"):
            (folder / f"model-{name}.py").write_text(faulty + _MODEL)
            models[name] = f"model-{name}.py:answer"
        if place != "model":
            (folder / f"task-{name}.py").write_text(faulty + _TASK.format(samples=SAMPLES))
            evals[name] = f"task-{name}.py:Task"
    lines = [
        f"code_timeout: {timeout_s}",
        "evals:",
        *(f'  {name}: {{task: "{task}"}}' for name, task in evals.items()),
        "models:",
        *(f'  {name}: {{backend: scripted, function: "{function}"}}' for name, function in models.items()),
        "suites:",
        f"  evals: {{evals: [{', '.join(evals)}], models: [good], baseline: previous}}",
        f"  models: {{evals: [good], models: [{', '.join(models)}], baseline: previous}}",
    ]
    (folder / "evals.yaml").write_text("\n".join(lines) + "\n")


def table() -> str:
    """The table of the documentation."""
    words = {EVAL: "its eval failed", SAMPLE: "error of its sample", NOTHING: "no effect", NONE: NONE}
    rows = [[head, *(words[EXPECTED[place][fault]] for fault in FAULTS)] for place, head in PLACES.items()]
    lines = [["", *FAULTS.values()], ["---"] * (len(FAULTS) + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def finished(command: list[str], folder: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """A command that has ended in a folder."""
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3000, check=False)
