"""lighteval's tasks: documents, prompts and metric values, made by lighteval 0.13. It runs in the environment that has lighteval."""

import copy
import hashlib
import importlib
import inspect
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import numpy as np
import random_draws
from lighteval.metrics.normalizations import LogProbPMINorm
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.lighteval_task import LightevalTask
from lighteval.tasks.prompt_manager import PromptManager
from lighteval.tasks.requests import SamplingMethod
from lighteval_catalog import KINDS, computed_metrics, describe, members, metric_names, names, shown, splits_of

__all__ = ["aggregate", "describe", "names", "render", "rows", "score"]

_SHUFFLE_SEED = 42
_INDEX = "lighteval_index"
"""Field of a row: its position in its split, for prompts that depend on it."""
_DRAWN = "lighteval_drawn"
"""Field of a row: how many random words were drawn before its document, for prompt functions that draw."""
_PART = "lighteval_part"
"""Field of a row: which of its documents is meant, for prompt functions that make several."""
_UNCONDITIONED = "unconditioned"


# ---- rows


class _Watched(dict[str, Any]):
    """A row that notices whether its position in the split is read."""

    read: ClassVar[set[str]] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def rows(name: str, subject: str, splits: Sequence[Mapping[str, Any]], fewshot: bool) -> dict[str, Any]:
    """The rows that give a document: the evaluated ones in the order in which lighteval takes them, and those of examples."""
    config = members(subject)[subject]
    by_name = {each["split"]: [row for row in each["rows"] if _is_kept(config, row)] for each in splits}
    counter = random_draws.Counter()
    evaluated = [row for split in config.evaluation_splits for row in _with_documents(config, by_name[split], False, counter)]
    random.Random(_SHUFFLE_SEED).shuffle(evaluated)
    if not fewshot:
        return {"evaluated": evaluated}
    sources = [each["split"] for each in splits_of(config)["examples"]]
    examples = [row for split in sources for row in _with_documents(config, by_name[split], True, counter)]
    return {"evaluated": evaluated, "examples": examples}


def _is_kept(config: Any, row: Mapping[str, Any]) -> bool:
    return config.hf_filter is None or bool(config.hf_filter(row))


def _with_documents(
    config: Any, split: Sequence[Mapping[str, Any]], few_shots: bool, counter: random_draws.Counter
) -> list[dict[str, Any]]:
    """The rows that have a document, with what the document depends on beside the row."""
    _Watched.read.clear()
    kept: list[tuple[int, dict[str, Any]]] = []
    for index, row in enumerate(split):
        before = counter.drawn
        made = _made(config, row, few_shots, index)
        noted = {_DRAWN: before} if counter.advance() else {}
        kept += [(index, {**row, **noted, **({_PART: part} if part else {})}) for part in range(len(made))]
    if "__index" not in _Watched.read:
        return [row for _, row in kept]
    return [{**row, _INDEX: index} for index, row in kept]


def _document(config: Any, row: Mapping[str, Any], few_shots: bool, index: int = 0) -> Any:
    """The document of a row that has one."""
    random_draws.start(row.get(_DRAWN, random_draws.NONE))
    document = _made(config, row, few_shots, index)[row.get(_PART, 0)]
    document.id = str(row.get(_INDEX, index))
    document.generation_size, document.stop_sequences = config.generation_size, config.stop_sequence
    return document


def _made(config: Any, row: Mapping[str, Any], few_shots: bool, index: int) -> list[Any]:
    """The documents that the prompt function makes of a row; none if the task leaves the row out. Some functions take no name."""
    item = _Watched(copy.deepcopy({key: value for key, value in row.items() if key not in (_INDEX, _DRAWN, _PART)}))
    item |= {"__few_shots": few_shots, "__index": row.get(_INDEX, index)}
    takes_name = len(inspect.signature(config.prompt_function).parameters) > 1
    made = config.prompt_function(item, config.name) if takes_name else config.prompt_function(item)
    if made is None:
        return []
    return made if isinstance(made, list) else [made]


# ---- questions


