"""Adds entries to the sections of an evals.yaml, whose other lines stay as they are."""

from collections.abc import Mapping
from typing import Any, ClassVar

import yaml

from eval_dagster.config.yaml_document import LATER_NUMBER
from eval_dagster.errors import UsageError

Sections = Mapping[str, Mapping[str, Any]]
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


def _written(entries: Mapping[str, Any], indent: int) -> list[str]:
    """One line an entry."""
    return [f"{' ' * indent}{_inline(name)}: {_inline(settings)}" for name, settings in entries.items()]


class _Dumper(yaml.SafeDumper):
    """Writes texts in quotes that a later version of YAML reads as numbers."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {  # type: ignore[misc]  # as PyYAML itself does for each class
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
