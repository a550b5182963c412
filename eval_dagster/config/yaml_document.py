"""A YAML file as plain values, with the line of each key and a description of its value; and further entries in its text."""

import re
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

import yaml

from eval_dagster.errors import ConfigError, UsageError
from eval_dagster.texts.visible_text import is_storable

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of the document to a value."""

_TAG = "tag:yaml.org,2002:"
_SCALARS = tuple(_TAG + name for name in ("str", "int", "float", "bool", "null"))
_EARLIER_NUMBER = re.compile(r"[-+]?0[0-7_]+|[^:]+:.+")
"""Numbers of YAML 1.1, by which PyYAML reads, that YAML 1.2 reads otherwise: `010` is 8 there, `1:30` is 90."""
LATER_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+")
"""Numbers of YAML 1.2. Some of them are texts in YAML 1.1: `1e3`, `0o17`, `09`."""
_MOST_CHARACTERS = 60
_MOST_VALUES = 100_000
"""Aliases of aliases can make a short file as large as memory."""


class _Loader(yaml.SafeLoader):
    """YAML without dates: `2026-01-31` is text. Repeated merges of a mapping do not add entries."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML looks for a class attribute of this form
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_TAG + "timestamp", _TAG + "value")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Add the merged entries of `<<` to a mapping's own entries, each key once."""
        super().flatten_mapping(node)
        node.value = list(
            {(key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key): (key, at) for key, at in node.value}.values()
        )


class YamlDocument:
    """The one document of a YAML file.

    Attributes:
        value: Mappings with text keys, lists, and scalars; null for an empty file. Entries with a problem are left out or null.
        problems: Mistakes of the YAML itself (repeated keys, keys that are not text, unknown tags), by line and key path.
    """

    def __init__(self, text: str, shown_path: str) -> None:
        """Read the text of a file. If it is not YAML, raise a `ConfigError` that begins with `shown_path` and the line."""
        self.value: Any = None
        self.problems: dict[tuple[int, KeyPath], str] = {}
        self._shown_path = shown_path
        self._nodes: dict[KeyPath, yaml.Node] = {}
        self._lines: dict[KeyPath, int] = {}
        self._seen: set[int] = set()
        self._values = 0
        try:
            self._loader = _Loader(text)
            root = self._loader.get_single_node()
            if root is not None:
                self.value = self._read(root, (), 1, ())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = ", ".join(part for part in (error.context, error.problem) if part).replace("\n", " ")
            hint = "; a value that begins with '*' or '&' needs quotes" if "alias" in what or "anchor" in what else ""
            line = mark.line + 1 if mark else 1
            raise ConfigError(f"{shown_path}:{line}: this is no YAML: {what}{hint}") from None
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise ConfigError(f"{shown_path}:{line}: this is no YAML: the character U+{error.character:04X} is not allowed") from None
        except RecursionError:
            raise ConfigError(f"{shown_path}:1: lists or mappings are nested too deep") from None

    def under(self, top: str) -> "YamlDocument":
        """The value of a key as a document of its own, with the lines and problems of this one."""
        own = copy(self)
        own.value = self.value.get(top) if isinstance(self.value, dict) else None
        own._lines = {path[1:]: line for path, line in self._lines.items() if path[:1] == (top,)}
        own._nodes = {path[1:]: node for path, node in self._nodes.items() if path[:1] == (top,)}
        own.problems = {(line, path[1:] if path[:1] == (top,) else path): problem for (line, path), problem in self.problems.items()}
        return own

    def move(self, key: str, to: str) -> None:
        """Make a key of the top one of the mapping `to`, which is made if needed."""
        self.value.setdefault(to, {})[key] = self.value.pop(key)
        self._lines.update({(to, *path): line for path, line in self._lines.items() if path[:1] == (key,)})
        self._nodes.update({(to, *path): node for path, node in self._nodes.items() if path[:1] == (key,)})

    def line(self, path: KeyPath) -> int:
        """The line of a key or a list item, from 1; if the path does not exist, the line of the value around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def found(self, path: KeyPath) -> str:
        """The value at a path, in a few words and on one line."""
        node = self._nodes.get(path)
        if isinstance(node, yaml.MappingNode):
            keys = ", ".join(show_key(str(key.value)) for key, _ in node.value)
            return f"a mapping with {_shorten(keys)}" if keys else "an empty mapping"
        if isinstance(node, yaml.SequenceNode):
            return "a list" if node.value else "an empty list"
        if not isinstance(node, yaml.ScalarNode) or node.tag == _TAG + "null":
            return "nothing"
        return repr(_shorten(node.value)) if node.tag == _TAG + "str" else _shorten(node.value)

    def is_bare_scalar(self, path: KeyPath) -> bool:
        """Whether the value is a number, true or false, which quotes would turn into text."""
        node = self._nodes.get(path)
        return isinstance(node, yaml.ScalarNode) and node.tag not in (_TAG + "str", _TAG + "null")

    def _read(self, node: yaml.Node, path: KeyPath, line: int, outer: tuple[int, ...]) -> Any:
        self._lines[path], self._nodes[path] = line, node
        self._values += 1
        if self._values > _MOST_VALUES:
            raise ConfigError(
                f"{self._shown_path}:{self._lines[path[:1]]}: the file has more than {_MOST_VALUES} values, each alias (*name) counted "
                "with all that it stands for; expected fewer"
            )
        if id(node) in outer:
            return self._problem(path, self._lines[path], "this contains itself; expected a value of its own")
        outer = (*outer, id(node))
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            # A merge by `<<` changes the node's entries. Only at the first visit are all entries its own.
            if id(node) not in self._seen:
                self._seen.add(id(node))
                self._check_keys(node, path)
                self._loader.flatten_mapping(node)
            entries = [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode) and key.tag == _TAG + "str"]
            return {key.value: self._read(value, (*path, key.value), key.start_mark.line + 1, outer) for key, value in entries}
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            items = enumerate(node.value)
            return [self._read(item, (*path, position), item.start_mark.line + 1, outer) for position, item in items]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self._scalar(node, path)
        return self._problem(path, self._lines[path], f"found the tag {_shorten(node.tag)!r}; expected a value without a tag")

    def _check_keys(self, node: yaml.MappingNode, path: KeyPath) -> None:
        lines: dict[str, int] = {}
        own = []
        for key, value in node.value:
            line, place = key.start_mark.line + 1, (*path, str(key.value) if isinstance(key, yaml.ScalarNode) else "?")
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (_TAG + "str", _TAG + "merge"):
                self._problem(place, line, "found a key that is no text; expected text (put it in quotes)")
            elif key.value in lines:
                self._problem(place, line, f"found this key a second time, after line {lines[key.value]}; expected it once")
            else:
                lines[key.value] = line
                own.append((key, value))
        node.value = own

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        is_number, is_bare_text = node.tag in (_TAG + "int", _TAG + "float"), node.tag == _TAG + "str" and node.style is None
        if (is_number and _EARLIER_NUMBER.fullmatch(node.value)) or (is_bare_text and LATER_NUMBER.fullmatch(node.value)):
            what = "found {}, which the versions of YAML read in different ways; expected a number such as 10 or 0.001, or text in quotes"
            return self._problem(path, self._lines[path], what.format(_shorten(node.value)))
        try:
            value = self._loader.construct_object(node)
        # The text does not fit an explicit tag, as in `!!bool maybe`, or is a number of thousands of digits.
        except (ValueError, LookupError, OverflowError):
            return self._problem(path, self._lines[path], f"found {_shorten(node.value)!r}; expected a value that fits its type")
        if isinstance(value, int) and value.bit_length() > 63:
            return self._problem(path, self._lines[path], f"found {_shorten(node.value)}; expected an integer below 2^63")
        if not isinstance(value, str):
            return value
        # JSON, which is also YAML, writes characters beyond U+FFFF as two halves.
        whole = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        if not is_storable(whole):
            return self._problem(path, self._lines[path], f"found {_shorten(value)!a}, with half of a character; expected text")
        return whole

    def _problem(self, path: KeyPath, line: int, text: str) -> None:
        self.problems.setdefault((line, path), text)


def read_text(path: Path, shown_path: str) -> str:
    """The text of a file. Raises `ConfigError` if it cannot be read, or is not UTF-8."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{shown_path}:{line}: byte {error.start} of the file is no UTF-8; save the file in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{shown_path}: this file cannot be read: {error.strerror}") from None


