"""lighteval's tasks: descriptions, documents, prompts and metric values, made by lighteval 0.13. It runs in the environment that has
lighteval.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import inspect
import json
import random
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import lighteval
import numpy as np
import random_draws
from installed_versions import versions_around
from lighteval.metrics.metrics_sample import JudgeLLM, SampleLevelComputation
from lighteval.metrics.normalizations import LogProbPMINorm
from lighteval.metrics.sample_preparator import Preparator
from lighteval.metrics.utils.metric_utils import MetricGrouping
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.lighteval_task import LightevalTask, LightevalTaskConfig
from lighteval.tasks.prompt_manager import PromptManager
from lighteval.tasks.requests import SamplingMethod
from user_files import module_of

if TYPE_CHECKING:
    from eval_dagster.peers.workers.messages import (
        AnswerSent,
        Described,
        ErrorSent,
        MetricDescribed,
        QuestionSent,
        RowsMade,
        SettingsSent,
        SplitDescribed,
        SplitRows,
        SplitsDescribed,
    )
    from eval_dagster.records import Row

__all__ = ["aggregate", "describe", "names", "render", "rows", "score"]

_SHUFFLE_SEED = 42
_INDEX = "lighteval_index"
"""Field of a row: its position in its split, for prompts that depend on it."""
_DRAWN = "lighteval_drawn"
"""Field of a row: how many random words were drawn before its document, for prompt functions that draw."""
_PART = "lighteval_part"
"""Field of a row: which of its documents is meant, for prompt functions that make several."""
_UNCONDITIONED = "unconditioned"
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


def describe(name: str) -> Described:
    """The description of a task, or of a group of tasks with the same metrics, as JSON."""
    found = members(name)
    kinds = {json.dumps([_metrics(config), config.num_fewshots]) for config in found.values()}
    if len(kinds) > 1:
        raise ValueError(f"its {len(found)} tasks have different metrics, which have no value in common; name one of them")
    first = next(iter(found.values()))
    for config in found.values():
        if not computed_metrics(config):
            reasons = "; ".join(str(_reason_against(metric)) for metric in config.metrics)
            raise PermissionError(f"none of its metrics can be computed: {reasons}")
        if config.prompt_function.__module__.startswith(_RUNS_CODE):
            raise PermissionError("its metric runs code that the model wrote, outside of the sandbox")
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
        "version": [versions_around("lighteval", *_BESIDE), [[_plain(config), _file_hashes(name, config)] for config in found.values()]],
    }


@cache
def members(name: str) -> Mapping[str, Any]:
    """The configurations of a name, `path/to/file.py:name` for a user's. Of lighteval's modules, those whose files contain it are imported
    first.
    """
    path, is_file, own = name.rpartition(".py:")
    if is_file:
        return _members_in(Path(f"{path}.py"), own)
    beginning = name.split(":")[0]
    words = (f'"{name}"', f'"{beginning}', beginning)
    ranked = sorted(_modules(), key=lambda module: _rank(module, words))
    failed: list[str] = []
    for module in ranked:
        if found := _named(_table(module, failed if _rank(module, words) < len(words) else None), name):
            return found
    raise LookupError(f"lighteval has no task {name!r}" + "".join(f"; {reason}" for reason in failed[:3]))


def _named(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The task of a name, or the tasks of a group."""
    return {name: table[name]} if name in table else {each: config for each, config in table.items() if each.startswith(f"{name}:")}


def _members_in(file: Path, name: str) -> Mapping[str, Any]:
    """The configurations of a user's file: of its table, or the one of a variable. The file can import those beside it."""
    module = module_of(file)
    table = {config.name: config for config in getattr(module, "TASKS_TABLE", ())}
    variables = {key: value for key, value in vars(module).items() if isinstance(value, LightevalTaskConfig)}
    if name in variables:
        return {variables[name].name: variables[name]}
    if found := _named(table, name):
        return found
    raise LookupError(f"{file} has no task {name!r}; it has: {', '.join([*variables, *table]) or 'none'}")


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


def _metrics(config: Any) -> list[MetricDescribed]:
    described: list[MetricDescribed] = []
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


def splits_of(config: Any) -> SplitsDescribed:
    """The splits of evaluated rows and of examples."""

    def split(name: str) -> SplitDescribed:
        return {"path": config.hf_repo, "config": config.hf_subset or None, "split": name, "revision": config.hf_revision}

    evaluated = [split(name) for name in config.evaluation_splits]
    example_split = LightevalTask(config).fewshot_split
    return {"evaluated": evaluated, "examples": evaluated if example_split is None else [split(example_split)]}


# ---- version


def _file_hashes(name: str, config: Any) -> dict[str, str]:
    """A hash of each file beside the module of a task that is a folder of its own, or a user's; else of the module's file."""
    path, is_file, _ = name.rpartition(".py:")
    if is_file:
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in sorted(Path(path).parent.glob("*.py"))}
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


# ---- rows


