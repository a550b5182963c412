"""Configurations of lm-eval's tasks and groups: read from YAML, and loaded with their functions after it is clear that these may be
imported.
"""

import copy
import inspect
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from eval_dagster.errors import RequirementError, TaskDefinitionError
from eval_dagster.peers.lm_eval.questions import text_settings
from eval_dagster.peers.workers.fetched_code import FETCHED_CODE, FetchedCodeError, function_that_fetches, without_fetched_code

SEED = 1234
"""lm-eval's default seed of few-shot examples, and of NumPy."""
ADVICE = (
    "lm-eval can have an environment of its own, with packages that eval_dagster lacks or has in other versions: "
    "`eval-dagster environments add lm_eval`"
)
"""Advice if a task lacks a package. A worker in such an environment replaces it."""
_SANDBOXED = {"humaneval": "humaneval", "mbpp": "mbpp"}
"""Beginnings of the names of tasks that run code -> the task of this package that runs it in a sandbox."""
_GROUP_KEYS = {"group", "group_alias", "task", "aggregate_metric_list", "metadata", "tag", "include"}
"""Keys of a group that it does not set for its members."""
_lock = threading.RLock()


class MetricListed(BaseModel):
    """An entry of the `metric_list` of a task."""

    model_config = ConfigDict(frozen=True)

    metric: Any = None
    """A name of lm-eval, or a function."""
    aggregation: Any = None
    """A name of lm-eval, or a function. Null: the metric's own."""
    higher_is_better: bool | None = None
    """Null: as lm-eval has it for the metric."""
    hf_evaluate: bool | None = None


class DatasetKwargs(BaseModel):
    """The `dataset_kwargs` of a task: what `datasets` reads its dataset with."""

    model_config = ConfigDict(frozen=True, extra="allow")

    data_dir: str | None = None
    data_files: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None
    revision: str | None = None


class Configuration(BaseModel):
    """The YAML document of a task, with what the groups around it set: the keys that eval_dagster reads. Functions may be names."""

    model_config = ConfigDict(frozen=True)

    document: dict[str, object]
    """All keys, as lm-eval takes them."""
    task: Any = None
    task_class: Any = Field(default=None, alias="class")
    output_type: str | None = None
    unsafe_code: bool | None = None
    generation_kwargs: Any = None
    metric_list: Sequence[MetricListed] = ()
    process_docs: Any = None
    process_results: Any = None
    num_fewshot: int | None = None
    fewshot_config: Any = None
    custom_dataset: Any = None
    dataset_path: str | None = None
    dataset_name: str | None = None
    dataset_kwargs: DatasetKwargs | None = None
    training_split: str | None = None
    validation_split: str | None = None
    test_split: str | None = None
    fewshot_split: str | None = None

    @field_validator("metric_list", mode="before")
    @classmethod
    def _entries(cls, value: Any) -> list[object]:
        return [each for each in value or () if isinstance(each, Mapping)]

    @classmethod
    def of(cls, name: str, document: dict[str, object]) -> "Configuration":
        """Read a document.

        Raises:
            TaskDefinitionError: A key has a value of another type than lm-eval takes.
        """
        try:
            return cls.model_validate({**document, "document": document})
        except ValidationError as error:
            reasons = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise TaskDefinitionError(f"the configuration of lm_eval:{name} cannot be read: {reasons}") from error


@dataclass(frozen=True)
class Member:
    """A member of a group."""

    name: str
    settings: Mapping[str, object]
    """Settings of the group for this member alone."""
    group: "Group | None"
    """The group that is written in the place of a name; it counts unless a file has a group of this name."""


