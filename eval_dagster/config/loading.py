"""Reads `evals.yaml`, and reports every mistake in it with its line and, in the words of the schema, what is allowed there."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from eval_dagster.config.component_file import attributes_of, is_component
from eval_dagster.config.models import ModelSection
from eval_dagster.config.schema import Config, backends_in_files, config_class, with_adapters, with_elsewhere
from eval_dagster.config.values import LAST_PASSED, PREVIOUS, identifier
from eval_dagster.config.yaml_document import KeyPath, YamlDocument, read_text, show_key
from eval_dagster.errors import ConfigError
from eval_dagster.texts.figures import did_you_mean

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


Schema = Mapping[str, Any]
"""A JSON schema."""


class Place:
    """A place in the schema, reached by keys, list positions and the tags of unions."""

    def __init__(self, schema: Schema, definitions: Schema) -> None:
        """`definitions` are the schemas that `schema` refers to, by name."""
        # References are followed, and the alternative null is left out.
        if "anyOf" in schema:
            options = [option for option in schema["anyOf"] if option.get("type") != "null"]
            if len(options) == 1:
                schema = {**{key: value for key, value in schema.items() if key != "anyOf"}, **options[0]}
        while "$ref" in schema:
            schema = definitions[schema["$ref"].removeprefix("#/$defs/")]
        self.schema = schema
        self._definitions = definitions

    @classmethod
    def top(cls, config: type[Config]) -> "Place":
        """The place of the whole file."""
        schema = config.model_json_schema()
        return cls(schema, schema["$defs"])

    @property
    def keys(self) -> list[str]:
        """The keys that a mapping may have here; empty if it may have any."""
        return list(self.schema.get("properties", ()))

    @property
    def tag_key(self) -> str | None:
        """The key whose value chooses among several kinds of mapping."""
        return self.schema["discriminator"]["propertyName"] if "discriminator" in self.schema else None

    @property
    def options(self) -> "list[Place]":
        """The kinds of mapping to choose from."""
        return [self._inner(option) for option in self.schema.get("oneOf", ())]

    @property
    def is_secret(self) -> bool:
        """Whether no message may repeat the value."""
        return any(schema.get("writeOnly", False) for schema in (self.schema, self.schema.get("items", {})))

    def option(self, tag: str) -> "Place":
        """The kind of mapping that a tag names: the value of the tag's key, or a key that only this kind has."""
        key = self.tag_key
        return next(each for each in self.options if (each._constant(key) == repr(tag) if key else tag in each.keys))

    def child(self, step: str | int) -> "Place":
        """The place of a key or a list item."""
        if isinstance(step, int):
            return self._inner(self.schema["items"])
        return self._inner(self.schema["properties"][step] if self.keys else self.schema["additionalProperties"])

    def _inner(self, schema: Schema) -> "Place":
        return Place(schema, self._definitions)

    def words(self) -> str:
        """The allowed values, as a text that follows `expected`."""
        schema = self.schema
        if self.options and self.tag_key:
            return f"a mapping with {self.tag_key}: {_either([option._constant(self.tag_key) for option in self.options])}"
        if self.options:
            return "one of: " + "; ".join(" and ".join(option.schema["required"]) for option in self.options)
        if "pattern" in schema:
            return str(schema["description"])
        if "enum" in schema or "const" in schema:
            return _either([repr(value) for value in schema.get("enum", [schema.get("const")])])
        if schema.get("type") not in _TYPES:  # as sections of other packages may have
            return str(schema.get("description", "another value"))
        kind = _TYPES[schema["type"]]
        if "properties" in schema:
            return f"{kind} with the keys {', '.join(schema['properties'])}"
        if "items" in schema:
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            number = f", exactly {least}" if least == most else ", at least one" if least else ""
            return f"{kind} of {'texts' if schema['items'].get('type') == 'string' else 'values'}{number}"
        signs = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "of at most", "exclusiveMaximum": "below"}
        limits = [f"{word} {schema[sign]:g}" for sign, word in signs.items() if sign in schema]
        return " ".join([kind, " and ".join(limits)]) if limits else kind

    def _constant(self, key: str) -> str:
        return repr(self.schema["properties"][key]["const"])


