"""The headers of requests, and the texts that must never be stored."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelNotFoundError

_HIDDEN = "(hidden)"
_LEAST_CHARACTERS = 4
"""Shorter values are no secrets: to hide them would spoil any text."""


@dataclass(frozen=True)
class Headers:
    """The headers of a model's requests. Their values are not shown by `repr`."""

    values: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    """Values of environment variables among them."""

    def hide(self, text: str) -> str:
        """A text without the secrets, which a server may repeat in a message."""
        for secret in self.secrets:
            text = text.replace(secret, _HIDDEN)
        return text

    def hide_in(self, body: bytes) -> bytes:
        """A response without the secrets."""
        for secret in self.secrets:
            body = body.replace(secret.encode(), _HIDDEN.encode())
        return self._unescaped(body) if self.secrets and b"\\" in body else body

    def _unescaped(self, body: bytes) -> bytes:
        """The same where a secret is written with escapes, such as `\\/` for a slash."""
        try:
            text = json.dumps(json.loads(body), ensure_ascii=False)
        except (ValueError, RecursionError):
            return body
        hidden = text
        for secret in self.secrets:
            hidden = hidden.replace(json.dumps(secret, ensure_ascii=False)[1:-1], _HIDDEN)
        return body if hidden == text else hidden.encode("utf-8", "surrogatepass")


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
