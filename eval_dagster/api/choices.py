"""The tasks and models of a call from Python, given by name, path, section, class or function."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from eval_dagster.config.models import (
    FolderSource,
    GGUFSource,
    HubSource,
    ModelSection,
    ScriptedModel,
    Source,
    TransformersModel,
    VllmModel,
)
from eval_dagster.config.schema import EvalConfig, config_class
from eval_dagster.config.values import NAME
from eval_dagster.errors import UsageError
from eval_dagster.models.base import ModelHandle
from eval_dagster.models.registry import is_file, registered_sections, section_in_file
from eval_dagster.models.scripted import AnswerFunction, ScriptedHandle
from eval_dagster.project import Project
from eval_dagster.tasks.base import BaseTask
from eval_dagster.versions.module_sources import source_of

TaskChoice = str | type[BaseTask[Any]]
"""A name such as `mmlu`, `path/to/file.py:Class`, or a class."""
ModelChoice = str | Path | Mapping[str, object] | ModelSection | AnswerFunction
"""A name of evals.yaml, a folder, a GGUF file, `organisation/name@commit` of the Hub, a section as in evals.yaml, or a function."""

_HUB = re.compile(r"(?P<hub>[\w.-]+/[\w.-]+)@(?P<revision>[0-9a-f]{40})")


@dataclass(frozen=True, kw_only=True)
class ChosenModel:
    """A model with its name in the results."""

    name: str
    section: ModelSection
    handle: ModelHandle | None = None
    """The handle of a function, which no section describes."""


@dataclass(frozen=True, kw_only=True)
class ChosenEval:
    """A task with its settings and its name in the results."""

    name: str
    config: EvalConfig
    task: type[BaseTask[Any]]


def choose_eval(task: TaskChoice, keys: Mapping[str, object], name: str | None, project: Project) -> ChosenEval:
    """The eval for a task and settings.

    Args:
        task: The caller's choice.
        keys: Keys of an eval in evals.yaml. None means not given.
        name: Name of the eval; by default the task's.
        project: The project with named tasks.

    Raises:
        TaskDefinitionError: The task is unknown.
        UsageError: A setting is wrong, or the code of a class cannot be read.
    """
    if isinstance(task, str):
        found, spec, default = project.named_task(task), task, task.rpartition(":")[2]
    else:
        _require_code(task)
        found, spec, default = task, f"<{task.__name__}>", str(getattr(task, "NAME", task.__name__))
    try:
        config = EvalConfig.model_validate({"task": spec, **{key: value for key, value in keys.items() if value is not None}})
    except ValidationError as error:
        raise _usage_error(error) from error
    return ChosenEval(name=name or _as_name(default), config=config, task=found)


def choose_models(models: ModelChoice | Sequence[ModelChoice] | Mapping[str, ModelChoice], project: Project) -> list[ChosenModel]:
    """The models of a call. A mapping without the key `backend` contains models by name.

    Raises:
        UsageError: A model is unknown, or two have the same name.
    """
    if isinstance(models, Mapping) and "backend" not in models:
        chosen = [_choose(model, project, name) for name, model in cast("Mapping[str, ModelChoice]", models).items()]
    else:
        listed: Sequence[Any] = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
        chosen = [_choose(model, project) for model in listed]
    names = [each.name for each in chosen]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"two models would be called {sorted(twice)[0]!r}; name them: models={{'one': ..., 'other': ...}}")
    return chosen


def _choose(model: object, project: Project, name: str | None = None) -> ChosenModel:
    if name is not None and not NAME.fullmatch(name):
        raise UsageError(f"a model cannot be called {name!r}; expected letters, digits, '.', '_' and '-', a letter or digit first")
    if isinstance(model, str) and model in project.config.models:
        return ChosenModel(name=name or model, section=project.config.models[model])
    match model:
        case Mapping():
            section = _section(model, project)
        case ModelSection():
            section = model
        case str() | Path():
            section = TransformersModel(backend="transformers", source=_source(str(model), project))
        case FunctionType():
            _require_code(model)
            name = name or _as_name(model.__name__)
            return ChosenModel(name=name, section=ScriptedModel(backend="scripted"), handle=ScriptedHandle(name, function=model))
        case _:
            raise UsageError(
                f"found {type(model).__name__} for a model; expected a name of evals.yaml, a folder, a GGUF file, "
                "'organisation/name@commit', a mapping as in evals.yaml, or a Python function"
            )
    return ChosenModel(name=name or _name_of(section), section=section)


def _source(model: str, project: Project) -> Source:
    path = project.folder / Path(model).expanduser()
    if path.is_dir():
        return FolderSource(folder=model)
    if path.suffix == ".gguf":
        return GGUFSource(gguf=model)
    if found := _HUB.fullmatch(model):
        return HubSource(**found.groupdict())
    named = ", ".join(project.config.models) or "none"
    raise UsageError(
        f"there is no model {model!r}: evals.yaml names {named}, and {path} is no folder. "
        "A model of the Hub is named with its commit: organisation/name@0123456789abcdef0123456789abcdef01234567"
    )


def _section(model: Mapping[str, object], project: Project) -> ModelSection:
    backend = str(model.get("backend"))
    try:
        if is_file(backend):
            return section_in_file(backend, project.folder).model_validate(dict(model))
        section = _sections().validate_python(dict(model))
    except ValidationError as error:
        raise _usage_error(error) from error
    if isinstance(section, VllmModel) and section.adapters:
        raise UsageError("`adapters` make further models, which only evals.yaml can do; give each as a section of its own, with `adapter`")
    return section


def _usage_error(error: ValidationError) -> UsageError:
    """The first error of pydantic, in one line."""
    first = error.errors(include_url=False)[0]
    return UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']} (found {first['input']!r})")


def _require_code(value: type | FunctionType) -> None:
    if source_of(value.__module__) is None:
        raise UsageError(
            f"the code of {value.__qualname__} cannot be read, so that the cache could not tell one version of it from the next; "
            "define it in a file or in a notebook"
        )


@cache
def _sections() -> TypeAdapter[ModelSection]:
    """All kinds of model sections, including other packages'."""
    field = config_class(registered_sections()).model_fields["models"].annotation
    return TypeAdapter(field.__args__[1])  # type: ignore[union-attr]


def _name_of(section: ModelSection) -> str:
    source = getattr(section, "source", None)
    match source:
        case HubSource():
            return _as_name(source.hub)
        case FolderSource():
            return _as_name(Path(source.folder).resolve().name)
        case GGUFSource():
            return _as_name(Path(source.gguf).stem)
    return _as_name(Path(str(getattr(source, "file", section.backend))).stem)


def _as_name(text: str) -> str:
    """A text as the name of an eval or a model."""
    name = re.sub(r"[^A-Za-z0-9._-]+|\.\.+", "-", text).strip("-._")[:100]
    return name or "unnamed"
