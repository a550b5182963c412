"""eval-framework's tasks: descriptions, messages, prompts and metric values, of releases before 0.11. The worker imports this module where
the installed release is one of them.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval_framework.metrics.llm.base import BaseLLMJudgeMetric
from eval_framework.shared.types import Completion, Error, Loglikelihood
from eval_framework.tasks.base import RANDOM_SEED, ResponseType
from eval_framework_programs import runs_programs
from eval_framework_users import registered, task_in_file
from installed_versions import versions_around
from template_formatting.formatter import ConcatFormatter, IdentityFormatter, Llama3Formatter, Message
from user_files import is_user_module

if TYPE_CHECKING:
    from eval_dagster.peers.workers.messages import (
        AnswerSent,
        Described,
        ErrorSent,
        QuestionSent,
        RowsMade,
        SettingsSent,
        SplitDescribed,
        SplitRows,
        SplitsDescribed,
    )
    from eval_dagster.records import Row

__all__ = ["describe", "names", "render", "rows", "score"]

_FORMATTERS = {"plain": ConcatFormatter, "identity": IdentityFormatter, "llama3": Llama3Formatter}
_SHUFFLED = "eval_framework_shuffled"
"""Field of a row before the examples: how many rows were shuffled by the generator that draws the examples."""
_PACKAGES = ("eval_framework", "template_formatting")


class _FoundError(Exception):
    """Raised where the dataset would be loaded, with what of it is wanted."""

    def __init__(self, path: str, config: str | None) -> None:
        super().__init__(path)
        self.path, self.config = path, config


class Rows(list[dict[str, object]]):
    """The rows of a split, with what eval-framework's tasks use of a split of `datasets`."""

    def filter(self, keeps: Callable[[Row], bool]) -> Rows:
        """The rows that are kept."""
        return Rows(row for row in self if keeps(row))


class Splits(dict[str, Rows]):
    """Splits by name."""

    def filter(self, keeps: Callable[[Row], bool]) -> Splits:
        """The rows that are kept of each split."""
        return Splits({name: rows.filter(keeps) for name, rows in self.items()})


def names() -> dict[str, str]:
    """All names of the registry."""
    return {str(name): "task" for name in registered()}


def describe(name: str) -> Described:
    """The description of a task, as JSON."""
    if ".py:" not in name and name not in registered():
        raise LookupError(f"eval-framework has no task {name!r}")
    task = task_of(name)
    metrics = list(task.get_metrics())
    for metric in metrics:
        if issubclass(metric, BaseLLMJudgeMetric):
            raise PermissionError(f"the metric {metric.__name__} asks another model, which eval_dagster does not do for eval-framework")
    subjects = {subject_name(subject): subject for subject in task.SUBJECTS}
    return {
        "description": (inspect.getdoc(type(task)) or "").split("\n\n")[0],
        "subjects": list(subjects),
        "response_type": task.get_response_type().value,
        "metrics": [
            {"name": metric.NAME, "higher_is_better": _is_better(metric, task), "is_mean": True, "runs_programs": runs_programs(metric)}
            for metric in metrics
        ],
        "num_fewshot": task.num_fewshot,
        "is_macro": True,
        "splits": {name: _splits(task, subject) for name, subject in subjects.items()},
        "version": [versions_around("eval-framework"), _hashes([type(task), *metrics]), task.get_metadata(), task.hf_revision],
    }


def task_of(name: str, num_fewshot: int | None = None) -> Any:
    """A task; with its customary number of examples where none is given."""
    if ".py:" in name:
        own = task_in_file(name)
        return own() if num_fewshot is None else own(num_fewshot=num_fewshot)
    task = registered()[name].create(num_fewshot=0, custom_subjects=None, custom_hf_revision=None)
    return type(task)() if num_fewshot is None else type(task)(num_fewshot=num_fewshot)


def subject_name(subject: Any) -> str:
    """The name of a subject: of one of several parts, the parts with commas between them."""
    if isinstance(subject, tuple):
        return ",".join(subject_name(part) for part in subject)
    return str(subject.value if isinstance(subject, Enum) else subject)


def subject_of(task: Any, name: str) -> Any:
    """The subject of a name."""
    return next(subject for subject in task.SUBJECTS if subject_name(subject) == name)