@dataclass(frozen=True)
class Group:
    """The YAML document of a group, or a group within it."""

    members: Sequence[Member]
    settings: Mapping[str, object]
    """Settings of the group for all its members."""
    is_macro: bool
    """Whether each member counts the same in its value."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Group":
        """Read a document."""
        listed, weights = document.get("task") or (), document.get("aggregate_metric_list") or ()
        members = []
        for each in [listed] if isinstance(listed, str) else listed:
            if isinstance(each, str):
                members.append(Member(each, {}, None))
                continue
            own = {key: value for key, value in each.items() if key not in ("group", "task")}
            members.append(Member(each["group"], own, cls.of(each)) if "group" in each else Member(each["task"], own, None))
        first = weights if isinstance(weights, Mapping) else next(iter(weights), {})
        settings = {key: value for key, value in document.items() if key not in _GROUP_KEYS}
        return cls(members, settings, is_macro=first.get("weight_by_size", True) is False)


@dataclass(frozen=True)
class Leaf:
    """A task of lm-eval with what a group around it sets."""

    name: str
    file: Path
    overrides: Mapping[str, object] = field(default_factory=dict)

    def unresolved(self) -> Configuration:
        """The configuration with the names of its functions. Nothing is imported."""
        return Configuration.of(self.name, {**unresolved(self.file), **self.overrides})

    def load(self) -> Configuration:
        """The configuration with its functions. The module beside the YAML file is imported: lm-eval's own code, or the user's.

        Raises:
            TaskDefinitionError: Its code may not be run here, or cannot be imported.
        """
        require_supported(self.name, self.unresolved())
        try:
            loaded, fetching = _loaded(self.file)
            with seeded(), package_code():
                overrides: Mapping[str, object] = _resolved(self.overrides)
        except (Exception, SystemExit) as error:  # a module may end the process if something that it needs is missing
            reason = str(error)
            if not isinstance(error, TaskDefinitionError | RequirementError):
                # lm-eval advises to install packages in versions that this project does not work with.
                said, _, _ = " ".join(reason.split()).partition(" Please install")
                reason = f"{type(error).__name__}: {said.rstrip('.')}"
            advice = f"; {ADVICE}" if isinstance(error, ImportError | AssertionError | SystemExit) else ""
            raise TaskDefinitionError(f"lm_eval:{self.name} cannot be loaded: {reason}{advice}") from error
        if (fetching := fetching or _fetching(overrides)) is not None:
            raise TaskDefinitionError(f"lm_eval:{self.name} scores by evaluate.load, which {fetching} calls; that is {FETCHED_CODE}")
        document = {**copy.deepcopy(loaded), **overrides}
        for key in ("tag", "group", "task_list"):
            document.pop(key, None)
        given = document.get("metadata") or {}
        document["metadata"] = given if isinstance(given, dict) else {"_metadata": given}
        return Configuration.of(self.name, document)


def require_supported(name: str, config: Configuration) -> None:
    """Check a configuration whose functions are names.

    Raises:
        TaskDefinitionError: The task runs code that a model wrote, asks about images or sound, scores with fetched code, or generates text
            in a way that eval_dagster does not support.
    """
    if config.unsafe_code:
        native = next((task for beginning, task in _SANDBOXED.items() if name.startswith(beginning)), None)
        instead = f"; use `task: {native}`, which runs it in a sandbox" if native else ""
        raise TaskDefinitionError(f"lm_eval:{name} is refused: lm-eval runs code that the model wrote, in its own process{instead}")
    if "doc_to_image" in config.document or "doc_to_audio" in config.document:
        raise TaskDefinitionError(
            f"lm_eval:{name} asks about images or sound, which eval_dagster does not send to a model of lm-eval's tasks"
        )
    if (config.output_type or "generate_until") != "generate_until" or config.task_class is not None:
        return
    text_settings(name, config.generation_kwargs)
    if config.process_results is not None:
        return
    # lm-eval calls a metric only of a generated text, unless a function scores the row.
    import lm_eval.api.metrics  # noqa: F401 - it fills the registry
    from lm_eval.api.registry import metric_registry

    for each in config.metric_list:
        if each.hf_evaluate or (isinstance(each.metric, str) and "/" not in each.metric and each.metric not in metric_registry):
            raise TaskDefinitionError(f"lm_eval:{name} scores by evaluate.load({each.metric!r}), which is {FETCHED_CODE}")


def unresolved(file: Path) -> dict[str, object]:
    """The document of a task or a group with the names of its functions. Nothing is imported."""
    return copy.deepcopy(_read(file))


@cache
def _read(file: Path) -> dict[str, object]:
    from lm_eval.tasks._yaml_loader import load_yaml

    return dict(load_yaml(file, resolve_func=False))


@cache
def _loaded(file: Path) -> tuple[dict[str, object], str | None]:
    """The document with its functions, and the function that asks for code that would be fetched."""
    from lm_eval.tasks._yaml_loader import load_yaml

    with seeded(), package_code():
        config = dict(load_yaml(file, resolve_func=True))
    return config, _fetching(config)


def _fetching(config: Mapping[str, object]) -> str | None:
    """The function of a configuration that asks for code that would be fetched."""
    return function_that_fetches(functions_in(config), lambda module: str(module).startswith("lm_eval.tasks.") or "/" in str(module))


def _resolved(value: Any) -> Any:
    """The settings of a group, with the functions that it names by their paths."""
    from lm_eval.tasks._yaml_loader import _import_fun_from_str

    if isinstance(value, Mapping):
        return {key: _resolved(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each) for each in value]
    is_function = isinstance(value, str) and value.startswith("/") and Path(value).with_suffix(".py").is_file()
    return _import_fun_from_str(value) if is_function else value


@contextmanager
def seeded() -> Iterator[None]:
    """Seed the global generators as lm-eval's command line does, since some tasks draw from them, and restore them after the block."""
    with _lock:
        standard, numbers = random.getstate(), np.random.get_state()
        random.seed(0)
        np.random.seed(SEED)
        try:
            yield
        finally:
            random.setstate(standard)
            np.random.set_state(numbers)


