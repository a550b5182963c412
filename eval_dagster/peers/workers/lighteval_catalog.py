"""lighteval's tasks by name, and what they are. It runs in the environment that has lighteval."""

import hashlib
import importlib
import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import lighteval
import numpy as np
from installed_versions import versions_around
from lighteval.metrics.metrics_sample import JudgeLLM, SampleLevelComputation
from lighteval.metrics.sample_preparator import Preparator
from lighteval.metrics.utils.metric_utils import MetricGrouping
from lighteval.tasks.lighteval_task import LightevalTask
from lighteval.tasks.requests import SamplingMethod

_FOLDERS = ("tasks", "multilingual/tasks")
_RUNS_CODE = ("lighteval.tasks.tasks.lcb", "lighteval.tasks.tasks.slr_bench")
_BESIDE = ("language_data", "langdetect", "emoji", "spacy", "syllapy", "evaluate", "tiktoken")
"""Packages that some tasks use where they are installed."""
KINDS = {
    SamplingMethod.GENERATIVE: "completion",
    SamplingMethod.LOGPROBS: "loglikelihoods",
    SamplingMethod.PERPLEXITY: "perplexity",
}
"""The name of each sampling method in an answer."""


def names() -> dict[str, str]:
    """All names. A name before a colon that several tasks share is a group."""
    found: dict[str, str] = {}
    with _no_network():
        for module in _modules():
            found |= dict.fromkeys(_table(module), "task")
    beginnings = [name.split(":")[0] for name in found if ":" in name]
    return {**found, **{name: "group" for name in beginnings if beginnings.count(name) > 1 and name not in found}}


def describe(name: str) -> dict[str, Any]:
    """The description of a task, or of a group of tasks with the same metrics, as JSON."""
    found = members(name)
    kinds = {json.dumps([_metrics(config), config.num_fewshots]) for config in found.values()}
    if len(kinds) > 1:
        raise ValueError(f"its {len(found)} tasks have different metrics, which have no value in common; name one of them")
    first = next(iter(found.values()))
    for config in found.values():
        _require_allowed(config)
    tasks = f"{len(found)} tasks" if len(found) > 1 else "a task"
    without = "".join(f"; {reason}" for metric in first.metrics if (reason := _reason_against(metric)))
    return {
        "description": f"lighteval {metadata.version('lighteval')}: {tasks}{without}",
        "subjects": list(found),
        "response_type": KINDS[computed_metrics(first)[0].category],
        "metrics": _metrics(first),
        "num_fewshot": first.num_fewshots,
        "is_macro": True,
        "splits": {subject: splits_of(config) for subject, config in found.items()},
        "version": [versions_around("lighteval", *_BESIDE), [[_plain(config), _file_hash(config)] for config in found.values()]],
    }


@cache
def members(name: str) -> dict[str, Any]:
    """The configurations of a name. The modules whose files contain it are imported first."""
    beginning = name.split(":")[0]
    words = (f'"{name}"', f'"{beginning}', beginning)
    ranked = sorted(_modules(), key=lambda module: _rank(module, words))
    failed: list[str] = []
    for module in ranked:
        table = _table(module, failed if _rank(module, words) < len(words) else None)
        if name in table:
            return {name: table[name]}
        if found := {each: config for each, config in table.items() if each.startswith(f"{name}:")}:
            return found
    raise LookupError(f"lighteval has no task {name!r}" + "".join(f"; {reason}" for reason in failed[:3]))


def _rank(module: str, words: Sequence[str]) -> int:
    text = _source(module).read_text("utf-8")
    return next((number for number, word in enumerate(words) if word in text or module.endswith(f".{word}")), len(words))


def _modules() -> list[str]:
    root = Path(str(lighteval.__file__)).parent / "tasks"
    found: list[str] = []
    for folder in _FOLDERS:
        dotted = f"lighteval.tasks.{folder.replace('/', '.')}"
        for path in sorted((root / folder).iterdir()):
            if path.suffix == ".py" and path.stem != "__init__":
                found.append(f"{dotted}.{path.stem}")
            elif (path / "main.py").is_file():
                found.append(f"{dotted}.{path.name}.main")
    return found


