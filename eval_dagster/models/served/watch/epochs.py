"""Epochs of an endpoint: times in which its answers stayed the same, with the answers that opened each of them.

The rows of the relation `endpoint_states` are the record. A file in the home holds the newest state, so that the version of a model is
read without the lake. If the file is lost, it is made of the rows.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import append, records_of
from eval_dagster.models.served.watch.change_test import Answer, Change, Compared, find_change, moved
from eval_dagster.stores.whole_files import replaced

_TABLE = "endpoint_states"
_COLUMNS = ("looked_at", "epoch", "outcome", "answers")
ALLOWED = "allowed"
"""The outcome of a look whose answers differ by what may be noise between restarts."""
_MOST_NOISE = 0.3
"""The greatest difference that is taken for noise between restarts. Models that are not of one family differ by more."""

Answers = Mapping[str, tuple[Answer, ...]]
"""Answers by prompt."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The current epoch of an endpoint."""

    number: int = 0
    began_at: str = ""
    """When its first look was made: ISO 8601, UTC; empty before the first look."""
    reference: Answers = field(default_factory=dict)
    """The first answer to each canary in the epoch."""
    looked_at: str = ""
    """The time of the newest look. ISO 8601, UTC."""
    opened_by: Mapping[str, float] = field(default_factory=dict)
    """The differences of the canaries by which the epoch began; empty as soon as a later look was much closer to the reference."""
    earlier: Answers = field(default_factory=dict)
    """The reference of the epoch before."""
    allowed: Answers = field(default_factory=dict)
    """The answers of the newest look, where only the allowance kept it from beginning an epoch."""

    def mark(self) -> Any:
        """The part of the epoch in a model's version. After a loss of all records, an equal number has another time."""
        return [self.number, self.began_at] if self.number else 0

    def next(self, answers: Answers, at: str) -> "Epoch":
        """The epoch that a look begins."""
        opened_by = _moves(self.reference, answers)
        return Epoch(number=self.number + 1, began_at=at, looked_at=at, reference=answers, opened_by=opened_by, earlier=self.reference)

    def after(self, answers: Answers, at: str, *, is_allowed: bool = False) -> "Epoch":
        """The epoch after a look that found no change. Canaries without a reference get one."""
        return replace(
            self,
            began_at=self.began_at or at,
            looked_at=at,
            reference={**answers, **self.reference},
            opened_by={} if _is_closer(_moves(self.reference, answers), self.opened_by) else self.opened_by,
            allowed=answers if is_allowed else {},
        )

    def allowance(self, prompt: str) -> float:
        """The difference of a canary that does not show a change.

        An epoch whose reference was not seen again may have begun by noise between restarts, which asking twice does not show. Without this
        allowance, such a server would begin an epoch every night.
        """
        return min(_MOST_NOISE, 2 * self.opened_by.get(prompt, 0.0))

    def judge(self, pairs: Sequence[Compared], answers: Answers) -> tuple[Change, bool]:
        """The change that a look found, and whether there is one but for the allowance.

        Answers that were seen before are not noise between restarts, which is another each time: the server went back to the model of the
        epoch before, or it answers as in the look before. They have no allowance.
        """
        change = find_change(pairs)
        if change.is_significant or not self.opened_by:
            return change, False
        strict = find_change([replace(each, allowance=0.0) for each in pairs])
        if not strict.is_significant:
            return change, False
        here = _moves(self.reference, answers)
        is_known = any(_is_closer(_moves(seen, answers), here) for seen in (self.earlier, self.allowed))
        return (strict, False) if is_known else (change, True)


class EpochFile:
    """The file of the current epoch, and the rows that it is made of."""

    def __init__(self, path: Path, endpoint: str, home: Path) -> None:
        """`endpoint` identifies what is asked, and how, in the rows."""
        self._path = path
        self._endpoint = endpoint
        self._lake = Lake(home)

    def read(self) -> Epoch:
        """The current epoch, by the file; by the rows if the file is lost."""
        return self._of_file() or self.read_newest()

    def read_newest(self) -> Epoch:
        """The current epoch, by the file and the rows after it: a process that was killed may have written the rows alone."""
        epoch = self._of_file() or Epoch()
        for row in self._rows(_COLUMNS, after=epoch.looked_at):
            answers, at = dict(_answers(row["answers"])), row["looked_at"].isoformat(timespec="microseconds")
            if row["epoch"] > epoch.number:
                epoch = replace(epoch, number=row["epoch"] - 1).next(answers, at)
            else:
                epoch = epoch.after(answers, at, is_allowed=row["outcome"] == ALLOWED)
        return epoch

    def write(self, epoch: Epoch, rows: Sequence[Mapping[str, Any]], run_id: str) -> None:
        """Record looks, and then the epoch after them."""
        times = ("looked_at", "epoch_began_at")
        recorded = [{"endpoint": self._endpoint, **row} | {name: datetime.fromisoformat(row[name]) for name in times} for row in rows]
        append(self._lake, _TABLE, recorded, run_id)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(self._path) as temporary:
            temporary.write_text(json.dumps(asdict(epoch), ensure_ascii=False), "utf-8")

    def last_facts(self) -> Mapping[str, Any] | None:
        """The server's declaration at the newest recorded look."""
        rows = self._rows(("looked_at", "epoch", "facts"))
        return json.loads(rows[-1]["facts"]) if rows else None

    def _of_file(self) -> Epoch | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._path.read_text("utf-8"))
            kept = {
                name: {prompt: tuple(map(_answer, answers)) for prompt, answers in found.get(name, {}).items()}
                for name in ("reference", "earlier", "allowed")
            }
            return Epoch(**{**found, **kept})
        return None

    def _rows(self, columns: Sequence[str], *, after: str = "") -> list[dict[str, Any]]:
        """The rows of this endpoint, the oldest first; if `after` is given, only of later looks."""
        where, since = pc.field("endpoint") == self._endpoint, datetime.fromisoformat(after) if after else None
        if since is not None:
            where &= pc.field("looked_at") > since
        rows = records_of(self._lake, _TABLE, columns, where=where, written_after=since)
        return sorted(rows, key=lambda row: (row["looked_at"], row["epoch"]))


def minute(time: str) -> str:
    """A time of an epoch as it is shown."""
    return time[:16].replace("T", " ")


def answer_rows(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """Answers as the rows of `endpoint_states` hold them."""
    return [{**asdict(each), "tokens": list(each.tokens), "logprobs": list(each.logprobs)} for each in answers]


def _answers(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[Answer, ...]]]:
    for row in rows:
        if row["is_canary"] and row["error"] is None:
            yield row["asked"], tuple(map(_answer, row["answers"]))


def _moves(before: Answers, after: Answers) -> dict[str, float]:
    """By how much answers moved, by prompt."""
    return {name: moved(Compared(before=before[name], after=answers)) for name, answers in after.items() if name in before}


def _is_closer(moves: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Whether answers moved by less than a third as much, in the canaries of both."""
    same = moves.keys() & others.keys()
    return math.fsum(moves[name] for name in same) < math.fsum(others[name] for name in same) / 3


def _answer(found: Mapping[str, Any]) -> Answer:
    return Answer(text=found["text"], is_cut=found["is_cut"], tokens=tuple(found["tokens"]), logprobs=tuple(found["logprobs"]))
