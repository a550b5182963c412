"""Finds task classes by a registered name, or in a file."""

import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from enum import Enum
from inspect import isfunction
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeGuard

from eval_dagster.errors import EndedError, TaskDefinitionError, described
from eval_dagster.peers.aliases import aliases, installed_origin
from eval_dagster.peers.eval_framework.task import EvalFrameworkTask
from eval_dagster.peers.lighteval.config import LightevalTaskConfig
from eval_dagster.peers.lighteval.members import Metrics
from eval_dagster.peers.lighteval.task import LightevalTask
from eval_dagster.task_files.definition import check_task
from eval_dagster.task_files.registries import opened_registry
from eval_dagster.tasks.adapter_task import adapter_task
from eval_dagster.tasks.base import BaseTask, subject_name
from eval_dagster.tasks.doc_task import DocTask
from eval_dagster.tasks.ordered import OrderedTask
from eval_dagster.texts.suggestions import did_you_mean
from eval_dagster.versions.source_files import is_user_module, load_file, neighbours, package_of, shown_text

_OWN_CLASSES = (BaseTask, DocTask, EvalFrameworkTask, LightevalTask, OrderedTask)


def load_task(
    spec: str, registry: Mapping[str, type[BaseTask[Any]]], folder: Path, environments: Mapping[str, str] = MappingProxyType({})
) -> type[BaseTask[Any]]:
    """Return the task class of an eval.

    Args:
        spec: A name of the registry, or `path/to/file.py:name`. The name is a class, a function under `@doc_task`, a `LightevalTaskConfig`,
            or the `name` of a configuration in the file's `TASKS_TABLE`.
        registry: Task classes by name.
        folder: The folder that paths are relative to.
        environments: Paths of interpreters by the names of registries of other packages.

    Raises:
        TaskDefinitionError: The task does not exist, or is incomplete.
    """
    path, is_file, name = spec.partition(".py:")
    source, is_foreign, foreign_name = spec.partition(":")
    if is_file:
        task = _in_file(folder / f"{path}.py", name, folder)
    elif is_foreign or spec.endswith((".yaml", ".yml")):
        opened = opened_registry(source if is_foreign else "lm_eval", folder, environments)
        task = adapter_task(opened.benchmark(foreign_name if is_foreign else spec, folder))
    else:
        task = _registered(spec, registry)
    check_task(task)
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
    chosen = [_matching(task, name) for name in names]
    return [subject for subject in task.SUBJECTS if any(subject in each for each in chosen)]


def _matching(task: type[BaseTask[Any]], name: Any) -> list[Any]:
    """The subjects with a name; at least one."""
    wanted = [part.strip() for part in (map(subject_name, name) if isinstance(name, tuple) else subject_name(name).split(","))]
    found = [subject for subject in task.SUBJECTS if _is_named(subject, wanted)]
    if not found:
        known = [subject_name(subject) for subject in task.SUBJECTS]
        hint = did_you_mean(",".join(wanted), known) or f"; it has: {_listed(known)}"
        raise TaskDefinitionError(f"task {task.NAME} has no subject {subject_name(name)!r}{hint}")
    return found


def _is_named(subject: Any, wanted: Sequence[str]) -> bool:
    """Whether a name means a subject. A member of an enum has its value and its name as names."""
    parts = subject if isinstance(subject, tuple) else (subject,)
    known = [{subject_name(part), *([part.name] if isinstance(part, Enum) else [])} for part in parts]
    fits = len(wanted) == len(known) and all(word == "*" or word in names for word, names in zip(wanted, known, strict=True))
    # a plain name can contain commas
    return fits or ",".join(wanted) in ("*", ",".join(part.strip() for part in subject_name(subject).split(",")))


def _registered(name: str, registry: Mapping[str, type[BaseTask[Any]]]) -> type[BaseTask[Any]]:
    if name not in registry:
        raise TaskDefinitionError(
            f"there is no task {name!r}{did_you_mean(name, registry)}; `eval-dagster tasks` lists all names, "
            "and a task of your own is written path/to/file.py:Class"
        )
    return registry[name]


