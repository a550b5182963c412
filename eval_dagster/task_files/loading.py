"""Finds task classes by a registered name, or in a file, and checks them before anything runs."""

import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from inspect import isfunction
from pathlib import Path
from types import FrameType, MappingProxyType, ModuleType
from typing import Any, TypeGuard, get_args

from eval_dagster.errors import EndedError, TaskDefinitionError, described
from eval_dagster.metrics.base import BaseMetric, metrics_for, response_kind
from eval_dagster.peers.aliases import EVAL_FRAMEWORK, aliases, foreign_import, installed_origin
from eval_dagster.peers.eval_framework.task import EvalFrameworkTask
from eval_dagster.records import ResponseType
from eval_dagster.task_files.registries import opened_registry, registry_of
from eval_dagster.tasks.base import BaseTask, FewshotStrategy, subject_name
from eval_dagster.tasks.benchmark import Benchmark, OrderedTask, adapter_task
from eval_dagster.tasks.doc import DocTask
from eval_dagster.tasks.samples import is_count
from eval_dagster.tasks.style import TaskStyler
from eval_dagster.texts.figures import did_you_mean
from eval_dagster.versions.source_files import is_user_module, load_file, neighbours, shown_name, shown_text

REQUIRED_ATTRIBUTES = ("NAME", "DATASET_PATH", "SAMPLE_SPLIT", "RESPONSE_TYPE", "METRICS")
_LISTS = ("METRICS", "SUBJECTS", "STOP_SEQUENCES", "DATA_FILES")
_COLUMN_TYPES = (str, int, float, bool)
_NOT_EMPTY = ("METRICS", "SUBJECTS")
_EXPECTED_METRICS = {
    ResponseType.COMPLETION: "CompletionMetric",
    ResponseType.LOGLIKELIHOODS: "LoglikelihoodMetric",
    ResponseType.PERPLEXITY: "PerplexityMetric",
}
_STYLED_HOOKS = {
    "_get_instruction_text": ("_get_raw_question", "_get_choices"),
    "_get_ground_truth": ("_get_choices", "_get_correct_index"),
    "_get_possible_completions": ("_get_choices", "_get_correct_index"),
}
"""Hooks that a styler replaces -> the hooks that it then needs."""


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


_ATTRIBUTES: tuple[tuple[Sequence[str], Callable[[object], bool], str], ...] = (
    (("NAME", "DATASET_PATH", "SAMPLE_SPLIT"), _is_text, "a text that is not blank"),
    (("DATASET_REVISION", "SUBJECT_FIELD", "CLUSTER_FIELD", "ID_FIELD"), lambda value: value is None or _is_text(value), "a text, or None"),
    (("FEWSHOT_SPLIT",), lambda value: isinstance(value, str | None), "the name of a split, or None"),
    (("FEWSHOT_STRATEGY",), lambda value: value in get_args(FewshotStrategy), f"one of {', '.join(get_args(FewshotStrategy))}"),
    (("MAX_TOKENS",), lambda value: value is None or is_count(value), "a whole number of at least 1, or None"),
    (("NUM_SAMPLES",), is_count, "a whole number of at least 1"),
)
"""The expected values of a task's attributes."""
_METRIC_SWITCHES = ("HIGHER_IS_BETTER", "IS_PROPORTION", "EXECUTES_CODE", "COMPARES_TEXTS")
_METRIC_NAMES = ("PACKAGES", "COMPANIONS")


