"""A project that changes in all the ways that can make a result stale, and in some that cannot."""

import json
import os
import shutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from transformers import AutoModelForCausalLM
from ui_servers import REPOSITORY

CONFIG = """
    models:
      a: {backend: scripted, function: "answers.py:answer"}
      b: {backend: scripted, default: " 8"}
    evals:
      sums: {task: "sums.py:Sums", num_fewshot: 1, limit: 50}
      words: {task: "words.py:Sums", num_fewshot: 1, limit: 3}
      outside: {task: "arithmetic", limit: 1}
    suites:
      nightly: {evals: [sums, words], models: [a, b]}
"""
TASK = '''
    """Sums."""

    from eval_dagster import BaseTask, CompletionMetric, ExactMatch, ResponseType


    class Sevens(CompletionMetric):
        """Whether the text is a seven."""

        NAME = "sevens"

        def calculate(self, response):
            return float(response.completion_text.strip() == "7")


    class Sums(BaseTask):
        """Sums."""

        NAME = "Sums"
        DATASET_PATH = "./rows"
        SAMPLE_SPLIT = "test"
        FEWSHOT_SPLIT = "train"
        RESPONSE_TYPE = ResponseType.COMPLETION
        MAX_TOKENS = 8
        METRICS = (Sevens,)
        SUBJECTS = ("default",)

        def _get_instruction_text(self, item):
            return item["question"]

        def _get_ground_truth(self, item):
            return item["answer"]
'''
ANSWERS = """
def answer(request):
    return " 7"
"""