def show_key(key: str) -> str:
    """A key as it is written in a message, on one line."""
    return _shorten(key) if key and key.isprintable() else repr(_shorten(key))


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."


Sections = Mapping[str, Mapping[str, object]]
"""Section -> name -> settings."""


def with_entries(text: str, added: Sections) -> str:
    """The text of an evals.yaml with further entries at the end of its sections. A section that is not there is added at the end.

    Raises:
        UsageError: A section is written in braces, so that no line can be added to it.
    """
    lines = text.splitlines()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    nodes = {key.value: value for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    places: list[tuple[int, list[str]]] = []
    for section, entries in added.items():
        node = nodes.get(section)
        if node is None or not node.value:
            places.append((len(lines), ["", f"{section}:", *_written(entries, 2)]))
            lines = [line for line in lines if node is None or not line.startswith(f"{section}:")]
        elif not isinstance(node, yaml.MappingNode) or node.flow_style:
            raise UsageError(f"the section {section!r} of evals.yaml is in braces; write its entries on lines of their own, and try again")
        else:
            end = min(node.end_mark.line, len(lines))
            while not lines[end - 1].strip() or lines[end - 1].startswith("#"):
                end -= 1
            places.append((end, _written(entries, node.start_mark.column)))
    places.sort(key=lambda each: each[0])
    for place, new in places[::-1]:  # from the end, so that the other places stay
        lines[place:place] = new
    return "\n".join(lines) + "\n"


def _written(entries: Mapping[str, object], indent: int) -> list[str]:
    """One line an entry."""
    return [f"{' ' * indent}{_inline(name)}: {_inline(settings)}" for name, settings in entries.items()]


class _Dumper(yaml.SafeDumper):
    """Writes texts in quotes that a later version of YAML reads as numbers."""

    yaml_implicit_resolvers: ClassVar[dict[str, object]] = {  # type: ignore[misc]  # as PyYAML itself does for each class
        **yaml.SafeDumper.yaml_implicit_resolvers,
        **{
            first: [*resolvers.get(first, []), ("number", LATER_NUMBER)]
            for resolvers in [yaml.SafeDumper.yaml_implicit_resolvers]
            for first in "-+.0123456789"
        },
    }


def _inline(value: Any) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=2**20)
    return text.removesuffix("\n").removesuffix("\n...")