class _Watched(dict[str, object]):
    """A row that notices whether its position in the split is read."""

    read: ClassVar[set[str]] = set()

    def __getitem__(self, key: str) -> object:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: object = None) -> object:
        self.read.add(key)
        return super().get(key, default)


def rows(name: str, subject: str, splits: Sequence[SplitRows], fewshot: bool) -> RowsMade:
    """The rows that give a document: the evaluated ones in the order in which lighteval takes them, and those of examples."""
    config = members(name)[subject]
    keeps = config.hf_filter or (lambda _: True)
    by_name = {each["split"]: [row for row in each["rows"] if keeps(row)] for each in splits}
    counter = random_draws.Counter()
    evaluated = [row for split in config.evaluation_splits for row in _with_documents(config, by_name[split], False, counter)]
    random.Random(_SHUFFLE_SEED).shuffle(evaluated)
    if not fewshot:
        return {"evaluated": evaluated}
    sources = [each["split"] for each in splits_of(config)["examples"]]
    examples = [row for split in sources for row in _with_documents(config, by_name[split], True, counter)]
    return {"evaluated": evaluated, "examples": examples}


def _with_documents(config: Any, split: Sequence[Row], few_shots: bool, counter: random_draws.Counter) -> list[Row]:
    """The rows that have a document, with what the document depends on beside the row."""
    _Watched.read.clear()
    kept: list[tuple[int, Row]] = []
    for index, row in enumerate(split):
        before = counter.drawn
        made = _made(config, row, few_shots, index)
        noted = {_DRAWN: before} if counter.advance() else {}
        kept += [(index, {**row, **noted, **({_PART: part} if part else {})}) for part in range(len(made))]
    if "__index" not in _Watched.read:
        return [row for _, row in kept]
    return [{**row, _INDEX: index} for index, row in kept]


def _document(config: Any, row: Row, few_shots: bool, index: int = 0) -> Any:
    """The document of a row that has one."""
    random_draws.start(row.get(_DRAWN, random_draws.NONE))
    document = _made(config, row, few_shots, index)[row.get(_PART, 0)]
    document.id = str(row.get(_INDEX, index))
    document.generation_size, document.stop_sequences = config.generation_size, config.stop_sequence
    return document


def _made(config: Any, row: Row, few_shots: bool, index: int) -> list[Any]:
    """The documents that the prompt function makes of a row; none if the task leaves the row out. Some functions take no name."""
    item = _Watched(copy.deepcopy({key: value for key, value in row.items() if key not in (_INDEX, _DRAWN, _PART)}))
    item |= {"__few_shots": few_shots, "__index": row.get(_INDEX, index)}
    takes_name = len(inspect.signature(config.prompt_function).parameters) > 1
    made = config.prompt_function(item, config.name) if takes_name else config.prompt_function(item)
    if made is None:
        return []
    return made if isinstance(made, list) else [made]


# ---- questions


def render(name: str, subject: str, rows: Sequence[Row], examples: Sequence[Row], settings: SettingsSent) -> Iterator[list[QuestionSent]]:
    """The questions about each row: one for each sampling method that the metrics need."""
    config = copy.copy(members(name)[subject])  # `dataclasses.replace` fails for classes with their own arguments
    config.num_fewshots = settings["num_fewshot"]
    config.__post_init__()
    task = LightevalTask(config)
    task._fewshot_docs = [_document(config, row, True, index) for index, row in enumerate(examples)]
    generator = random.Random(_SHUFFLE_SEED)
    generator.shuffle(list(range(len(rows))))
    prompts = PromptManager(use_chat_template=settings["format"] not in ("plain", "identity"))
    for row in rows:
        document = _document(config, row, False)
        seed = settings["seed"]
        if settings["examples_per_sample"]:
            seed = int(hashlib.sha256(f"{seed}/{document.query}".encode()).hexdigest()[:8], 16)
            task.fewshot_sampler._fewshot_cache.clear()
            generator = random.Random(seed)
        document.task_name = config.full_name
        document.fewshot_samples = task.fewshot_sampler.sample_fewshot_examples(
            settings["num_fewshot"], seed, sampler=generator, formatted_doc=_among_examples(task, document)
        )
        yield _questions(task, document, prompts)


def _among_examples(task: Any, document: Any) -> Any:
    """The content by which a document is found among the examples, so that none is its own. lighteval compares other fields."""
    if task.fewshot_split is not None:
        return document
    same = (each for each in task._fewshot_docs if (each.query, each.choices) == (document.query, document.choices))
    return next(same, document)


