"""The record of an episode: each place at which it asked a model or called a tool, with what came back."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from pydantic_core import PydanticSerializationError, to_json

from eval_dagster.episodes.tools import Outcome
from eval_dagster.lake.tables.rows import message_fields
from eval_dagster.records import Message

Place = str
"""The place of an effect: the numbers of the branches (tasks of asyncio) that led there, and of the effect in its branch: `0.2:5`."""


class EpisodeChangedError(Exception):
    """An episode does something else at a recorded place, although its code is the same."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A recorded effect of an episode."""

    place: Place
    number: int
    """Its position among all effects of the episode, from 0."""
    kind: Literal["ask", "tool", "now", "limit"]
    name: str
    """The role that was asked, the tool that was called, or the limit at which the episode ended."""
    key: str
    """The id of the request, or the arguments of the call as the model wrote them."""
    value: Outcome | None = None
    """The result of a tool, the time, or the failure of a request that may be answered later. Null while it is under way, and for an
    answered request, whose answer is in the response cache."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Further fields of its rows."""


class EpisodeJournal:
    """The effects of the episodes of an eval and a model, one line of JSON each.

    They are written by `flush`, together, before anything happens that must not happen twice: a request or an effect.
    """

    def __init__(self, folder: Path, fingerprint: str, inputs: Mapping[str, str]) -> None:
        """Open the journal of a fingerprint, which covers the code of the episodes and their models.

        `inputs` are the hashes of what the episodes are about, by sample. What was recorded with another one is not read.
        """
        self._inputs = inputs
        self._path = folder / f"{fingerprint}.journal"
        self._file: IO[bytes] | None = None
        self._lines: list[bytes] = []
        self._problem: OSError | None = None

    def read(self) -> dict[str, dict[Place, Effect]]:
        """The recorded effects by sample and place. Skips a line that was cut by a crash."""
        found: dict[str, dict[Place, Effect]] = {}
        with suppress(FileNotFoundError):
            for line in self._path.read_bytes().split(b"\n"):
                with suppress(ValueError, TypeError, KeyError):  # cut by a crash, or written by another release
                    given = json.loads(line)
                    if given["input"] != self._inputs.get(given["sample_id"]):
                        continue
                    value = given["effect"].pop("value")
                    effect = Effect(**given["effect"], value=None if value is None else Outcome(**value))
                    found.setdefault(given["sample_id"], {})[effect.place] = effect
        return found

    def add(self, sample_id: str, effect: Effect) -> None:
        """Add an effect. A later one at the same place replaces it."""
        fields = {**vars(effect), "value": None if effect.value is None else vars(effect.value)}
        line = {"sample_id": sample_id, "input": self._inputs[sample_id], "effect": fields}
        try:
            written = to_json(line)
        except PydanticSerializationError:  # half of a surrogate pair, which UTF-8 has not
            written = json.dumps(line).encode()
        self._lines.append(written + b"\n")

    def flush(self) -> None:
        """Write what was added. Raises `OSError` if the disk is full, and then each time: what follows would stand after a cut line."""
        if self._problem is not None:
            raise self._problem
        if not self._lines:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
            if self._file.tell() and not self._path.read_bytes().endswith(b"\n"):  # after a crash
                self._file.write(b"\n")
        lines, self._lines = b"".join(self._lines), []
        try:
            if os.write(self._file.fileno(), lines) != len(lines):
                raise OSError(f"no space left for {self._path}")
        except OSError as error:
            self._problem = error
            raise

    def close(self) -> None:
        """Write the rest, and close the file. It stays until `delete_journals`."""
        with suppress(OSError):
            self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None


def delete_journals(folder: Path) -> None:
    """Delete the journals in a folder, also of earlier code."""
    for path in folder.glob("*.journal"):
        path.unlink(missing_ok=True)


def replayable(recorded: Mapping[Place, Effect]) -> dict[Place, Effect]:
    """The recorded effects of an episode without those from a failed request on, so that it is asked again.

    All are kept if a tool has changed the world after it, which must not happen twice.
    """
    order = in_order(recorded.values())
    failed = next((each.number for each in order if each.kind == "ask" and each.value is not None), None)
    if failed is None or any(each.number > failed and each.details.get("kind") == "effect" for each in order):
        return dict(recorded)
    return {place: each for place, each in recorded.items() if each.number < failed}


def in_order(effects: Iterable[Effect]) -> Sequence[Effect]:
    """Effects in the order in which the episode reached them."""
    return sorted(effects, key=lambda each: each.number)


def difference(recorded: Effect, kind: str, name: str, messages: Sequence[Message]) -> str:
    """How a request or call differs from what was recorded at its place, in words."""
    if (recorded.kind, recorded.name) != (kind, name):
        return f"it {_did(recorded.kind, recorded.name)} before, and {_did(kind, name)} now"
    before, kept = recorded.details.get("new_messages"), recorded.details.get("kept")
    if kind == "ask" and isinstance(before, list) and isinstance(kept, int):
        for position, (one, other) in enumerate(zip(before, map(message_fields, messages[kept:]), strict=False)):
            if one != other:
                return f"message {kept + position + 1} was {_short(one)}, and is {_short(other)}"
        return "another number of messages, other settings, or another earlier message"
    return f"its arguments were {recorded.key[:200]}"


def _did(kind: str, name: str) -> str:
    return {"ask": f"asked {name}", "tool": f"called {name}", "now": "read the clock", "limit": f"ended at its limit of {name}"}[kind]


def _short(message: object) -> str:
    text = json.dumps(message, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"