def _is_better(metric: Any, task: Any) -> bool:
    """Whether a higher value is better. Only results hold this, so the metric scores one answer that is an error."""
    error = Error(error_class="", message="", traceback="")
    shared = {"id": 0, "subject": "", "ground_truth": "", "prompt": "", "prompt_sequence_positions": None, "error": error}
    try:
        if task.get_response_type() is ResponseType.COMPLETION:
            texts: dict[str, object] = {"completion": "", "raw_completion": "", "raw_completion_sequence_positions": None, "messages": []}
            found = metric().calculate(Completion(**shared, **texts))
        else:
            found = metric().calculate(Loglikelihood(**shared, loglikelihoods={}, loglikelihoods_sequence_positions={}))
        return bool(found[0].higher_is_better) if found else True
    except Exception:  # the metric's own code
        return True


# ---- datasets


def _splits(task: Any, subject: Any) -> SplitsDescribed:
    def find(path: str, name: str | None = None, **_: Any) -> Any:
        raise _FoundError(path, name)

    try:
        with loading(task, find):
            task._load_dataset(subject)
    except _FoundError as wanted:
        evaluated: SplitDescribed = {
            "path": wanted.path,
            "config": wanted.config,
            "split": task.SAMPLE_SPLIT,
            "revision": task.hf_revision,
        }
        return {"evaluated": [evaluated], "examples": [{**evaluated, "split": task.FEWSHOT_SPLIT}] if task.FEWSHOT_SPLIT else []}
    return {}


@contextmanager
def loading(task: Any, load: Callable[..., Any]) -> Iterator[None]:
    """Within the block, the task's datasets are loaded by a function. Some tasks call `load_dataset` of their module."""
    modules = {
        module
        for each in type(task).__mro__
        if (module := sys.modules.get(each.__module__))
        and (module.__name__.startswith("eval_framework.") or is_user_module(module))
        and hasattr(module, "load_dataset")
    }
    own = {module: module.load_dataset for module in modules}
    task._load_hf_dataset = load
    for module in modules:
        module.load_dataset = load  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del task._load_hf_dataset
        for module, function in own.items():
            module.load_dataset = function  # type: ignore[attr-defined]


# ---- version


def _hashes(classes: Sequence[type]) -> Mapping[str, str]:
    """A hash of each file that the classes and their bases are defined in."""
    modules = {each.__module__ for definition in classes for each in definition.__mro__}
    files = {
        name: Path(str(importlib.import_module(name).__file__))
        for name in sorted(modules)
        if name.startswith(tuple(_PACKAGES)) or is_user_module(sys.modules[name])
    }
    return {name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for name, file in files.items()}


# ---- rows


def rows(name: str, subject: str, splits: Sequence[SplitRows], fewshot: bool) -> RowsMade:
    """The rows as the task has them after loading: filtered, and in its order."""
    task = task_of(name)
    given = Splits({each["split"]: Rows(each["rows"]) for each in splits})
    with loading(task, lambda *_, **__: given):
        task._load_dataset(subject_of(task, subject))
    evaluated = task.dataset[task.SAMPLE_SPLIT]
    if not fewshot and not task_of(name, 0).num_fewshot:  # some tasks have examples in any case
        return {"evaluated": evaluated}
    # The number of rows whose shuffling left the task's generator in its state.
    sizes, generator = [len(given.get(task.SAMPLE_SPLIT, ())), len(evaluated)], getattr(task, "rnd", None)
    state = None if generator is None else generator.getstate()
    shuffled = next((size for size in sizes if _generator(size).getstate() == state), 0)
    examples = [] if task.FEWSHOT_SPLIT == task.SAMPLE_SPLIT else list(task.dataset.get(task.FEWSHOT_SPLIT, []))
    return {"evaluated": evaluated, "examples": [{_SHUFFLED: shuffled}, *examples]}


def _generator(shuffled: int, seed: int = RANDOM_SEED) -> random.Random:
    made = random.Random(seed)
    made.shuffle(list(range(shuffled)))
    return made


# ---- questions


