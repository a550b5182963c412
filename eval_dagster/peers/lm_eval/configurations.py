"""Configurations of lm-eval's tasks: loaded from YAML with their functions, after it is clear that these may be imported."""

import copy
import inspect
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

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
_lock = threading.RLock()


@dataclass(frozen=True)
class Leaf:
    """A task of lm-eval with what a group around it sets."""

    name: str
    file: Path
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def unresolved(self) -> dict[str, Any]:
        """The configuration with the names of its functions. Nothing is imported."""
        return {**unresolved(self.file), **self.overrides}

    def load(self) -> dict[str, Any]:
        """The configuration with its functions. The module beside the YAML file is imported: lm-eval's own code, or the user's.

        Raises:
            TaskDefinitionError: Its code may not be run here, or cannot be imported.
        """
        require_supported(self.name, self.unresolved())
        try:
            loaded, fetching = _loaded(self.file)
            with seeded(), package_code():
                overrides = _resolved(self.overrides)
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
        config = {**copy.deepcopy(loaded), **overrides}
        for key in ("tag", "group", "task_list"):
            config.pop(key, None)
        given = config.get("metadata") or {}
        config["metadata"] = given if isinstance(given, dict) else {"_metadata": given}
        return config


def require_supported(name: str, config: Mapping[str, Any]) -> None:
    """Check a configuration whose functions are names.

    Raises:
        TaskDefinitionError: The task runs code that a model wrote, asks about images or sound, scores with fetched code, or generates text
            in a way that eval_dagster does not support.
    """
    if config.get("unsafe_code"):
        native = next((task for beginning, task in _SANDBOXED.items() if name.startswith(beginning)), None)
        instead = f"; use `task: {native}`, which runs it in a sandbox" if native else ""
        raise TaskDefinitionError(f"lm_eval:{name} is refused: lm-eval runs code that the model wrote, in its own process{instead}")
    if "doc_to_image" in config or "doc_to_audio" in config:
        raise TaskDefinitionError(
            f"lm_eval:{name} asks about images or sound, which eval_dagster does not send to a model of lm-eval's tasks"
        )
    if config.get("output_type", "generate_until") != "generate_until" or "class" in config:
        return
    text_settings(name, config.get("generation_kwargs") or {})
    if config.get("process_results") is not None:
        return
    # lm-eval calls a metric only of a generated text, unless a function scores the row.
    import lm_eval.api.metrics  # noqa: F401 - it fills the registry
    from lm_eval.api.registry import metric_registry

    for metric in config.get("metric_list") or ():
        given = metric.get("metric") if isinstance(metric, Mapping) else None
        is_fetched = isinstance(metric, Mapping) and metric.get("hf_evaluate")
        if is_fetched or (isinstance(given, str) and "/" not in given and given not in metric_registry):
            raise TaskDefinitionError(f"lm_eval:{name} scores by evaluate.load({given!r}), which is {FETCHED_CODE}")


def unresolved(file: Path) -> dict[str, Any]:
    """The configuration of a task or a group with the names of its functions. Nothing is imported."""
    return copy.deepcopy(_read(file))


@cache
def _read(file: Path) -> dict[str, Any]:
    from lm_eval.tasks._yaml_loader import load_yaml

    return dict(load_yaml(file, resolve_func=False))


@cache
def _loaded(file: Path) -> tuple[dict[str, Any], str | None]:
    """The configuration with its functions, and the function that asks for code that would be fetched."""
    from lm_eval.tasks._yaml_loader import load_yaml

    with seeded(), package_code():
        config = dict(load_yaml(file, resolve_func=True))
    return config, _fetching(config)


def _fetching(config: Mapping[str, Any]) -> str | None:
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


def code_files(config: Mapping[str, Any]) -> frozenset[str]:
    """The files of the functions and classes in a configuration."""
    return frozenset(file_of(function) for function in functions_in(config))


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
