"""Reads `evals.yaml`, and reports every mistake in it with its line and what is allowed there."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from eval_dagster.config.messages import Place
from eval_dagster.config.models import ModelSection
from eval_dagster.config.schema import Config, backends_in_files, config_class, with_adapters, with_elsewhere
from eval_dagster.config.values import LAST_PASSED, PREVIOUS, identifier
from eval_dagster.config.yaml_document import KeyPath, YamlDocument, read_text, show_key
from eval_dagster.errors import ConfigError
from eval_dagster.texts.suggestions import did_you_mean

MIRROR_VARIABLE = "EVAL_DAGSTER_DATASETS"
"""Environment variable: a folder of datasets instead of `datasets.mirror`."""

SMALLEST = """
models:
  sevens: {backend: scripted, default: " 7"}
evals:
  sums: {task: arithmetic, limit: 5}
"""
"""A configuration that works."""
_IN_FILE = re.compile(r".+\.py:.+", re.DOTALL)
"""The name of something in a file."""

Problem = tuple[KeyPath, str]
"""The place of a mistake, and its description."""


def load_config(
    path: Path,
    *,
    sections: Mapping[str, type[ModelSection]] = MappingProxyType({}),
    registries: Collection[str] = (),
    section_in_file: Callable[[str, Path], type[ModelSection]] | None = None,
) -> Config:
    """Read and check a configuration.

    Args:
        path: The file; paths in it are relative to its folder.
        registries: Names of the registries of other packages, for `lm_eval:NAME`.
        sections: Model sections of other packages, by backend.
        section_in_file: The section of a backend `path/to/file.py:Class`, and the folder of the configuration.

    Raises:
        ConfigError: The file is missing or wrong. The message has one line for each problem: file, line, key, what was found, what
            is expected.
    """
    shown = _shown(path)
    if not path.exists():
        raise ConfigError(
            f"{shown}: there is no such file; name another by EVAL_DAGSTER_CONFIG=path/to/evals.yaml, write a new project by "
            f"`eval-dagster init`, or create the file, for instance with:\n"
            f"{SMALLEST}"
        )
    document = YamlDocument(read_text(path, shown), shown)
    if section_in_file is not None:
        sections = {**sections, **{name: section_in_file(name, path.parent) for name in backends_in_files(document.value)}}
    schema = config_class(with_elsewhere(sections, document.value))
    if document.value is None and not document.problems:
        raise ConfigError(f"{shown}:1: the file is empty; expected {Place.top(schema).words()}")
    config, found = _validate(document, schema)
    problems = dict(document.problems)
    for where, what in [*found, *_name_problems(document, registries, path.parent)]:
        problems.setdefault((document.line(where), where), what)
    if problems or config is None:
        in_order = sorted(problems.items(), key=lambda problem: problem[0][0])
        raise ConfigError("\n".join(f"{shown}:{line}: {_key(where)}{what}" for (line, where), what in in_order))
    return config


def _validate(document: YamlDocument, schema: type[Config]) -> tuple[Config | None, list[Problem]]:
    try:
        return schema.model_validate(document.value), []
    except ValidationError as error:
        top = Place.top(schema)
        return None, [_translate(each["loc"], each["type"], each.get("ctx", {}), document, top) for each in error.errors(include_url=False)]


def _shown(path: Path) -> str:
    resolved = path.resolve()
    return str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(resolved)


def _key(path: KeyPath) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{show_key(step)}" for step in path)
    return f"{text.removeprefix('.')}: " if text else ""


def _translate(loc: tuple[int | str, ...], kind: str, context: dict[str, Any], document: YamlDocument, top: Place) -> Problem:
    """Describe one error of pydantic."""
    if loc[-1:] == ("[key]",):
        return (*_follow(loc[:-2], top)[0], loc[-2]), f"found the name {show_key(str(loc[-2]))!r}; {context['error']}"
    steps, last = (loc[:-1], loc[-1]) if kind in ("missing", "extra_forbidden") else (loc, "")
    path, place = _follow(steps, top)
    if kind == "extra_forbidden":
        suggestion = did_you_mean(str(last), place.keys)
        return (*path, last), f"found an unknown key; expected one of {', '.join(place.keys)}{suggestion}"
    if kind == "missing":
        return (*path, last), f"found nothing; expected {place.child(last).words()}"
    if kind.startswith("union_tag") and place.tag_key:
        return _wrong_tag((*path, place.tag_key), place, document)
    if kind.startswith("union_tag"):
        return path, f"found {document.found(path)}; expected {place.words()}{_meant_source(path, place, document)}"
    if kind == "value_error" and place.is_secret:
        return path, f"found something that is not repeated here, since it could hold a secret: {context['error']}"
    if kind == "value_error":
        return path, f"found {document.found(path)}; {context['error']}"
    if place.is_secret:
        return path, f"found something that is not repeated here, since it could be a secret; expected {place.words()}"
    quotes = " (put it in quotes)" if place.words() == "text" and document.is_bare_scalar(path) else ""
    suggestion = _suggest(document, path, place.schema.get("enum", ()))
    return path, f"found {document.found(path)}; expected {place.words()}{quotes}{suggestion}"


def _follow(loc: tuple[int | str, ...], place: Place) -> tuple[KeyPath, Place]:
    """Remove the tags that pydantic inserts for the chosen kind of a mapping."""
    path: KeyPath = ()
    for step in loc:
        if place.options:
            place = place.option(str(step))
        else:
            path, place = (*path, step), place.child(step)
    return path, place


def _wrong_tag(path: KeyPath, place: Place, document: YamlDocument) -> Problem:
    allowed = [option.schema["properties"][path[-1]]["const"] for option in place.options]
    expected = " or ".join(map(repr, allowed))
    return path, f"found {document.found(path)}; expected {expected}{_suggest(document, path, allowed)}"


def _meant_source(path: KeyPath, place: Place, document: YamlDocument) -> str:
    known = [key for option in place.options for key in option.keys]
    suggestions = (did_you_mean(key, known) for key in _mapping(_value(document, path)) if key not in known)
    return next(filter(None, suggestions), "")


def _suggest(document: YamlDocument, path: KeyPath, choices: Collection[str]) -> str:
    value = _value(document, path)
    return did_you_mean(value, choices) if isinstance(value, str) else ""


def _value(document: YamlDocument, path: KeyPath) -> Any:
    value = document.value
    for step in path:
        value = value[step] if isinstance(step, int) else _mapping(value).get(step)
    return value


def _name_problems(document: YamlDocument, registries: Collection[str], folder: Path) -> Iterator[Problem]:
    """Names that refer to nothing, and repeated names.

    It reads the raw values, so that it finds all even if other values are wrong.
    """
    top = _mapping(document.value)
    evals, models = _mapping(top.get("evals")), with_adapters(_mapping(top.get("models")))
    yield from _mirror_problems(("datasets", "mirror"), document, folder)
    for name in _mapping(top.get("environments")):
        yield from _environment_problems(("environments", name), registries)
    for name in models:
        if name in (LAST_PASSED, PREVIOUS) or (isinstance(name, str) and _is_time(name)):
            yield ("models", name), f"found the name {name!r}, which has a meaning of its own as a suite's baseline; expected another name"
        yield from _function_problems(("models", name, "function"), document)
    for name in evals:
        yield from _task_problems(("evals", name, "task"), document, registries)
        yield from _repeat_problems(("evals", name, "subjects"), document)
    suites = _mapping(top.get("suites"))
    yield from _collision_problems(suites)
    for name in suites:
        yield from _reference_problems(("suites", name, "evals"), document, evals)
        yield from _reference_problems(("suites", name, "models"), document, models)
        yield from _repeat_problems(("suites", name, "evals"), document)
        yield from _repeat_problems(("suites", name, "models"), document)
        yield from _baseline_problems(("suites", name, "baseline"), document, models)
        yield from _required_problems(name, document)


def _mirror_problems(path: KeyPath, document: YamlDocument, folder: Path) -> Iterator[Problem]:
    """A path that cannot be looked at. One of a folder that is not there is a reason for the evals that read from it."""
    mirror = _value(document, path)
    try:
        if isinstance(mirror, str):
            (folder / mirror).resolve().is_dir()
    # A name that is too long or contains a null character, or a folder without permission.
    except (OSError, ValueError) as error:
        yield path, f"found {document.found(path)}, which cannot be looked at ({error}); expected a folder of datasets"


def _environment_problems(path: KeyPath, registries: Collection[str]) -> Iterator[Problem]:
    name = str(path[-1])
    if name not in registries:
        yield path, f"found the name {name!r}; expected that of a registry: {', '.join(registries)}{did_you_mean(name, registries)}"


def _function_problems(path: KeyPath, document: YamlDocument) -> Iterator[Problem]:
    function = _value(document, path)
    if isinstance(function, str) and not _IN_FILE.fullmatch(function):
        yield path, f"found {document.found(path)}, which is not of the right form; expected path/to/file.py:name"


def _task_problems(path: KeyPath, document: YamlDocument, registries: Collection[str]) -> Iterator[Problem]:
    """A reference that can name nothing. A reference to a missing task is not a mistake of the file: the other evals are evaluated."""
    task = _value(document, path)
    if not isinstance(task, str) or _IN_FILE.fullmatch(task):
        return
    registry, colon, name = task.partition(":")
    if not task:
        yield path, f"found {document.found(path)}; expected a name that `eval-dagster tasks` lists, or path/to/file.py:Class"
    elif task.endswith((".py", ".py:")):
        yield path, f"found {document.found(path)}, which is not of the right form; expected path/to/file.py:Class"
    elif colon and not name and registry in registries:
        yield path, f"found {document.found(path)}; expected a name after the colon: {registry}:NAME"


def _reference_problems(path: KeyPath, document: YamlDocument, known: dict[str, Any]) -> Iterator[Problem]:
    names = _value(document, path)
    for position, name in enumerate(names if isinstance(names, list) else ()):
        if isinstance(name, str) and name not in known:
            where = (*path, position)
            listed = f"a name under {path[-1]} ({', '.join(map(show_key, known)) or 'there is none'})"
            yield where, f"found {document.found(where)}; expected {listed}{did_you_mean(name, known)}"


def _repeat_problems(path: KeyPath, document: YamlDocument) -> Iterator[Problem]:
    names = _value(document, path)
    texts = [name if isinstance(name, str) else None for name in (names if isinstance(names, list) else ())]
    for position, name in enumerate(texts):
        if name is not None and name in texts[:position]:
            where = (*path, position)
            yield where, f"found {document.found(where)} a second time, after {path[-1]}[{texts.index(name)}]; expected each name once"


def _collision_problems(suites: dict[str, Any]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for name in suites:
        other = first.setdefault(identifier(name), name)
        if other != name:
            yield (
                ("suites", name),
                f"found the names {other!r} and {name!r}, which as the names of Dagster's jobs would be one ({identifier(name)}); "
                "expected names that differ in more than '-', '.' and '_'",
            )


def _baseline_problems(path: KeyPath, document: YamlDocument, models: dict[str, Any]) -> Iterator[Problem]:
    baseline = _value(document, path)
    if not isinstance(baseline, str) or baseline in (LAST_PASSED, PREVIOUS) or baseline in models:
        return
    model, at, time = baseline.rpartition("@")
    if _is_time(time) and (not at or model in models):
        if _day(time) > datetime.now(UTC).date():
            yield path, f"found {document.found(path)}, which lies in the future; expected a time at which there were results"
        return
    if at and model in models and time == PREVIOUS:
        return
    expected = f"{LAST_PASSED!r}, {PREVIOUS!r}, a date such as 2026-01-31, a name under models, or such a name at a time (name@2026-01-31)"
    meant = did_you_mean(model, models) if at and model not in models else did_you_mean(baseline, [LAST_PASSED, PREVIOUS, *models])
    yield path, f"found {document.found(path)}; expected {expected}{meant}"


def _required_problems(suite: str, document: YamlDocument) -> Iterator[Problem]:
    path, evals = ("suites", suite, "gate", "require"), _value(document, ("suites", suite, "evals"))
    names = _value(document, path)
    for position, name in enumerate(names if isinstance(names, list) else ()):
        if isinstance(name, str) and isinstance(evals, list) and name not in evals:
            where = (*path, position)
            known = [each for each in evals if isinstance(each, str)]
            yield where, f"found {document.found(where)}; expected an eval of the suite ({', '.join(known)}){did_you_mean(name, known)}"


def _is_time(text: str) -> bool:
    """Whether it is a day (2026-01-31) or a time on one (2026-01-31T02:00)."""
    try:
        return bool(re.match(r"\d{4}-\d{2}-\d{2}(T|$)", text, re.ASCII) and datetime.fromisoformat(text))
    except ValueError:
        return False


def _day(text: str) -> date:
    """The day of a time, in UTC if it has a zone."""
    found = datetime.fromisoformat(text)
    return found.astimezone(UTC).date() if found.tzinfo else found.date()


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
