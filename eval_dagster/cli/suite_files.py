"""Reads a suite file of eval-framework, and makes it sections of evals.yaml: nested suites, settings, aggregates."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypedDict

import yaml

from eval_dagster.errors import UsageError
from eval_dagster.texts.figures import did_you_mean

_SETTINGS = {"num_samples": "limit", "num_fewshot": "num_fewshot", "task_subjects": "subjects", "hf_revision": "dataset_revision"}
"""Settings of a suite file -> settings of an eval. Both limits count samples of a subject."""
_REPEATS = "repeats"
_OF_MODELS = ("temperature", "top_p", "top_k", "max_tokens", "batch_size", "extra_llm_args")
_KEYS = ("name", "tasks", "aggregates", *_SETTINGS, _REPEATS, *_OF_MODELS)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_AVERAGE = re.compile(r"Average (.+?)( \(micro\))?")

Values: TypeAlias = dict[str, object]
Parts: TypeAlias = dict[str, tuple[float, str]]
"""By eval, its weight in an aggregate and its metric as eval-framework names it."""


class Sections(TypedDict):
    """The sections that a suite file becomes."""

    evals: dict[str, Values]
    suites: dict[str, Values]


@dataclass
class SuiteFile:
    """The sections of a suite file, and what they leave out."""

    models: Sequence[str]
    """Names of the models of each suite."""
    sections: Sections = field(default_factory=lambda: Sections(evals={}, suites={}))
    notes: list[str] = field(default_factory=list)
    """The parts that evals.yaml cannot say, or says elsewhere."""

    def text(self) -> str:
        """The sections as YAML, below the notes as comments."""
        comments = "".join(f"# {note}\n" for note in dict.fromkeys(self.notes))
        return comments + yaml.safe_dump(dict(self.sections), sort_keys=False, allow_unicode=True, width=100)


def read_suite_file(path: Path, models: Sequence[str]) -> SuiteFile:
    """Read a suite file of eval-framework 0.15.

    Each of its suites becomes a suite with all evals below it. A task that occurs with other settings becomes an eval of its own. A mean of
    the means of other suites becomes a weighted mean of their evals. What cannot be said in evals.yaml becomes a note.

    Raises:
        UsageError: The file cannot be read, or has another content.
    """
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from error
    found = SuiteFile(models=models)
    _suite(found, document, {}, str(path))
    return found


@dataclass(frozen=True, kw_only=True)
class _Node:
    """A suite or a task of the file, with the evals below it."""

    name: str
    evals: Sequence[str]
    aggregates: Mapping[str, Parts]
    """The means of a suite, by name."""
    is_leaf: bool


def _suite(found: SuiteFile, document: object, inherited: Values, where: str) -> _Node:
    if isinstance(document, str):
        document = {"name": document, "tasks": document}
    if not isinstance(document, dict) or not isinstance(tasks := document.get("tasks"), str | list) or not tasks:
        raise UsageError(f"{where}: expected a mapping with tasks: the name of a task, or a list of tasks and suites")
    if unknown := next((key for key in document if key not in _KEYS), None):
        raise UsageError(f"{where}: found the unknown key {unknown!r}; expected some of {', '.join(_KEYS)}{did_you_mean(unknown, _KEYS)}")
    settings = {**inherited, **{key: value for key, value in document.items() if key not in ("name", "tasks", "aggregates")}}
    given = document.get("name", tasks if isinstance(tasks, str) else None)
    if not isinstance(given, str) or not given:
        raise UsageError(f"{where}: found no name; expected one, since a list of tasks is a suite")
    if isinstance(tasks, str):
        name = _eval(found, given, tasks, settings)
        return _Node(name=given, evals=[name], aggregates={}, is_leaf=True)
    children = [_suite(found, each, settings, f"{where}: {given}[{place}]") for place, each in enumerate(tasks)]
    if len({each.name for each in children}) < len(children):
        raise UsageError(f"{where}: {given} has two children of one name; expected other names, which its aggregates tell apart")
    name, number = _name(given), 2
    while name in found.sections["suites"]:
        name, number = f"{_name(given)}-{number}", number + 1
    evals = list(dict.fromkeys(each for child in children for each in child.evals))
    section: Values = {"evals": evals, "models": list(found.models)}
    means, sections = dict[str, Parts](), dict[str, Values]()
    for each in document.get("aggregates") or []:
        _aggregate(found, each, {child.name: child for child in children}, f"{where}: {given}", means, sections)
    found.sections["suites"][name] = {**section, **({"aggregates": sections} if sections else {})}
    return _Node(name=given, evals=evals, aggregates=means, is_leaf=False)


def _eval(found: SuiteFile, given: str, task: str, settings: Values) -> str:
    """Add an eval, and return its name."""
    own: Values = {"task": f"eval_framework:{task}"}
    for key, value in settings.items():
        if value is None:
            continue
        if key in _OF_MODELS:
            found.notes.append(f"{key} of {given} is {value!r}: set it in `generation` or `batch_size` of the models.")
        elif key == "hf_revision" and not _COMMIT.fullmatch(str(value)):
            found.notes.append(f"hf_revision of {given} is {value!r}, which may move: set dataset_revision to a full commit hash.")
        elif key == _REPEATS:
            own |= {"num_samples": value} if value != 1 else {}
        else:
            own[_SETTINGS[key]] = value
    name, number = _name(given), 2
    while found.sections["evals"].setdefault(name, own) != own:
        name, number = f"{_name(given)}-{number}", number + 1
    return name


def _aggregate(
    found: SuiteFile, document: object, children: Mapping[str, _Node], where: str, means: dict[str, Parts], sections: dict[str, Values]
) -> None:
    """Add an aggregate to the sections of a suite, and to its means, of which outer suites can make others."""
    if not isinstance(document, dict) or not isinstance(name := document.get("name"), str) or not document.get("sources"):
        raise UsageError(f"{where}: found the aggregate {document!r}; expected a mapping with name, sources and method")
    method, parts = document.get("method", "mean"), Parts()
    if method not in ("mean", "median"):
        raise UsageError(f"{where}: found the method {method!r} of the aggregate {name!r}; expected 'mean' or 'median'")
    sources = list(_sources(document["sources"], children, f"{where}: {name}"))
    for child, metric in sources:
        inner = {child.evals[0]: (1.0, metric)} if child.is_leaf else child.aggregates.get(metric)
        if inner is None or (method == "median" and not child.is_leaf):
            found.notes.append(
                f"the aggregate {name!r} is left out: it takes {metric!r} of the suite {child.name!r}, which is no mean of evals."
            )
            return
        total = sum(weight for weight, _ in inner.values())
        for each, (weight, of_metric) in inner.items():
            parts[each] = (parts.get(each, (0.0, ""))[0] + weight / total / len(sources), of_metric)
    if method == "mean":
        means[name] = parts
    metrics = {metric for _, metric in parts.values()}
    named = [_AVERAGE.fullmatch(metric) for metric in metrics]
    section: Values = {"of": method, "evals": list(parts)}
    if method == "mean" and len({round(weight, 12) for weight, _ in parts.values()}) > 1:
        section |= {"of": "weighted", "weights": {each: round(weight, 12) for each, (weight, _) in parts.items()}}
    if len(metrics) == 1 and (match := named[0]) is not None:
        section["metric"] = match[1]
    else:
        listed = ", ".join(f"{metric!r} of {each}" for each, (_, metric) in parts.items())
        found.notes.append(f"the aggregate {name!r} takes the headline metric of each eval; the file names {listed}.")
    sections[_name(name)] = section


def _sources(document: object, children: Mapping[str, _Node], where: str) -> Iterator[tuple[_Node, str]]:
    for each in document if isinstance(document, list) else [document]:
        child, metric = (each.get("child"), each.get("metric")) if isinstance(each, dict) else (None, None)
        if not isinstance(child, str) or not isinstance(metric, str) or child not in children:
            meant = did_you_mean(str(child), children)
            raise UsageError(f"{where}: found the source {each!r}; expected a child ({', '.join(children)}) and a metric{meant}")
        yield children[child], metric


def _name(text: str) -> str:
    """A name as evals.yaml allows it."""
    return re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._-]+", "-", text)).strip("-._")[:90] or "suite"
