"""The headers of requests, and the texts that must never be stored."""

import html
import html.entities
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import unquote

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelNotFoundError

_HIDDEN = "(hidden)"
_LEAST_CHARACTERS = 4
"""Shorter values are no secrets: to hide them would spoil any text."""
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\([^u])")


@dataclass(frozen=True)
class Headers:
    """The headers of a model's requests. Their values are not shown by `repr`."""

    values: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    """Values of environment variables among them."""

    def hide(self, text: str) -> str:
        """A text without the secrets, which a server may repeat in a message, as they are or escaped for JSON, HTML or an address."""
        for secret in self.secrets:
            text = text.replace(secret, _HIDDEN)
        if not self.secrets or not any(mark in text for mark in "\\&%"):
            return text
        read = text
        for _ in range(2):  # a message within a message is escaped twice
            read = unquote(html.unescape(_ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], read)))
        # The search for every way to write a secret is slow, and is for texts that have one.
        return self._escaped.sub(_HIDDEN, text) if any(secret in read for secret in self.secrets) else text

    def hide_in(self, body: bytes) -> bytes:
        """A response without the secrets."""
        return self.hide(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape") if self.secrets else body

    @cached_property
    def _escaped(self) -> re.Pattern[str]:
        return re.compile("|".join("".join(map(_written, secret)) for secret in self.secrets), re.IGNORECASE)


def _written(character: str) -> str:
    """A pattern of the ways to write a character of a secret: as it is, and escaped once or more for JSON, HTML or an address."""
    number, within = ord(character), "(?:amp;)*"
    units = character.encode("utf-16-be")
    json_units = "".join(rf"\\+u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
    names = "|".join(sorted({name.rstrip(";") for name, meaning in html.entities.html5.items() if meaning == character}))
    ways = [
        rf"\\*{re.escape(character)}",
        json_units,
        rf"&{within}\#(?:0*{number}|x0*{number:x});?",
        *([rf"&{within}(?:{names});?"] if names else []),
        "".join(rf"%(?:25)*{byte:02x}" for byte in character.encode()),
    ]
    return f"(?:{'|'.join(ways)})"


def headers_of(name: str, config: OpenAIModel) -> Headers:
    """The headers of a model's requests.

    Raises:
        ModelNotFoundError: An environment variable is not set, or holds what no header can.
    """
    values, secrets = dict(config.headers), []
    variables = dict(config.headers_env)
    if config.api_key_env is not None:
        variables["Authorization"] = config.api_key_env
    for header, variable in variables.items():
        secret = os.environ.get(variable, "").strip()
        if not secret:
            raise ModelNotFoundError(
                f"Model {name!r}: the environment variable {variable}, which holds the value of the header {header}, is not set. "
                f"Set it (`export {variable}=...`), or correct evals.yaml."
            )
        if not secret.isprintable():
            raise ModelNotFoundError(f"Model {name!r}: the environment variable {variable} holds characters that no header can hold.")
        secrets.append(secret)
        values[header] = f"Bearer {secret}" if variable == config.api_key_env and header == "Authorization" else secret
    hidden = sorted({secret for secret in secrets if len(secret) >= _LEAST_CHARACTERS}, key=len, reverse=True)
    return Headers(values, tuple(hidden))
