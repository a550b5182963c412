"""What the schema of `evals.yaml` allows at a place, in plain words."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from eval_dagster.config.schema import Config

Schema = Mapping[str, Any]
"""A JSON schema."""


class Place:
    """Somewhere in the schema, reached by keys, list positions and the tags of unions."""

    def __init__(self, schema: Schema) -> None:
        self.schema = _resolve(schema)

    @classmethod
    def top(cls) -> "Place":
        """The whole of the file."""
        return cls(_config_schema())

    @property
    def keys(self) -> list[str]:
        """The keys that a mapping may have here; none where it may have any."""
        return list(self.schema.get("properties", ()))

    @property
    def tag_key(self) -> str | None:
        """The key whose value chooses among several kinds of mapping."""
        return self.schema["discriminator"]["propertyName"] if "discriminator" in self.schema else None

    @property
    def options(self) -> "list[Place]":
        """The kinds of mapping to choose from."""
        return [Place(option) for option in self.schema.get("oneOf", ())]

    @property
    def is_secret(self) -> bool:
        """Whether what stands here may be repeated nowhere."""
        return any(schema.get("writeOnly", False) for schema in (self.schema, self.schema.get("items", {})))

    def option(self, tag: str) -> "Place":
        """The kind of mapping that a tag names: the value of the tag's key, or a key that only this kind has."""
        return next(option for option in self.options if option._bears(tag, self.tag_key))

    def child(self, step: str | int) -> "Place":
        """The place of a key or a list item."""
        if isinstance(step, int):
            return Place(self.schema["items"])
        return Place(self.schema["properties"][step] if self.keys else self.schema["additionalProperties"])

    def words(self) -> str:
        """What is allowed here, as what follows `expected`."""
        if self.options and self.tag_key:
            return f"a mapping with {self.tag_key}: {_either([option._constant(self.tag_key) for option in self.options])}"
        if self.options:
            return "one of: " + "; ".join(" and ".join(option.schema["required"]) for option in self.options)
        if "pattern" in self.schema:
            return str(self.schema["description"])
        if "enum" in self.schema or "const" in self.schema:
            return _either([repr(value) for value in self.schema.get("enum", [self.schema.get("const")])])
        return _TYPES[self.schema["type"]] + self._bounds()

    def _bounds(self) -> str:
        schema = self.schema
        if "properties" in schema:
            return f" with the keys {', '.join(schema['properties'])}"
        if "items" in schema:
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            number = f", exactly {least}" if least == most else ", at least one" if least else ""
            return f" of {_PLURALS[schema['items']['type']]}{number}"
        signs = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "of at most", "exclusiveMaximum": "below"}
        limits = [f"{word} {schema[sign]:g}" for sign, word in signs.items() if sign in schema]
        return f" {' and '.join(limits)}" if limits else ""

    def _bears(self, tag: str, tag_key: str | None) -> bool:
        return self._constant(tag_key) == repr(tag) if tag_key else tag in self.keys

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
_PLURALS = {"string": "texts"}


@cache
def _config_schema() -> Schema:
    return Config.model_json_schema()


def _resolve(schema: Schema) -> Schema:
    """Follow references, and take what a value may be besides null."""
    if "anyOf" in schema:
        (option,) = (option for option in schema["anyOf"] if option.get("type") != "null")
        schema = {**{key: value for key, value in schema.items() if key != "anyOf"}, **option}
    while "$ref" in schema:
        schema = _config_schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
