"""The kinds of values in evals.yaml, and the addresses of lakes and of MLflow's stores, checked before anything is sent to one."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from eval_dagster.texts.figures import did_you_mean

NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of models, evals and suites, which become partition keys and names of folders."""


LAST_PASSED = "last_passed"
"""The baseline that is the newest state that the gate let pass, or that a person accepted."""
PREVIOUS = "previous"
"""The baseline that is the state before the last change."""


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("expected at most 100 letters, digits, '.', '_' and '-', a letter or digit first, and no '..'")
    return value


def _environment_name(value: str) -> str:
    name, is_there, release = value.partition("==")
    if not NAME.fullmatch(name) or (is_there and not NAME.fullmatch(release)):
        raise ValueError("expected the name of a registry, or a name and a release such as eval_framework==0.15.4")
    return value


def identifier(name: str) -> str:
    """A name as Dagster allows it for a job: letters, digits and underscores. Different names can give the same identifier."""
    return re.sub(r"[-.]", "_", name)


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("expected text that is not blank")
    return value


def _not_empty(value: str) -> str:
    if not value:
        raise ValueError("expected text that is not empty")
    return value


Text = Annotated[str, AfterValidator(_not_blank)]
Mark = Annotated[str, AfterValidator(_not_empty)]
"""A text such as a stop sequence, which may be a line break."""
Name = Annotated[str, AfterValidator(_name)]
EnvironmentName = Annotated[str, AfterValidator(_environment_name)]
Integer = Annotated[int, Field(strict=True)]
"""Strict, because `limit: yes` would otherwise be read as 1."""
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""Strict, because `smallest_difference: yes` would otherwise be read as 1.0, and `.inf` would silence a gate."""
Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False, le=1e9)]
"""Bounded, because clocks and timers cannot count on for longer than some hundred years."""
Switch = Annotated[bool, Field(strict=True)]
"""Strict, because `truncate: 1` and `truncate: "off"` would otherwise be read as true or false."""


class Section(BaseModel):
    """A mapping of `evals.yaml`: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


LAKE_VARIABLE = "EVAL_DAGSTER_LAKE"
"""Environment variable: the URL of the lake instead of `lake` in evals.yaml."""
_UNITS = {"MiB": 2**20, "GiB": 2**30}
_MEMORY = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(_UNITS)})")


def _bytes_of(value: object) -> int:
    found = _MEMORY.fullmatch(value) if isinstance(value, str) else None
    if found is None or not float(found[1]):
        raise ValueError("expected a size such as '2GiB' or '800MiB'")
    return int(float(found[1]) * _UNITS[found[2]])


MemorySize = Annotated[
    int,
    PlainValidator(_bytes_of),
    WithJsonSchema({"type": "string", "pattern": _MEMORY.pattern, "description": "a size such as '2GiB' or '800MiB'"}),
]
"""In bytes; written as a text with its unit."""

LAKE_URLS = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder"
"""The forms of a URL, for messages."""

_LAKE_SCHEMES = ("s3", "gs", "az", "file")


def wrong_lake_url(url: str) -> str | None:
    """The problem of a lake's URL; None if it is fine. The reason does not repeat the URL, which could hold a secret."""
    try:
        parts = urlsplit(url)
        has_credentials = parts.username is not None or parts.password is not None
    except ValueError:
        return "it is no URL"
    if parts.scheme not in _LAKE_SCHEMES:
        return f"its scheme is {parts.scheme!r}" if "://" in url else "it has no scheme"
    if has_credentials or parts.query or parts.fragment:
        return "it has credentials, a query or a fragment; credentials are read from the environment alone"
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        return "it names no folder by an absolute path"
    if parts.scheme != "file" and not parts.netloc:
        return "it names no bucket"
    if {".", ".."} & set(parts.path.split("/")):
        return "its path has . or .. in it"
    return None


TRACKING_URIS = "http://host:port or https://host, or a database: sqlite:///file, postgresql://..., mysql://... or mssql://..."
"""The allowed addresses, as a text that follows `expected`."""
_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")


def wrong_uri(uri: str) -> str | None:
    """The mistake in the address of an MLflow store. The text contains only its scheme, since an address can contain a password."""
    try:
        parts = urlsplit(uri)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        return "this is no address"
    scheme = parts.scheme.partition("+")[0]
    if scheme not in _SCHEMES:
        return f"its scheme is {parts.scheme!r}{did_you_mean(scheme, _SCHEMES)}"
    if not uri.isprintable() or " " in uri or not port_is_right:
        return "this is no address"
    if scheme in ("http", "https") and not parts.hostname:
        return "it names no host"
    if scheme == "sqlite" and parts.path in ("", "/", "/:memory:"):
        return "it names no file, so that nothing would be kept"
    return None