_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "object": "a mapping",
    "string": "text",
}


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


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
    resolved = path.resolve()
    shown = str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(resolved)
    if not path.exists():
        raise ConfigError(
            f"{shown}: there is no such file; name another by EVAL_DAGSTER_CONFIG=path/to/evals.yaml, write a new project by "
            f"`eval-dagster init`, or create the file, for instance with:\n"
            f"{SMALLEST}"
        )
    document = YamlDocument(read_text(path, shown), shown)
    if is_component(path):
        document = attributes_of(document, shown)
    if section_in_file is not None:
        sections = {**sections, **{name: section_in_file(name, path.parent) for name in backends_in_files(document.value)}}
    schema = config_class(with_elsewhere(sections, document.value))
    if document.value is None and not document.problems:
        raise ConfigError(f"{shown}:1: the file is empty; expected {Place.top(schema).words()}")
    config: Config | None = None
    found: list[Problem] = []
    try:
        config = schema.model_validate(document.value)
    except ValidationError as error:
        top = Place.top(schema)
        for wrong in error.errors(include_url=False):
            problem = _translate(wrong["loc"], wrong["type"], wrong.get("ctx", {}), document, top)
            found.append(problem)
    problems = dict(document.problems)
    for where, what in [*found, *_name_problems(document, registries, path.parent)]:
        problems.setdefault((document.line(where), where), what)
    if problems or config is None:
        lines = []
        for (line, where), what in sorted(problems.items(), key=lambda problem: problem[0][0]):
            key = "".join(f"[{step}]" if isinstance(step, int) else f".{show_key(step)}" for step in where).removeprefix(".")
            lines.append(f"{shown}:{line}: {f'{key}: ' if key else ''}{what}")
        raise ConfigError("\n".join(lines))
    return config


def _translate(loc: tuple[int | str, ...], kind: str, context: Mapping[str, object], document: YamlDocument, top: Place) -> Problem:
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
        path = (*path, place.tag_key)
        allowed = [option.schema["properties"][place.tag_key]["const"] for option in place.options]
        expected = " or ".join(map(repr, allowed))
        return path, f"found {document.found(path)}; expected {expected}{_suggest(document, path, allowed)}"
    if kind.startswith("union_tag"):
        known = [key for option in place.options for key in option.keys]
        meant = [did_you_mean(key, known) for key in _mapping(_value(document, path)) if key not in known]
        return path, f"found {document.found(path)}; expected {place.words()}{next(filter(None, meant), '')}"
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
    mirror = _value(document, ("datasets", "mirror"))
    try:
        if isinstance(mirror, str):
            (folder / mirror).resolve().is_dir()
    # A name that is too long or contains a null character, or a folder without permission. A folder that is not there is a reason for the
    # evals that read from it.
    except (OSError, ValueError) as error:
        what = f"found {document.found(('datasets', 'mirror'))}, which cannot be looked at ({error}); expected a folder of datasets"
        yield ("datasets", "mirror"), what
    for name in _mapping(top.get("environments")):
        if (registry := str(name).partition("==")[0]) not in registries:
            expected = f"that of a registry: {', '.join(registries)}{did_you_mean(registry, registries)}"
            yield ("environments", name), f"found the name {registry!r}; expected {expected}"
    for name in models:
        if name in (LAST_PASSED, PREVIOUS) or (isinstance(name, str) and _is_time(name)):
            yield ("models", name), f"found the name {name!r}, which has a meaning of its own as a suite's baseline; expected another name"
        path: KeyPath = ("models", name, "function")
        function = _value(document, path)
        if isinstance(function, str) and not _IN_FILE.fullmatch(function):
            yield path, f"found {document.found(path)}, which is not of the right form; expected path/to/file.py:name"
    for name in evals:
        yield from _task_problems(("evals", name, "task"), document, registries)
        yield from _repeat_problems(("evals", name, "subjects"), document)
    suites = _mapping(top.get("suites"))
    first: dict[str, str] = {}
    for name in suites:
        other = first.setdefault(identifier(name), name)
        if other != name:
            yield (
                ("suites", name),
                f"found the names {other!r} and {name!r}, which as the names of Dagster's jobs would be one ({identifier(name)}); "
                "expected names that differ in more than '-', '.' and '_'",
            )
    for name in suites:
        yield from _reference_problems(("suites", name, "evals"), document, evals)
        yield from _reference_problems(("suites", name, "models"), document, models)
        yield from _repeat_problems(("suites", name, "evals"), document)
        yield from _repeat_problems(("suites", name, "models"), document)
        yield from _baseline_problems(("suites", name, "baseline"), document, models)
        members = _value(document, ("suites", name, "evals"))
        known = [member for member in members if isinstance(member, str)] if isinstance(members, list) else None
        for setting in ("require", "critical", "margin"):
            named = _value(document, ("suites", name, "gate", setting))
            places = named.items() if isinstance(named, dict) else enumerate(named) if isinstance(named, list) else ()
            for place, each in ((key, key if isinstance(named, dict) else each) for key, each in places):
                if known is not None and isinstance(each, str) and each not in known:
                    path = ("suites", name, "gate", setting, place)
                    found = repr(each) if isinstance(named, dict) else document.found(path)
                    yield path, f"found {found}; expected an eval of the suite ({', '.join(known)}){did_you_mean(each, known)}"
        for aggregate in _mapping(_value(document, ("suites", name, "aggregates"))):
            yield from _aggregate_problems(("suites", name, "aggregates", aggregate), document, known)


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


