"""eval-framework's tasks by name, and what they are. It runs in the environment that has eval-framework."""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from eval_framework.metrics.llm.base import BaseLLMJudgeMetric
from eval_framework.shared.types import Completion, Error, Loglikelihood
from eval_framework.tasks.base import ResponseType
from eval_framework.tasks.registry import Registry
from eval_framework.tasks.task_names import register_all_tasks
from installed_versions import versions_around

_PACKAGES = ("eval_framework", "template_formatting")
_RUNS_CODE = ("llm_sandbox", "run_python_code")
"""Names in the module of a metric that runs code."""


class _FoundError(Exception):
    """Raised where the dataset would be loaded, with what of it is wanted."""

    def __init__(self, path: str, config: str | None) -> None:
        super().__init__(path)
        self.path, self.config = path, config


class Rows(list[dict[str, Any]]):
    """The rows of a split, with what eval-framework's tasks use of a split of `datasets`."""

    def filter(self, keeps: Callable[[dict[str, Any]], bool]) -> "Rows":
        """The rows that are kept."""
        return Rows(row for row in self if keeps(row))


class Splits(dict[str, Rows]):
    """Splits by name."""

    def filter(self, keeps: Callable[[dict[str, Any]], bool]) -> "Splits":
        """The rows that are kept of each split."""
        return Splits({name: rows.filter(keeps) for name, rows in self.items()})


@cache
def _registered() -> Any:
    own = Registry()
    register_all_tasks(own)
    return own


def names() -> dict[str, str]:
    """All names of the registry."""
    return {str(name): "task" for name in _registered()}


def describe(name: str) -> dict[str, Any]:
    """The description of a task, as JSON."""
    if name not in _registered():
        raise LookupError(f"eval-framework has no task {name!r}")
    task = task_of(name)
    metrics = list(task.get_metrics())
    for metric in metrics:
        _require_allowed(metric)
    subjects = {subject_name(subject): subject for subject in task.SUBJECTS}
    return {
        "description": (inspect.getdoc(type(task)) or "").split("\n\n")[0],
        "subjects": list(subjects),
        "response_type": task.get_response_type().value,
        "metrics": [{"name": metric.NAME, "higher_is_better": _is_better(metric, task), "is_mean": True} for metric in metrics],
        "num_fewshot": task.num_fewshot,
        "is_macro": True,
        "splits": {name: _splits(task, subject) for name, subject in subjects.items()},
        "version": [versions_around("eval-framework"), _hashes([type(task), *metrics]), task.get_metadata(), task.hf_revision],
    }


def task_of(name: str, num_fewshot: int | None = None) -> Any:
    """A task; with its customary number of examples where none is given."""
    task = _registered()[name].create(num_fewshot=0, custom_subjects=None, custom_hf_revision=None)
    return type(task)() if num_fewshot is None else type(task)(num_fewshot=num_fewshot)


def subject_name(subject: Any) -> str:
    """The name of a subject: of one of several parts, the parts with commas between them."""
    if isinstance(subject, tuple):
        return ",".join(subject_name(part) for part in subject)
    return str(subject.value if isinstance(subject, Enum) else subject)


def subject_of(task: Any, name: str) -> Any:
    """The subject of a name."""
    return next(subject for subject in task.SUBJECTS if subject_name(subject) == name)


def _require_allowed(metric: type) -> None:
    if issubclass(metric, BaseLLMJudgeMetric):
        raise PermissionError(f"the metric {metric.__name__} asks another model, which eval_dagster does not do for eval-framework")
    if any(hasattr(sys.modules[metric.__module__], name) for name in _RUNS_CODE):
        raise PermissionError(
            f"the metric {metric.__name__} runs code that the model wrote, outside of the sandbox; "
            "use a task of eval_dagster that runs it in the sandbox"
        )


def _is_better(metric: Any, task: Any) -> bool:
    """Whether a higher value is better. Only results hold this, so the metric scores one answer that is an error."""
    error = Error(error_class="", message="", traceback="")
    shared = {"id": 0, "subject": "", "ground_truth": "", "prompt": "", "prompt_sequence_positions": None, "error": error}
    try:
        if task.get_response_type() is ResponseType.COMPLETION:
            texts: dict[str, Any] = {"completion": "", "raw_completion": "", "raw_completion_sequence_positions": None, "messages": []}
            found = metric().calculate(Completion(**shared, **texts))
        else:
            found = metric().calculate(Loglikelihood(**shared, loglikelihoods={}, loglikelihoods_sequence_positions={}))
        return bool(found[0].higher_is_better) if found else True
    except Exception:  # the metric's own code
        return True


# ---- datasets


def _splits(task: Any, subject: Any) -> dict[str, Any]:
    def find(path: str, name: str | None = None, **_: Any) -> Any:
        raise _FoundError(path, name)

    try:
        with loading(task, find):
            task._load_dataset(subject)
    except _FoundError as wanted:
        dataset = {"path": wanted.path, "config": wanted.config, "revision": task.hf_revision}
        examples = [{**dataset, "split": task.FEWSHOT_SPLIT}] if task.FEWSHOT_SPLIT else []
        return {"evaluated": [{**dataset, "split": task.SAMPLE_SPLIT}], "examples": examples}
    return {}


@contextmanager
def loading(task: Any, load: Callable[..., Any]) -> Iterator[None]:
    """Within the block, the task's datasets are loaded by a function. Some tasks call `load_dataset` of their module."""
    modules = {
        module
        for each in type(task).__mro__
        if (module := sys.modules.get(each.__module__))
        and module.__name__.startswith("eval_framework.")
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
    files = {name: Path(str(importlib.import_module(name).__file__)) for name in sorted(modules) if name.startswith(tuple(_PACKAGES))}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for name, file in files.items()}