@contextmanager
def package_code(files: Set[str] = frozenset()) -> Iterator[None]:
    """Run code of a task, of lm-eval or of the user, within the block. The code fetches no other code, and sees the metrics and filters of
    its own files but of no other task.

    Args:
        files: The files of the task's code, from `code_files`; none while it is loaded.

    Raises:
        RequirementError: It asks for code that would be fetched.
    """
    from lm_eval.api import registry

    known = (registry.metric_registry, registry.metric_agg_registry, registry.higher_is_better_registry, registry.aggregation_registry)
    with _lock:
        before = [(each, each._objs) for each in (*known, registry.filter_registry)]
        for number, (each, objects) in enumerate(before):
            own = {alias: found for (place, alias, file), found in _registered.items() if place == number and file in files}
            each._objs = {**objects, **own}
        try:
            with without_fetched_code():
                yield
        except FetchedCodeError as error:
            raise RequirementError(str(error)) from error
        finally:
            for number, (each, objects) in enumerate(before):
                for alias, found in each._objs.items():
                    if objects.get(alias) is found:
                        continue
                    file = file_of(found)
                    if is_of_task(file):
                        _registered[number, alias, file] = found
                    else:
                        objects[alias] = found
                each._objs = objects


_registered: dict[tuple[int, str, str], Any] = {}
"""Objects that the files of tasks registered, by the number of the registry, the name and the file. Two tasks may use one name."""


def code_files(config: Configuration) -> frozenset[str]:
    """The files of the functions and classes in a configuration."""
    return frozenset(file_of(function) for function in functions_in(config.document))


def functions_in(value: Any) -> Iterator[Any]:
    """The functions and classes in a configuration, those in a partial included."""
    if isinstance(value, partial):
        yield from functions_in([value.func, *value.args, *value.keywords.values()])
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from functions_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from functions_in(each)
    elif callable(value):
        yield value


def file_of(definition: Any) -> str:
    """The file of a function or a class; empty if it is unknown. lm-eval gives modules of several files one name."""
    while isinstance(definition, partial):
        definition = definition.func
    code = getattr(inspect.unwrap(definition), "__code__", None) if callable(definition) else None
    if code is not None:
        return str(code.co_filename)
    functions = [each for each in vars(definition).values() if inspect.isfunction(each)] if isinstance(definition, type) else []
    if functions:
        return str(functions[0].__code__.co_filename)
    return str(getattr(sys.modules.get(str(getattr(definition, "__module__", ""))), "__file__", None) or "")


def is_of_task(file: str) -> bool:
    """Whether a file belongs to a task, of the package or a user, and not to another part of an installed package."""
    return "/lm_eval/tasks/" in file or bool(file and "/site-packages/" not in file and not file.startswith(sys.base_prefix))