def render(
    name: str, subject: str, rows: Sequence[Mapping[str, Any]], examples: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> Iterator[list[dict[str, Any]]]:
    """The questions about each row: one for each sampling method that the metrics need."""
    config = copy.copy(members(subject)[subject])  # `dataclasses.replace` fails for classes with their own arguments
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


def _questions(task: Any, document: Any, prompts: Any) -> list[dict[str, Any]]:
    if document.images:
        raise NotImplementedError("it asks about images, which are not sent to another process")
    if prompts.use_chat_template:
        asked: dict[str, Any] = {"messages": [[each["role"], each["content"]] for each in prompts.prepare_prompt_api(document)]}
    else:
        asked = {"prompt": prompts.prepare_prompt(document)}
    made = []
    for method in dict.fromkeys(metric.category for metric in task.metrics):
        question = {**asked, "response_type": KINDS[method], "context": {"method": method.value}}
        if method is SamplingMethod.GENERATIVE:
            question |= _generation(task, document, is_chat=prompts.use_chat_template)
        elif method is SamplingMethod.LOGPROBS:
            question |= {"choices": list(document.choices), "gold_indices": _gold(document)}
        made.append(question)
    if any(_is_pmi(metric) for metric in task.metrics):
        context = {"method": _UNCONDITIONED}
        query = document.unconditioned_query or ""
        made.append({"prompt": query, "response_type": "loglikelihoods", "choices": list(document.choices), "context": context})
    return made


def _generation(task: Any, document: Any, *, is_chat: bool) -> dict[str, Any]:
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


def _gold(document: Any) -> list[int]:
    given = document.gold_index if isinstance(document.gold_index, list | tuple) else [document.gold_index]
    return [int(index) for index in given if 0 <= int(index) < len(document.choices)]


def _is_pmi(metric: Any) -> bool:
    return isinstance(getattr(metric.sample_level_fn, "logprob_normalization", None), LogProbPMINorm)


# ---- scores


def score(name: str, subject: str, row: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of a row."""
    config = members(subject)[subject]
    document = _document(config, row, False)
    document.task_name = config.full_name
    seed = int(hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:8], 16)
    random.seed(seed)
    np.random.seed(seed)
    by_method = {answer["context"]["method"]: answer for answer in answers}
    values: dict[str, Any] = {}
    for metric in computed_metrics(config):
        values |= {shown(name): _sent(value) for name, value in _values(metric, by_method, document).items()}
    return values


_lacking: dict[tuple[str, ...], str] = {}
"""By class and names of a metric: the package or file that it lacks. This process does not look for it again: a download is tried for a
minute. The next run does, because the error is retryable."""


def _values(metric: Any, by_method: Mapping[str, Mapping[str, Any]], document: Any) -> dict[str, Any]:
    """The values of a metric, or under each of its names the reason why there is none."""
    own_names = metric_names(metric)
    key = (type(metric.sample_level_fn).__module__, type(metric.sample_level_fn).__qualname__, *own_names)
    reason = _lacking.get(key)
    if reason is None:
        try:
            response = _response(by_method[metric.category.value])
            if _is_pmi(metric):
                response.logprobs += by_method[_UNCONDITIONED]["loglikelihoods"]
            return _sample_values(metric, response, document)
        except (Exception, SystemExit) as error:  # the other metrics of the row are computed
            reason = f"{type(error).__name__}: {error}"
            if not isinstance(error, ImportError | OSError | SystemExit):
                return {name: {"$error": reason} for name in own_names}
            _lacking[key] = reason
    return {name: {"$error": reason, "$retryable": True} for name in own_names}


def _sample_values(metric: Any, response: Any, document: Any) -> dict[str, Any]:
    if metric.batched_compute:
        found = metric.compute_sample(responses=[response], docs=[document])
        return {key: value[0] for key, value in found.items()}
    return dict(metric.compute_sample(model_response=response, doc=document))


def _response(answer: Mapping[str, Any]) -> Any:
    return ModelResponse(
        input=answer["prompt"],
        text=list(answer["texts"]),
        output_tokens=list(answer["tokens"]),
        logprobs=list(answer["loglikelihoods"]),
        argmax_logits_eq_gold=list(answer["is_greedy"]),
    )


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