def _reference_problems(path: KeyPath, document: YamlDocument, known: Collection[str]) -> Iterator[Problem]:
    names = _value(document, path)
    for position, name in enumerate(names if isinstance(names, list) else ()):
        if isinstance(name, str) and name not in known:
            where = (*path, position)
            listed = f"a name under {path[-1]} ({', '.join(map(show_key, known)) or 'there is none'})"
            yield where, f"found {document.found(where)}; expected {listed}{did_you_mean(name, known)}"


def _aggregate_problems(path: KeyPath, document: YamlDocument, of_suite: Sequence[str] | None) -> Iterator[Problem]:
    """Unknown evals of an aggregate, and weights that are missing or too many. `of_suite` are the evals of its suite, if they are known."""
    named = _value(document, (*path, "evals"))
    if of_suite is not None:
        for position, each in enumerate(named if isinstance(named, list) else ()):
            if isinstance(each, str) and each not in of_suite:
                where = (*path, "evals", position)
                meant = did_you_mean(each, of_suite)
                yield where, f"found {document.found(where)}; expected an eval of the suite ({', '.join(of_suite)}){meant}"
    yield from _repeat_problems((*path, "evals"), document)
    members = [each for each in named if isinstance(each, str)] if isinstance(named, list) else of_suite
    is_weighted, weights = _value(document, (*path, "of")) == "weighted", _value(document, (*path, "weights"))
    if members is None or not (weights is None or isinstance(weights, dict)):
        return
    if weights is not None and not is_weighted:
        yield (*path, "weights"), "found weights without `of: weighted`; expected both or neither"
        return
    for each in weights or {}:
        if each not in members:
            meant = did_you_mean(str(each), members)
            yield (*path, "weights", each), f"found {each!r}; expected an eval of the aggregate ({', '.join(members)}){meant}"
    if is_weighted and (missing := [each for each in members if each not in (weights or {})]):
        yield (*path, "weights"), f"found no weight of {', '.join(missing)}; expected a number above 0 for each eval of the aggregate"


def _repeat_problems(path: KeyPath, document: YamlDocument) -> Iterator[Problem]:
    names = _value(document, path)
    texts = [name if isinstance(name, str) else None for name in (names if isinstance(names, list) else ())]
    for position, name in enumerate(texts):
        if name is not None and name in texts[:position]:
            where = (*path, position)
            yield where, f"found {document.found(where)} a second time, after {path[-1]}[{texts.index(name)}]; expected each name once"


def _baseline_problems(path: KeyPath, document: YamlDocument, models: Collection[str]) -> Iterator[Problem]:
    baseline = _value(document, path)
    if not isinstance(baseline, str) or baseline in (LAST_PASSED, PREVIOUS) or baseline in models:
        return
    model, at, time = baseline.rpartition("@")
    if _is_time(time) and (not at or model in models):
        when = datetime.fromisoformat(time)
        if (when.astimezone(UTC) if when.tzinfo else when).date() > datetime.now(UTC).date():
            yield path, f"found {document.found(path)}, which lies in the future; expected a time at which there were results"
        return
    if at and model in models and time == PREVIOUS:
        return
    expected = f"{LAST_PASSED!r}, {PREVIOUS!r}, a date such as 2026-01-31, a name under models, or such a name at a time (name@2026-01-31)"
    meant = did_you_mean(model, models) if at and model not in models else did_you_mean(baseline, [LAST_PASSED, PREVIOUS, *models])
    yield path, f"found {document.found(path)}; expected {expected}{meant}"


def _is_time(text: str) -> bool:
    """Whether it is a day (2026-01-31) or a time on one (2026-01-31T02:00)."""
    try:
        return bool(re.match(r"\d{4}-\d{2}-\d{2}(T|$)", text, re.ASCII) and datetime.fromisoformat(text))
    except ValueError:
        return False


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