def render(name: str, subject: str, rows: Sequence[Row], examples: Sequence[Row], settings: SettingsSent) -> Iterator[list[QuestionSent]]:
    """The task's samples for each row."""
    task = task_of(name, settings["num_fewshot"])
    marks, pool = [row for row in examples if row.keys() == {_SHUFFLED}], [dict(row) for row in examples if row.keys() != {_SHUFFLED}]
    items = [dict(row) for row in rows]
    task.dataset = {task.FEWSHOT_SPLIT: pool} | {task.SAMPLE_SPLIT: items}
    task.rnd = _generator(marks[0][_SHUFFLED] if marks else 0, RANDOM_SEED + settings["seed"])
    own = subject_of(task, subject)
    index = 0
    for item, row in zip(items, rows, strict=True):
        if settings["examples_per_sample"]:
            text = json.dumps([settings["seed"], row], sort_keys=True)
            task.rnd = random.Random(int(hashlib.sha256(text.encode()).hexdigest()[:8], 16))
        item["subject"] = own
        made = task._create_samples(item, index, str(own))
        index += len(made)
        yield [_question(task, sample, number, settings["format"]) for number, sample in enumerate(made)]


def _question(task: Any, sample: Any, number: int, prompt_format: str) -> QuestionSent:
    question: QuestionSent = {
        "messages": [[message.role.value, message.content] for message in sample.messages],
        "ground_truth": sample.ground_truth,
        "response_type": task.get_response_type().value,
        "context": {"number": number},
    }
    if formatter := _FORMATTERS.get(prompt_format):
        question["prompt"] = formatter().format([Message(role=each.role, content=each.content) for each in sample.messages])
    if task.get_response_type() is ResponseType.LOGLIKELIHOODS:
        choices = list(sample.possible_completions or ())
        truths = [sample.ground_truth] if isinstance(sample.ground_truth, str) else list(sample.ground_truth or ())
        gold = [position for position, choice in enumerate(choices) if choice in truths]
        # eval-framework does not require that the correct answer is among the choices.
        return {**question, "choices": choices, "gold_indices": gold, "ground_truth": None}
    return {**question, "stop_sequences": sorted(set(task.stop_sequences or ())), "max_tokens": task.max_tokens}


# ---- scores


def score(name: str, subject: str, row: Row, answers: Sequence[AnswerSent]) -> dict[str, float | ErrorSent]:
    """The values of a row: the means over its questions and their texts."""
    task = task_of(name, 0)
    task.num_fewshot, task.dataset, task.rnd = 0, {task.SAMPLE_SPLIT: [], task.FEWSHOT_SPLIT: []}, random.Random(RANDOM_SEED)
    own = subject_of(task, subject)
    samples = task._create_samples({**row, "subject": own}, 0, str(own))
    metrics = [metric() for metric in task.get_metrics()]  # some keep what they saw of the first sample until the second
    found: dict[str, list[float]] = {}
    errors: dict[str, str] = {}
    for answer in answers:
        for response in _responses(task, samples[answer["context"]["number"]], answer):
            for metric in metrics:
                try:
                    results = metric.calculate(response)
                except Exception as error:  # the other metrics of the row are computed
                    errors[metric.NAME] = f"{type(error).__name__}: {error}"
                    continue
                for result in results:
                    if result.error is not None:
                        errors[result.metric_name] = f"{result.error.error_class}: {result.error.message}"
                    elif result.value is not None:
                        found.setdefault(result.metric_name, []).append(float(result.value))
    means: dict[str, float | ErrorSent] = {metric: math.fsum(values) / len(values) for metric, values in found.items()}
    failed: dict[str, ErrorSent] = {metric: {"$error": reason} for metric, reason in errors.items()}
    return {**means, **failed}


def _responses(task: Any, sample: Any, answer: AnswerSent) -> list[Any]:
    shared = {"id": sample.id, "subject": sample.subject, "ground_truth": sample.ground_truth, "prompt": answer["prompt"]}
    if task.get_response_type() is ResponseType.LOGLIKELIHOODS:
        positions = {choice: len(tokens) for choice, tokens in zip(answer["choices"], answer["tokens"], strict=False)}
        values = dict(zip(answer["choices"], answer["loglikelihoods"], strict=True))
        return [Loglikelihood(**shared, prompt_sequence_positions=None, loglikelihoods=values, loglikelihoods_sequence_positions=positions)]
    return [
        Completion(
            **shared,
            prompt_sequence_positions=None,
            completion=task.post_process_generated_completion(text, sample),
            raw_completion=text,
            raw_completion_sequence_positions=None,
            messages=sample.messages,
            context=sample.context,
        )
        for text in answer["texts"]
    ]
