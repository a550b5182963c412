"""Checks that a text matches a JSON schema, which servers may ignore."""

import importlib
import json
from typing import Any


def schema_problem(text: str, schema: str) -> str | None:
    """Why a text does not match a schema; None where it does. Without the package jsonschema, only that it is JSON is checked."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is no JSON ({error})"
    try:
        exceptions, validators = importlib.import_module("jsonschema.exceptions"), importlib.import_module("jsonschema.validators")
        registry = importlib.import_module("referencing").Registry()  # an empty one: the default fetches what a reference names
    except ImportError:
        return None
    wanted: Any = json.loads(schema)
    try:
        validators.validator_for(wanted, default=validators.Draft202012Validator)(wanted, registry=registry).validate(found)
    except exceptions.ValidationError as error:
        return f"at {error.json_path}: {error.message}"
    except Exception:  # the schema is one that the package cannot apply, such as one that refers to another document
        return None
    return None
