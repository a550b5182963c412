"""The addresses of the web pages: public ones from evals.yaml, or servers that run on this machine.

A link is made only to a known address. Either `public_url` in evals.yaml names it, or a server that still runs has noted it in the home.
Otherwise the link is left out.
"""

import json
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote, urlencode

from eval_dagster.stores.locks import is_held, locked

Pages = Literal["dagster", "mlflow", "pages"]
"""The servers of web pages; `pages` are the pages of the command `view`."""
_SECRET = re.compile(r"((?:^|&)[^=&]*(?:pass|pw|secret|token|key|auth|cred|sig)[^=&]*=)([^&]*)", re.IGNORECASE)
"""A part of a query whose value may be secret."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """The addresses at which the pages of a home can be reached."""

    home: Path
    """The folder in which running servers note their addresses."""
    public: Mapping[str, str] = field(default_factory=dict)
    """The addresses for everybody, by server."""

    def of(self, pages: Pages) -> str | None:
        """The public address of a server, else its local address, without a slash at its end; None without either."""
        if public := self.public.get(pages):
            return public.rstrip("/")
        notes = sorted(_folder(self.home).glob(f"{pages}-*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for note in notes:  # from the server that was started last
            try:
                noted = json.loads(note.read_text("utf-8"))
                if noted["machine"] == platform.node() and is_held(note.with_suffix(".lock")):
                    return str(noted["url"]).rstrip("/")
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a server is about to write it, or to remove it
        return None

    def everywhere(self) -> "Addresses":
        """Only the public addresses, since readers of a notice are seldom at this machine."""
        return Addresses(home=self.home / "nowhere", public=self.public)

    def dagster_run(self, run_id: str) -> str | None:
        """The page of a run in Dagster."""
        base = self.of("dagster")
        return f"{base}/runs/{run_id}" if base and run_id else None

    def night(self, suite: str, judged_at: str) -> str | None:
        """The page of a judgement; `judged_at` is in ISO 8601."""
        base = self.of("pages")
        return f"{base}/night?{urlencode({'suite': suite, 'at': judged_at}, quote_via=quote)}" if base else None

    def sample(self, eval_name: str, model: str, sample_id: str) -> str | None:
        """The page of a sample with a model's answer."""
        base = self.of("pages")
        query = urlencode({"eval": eval_name, "model": model, "sample": sample_id}, quote_via=quote)
        return f"{base}/sample?{query}" if base else None

    def of_judgement(self, suite: str, judged_at: str, run_id: str) -> dict[str, str]:
        """The reachable pages of a judgement, by content."""
        found = {"Results": self.night(suite, judged_at), "Run in Dagster": self.dagster_run(run_id)}
        return {name: link for name, link in found.items() if link}


@contextmanager
def noted(home: Path, urls: Mapping[str, str], process: int) -> Iterator[None]:
    """Note the addresses of servers within the block. A killed process leaves its note behind, but not the lock beside the note.

    Args:
        home: The home that the servers show.
        urls: Their addresses.
        process: The id of the process that holds the locks.
    """
    notes = {_folder(home) / f"{pages}-{process}.json": url for pages, url in urls.items()}
    with ExitStack() as locks:
        for note, url in notes.items():
            locks.enter_context(locked(note.with_suffix(".lock")))
            note.write_text(json.dumps({"url": url, "machine": platform.node()}), "utf-8")
        try:
            yield
        finally:
            for note in notes:
                note.unlink(missing_ok=True)
                note.with_suffix(".lock").unlink(missing_ok=True)


def _folder(home: Path) -> Path:
    return home / "addresses"


def shown_address(address: str) -> str:
    """An address that may be printed and stored: without user and password, and without query values that may be secret.

    A password may hold characters that an address should have escaped, such as `@` and `/`.
    """
    head, mark, query = address.partition("?")
    scheme, slashes, rest = head.partition("://")
    if rest:
        server = rest.partition("/")[0]
        port = server.rpartition("@")[2].rpartition("]")[2].partition(":")[2]
        # If the port is not a number, the text up to the first slash is part of a password.
        where = rest if port and not port.isdigit() else server
        rest = "***@" + rest[where.rindex("@") + 1 :] if "@" in where else rest
    return scheme + slashes + rest + mark + _SECRET.sub(r"\1***", query)


def without_secrets(text: str, address: str) -> str:
    """A text, such as an error's, in which the secrets of an address are masked."""
    text = text.replace(address, shown_address(address))
    head, _, query = address.partition("?")
    user = head.partition("://")[2].rpartition("@")[0]
    secrets = {user.partition(":")[2], *(found[2] for found in _SECRET.finditer(query))}
    for secret in sorted({form for each in secrets for form in (each, unquote(each)) if len(form) > 3}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