@dataclass
class Checkout:
    """A folder with an evals.yaml that changes, and a copy of the package whose code changes."""

    folder: Path
    config: dict[str, Any] = field(default_factory=lambda: yaml.safe_load(textwrap.dedent(CONFIG)))

    def write(self) -> None:
        """Write all files."""
        shutil.copytree(REPOSITORY / "eval_dagster", self.folder / "package" / "eval_dagster")
        (self.folder / "sums.py").write_text(textwrap.dedent(TASK))
        (self.folder / "words.py").write_text(textwrap.dedent(TASK).replace("./rows", "./more_rows"))
        self.rows("7", "8", "9", folder="rows")
        self.rows("7", "8", "9", "10", "11", "12", folder="more_rows")
        (self.folder / "answers.py").write_text(ANSWERS)
        self.save()

    def rows(self, *answers: str, folder: str = "rows") -> None:
        """Write the rows of the task, of which each asks another question."""
        (self.folder / folder).mkdir(exist_ok=True)
        for split, texts in (("test", answers), ("train", [str(number) for number in range(20)])):
            rows = [{"question": f"{split} {place}: What is 3 + 4?\nA:", "answer": answer} for place, answer in enumerate(texts)]
            (self.folder / folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def save(self) -> None:
        """Write evals.yaml."""
        (self.folder / "evals.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False))

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text in a file."""
        text = (self.folder / file).read_text()
        assert old in text
        (self.folder / file).write_text(text.replace(old, new))

    def set(self, place: str, value: object) -> None:
        """Set a key of evals.yaml."""
        *sections, key = place.split(".")
        section = self.config
        for each in sections:
            section = section.setdefault(each, {})
        section[key] = value
        self.save()


class Change(NamedTuple):
    """A change, and the cells that it makes stale or that are missing after it."""

    apply: Callable[[Checkout], object]
    stale: Mapping[str, str] = {}
    """Letters of stages by a pattern of eval and model."""
    is_seen: bool = True
    """Whether the sensor sees the change at its next tick. Otherwise evals.yaml is saved again, so that nobody has to wait."""
    is_judged: bool = True
    """Whether the suite is judged as it was: neither its list nor its settings have changed."""
    left: Mapping[str, str] = {}
    """Letters of the stages that the next run makes again, since errors may not recur."""


class Fault(NamedTuple):
    """A change that makes runs fail, until it is undone."""

    begin: Callable[[Checkout], object]
    end: Callable[[Checkout], object]
    stale: Mapping[str, str]
    """Letters of the stages that fail or are not reached, by a pattern of eval and model."""


def _new_weights(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(folder)


def _add_tiny_model(checkout: Checkout) -> None:
    checkout.config["models"]["tiny"] = {"backend": "transformers", "device": "cpu", "source": {"folder": "weights"}}
    checkout.config["suites"]["nightly"] |= {"evals": ["sums", "words"], "models": ["a", "b", "tiny"]}
    checkout.save()


def _remove_and_rename(checkout: Checkout) -> None:
    del checkout.config["models"]["tiny"]
    checkout.config["evals"]["phrases"] = checkout.config["evals"].pop("words")
    checkout.config["suites"]["nightly"] |= {"evals": ["sums", "phrases"], "models": ["a", "b"]}
    checkout.save()


CHANGES = {
    "nothing": Change(lambda c: None, is_seen=False),
    "the prompt; the code of a metric": Change(
        lambda c: (
            c.edit("sums.py", 'return item["question"]', 'return "Sum: " + item["question"]'),
            c.edit("words.py", '.strip() == "7"', '.strip() >= "7"'),
        ),
        {"sums|*": "POSM", "words|*": "PSM"},
    ),
    "the prompt, back; another metric": Change(
        lambda c: (
            c.edit("sums.py", 'return "Sum: " + item["question"]', 'return item["question"]'),
            c.edit("words.py", "METRICS = (Sevens,)", "METRICS = (ExactMatch,)"),
        ),
        {"sums|*": "POSM", "words|*": "PSM"},
    ),
    "code that gives the same prompts; a larger limit": Change(
        lambda c: (
            c.edit("sums.py", 'return item["question"]', 'return str(item["question"])'),
            c.set("evals.words.limit", 4),
        ),
        {"sums|*": "PSM", "words|*": "DPOSM"},
    ),
    "a row; more examples": Change(
        lambda c: (c.rows("7", "0", "9", "1"), c.set("evals.words.num_fewshot", 2)), {"sums|*": "DPOSM", "words|*": "POSM"}
    ),
    "a row more; the seed": Change(
        lambda c: (c.rows("7", "0", "9", "1", "2"), c.set("evals.words.seed", 1)), {"sums|*": "DPOSM", "words|*": "POSM"}
    ),
    "that row less; a comment": Change(
        lambda c: (c.rows("7", "0", "9", "1"), c.edit("words.py", "class Sums", "# a comment\nclass Sums")), {"sums|*": "DPOSM"}
    ),
    "the time of the rows' file; another metric, back": Change(
        lambda c: (
            os.utime(c.folder / "rows" / "test.jsonl", (1, 1)),
            c.edit("words.py", "METRICS = (ExactMatch,)", "METRICS = (Sevens,)"),
        ),
        {"sums|*": "D", "words|*": "PSM"},
    ),
    "the temperature; the most tokens of another model": Change(
        lambda c: (
            c.set("models.a.generation", {"temperature": 0.5}),
            c.set("models.b.generation", {"max_tokens": 5}),
        ),
        {"*": "POSM"},
    ),
    "the suite's list": Change(lambda c: c.set("suites.nightly.evals", ["sums"]), is_judged=False),
    "the suite's list, back; a model more": Change(_add_tiny_model, {"*|tiny": "POSM"}, is_judged=False),
    "the answers of a function; the weights of another model": Change(
        lambda c: (c.edit("answers.py", '" 7"', '" 9"'), _new_weights(c.folder / "weights")),
        {"*|a": "OSM", "*|tiny": "OSM"},
        is_seen=False,
    ),
    "a request that fails": Change(
        lambda c: c.edit("answers.py", "    return", '    if "test 0" in request.prompt:\n        raise OSError("no")\n    return'),
        {"*|a": "OSM"},
        is_seen=False,
        left={"sums|a": "OSM", "words|a": "OSM"},
    ),
    "the same request, answered": Change(lambda c: c.edit("answers.py", 'raise OSError("no")', "pass"), {"*|a": "OSM"}, is_seen=False),
    "the code of a stage": Change(
        lambda c: c.edit(
            "package/eval_dagster/stages/scores.py", "    task = partition.scorer()\n", "    task, _ = partition.scorer(), 0\n"
        ),
        {"*": "SM"},
        is_seen=False,
    ),
    "a model less; the name of an eval": Change(_remove_and_rename, {"phrases|*": "DPOSM"}, is_judged=False),
    "an eval outside the suite": Change(lambda c: c.set("evals.outside.limit", 2), {"outside|*": "POSM"}),
    "nothing, after all": Change(lambda c: None, is_seen=False),
}
"""The changes of a row are to different evals or models."""


FAULTS = {
    "a task that raises": Fault(
        lambda c: c.edit(
            "sums.py", "_get_instruction_text(self, item):\n", '_get_instruction_text(self, item):\n        raise OSError("no")\n'
        ),
        lambda c: c.edit("sums.py", '        raise OSError("no")\n', ""),
        {"sums|*": "POSM"},
    ),
    "a model that cannot be loaded": Fault(
        lambda c: c.edit("answers.py", "def answer", 'raise OSError("no")\n\n\ndef answer'),
        lambda c: c.edit("answers.py", 'raise OSError("no")\n\n\n', ""),
        {"*|a": "OSM"},
    ),
}