def check_task(task: type[BaseTask[Any]]) -> None:
    """Check that a task class has everything that its response type needs, and metrics that fit it.

    Raises:
        TaskDefinitionError: An attribute or a hook is missing or wrong. The message names the class, what it has and what is expected.
    """
    where = f"task class {task.__name__} ({shown_name(task.__module__)})"
    styler: object = task.TASK_STYLER
    if styler is not None and not isinstance(styler, TaskStyler):
        raise TaskDefinitionError(
            f"{where} has the TASK_STYLER {styler!r}; expected a styler, MCStyle() say (from eval_dagster.tasks.style import MCStyle)"
        )
    given = getattr(task, "RESPONSE_TYPE", None)
    hooks = ["_get_instruction_text"]
    if given is not ResponseType.PERPLEXITY:
        hooks.append("_get_ground_truth")
    if given is ResponseType.LOGLIKELIHOODS:
        hooks.append("_get_possible_completions")
    if styler is not None:
        styled = [hook for hook in hooks if getattr(task, hook) is getattr(BaseTask, hook)]
        hooks = list(dict.fromkeys(name for hook in styled for name in _STYLED_HOOKS[hook]))
    missing = [name for name in REQUIRED_ATTRIBUTES if not hasattr(task, name)]
    missing += [f"{name}()" for name in hooks if getattr(task, name) is getattr(BaseTask, name)]
    if issubclass(task, DocTask) and task.doc is DocTask.doc:
        missing.append("doc()")
    if missing:
        base = DocTask if issubclass(task, DocTask) else BaseTask
        raise TaskDefinitionError(
            f"{where} lacks {', '.join(missing)}; set the attributes and override the hooks named here (see {base.__name__})"
        )
    for problems in (_wrong_values(task), _wrong_metrics(task)):
        # Later checks rely on earlier ones.
        if found := list(problems):
            raise TaskDefinitionError(f"{where} {'; it '.join(found)}")


def _wrong_values(task: type[BaseTask[Any]]) -> Iterator[str]:
    given: object = task.RESPONSE_TYPE
    if not isinstance(given, ResponseType):
        *others, last = (f"ResponseType.{member.name}" for member in ResponseType)
        yield f"has the RESPONSE_TYPE {given!r}; expected {', '.join(others)} or {last} (from eval_dagster.records import ResponseType)"
    for name in _LISTS:
        value: object = getattr(task, name)
        if not isinstance(value, Sequence) or isinstance(value, str):
            yield f"has the {name} {value!r}; expected a list"
        elif not value and name in _NOT_EMPTY:
            yield f"has an empty {name}; name at least one"
    for names, is_right, expected in _ATTRIBUTES:
        for name in names:
            value = getattr(task, name)
            if not is_right(value):
                yield f"has the {name} {value!r}; expected {expected}"
    for name, inner in (("STOP_SEQUENCES", lambda each: isinstance(each, str) and bool(each)), ("DATA_FILES", _is_text)):
        value = getattr(task, name)
        wrong = [each for each in value if not inner(each)] if isinstance(value, Sequence) else []
        if wrong and not isinstance(value, str):
            yield f"has {wrong[0]!r} among its {name}; expected texts that are not empty"
    if isinstance(task.SUBJECTS, Sequence):
        names = [subject_name(subject) for subject in task.SUBJECTS]
        if twice := next((name for name in names if names.count(name) > 1), None):
            yield f"has the subject {twice!r} twice among its SUBJECTS; expected each once"
    types: object = task.COLUMN_TYPES
    if not isinstance(types, Mapping) or not all(isinstance(name, str) and kind in _COLUMN_TYPES for name, kind in types.items()):
        yield f"has the COLUMN_TYPES {types!r}; expected names of columns with str, int, float or bool, such as {{'zip_code': str}}"
    if task.SUBJECT_FIELD is not None and task._load_dataset is EvalFrameworkTask._load_dataset:
        yield (
            f"has the SUBJECT_FIELD {task.SUBJECT_FIELD!r}, which eval-framework does not have: its BaseTask reads a configuration of the "
            "dataset for each subject, so that the field would be ignored; derive from the BaseTask of eval_dagster "
            "(from eval_dagster import BaseTask), or choose the rows of a subject in _load_dataset"
        )
    shots: object = task.NUM_FEWSHOT
    if not isinstance(shots, int) or isinstance(shots, bool) or shots < 0:
        yield f"has the NUM_FEWSHOT {shots!r}; expected a whole number of examples, 0 or more"
    elif shots and task.FEWSHOT_SPLIT is None and task._sample_fewshot_examples is BaseTask._sample_fewshot_examples:
        yield f"has the NUM_FEWSHOT {shots} and no FEWSHOT_SPLIT; name the split that its examples are drawn from"


