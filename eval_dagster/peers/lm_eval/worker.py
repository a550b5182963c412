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
from eval_dagster.peers.workers.messages import (
    AnswerSent,
    Described,
    ErrorSent,
    EvalListed,
    QuestionSent,
    RowsMade,
    SettingsSent,
    SplitDescribed,
    SplitRows,
    SplitsDescribed,
)
from eval_dagster.records import Message, ResponseType, Row, TaskSample
from eval_dagster.tasks.benchmark import Answer, BenchmarkRows, DatasetSplit, RenderSettings

__all__ = ["aggregate", "describe", "names", "render", "rows", "score", "suite"]

configurations.ADVICE = f"install it there: {sys.executable} -m pip install PACKAGE"


def names() -> dict[str, str]:
    """All names of the installed package."""
    return {name: listed.kind for name, listed in own_names().items()}


def suite(name: str) -> Mapping[str, EvalListed]:
    """The evals of a group."""
    return own_suite(name)


@cache
def _benchmark(name: str) -> LmEvalBenchmark:
    """The benchmark of a name, or of the path of a YAML file."""
    return own_benchmark(name, Path("/"))


def describe(name: str) -> Described:
    """The description of a task, a group or a tag, as JSON."""
    found = _benchmark(name)
    splits: dict[str, SplitsDescribed] = {}
    for subject in found.subjects:
        splits[subject] = {"evaluated": [_split(each) for each in found.splits(subject, fewshot=False)]}
        try:
            splits[subject]["examples"] = [_split(each) for each in found.splits(subject, fewshot=True)]
        except TaskDefinitionError as error:
            splits[subject]["no_examples"] = str(error)
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


def _split(split: DatasetSplit) -> SplitDescribed:
    return {
        "path": split.path,
        "config": split.config,
        "split": split.split,
        "revision": split.revision,
        "files": split.files,
        "options": split.options,
    }


def rows(name: str, subject: str, splits: Sequence[SplitRows], fewshot: bool) -> RowsMade:
    """The documents that lm-eval makes of the rows of the splits."""
    given = {each["split"]: each["rows"] for each in splits}

    def opened(split: DatasetSplit) -> list[Row]:
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
    name: str, subject: str, rows: Sequence[Row], examples: Sequence[Row], settings: SettingsSent
) -> Iterator[list[QuestionSent] | ErrorSent]:
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


def _question(made: TaskSample, formatter: _Sent) -> QuestionSent:
    prompt = str(made.prompt)
    asked: QuestionSent
    if prompt in formatter.written:
        asked = {"messages": formatter.written[prompt]}
    elif any(mark in prompt for mark in formatter.written):
        raise NotImplementedError("lm-eval adds a text to the messages of a chat, which cannot be sent")
    else:
        asked = {"messages": [[message.role.value, message.content] for message in made.messages], "prompt": prompt}
    return {
        **asked,
        "response_type": (made.response_type or ResponseType.COMPLETION).value,
        "choices": None if made.possible_completions is None else list(made.possible_completions),
        "gold_indices": made.gold_indices,
        "ground_truth": made.ground_truth,
        "stop_sequences": None if made.stop_sequences is None else list(made.stop_sequences),
        "context": made.context if isinstance(made.context, Mapping) else None,
        "max_tokens": made.max_tokens,
        "num_samples": made.num_samples,
        "temperature": made.temperature,
        "top_p": made.top_p,
        "top_k": made.top_k,
    }


_scored: dict[tuple[str, str], BenchmarkRows] = {}
"""By task: the rows of the object that scores. lm-eval does not need them to score a document."""


def score(name: str, subject: str, row: Row, answers: Sequence[AnswerSent]) -> dict[str, str]:
    """The values of a document, each as the text of an item."""
    given = _scored.setdefault((name, subject), BenchmarkRows(evaluated=[row]))
    found = _benchmark(name).score(subject, given, row, [Answer(**answer) for answer in answers])
    return {metric: frozen(value) for metric, value in found.items()}


def aggregate(name: str, metric: str, items: Sequence[str]) -> float:
    """The value of a metric of the items of all documents."""
    function = next(each.aggregate for each in _benchmark(name).metrics if each.name == metric)
    if function is None:
        raise LookupError(f"the metric {metric} is a mean")
    return float(function([thawed(item) for item in items]))
