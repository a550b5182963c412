"""Describes in words what the schema of `evals.yaml` allows at a place."""

from collections.abc import Mapping, Sequence
from typing import Any

from eval_dagster.config.schema import Config

Schema = Mapping[str, Any]
"""A JSON schema."""


class Place:
    """A place in the schema, reached by keys, list positions and the tags of unions."""

    def __init__(self, schema: Schema, definitions: Schema) -> None:
        """`definitions` are the schemas that `schema` refers to, by name."""
        self.schema = _resolve(schema, definitions)
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
        if self.options and self.tag_key:
            return f"a mapping with {self.tag_key}: {_either([option._constant(self.tag_key) for option in self.options])}"
        if self.options:
            return "one of: " + "; ".join(" and ".join(option.schema["required"]) for option in self.options)
        if "pattern" in self.schema:
            return str(self.schema["description"])
        if "enum" in self.schema or "const" in self.schema:
            return _either([repr(value) for value in self.schema.get("enum", [self.schema.get("const")])])
        if self.schema.get("type") not in _TYPES:  # as sections of other packages may have
            return str(self.schema.get("description", "another value"))
        return _TYPES[self.schema["type"]] + self._bounds()

    def _bounds(self) -> str:
        schema = self.schema
        if "properties" in schema:
            return f" with the keys {', '.join(schema['properties'])}"
        if "items" in schema:
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            number = f", exactly {least}" if least == most else ", at least one" if least else ""
            return f" of {'texts' if schema['items'].get('type') == 'string' else 'values'}{number}"
        signs = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "of at most", "exclusiveMaximum": "below"}
        limits = [f"{word} {schema[sign]:g}" for sign, word in signs.items() if sign in schema]
        return f" {' and '.join(limits)}" if limits else ""

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


def _resolve(schema: Schema, definitions: Schema) -> Schema:
    """Follow references, and leave out the alternative null."""
    if "anyOf" in schema:
        options = [option for option in schema["anyOf"] if option.get("type") != "null"]
        if len(options) == 1:
            schema = {**{key: value for key, value in schema.items() if key != "anyOf"}, **options[0]}
    while "$ref" in schema:
        schema = definitions[schema["$ref"].removeprefix("#/$defs/")]
    return schema


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