def _questions(task: Any, document: Any, prompts: Any) -> list[QuestionSent]:
    if document.images:
        raise NotImplementedError("it asks about images, which are not sent to another process")
    asked: QuestionSent
    if prompts.use_chat_template:
        asked = {"messages": [[each["role"], each["content"]] for each in prompts.prepare_prompt_api(document)]}
    else:
        asked = {"prompt": prompts.prepare_prompt(document)}
    made: list[QuestionSent] = []
    for method in dict.fromkeys(metric.category for metric in task.metrics):
        question: QuestionSent = {**asked, "response_type": KINDS[method], "context": {"method": method.value}}
        if method is SamplingMethod.GENERATIVE:
            question |= _generation(task, document, is_chat=prompts.use_chat_template)
        elif method is SamplingMethod.LOGPROBS:
            golds = document.gold_index if isinstance(document.gold_index, list | tuple) else [document.gold_index]
            question["choices"] = list(document.choices)
            question["gold_indices"] = [int(index) for index in golds if 0 <= int(index) < len(document.choices)]
        made.append(question)
    if any(_is_pmi(metric) for metric in task.metrics):
        query, choices = document.unconditioned_query or "", list(document.choices)
        made.append({"prompt": query, "response_type": "loglikelihoods", "choices": choices, "context": {"method": _UNCONDITIONED}})
    return made


def _generation(task: Any, document: Any, *, is_chat: bool) -> QuestionSent:
    # lighteval leaves the stop sequences to the end of the model's turn where there is a chat template.
    stops = [] if is_chat else [text for text in document.stop_sequences or () if text]
    try:
        golds = [str(gold) for gold in document.get_golds()]
    except Exception:  # for people; the metrics read the document
        golds = []
    return {
        "max_tokens": document.generation_size if (document.generation_size or 0) > 0 else None,
        "stop_sequences": stops,
        "num_samples": max(task.num_samples),
        "ground_truth": golds or None,
    }


def _is_pmi(metric: Any) -> bool:
    return isinstance(getattr(metric.sample_level_fn, "logprob_normalization", None), LogProbPMINorm)


# ---- scores


def score(name: str, subject: str, row: Row, answers: Sequence[AnswerSent]) -> dict[str, object]:
    """The values of a row."""
    config = members(name)[subject]
    document = _document(config, row, False)
    document.task_name = config.full_name
    seed = int(hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:8], 16)
    random.seed(seed)
    np.random.seed(seed)
    by_method = {answer["context"]["method"]: answer for answer in answers}
    values: dict[str, object] = {}
    for metric in computed_metrics(config):
        values |= {shown(name): _sent(value) for name, value in _values(metric, by_method, document).items()}
    return values


_lacking: dict[tuple[str, ...], str] = {}
"""By class and names of a metric: the package or file that it lacks. This process does not look for it again: a download is tried for a
minute. The next run does, because the error is retryable."""


def _values(metric: Any, by_method: Mapping[object, AnswerSent], document: Any) -> Mapping[str, object]:
    """The values of a metric, or under each of its names the reason why there is none."""
    own_names = metric_names(metric)
    key = (type(metric.sample_level_fn).__module__, type(metric.sample_level_fn).__qualname__, *own_names)
    reason = _lacking.get(key)
    if reason is None:
        try:
            answer = by_method[metric.category.value]
            response = ModelResponse(
                input=answer["prompt"],
                text=list(answer["texts"]),
                output_tokens=list(answer["tokens"]),
                logprobs=list(answer["loglikelihoods"]),
                argmax_logits_eq_gold=list(answer["is_greedy"]),
            )
            if _is_pmi(metric):
                response.logprobs += by_method[_UNCONDITIONED]["loglikelihoods"]
            if metric.batched_compute:
                return {key: value[0] for key, value in metric.compute_sample(responses=[response], docs=[document]).items()}
            return dict(metric.compute_sample(model_response=response, doc=document))
        except (Exception, SystemExit) as error:  # the other metrics of the row are computed
            reason = f"{type(error).__name__}: {error}"
            if not isinstance(error, ImportError | OSError | SystemExit):
                failed: ErrorSent = {"$error": reason}
                return dict.fromkeys(own_names, failed)
            _lacking[key] = reason
    lacking: ErrorSent = {"$error": reason, "$retryable": True}
    return dict.fromkeys(own_names, lacking)


def aggregate(name: str, metric: str, items: Sequence[Any]) -> float:
    """The value of a metric of all rows together."""
    functions: dict[str, Callable[[list[Any]], Any]] = {}
    for each in computed_metrics(next(iter(members(name).values()))):
        functions |= {shown(key): function for key, function in each.get_corpus_aggregations().items()}
    return float(functions[metric]([_received(item) for item in items]))


def _sent(value: Any) -> Any:
    """A value with its class, where it is what a metric of all rows is computed from."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = [type(value).__module__, type(value).__qualname__]
        return {"class": kind, "fields": {each.name: _sent(getattr(value, each.name)) for each in fields(value)}}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_sent(each) for each in value]
    return value


def _received(item: Any) -> Any:
    if isinstance(item, Mapping) and item.keys() == {"class", "fields"}:
        module, name = item["class"]
        return getattr(importlib.import_module(module), name)(**{key: _received(each) for key, each in item["fields"].items()})
    return [_received(each) for each in item] if isinstance(item, list) else item