def _wrong_metrics(task: type[BaseTask[Any]]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for metric in task.METRICS:
        shown = metric.__name__ if isinstance(metric, type) else repr(metric)
        if not (isinstance(metric, type) and issubclass(metric, BaseMetric)):
            yield f"has {shown} among its METRICS; expected subclasses of {_expected(task)} (classes, not instances)"
            continue
        name = getattr(metric, "NAME", None)
        is_free = _asks_freely(task)
        if not (response_kind(metric) if is_free else metrics_for([metric], task.RESPONSE_TYPE)):
            asked = "any response" if is_free else f"the response type ResponseType.{task.RESPONSE_TYPE.name}"
            yield f"has the metric {shown}, which cannot score {asked}; expected a subclass of {_expected(task)}"
        bounds: object = metric.BOUNDS
        are_numbers = isinstance(bounds, tuple) and all(isinstance(end, int | float) and not isinstance(end, bool) for end in bounds)
        if bounds is not None and not (isinstance(bounds, tuple) and are_numbers and len(bounds) == 2 and bounds[0] < bounds[1]):
            yield (
                f"has the metric {shown} with the BOUNDS {metric.BOUNDS!r}; expected the least and the largest value, such as (0.0, 1.0), "
                "or None"
            )
        # Other values of these would be misread: the text "no" would count as true.
        for trait in _METRIC_SWITCHES:
            if not isinstance(getattr(metric, trait), bool):
                yield f"has the metric {shown} with the {trait} {getattr(metric, trait)!r}; expected True or False"
        for trait in _METRIC_NAMES:
            names = getattr(metric, trait)
            if not isinstance(names, list | tuple) or not all(map(_is_text, names)):
                yield f"has the metric {shown} with the {trait} {names!r}; expected a tuple of names"
        best: object = metric.BEST
        if best is not None and (isinstance(best, bool) or not isinstance(best, int | float) or not math.isfinite(best)):
            yield f"has the metric {shown} with the BEST {best!r}; expected a number, or None"
        if not isinstance(name, str) or not name.strip() or "/" in name:
            yield f"has the metric {shown} with the NAME {name!r}; expected a text without '/'"
        elif name in seen:
            yield f"has two metrics with the NAME {name!r}: {seen[name]} and {shown}; expected each once, under a name of its own"
        else:
            seen[name] = shown
    headline = task.HEADLINE_METRIC
    if headline is not None and headline not in task.METRICS:
        yield f"has the HEADLINE_METRIC {getattr(headline, '__name__', headline)}, which is not among its METRICS; add it there, too"
    if task.HEADLINE_AGGREGATION not in ("micro", "macro"):
        yield f"has the HEADLINE_AGGREGATION {task.HEADLINE_AGGREGATION!r}; expected 'micro' or 'macro'"


def _asks_freely(task: type[BaseTask[Any]]) -> bool:
    """Whether the task makes its own samples, as a `DocTask` does: each may ask for another kind of response."""
    return task._create_samples is not BaseTask._create_samples


def _expected(task: type[BaseTask[Any]]) -> str:
    return "CompletionMetric or LoglikelihoodMetric" if _asks_freely(task) else _EXPECTED_METRICS[task.RESPONSE_TYPE]


_OWN_CLASSES = (BaseTask, DocTask, EvalFrameworkTask, OrderedTask)


def load_task(
    spec: str, registry: Mapping[str, type[BaseTask[Any]]], folder: Path, environments: Mapping[str, str] = MappingProxyType({})
) -> type[BaseTask[Any]]:
    """Return the task class of an eval.

    Args:
        spec: A name of the registry, `path/to/file.py:name`, `registry:name`, or `registry:path/to/file.py:name` for a file that the
            registry's package reads. The name is a class, or a function under `@doc_task`.
        registry: Task classes by name.
        folder: The folder that paths are relative to.
        environments: Paths of interpreters by the names of registries of other packages.

    Raises:
        TaskDefinitionError: The task does not exist, or is incomplete.
    """
    path, is_file, name = spec.partition(".py:")
    source, is_foreign, foreign_name = spec.partition(":")
    if is_foreign and is_file and registry_of(source):  # a file that the registry's package is to read
        task = _adapted(opened_registry(source, folder, environments).benchmark(foreign_name, folder))
    elif is_file:
        task = _in_file(folder / f"{path}.py", name, folder)
    elif is_foreign or spec.endswith((".yaml", ".yml")):
        opened = opened_registry(source if is_foreign else "lm_eval", folder, environments)
        task = _adapted(opened.benchmark(foreign_name if is_foreign else spec, folder))
    elif spec in registry:
        task = registry[spec]
    else:
        raise TaskDefinitionError(
            f"there is no task {spec!r}{did_you_mean(spec, registry)}; `eval-dagster tasks` lists all names, "
            "and a task of your own is written path/to/file.py:Class"
        )
    check_task(task)
    return task


def _adapted(benchmark: Benchmark | type[BaseTask[Any]]) -> type[BaseTask[Any]]:
    """The task class of a benchmark. The metrics that run code say so, so that a project has to allow it."""
    if isinstance(benchmark, type):
        return benchmark
    task = adapter_task(benchmark)
    for metric in task.METRICS:
        if metric.NAME in getattr(benchmark, "executes_code", ()):
            metric.EXECUTES_CODE = True
    return task


def select_subjects(task: type[BaseTask[Any]], names: Sequence[Any] | None) -> list[Any]:
    """Return the task's subjects with these names, in the task's order; all subjects if `names` is None.

    Args:
        task: The task.
        names: Names, members of the task's enum or their names, or tuples. `"DE_DE,*"` or `("DE_DE", "*")` is every subject of two parts
            whose first part is `DE_DE`. White space around a comma does not count.

    Raises:
        TaskDefinitionError: The task has no subject of a name.
    """
    if names is None:
        return list(task.SUBJECTS)
    chosen: list[Any] = []
    for name in names:
        wanted = [part.strip() for part in (map(subject_name, name) if isinstance(name, tuple) else subject_name(name).split(","))]
        found = []
        for subject in task.SUBJECTS:
            parts = subject if isinstance(subject, tuple) else (subject,)
            # A member of an enum has its value and its name as names.
            known = [{subject_name(part), *([part.name] if isinstance(part, Enum) else [])} for part in parts]
            fits = len(wanted) == len(known) and all(word == "*" or word in each for word, each in zip(wanted, known, strict=True))
            # A plain name can contain commas.
            if fits or ",".join(wanted) in ("*", ",".join(part.strip() for part in subject_name(subject).split(","))):
                found.append(subject)
        if not found:
            subjects = [subject_name(subject) for subject in task.SUBJECTS]
            hint = did_you_mean(",".join(wanted), subjects) or f"; it has: {_listed(subjects)}"
            raise TaskDefinitionError(f"task {task.NAME} has no subject {subject_name(name)!r}{hint}")
        chosen += found
    return [subject for subject in task.SUBJECTS if subject in chosen]


def _in_file(file: Path, name: str, folder: Path) -> type[BaseTask[Any]]:
    if not os.path.isfile(file):  # noqa: PTH113 - false for a name that no file can have
        raise TaskDefinitionError(f"there is no task file {file}; a path is relative to the folder of evals.yaml")
    module = _import_file(file.resolve(), name, folder.resolve())
    found: Any = vars(module).get(name)
    if _is_task(found):
        if found.__module__ == module.__name__:
            return found
        # A task of another module becomes one of this file, so that its version covers the file, which may set its values.
        return type(found.__name__, (found,), {"__module__": module.__name__, "__qualname__": name, "__doc__": found.__doc__})
    if found is None:
        known = [key for key, value in vars(module).items() if _is_task(value)]
        raise TaskDefinitionError(f"{file} has no task {name!r}{did_you_mean(name, known)}; its tasks are: {_listed(known)}")
    remedy = "expected a subclass of eval_dagster.BaseTask, or a function under @doc_task"
    if isfunction(found):
        remedy = (
            f"a function becomes one under a decorator: @doc_task(dataset_path=..., sample_split=..., metrics=[...]) above def {name} "
            "(from eval_dagster import doc_task)"
        )
    elif origin := installed_origin(found if isinstance(found, type) else type(found)):
        remedy += (
            f"; it is made of the installed package {origin.package}, which eval_dagster stands in for only where it is not installed: "
            f"import from eval_dagster in the file, or write task: {origin.registry}:{_path_in(file, folder)}:{name}"
        )
    raise TaskDefinitionError(f"{name} in {file} is no task: {remedy}")


def _is_task(value: object) -> TypeGuard[type[BaseTask[Any]]]:
    return isinstance(value, type) and issubclass(value, BaseTask) and value not in _OWN_CLASSES


def _path_in(file: Path, folder: Path) -> str:
    """The path of a file as evals.yaml names it."""
    file, folder = file.resolve(), folder.resolve()
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def _import_file(file: Path, name: str, folder: Path) -> ModuleType:
    """Run a task file.

    Args:
        file: The file; absolute.
        name: The task in it that is wanted.
        folder: The folder of evals.yaml.

    Raises:
        TaskDefinitionError: It fails, or an import of it is missing.
    """
    try:
        with aliases():
            return load_file(file, folder)
    except (Exception, SystemExit) as error:  # a script that ends the process when it is imported
        raised = error.__cause__ if isinstance(error, EndedError) and error.__cause__ is not None else error
        importer = _importer(raised, file)
        if found := foreign_import(raised, importer.read_text("utf-8", "replace")):
            what, peer = found
            remedy = peer.remedy(f"{_path_in(file, folder)}:{name}")
            raise TaskDefinitionError(f"{_path_in(importer, folder)} imports {what}; run it there: {remedy}") from error
        lines = [frame.lineno for frame in traceback.extract_tb(raised.__traceback__) if frame.filename == str(file)]
        if isinstance(raised, SyntaxError) and raised.filename == str(file):
            lines.append(raised.lineno)
        where = f"{file}, line {lines[-1]}," if lines else str(file)
        if isinstance(error, TaskDefinitionError):
            raise TaskDefinitionError(f"{where.removesuffix(',')}: {error}") from error
        reason = _missing_module(error, file, folder) or f"{shown_text(described(error))}{_place_in_neighbour(error, file)}"
        raise TaskDefinitionError(f"{where} cannot be imported: {reason}{_advice(error, file, name, folder)}") from error


def _importer(error: BaseException, file: Path) -> Path:
    """The file of the user in which an error was raised: the task file, or one that it imports."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__) if is_user_module(_module_of(frame))]
    return Path(frames[-1]) if frames else file


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _place_in_neighbour(error: BaseException, file: Path) -> str:
    """The place of an error in a module that the file imports from its folder; empty for other places."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})" if error.filename not in (None, str(file)) else ""
    frames = traceback.walk_tb(error.__traceback__)
    inner = [(frame.f_code.co_filename, line) for frame, line in frames if is_user_module(_module_of(frame))]
    return f" ({inner[-1][0]}, line {inner[-1][1]})" if inner and inner[-1][0] != str(file) else ""


def _missing_module(error: BaseException, file: Path, folder: Path) -> str:
    """The name and the searched places of a missing module; empty for other errors.

    A module with the name of a standard module is searched for only there.
    """
    if not isinstance(error, ModuleNotFoundError) or error.name is None or error.name.partition(".")[0] in sys.stdlib_module_names:
        return ""
    name = shown_text(error.name)
    if name.partition(".")[0] in neighbours(file) and name == error.name:
        return f"{error}: {name}.py is beside the file, but importlib finds installed modules alone; write `import {name}`"
    path = name.replace(".", "/")
    places = " and ".join(dict.fromkeys(map(str, (file.parent, folder))))
    return (
        f"there is no module {name!r}: looked for {path}.py and {path}/ in {places}, and for an installed package"
        f"{did_you_mean(name, neighbours(file))}{_place_in_neighbour(error, file)}"
    )


def _advice(error: BaseException, file: Path, task: str, folder: Path) -> str:
    """Advice for a failed import; empty if none is known.

    A user's file may have the name of a standard module, and a file for eval-framework may need Python 3.12.
    """
    if isinstance(error, SyntaxError):
        if sys.version_info >= (3, 12) or not Path(str(error.filename)).is_file():
            return ""
        is_foreign = re.search(r"^\s*(from|import) eval_framework\b", Path(str(error.filename)).read_text("utf-8", "replace"), re.MULTILINE)
        version, remedy = ".".join(map(str, sys.version_info[:2])), EVAL_FRAMEWORK.remedy(f"{_path_in(file, folder)}:{task}")
        words = f"files for eval-framework may use syntax of Python 3.12, and this is Python {version}; its environment has that: {remedy}"
        return f"; {words}" if is_foreign else ""
    if isinstance(error, ImportError):
        name = error.name or ""
    elif isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        name = error.obj.__name__
    else:
        return ""
    top = name.partition(".")[0]
    paths = [place / end for place in (file.parent, folder) for end in (f"{top}.py", f"{top}/__init__.py")]
    unused = next((path for path in paths if path.is_file()), None) if top in sys.stdlib_module_names else None
    return f"; {unused} is not used: it has the name of a standard module; rename it" if unused else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