def _in_file(file: Path, name: str, folder: Path) -> type[BaseTask[Any]]:
    if not os.path.isfile(file):  # noqa: PTH113 - false for a name that no file can have
        raise TaskDefinitionError(f"there is no task file {file}; a path is relative to the folder of evals.yaml")
    module, own = _import_file(file.resolve(), folder.resolve())
    table = {each.name: each for each in getattr(module, "TASKS_TABLE", ()) if isinstance(each, LightevalTaskConfig)}
    found: Any = vars(module).get(name, table.get(name))
    if isinstance(found, LightevalTaskConfig):
        return found.task_class(name, module.__name__, own.get("Metrics", Metrics))
    if _is_task(found):
        return found if found.__module__ == module.__name__ else _adopted(found, name, module)
    if found is None:
        known = list(
            dict.fromkeys(
                [*(key for key, value in vars(module).items() if _is_task(value) or isinstance(value, LightevalTaskConfig)), *table]
            )
        )
        raise TaskDefinitionError(f"{file} has no task {name!r}{did_you_mean(name, known)}; its tasks are: {_listed(known)}")
    raise TaskDefinitionError(f"{name} in {file} is no task: {_remedy(name, found)}")


def _adopted(task: type[BaseTask[Any]], name: str, module: ModuleType) -> type[BaseTask[Any]]:
    """A task of another module as a task of this file, so that its version covers the file, which may set its values."""
    return type(task.__name__, (task,), {"__module__": module.__name__, "__qualname__": name, "__doc__": task.__doc__})


def _is_task(value: object) -> TypeGuard[type[BaseTask[Any]]]:
    return isinstance(value, type) and issubclass(value, BaseTask) and value not in _OWN_CLASSES


def _remedy(name: str, found: object) -> str:
    if isfunction(found):
        return (
            f"a function becomes one under a decorator: @doc_task(dataset_path=..., sample_split=..., metrics=[...]) above def {name} "
            "(from eval_dagster import doc_task)"
        )
    expected = "expected a subclass of eval_dagster.BaseTask, a function under @doc_task, or a LightevalTaskConfig"
    if origin := installed_origin(found if isinstance(found, type) else type(found)):
        return (
            f"{expected}; it is made of the installed package {origin}, which eval_dagster stands in for only where it is not installed: "
            "import from eval_dagster in the file"
        )
    return expected


def _import_file(file: Path, folder: Path) -> tuple[ModuleType, Mapping[str, Any]]:
    """Run a task file. Returns its module, and the names that only this file can import.

    Args:
        file: The file; absolute.
        folder: The folder of evals.yaml.

    Raises:
        TaskDefinitionError: It fails, or an import of it is missing.
    """
    try:
        with aliases(beside=package_of(file, folder)) as own:
            return load_file(file, folder), own
    except (Exception, SystemExit) as error:  # a script that ends the process when it is imported
        raised = error.__cause__ if isinstance(error, EndedError) and error.__cause__ is not None else error
        where = f"{file}{_line_of(raised, file)}"
        if isinstance(error, TaskDefinitionError):
            raise TaskDefinitionError(f"{where.removesuffix(',')}: {error}") from error
        reason = _missing_module(error, file, folder) or f"{shown_text(described(error))}{_place_in_neighbour(error, file)}"
        hint = _unused_neighbour(error, file, folder) or _later_python(error)
        raise TaskDefinitionError(f"{where} cannot be imported: {reason}{hint}") from error


def _line_of(error: BaseException, file: Path) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if isinstance(error, SyntaxError) and error.filename == str(file):
        lines.append(error.lineno)
    return f", line {lines[-1]}," if lines else ""


def _place_in_neighbour(error: BaseException, file: Path) -> str:
    """The place of an error in a module that the file imports from its folder; empty for other places."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})" if error.filename not in (None, str(file)) else ""
    frames = traceback.walk_tb(error.__traceback__)
    inner = [(frame.f_code.co_filename, line) for frame, line in frames if is_user_module(str(frame.f_globals.get("__name__")))]
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


def _later_python(error: BaseException) -> str:
    """Advice for a file with wrong syntax that imports from eval-framework, which needs Python 3.12."""
    if not isinstance(error, SyntaxError) or sys.version_info >= (3, 12) or not Path(str(error.filename)).is_file():
        return ""
    is_foreign = re.search(r"^\s*(from|import) eval_framework\b", Path(str(error.filename)).read_text("utf-8", "replace"), re.MULTILINE)
    version = ".".join(map(str, sys.version_info[:2]))
    return f"; files for eval-framework may use syntax of Python 3.12, and this is Python {version}" if is_foreign else ""


def _unused_neighbour(error: BaseException, file: Path, folder: Path) -> str:
    """Advice if an import failed because a user's file has the name of a standard module; empty if it failed for another reason."""
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