def _source(module: str) -> Path:
    return Path(str(lighteval.__file__)).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")


def _table(module: str, failed: list[str] | None = None) -> dict[str, Any]:
    """The configurations of a module by name; none where it cannot be imported."""
    try:
        return {config.name: config for config in getattr(importlib.import_module(module), "TASKS_TABLE", ())}
    except (Exception, SystemExit) as error:
        if failed is not None:
            failed.append(f"{module} cannot be imported: {type(error).__name__}: {error}")
        return {}


@contextmanager
def _no_network() -> Iterator[None]:
    """Within the block no name of a host is resolved: some modules fetch files when they are imported."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no network while tasks are listed")

    own, socket.getaddrinfo = socket.getaddrinfo, refuse
    try:
        yield
    finally:
        socket.getaddrinfo = own


def _require_allowed(config: Any) -> None:
    if not computed_metrics(config):
        reasons = "; ".join(str(_reason_against(metric)) for metric in config.metrics)
        raise PermissionError(f"none of its metrics can be computed: {reasons}")
    if config.prompt_function.__module__.startswith(_RUNS_CODE):
        raise PermissionError("its metric runs code that the model wrote, outside of the sandbox")


def computed_metrics(config: Any) -> list[Any]:
    """The metrics of a task that are computed."""
    return [metric for metric in config.metrics if _reason_against(metric) is None]


def _reason_against(metric: Any) -> str | None:
    """Why a metric is left out."""
    named = ", ".join(shown(name) for name in metric_names(metric))
    if isinstance(metric.sample_level_fn, JudgeLLM):
        return f"without {named} (asks another model)"
    if not isinstance(metric.sample_level_fn, SampleLevelComputation | Preparator):
        return f"without {named} (a {type(metric.sample_level_fn).__name__}, which lighteval itself cannot compute)"
    return None


def metric_names(metric: Any) -> list[str]:
    """The names of the values that a metric gives."""
    return list(metric.metric_name) if isinstance(metric, MetricGrouping) else [metric.metric_name]


def _metrics(config: Any) -> list[dict[str, Any]]:
    described = []
    for metric in computed_metrics(config):
        better, aggregates = metric.higher_is_better, metric.get_corpus_aggregations()
        for name in metric_names(metric):
            higher = better.get(name, True) if isinstance(better, Mapping) else better
            described.append({"name": shown(name), "higher_is_better": bool(higher), "is_mean": aggregates.get(name, np.mean) is np.mean})
    return described


def shown(metric: str) -> str:
    """The name of a metric without the slash, which stands before a part of one, and with functions by name, without their addresses."""
    return _without_addresses(metric).replace("/", ".")


def _without_addresses(text: str) -> str:
    return re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", text)


def splits_of(config: Any) -> dict[str, Any]:
    """The splits of evaluated rows and of examples."""

    def split(name: str) -> dict[str, Any]:
        return {"path": config.hf_repo, "config": config.hf_subset or None, "split": name, "revision": config.hf_revision}

    evaluated = [split(name) for name in config.evaluation_splits]
    example_split = LightevalTask(config).fewshot_split
    return {"evaluated": evaluated, "examples": evaluated if example_split is None else [split(example_split)]}


# ---- version


def _file_hash(config: Any) -> dict[str, str]:
    """A hash of each file beside the module of a task that is a folder of its own, else of the module's file."""
    source = _source(config.prompt_function.__module__) if config.prompt_function.__module__.startswith("lighteval.") else None
    if source is None or not source.is_file():
        return {}
    files = sorted(source.parent.rglob("*.py")) if source.name == "main.py" else [source]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files}


def _plain(value: Any, depth: int = 0) -> Any:
    """A configuration as JSON, with functions and classes by name."""
    if isinstance(value, str):
        return _without_addresses(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(str(_plain(each, depth + 1)) for each in value)
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return [name, _plain(vars(value), depth + 1)] if hasattr(value, "__dict__") and depth < 6 else name
