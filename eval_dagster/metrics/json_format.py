"""Checks that a text is JSON, and JSON of a schema. White space around it is allowed, other text is not."""

import json
from typing import Any, ClassVar

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import CompletionMetric, extra_module, require_field
from eval_dagster.records import Completion

_LONGEST_INTEGER = 4000
"""Digits; Python does not read longer ones, which JSON allows."""


class JSONValid(CompletionMetric):
    """Whether the text is a JSON value (RFC 8259). `NaN` and `Infinity`, which Python accepts, are not JSON."""

    NAME = "json_valid"
    IS_PROPORTION = True

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0."""
        return float(bool(json_value(response.completion_text)))


class JSONSchemaValid(CompletionMetric):
    """Whether the text is a JSON value that the schema allows; the draft is the one that `$schema` names, else 2020-12.

    The schema is a field of the task's context, or of the row: an object, or its JSON text. References to other documents are not
    followed.
    """

    NAME = "json_schema_valid"
    IS_PROPORTION = True
    PACKAGES = ("jsonschema", "referencing")
    SCHEMA_FIELD: ClassVar[str] = "json_schema"
    """The name of the field."""

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0.

        Raises:
            RequirementError: The package jsonschema is not installed.
            DataError: The schema is missing or invalid, or refers to another document.
        """
        schema = require_field(response, self.SCHEMA_FIELD, "a JSON schema")
        if isinstance(schema, str):
            parsed = json_value(schema)
            if not parsed:
                raise DataError(f"the schema in {self.SCHEMA_FIELD!r} is no JSON: {schema[:200]!r}")
            schema = parsed[0]
        validators = extra_module("jsonschema.validators", self.NAME)
        exceptions = extra_module("jsonschema.exceptions", self.NAME)
        registry = extra_module("referencing", self.NAME).Registry()  # an empty one: the default fetches what a reference names
        try:
            validator = validators.validator_for(schema, default=validators.Draft202012Validator)
            validator.check_schema(schema)
            found = json_value(response.completion_text)
            return float(bool(found) and validator(schema, registry=registry).is_valid(found[0]))
        except exceptions.SchemaError as problem:
            raise DataError(f"the schema in {self.SCHEMA_FIELD!r} is none: {problem.message}") from problem
        except extra_module("referencing.exceptions", self.NAME).Unresolvable as problem:
            raise DataError(f"the schema in {self.SCHEMA_FIELD!r} refers to what is not in it: {problem}") from problem


def json_value(text: str) -> list[Any]:
    """The value in a list, because it may be null; an empty list if the text is not JSON."""
    try:
        return [json.loads(text, parse_constant=_refuse, parse_int=_integer)]
    except (ValueError, RecursionError):  # nested deeper than Python can read
        return []


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)
