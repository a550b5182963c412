"""lm-eval's tasks in an environment that has lm-eval, and packages that this project has in other versions.

The code of `eval_dagster.peers.lm_eval`, which asks lm-eval, is read from this file's folder. It needs only pydantic and Pillow of this
project's packages; the other packages are the environment's.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

if "eval_dagster" not in sys.modules:
    here = Path(__file__).resolve()
    sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != here.parent]  # these files must not shadow lm-eval's names
    folder = here.parents[2]
    spec = spec_from_file_location("eval_dagster", folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is no package")
    sys.modules["eval_dagster"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["eval_dagster"])

from eval_dagster.errors import TaskDefinitionError, described
from eval_dagster.metrics.base import frozen, thawed
from eval_dagster.peers.lm_eval import configurations
from eval_dagster.peers.lm_eval.registry import LmEvalBenchmark, own_benchmark, own_names, own_suite
from eval_dagster.records import Message, ResponseType, TaskSample
from eval_dagster.tasks.benchmark import Answer, BenchmarkRows, DatasetSplit, RenderSettings

__all__ = ["aggregate", "describe", "names", "render", "rows", "score", "suite"]

configurations.ADVICE = f"install it there: {sys.executable} -m pip install PACKAGE"


def names() -> dict[str, str]:
    """All names of the installed package."""
    return {name: listed.kind for name, listed in own_names().items()}


def suite(name: str) -> dict[str, Any]:
    """The evals of a group."""
    return {key: dict(value) for key, value in own_suite(name).items()}


@cache
def _benchmark(name: str) -> LmEvalBenchmark:
    """The benchmark of a name, or of the path of a YAML file."""
    return own_benchmark(name, Path("/"))


def describe(name: str) -> dict[str, Any]:
    """The description of a task, a group or a tag, as JSON."""
    found = _benchmark(name)
    splits: dict[str, Any] = {}
    for subject in found.subjects:
        try:
            examples: Any = [vars(split) for split in found.splits(subject, fewshot=True)]
        except TaskDefinitionError as error:
            examples = str(error)
        splits[subject] = {"evaluated": [vars(split) for split in found.splits(subject, fewshot=False)], "examples": examples}
    return {
        "shown": found.name,
        "description": found.description,
        "subjects": list(found.subjects),
        "response_type": found.response_type.value,
        "metrics": [
            {"name": metric.name, "higher_is_better": metric.higher_is_better, "is_mean": metric.aggregate is None}
            for metric in found.metrics
        ],
        "num_fewshot": found.num_fewshot,
        "is_macro": found.is_macro,
        "splits": splits,
        "version": found.version(),
    }


def rows(name: str, subject: str, splits: Sequence[Mapping[str, Any]], fewshot: bool) -> dict[str, Any]:
    """The documents that lm-eval makes of the rows of the splits."""
    given = {each["split"]: each["rows"] for each in splits}

    def opened(split: DatasetSplit) -> list[dict[str, Any]]:
        if split.split not in given:
            raise LookupError(f"lm-eval reads the split {split.split!r}, which its configuration does not name")
        return list(given[split.split])

    made = _benchmark(name).read(subject, opened, fewshot=fewshot)
    return {"evaluated": list(made.evaluated), "examples": list(made.examples)}


class _Sent:
    """Writes messages as a mark, since the process that asks the model has its chat template."""

    has_special_tokens = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.written: dict[str, list[list[str]]] = {}

    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:  # noqa: ARG002 - the protocol's
        """Return the mark."""
        turns = [[message.role.value, message.content] for message in messages]
        mark = f"<messages {json.dumps(turns)}>"
        self.written[mark] = turns
        return mark

    def answer_gap(self, question: str, answer: str) -> str:  # noqa: ARG002 - the protocol's
        """Return nothing: the prompts are whole."""
        return ""

    def version(self) -> str:
        """Return the name."""
        return self.name


def render(
    name: str, subject: str, rows: Sequence[dict[str, Any]], examples: Sequence[dict[str, Any]], settings: Mapping[str, Any]
) -> Iterator[list[dict[str, Any]] | dict[str, str]]:
    """lm-eval's requests for each document, as questions; or an error."""
    formatter = _Sent(settings["format"])
    how = RenderSettings(
        num_fewshot=settings["num_fewshot"],
        seed=settings["seed"],
        examples_per_sample=settings["examples_per_sample"],
        formatter=formatter,
    )
    for asked in _benchmark(name).render(subject, BenchmarkRows(evaluated=rows, examples=examples), how):
        if isinstance(asked, BaseException):
            yield {"$error": f"lm_eval: {described(asked)}"}
        else:
            yield [_question(each, formatter) for each in asked]


def _question(made: TaskSample, formatter: _Sent) -> dict[str, Any]:
    prompt = str(made.prompt)
    turns = [[message.role.value, message.content] for message in made.messages]
    asked: dict[str, Any] = {"messages": formatter.written.get(prompt, turns)}
    if prompt not in formatter.written:
        asked["prompt"] = prompt
    if "prompt" in asked and any(mark in prompt for mark in formatter.written):
        raise NotImplementedError("lm-eval adds a text to the messages of a chat, which cannot be sent")
    kind = made.response_type or ResponseType.COMPLETION
    generated = {name: getattr(made, name) for name in ("max_tokens", "num_samples", "temperature", "top_p", "top_k")}
    return {
        **asked,
        "response_type": kind.value,
        "choices": None if made.possible_completions is None else list(made.possible_completions),
        "gold_indices": made.gold_indices,
        "ground_truth": made.ground_truth,
        "stop_sequences": None if made.stop_sequences is None else list(made.stop_sequences),
        "context": made.context,
        **generated,
    }


_scored: dict[tuple[str, str], BenchmarkRows] = {}
"""By task: the rows of the object that scores. lm-eval does not need them to score a document."""


def score(name: str, subject: str, row: dict[str, Any], answers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The values of a document, each as the text of an item."""
    given = _scored.setdefault((name, subject), BenchmarkRows(evaluated=[row]))
    fields = ("prompt", "choices", "loglikelihoods", "is_greedy", "texts", "tokens", "context")
    found = _benchmark(name).score(subject, given, row, [Answer(**{field: answer[field] for field in fields}) for answer in answers])
    return {metric: frozen(value) for metric, value in found.items()}


def aggregate(name: str, metric: str, items: Sequence[str]) -> float:
    """The value of a metric of the items of all documents."""
    function = next(each.aggregate for each in _benchmark(name).metrics if each.name == metric)
    if function is None:
        raise LookupError(f"the metric {metric} is a mean")
    return float(function([thawed(item) for item in items]))
