"""How a change of the model behind a name is noticed: a test whether the answers to canaries changed, and epochs.

Answers changed if they differ by more than asking twice differs by, and in more questions than rounding can explain. Epochs of an
endpoint are times in which its answers stayed the same, with the answers that opened each of them.

The rows of the relation `endpoint_states` are the record of epochs. A file in the home holds the newest state, so that the version of a
model is read without the lake. If the file is lost, it is made of the rows.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow.compute as pc

from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import append, records_of
from eval_dagster.lake.tables.events import CanaryText, EndpointStateRow
from eval_dagster.models.served.borders import Borders, is_border
from eval_dagster.models.served.canaries import Answer, asks_for_likely_tokens
from eval_dagster.stores.whole_files import replaced

LEVEL = 1e-4
"""Both p-values have to be below it, in a look and in a second one right after it. An unchanged model passes all that far less often."""
FLOOR = 0.07
"""Differences of log-probabilities up to this root mean square are no evidence at first. Restarts, batches and caches of prefixes move
logits by up to 0.06, and so likely tokens by 0.05 (root mean square) where all of that is uniform."""
LEAST_FLOOR = 0.008
"""The least that it can become, of a server whose noise is known. Kernels for one token and for several differ by 0.003 with weights of 16
bits and 0.01 of precision, measured on llama.cpp."""
_NIGHTS = 3
"""Days with a look, after the first one, from which on the noise of a server is known."""
_MOST_REFERENCE = 4
"""Answers to a question in the reference, if they have log-probabilities: of the first two looks."""
_TIMES_NOISE = 2
"""Times the greatest noise that was seen, up to which a difference is no evidence."""
_STEPS = (0.5, 0.25, 0.125, 0.1, 0.0625, 0.05, 0.03125)
"""Steps of log-probabilities of servers that round them, or whose logits have 8 bits of precision."""
_REST = 0.01
"""Probability that is added to what a list leaves for other tokens, because rounded ones have another sum."""
_TIES_OF_TEXTS, _TIES_OF_LOGPROBS = 0.25, 0.05
"""Share of questions whose answers an unchanged server may give in another way after a restart. Between logits that differ by rounding, a
greedy text takes the other way; measured on a model of 135M parameters, whose texts have more such ties than those of larger models."""
_TIES_OF_NOISY_TEXTS = 0.5
"""The same share, of texts with an allowance."""
_GRID = 1000
"""Steps of a difference by 1, to which statistics are rounded."""
_TABLE = "endpoint_states"
_COLUMNS = ("looked_at", "epoch", "outcome", "answers", "p_border", "n_searched")
ALLOWED = "allowed"
"""The outcome of a look whose answers differ by what may be noise between restarts."""
_MOST_NOISE = 0.3
"""The greatest difference that is taken for noise between restarts. Models that are not of one family differ by more."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The answers to one question at two times."""

    before: Sequence[Answer]
    after: Sequence[Answer]
    """Two at least, so that what asking twice differs by is known."""
    allowance: float = 0.0
    """A difference up to this is no evidence. 0 if no noise between the times is known."""
    floor: float = FLOOR
    """The same, of log-probabilities."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """The result of comparing several questions."""

    p_value: float
    """Probability of such a difference where asking earlier and asking twice now differ alike (exact permutation test)."""
    p_ties: float
    """Probability that rounding alone changes so many answers (the tail of a sum of Bernoulli variables)."""
    n_compared: int
    n_different: int
    """Questions whose answers differ more between the times than at one time."""

    @property
    def is_significant(self) -> bool:
        """Whether the server changed, by this look."""
        return max(self.p_value, self.p_ties) < LEVEL


def differences(each: Compared) -> tuple[float, float]:
    """How much the answers to a question differ between the times, and within them.

    Of log-probabilities it is the root mean square, 1 at most; else the share of pairs with different texts.
    """
    between, within = _relabelled(each)[0]
    return (math.sqrt(between), math.sqrt(within)) if _has_logprobs(each) else (between, within)


def moved(each: Compared) -> float:
    """By how much the answers to a question differ between the times, without what they differ by within them."""
    between, within = _relabelled(each)[0]
    beyond = max(0.0, between - within)
    return math.sqrt(beyond) if _has_logprobs(each) else beyond


def find_change(questions: Sequence[Compared]) -> Change:
    """Compare the answers to several questions at two times.

    Where nothing changed, the answers to a question are exchangeable: each way to say which of them are the earlier ones is as probable.
    The statistic is the sum, over the questions, of what the times differ by beyond the noise within them and beyond the allowance.
    """
    terms: list[Mapping[int, float]] = []
    ties: list[Mapping[int, float]] = []
    statistic = different = 0
    for each in questions:
        has_logprobs = _has_logprobs(each)
        excesses = []
        for between, within in _relabelled(each):
            if has_logprobs:  # variances add up, so that mean squares are compared
                excess = math.sqrt(max(0.0, between - within - max(each.floor, each.allowance) ** 2))
            else:
                excess = max(0.0, between - within - each.allowance)
            excesses.append(round(_GRID * excess))
        terms.append({value: excesses.count(value) / len(excesses) for value in excesses})
        share = _TIES_OF_LOGPROBS if has_logprobs else _TIES_OF_NOISY_TEXTS if each.allowance else _TIES_OF_TEXTS
        ties.append({0: 1 - share, 1: share})
        statistic += excesses[0]
        different += excesses[0] > 0
    return Change(p_value=_tail(terms, statistic), p_ties=_tail(ties, different), n_compared=len(questions), n_different=different)


def _tail(terms: Sequence[Mapping[int, float]], seen: int) -> float:
    """The probability that a sum of independent terms is `seen` or more, from the exact distribution of the sum."""
    distribution, least = np.ones(1), 0
    for term in terms:
        first = min(term)
        longer = np.zeros(len(distribution) + max(term) - first)
        for value, probability in term.items():
            longer[value - first : value - first + len(distribution)] += probability * distribution
        distribution, least = longer, least + first
    return min(1.0, float(distribution[max(0, seen - least) :].sum()))


def _relabelled(each: Compared) -> list[tuple[float, float]]:
    """The mean distances between and within the times, under each way to say which answers are the earlier ones; the true way first."""
    answers = [*each.before, *each.after]
    has_logprobs = _has_logprobs(each)
    known = {(a, b): _distance(answers[a], answers[b], has_logprobs=has_logprobs) for a, b in combinations(range(len(answers)), 2)}
    found = []
    for earlier in combinations(range(len(answers)), len(each.before)):
        between = [value for (a, b), value in known.items() if (a in earlier) != (b in earlier)]
        within = [value for (a, b), value in known.items() if (a in earlier) == (b in earlier)]
        found.append((math.fsum(between) / len(between), math.fsum(within) / max(1, len(within))))
    return found


def _has_logprobs(each: Compared) -> bool:
    return all(answer.logprobs for answer in (*each.before, *each.after))


def _distance(a: Answer, b: Answer, *, has_logprobs: bool) -> float:
    """The distance of two answers, 1 at most. It is 0 or 1 for texts.

    For log-probabilities it is the mean square of their moves. A token that one list lacks has moved at least from its value to the
    greatest one that it may have there.
    """
    if not has_logprobs:
        is_beginning = (a.is_cut and b.text.startswith(a.text)) or (b.is_cut and a.text.startswith(b.text))
        return 0.0 if is_beginning else float(a.text != b.text)
    first, second = dict(zip(a.tokens, a.logprobs, strict=True)), dict(zip(b.tokens, b.logprobs, strict=True))
    moves = [value - second[token] for token, value in first.items() if token in second]
    for values, others in ((first, second), (second, first)):
        most = min(min(others.values()), math.log(max(0.0, 1 - math.fsum(map(math.exp, others.values()))) + _REST))
        moves += [value - most for token, value in values.items() if token not in others and value > most]
    return min(1.0, math.fsum(move * move for move in moves) / len(moves)) if moves else 0.0


def noise_of(questions: Sequence[Compared]) -> float:
    """The root mean square by which log-probabilities differ between two times of an unchanged server, or within them."""
    squares = [max(_relabelled(each)[0]) for each in questions if _has_logprobs(each)]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0


def step_of(answers: Iterable[Answer]) -> float:
    """The step of which all differences of log-probabilities at one place are multiples; 0 if there is none, or a small one."""
    values = [value - max(each.logprobs) for each in answers if each.logprobs for value in each.logprobs]
    is_one = (step for step in _STEPS if any(values) and all(abs(value / step - round(value / step)) < _REST for value in values))
    return next(is_one, 0.0)


Answers = Mapping[str, tuple[Answer, ...]]
"""Answers by prompt."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The current epoch of an endpoint."""

    number: int = 0
    began_at: str = ""
    """When its first look was made: ISO 8601, UTC; empty before the first look."""
    reference: Answers = field(default_factory=dict)
    """The first answers to each canary in the epoch."""
    looked_at: str = ""
    """The time of the newest look. ISO 8601, UTC."""
    opened_by: Mapping[str, float] = field(default_factory=dict)
    """The differences of the canaries by which the epoch began; empty as soon as a later look was much closer to the reference."""
    earlier: Answers = field(default_factory=dict)
    """The reference of the epoch before."""
    allowed: Answers = field(default_factory=dict)
    """The answers of the newest look, where only the allowance kept it from beginning an epoch."""
    nights: int = 0
    """Days on which a look compared log-probabilities with the reference and found no change."""
    noise: float = 0.0
    """The greatest noise of these looks, as `noise_of` gives it."""
    borders: Borders = field(default_factory=Borders)
    """The border inputs. They are searched anew in each epoch."""

    def mark(self) -> list[int | str] | int:
        """The part of the epoch in a model's version. After a loss of all records, an equal number has another time."""
        return [self.number, self.began_at] if self.number else 0

    def next(self, answers: Answers, at: str) -> "Epoch":
        """The epoch that a look begins."""
        opened_by = _moves(self.reference, answers)
        return Epoch(number=self.number + 1, began_at=at, looked_at=at, reference=answers, opened_by=opened_by, earlier=self.reference)

    def after(self, answers: Answers, at: str, *, is_allowed: bool = False, is_quiet: bool = True) -> "Epoch":
        """The epoch after a look that began none. Canaries without a reference get one. If it `is_quiet`, its differences are noise."""
        likely = [name for name in answers if name in self.reference and asks_for_likely_tokens(name)]
        pairs = [Compared(before=self.reference[name], after=answers[name]) for name in likely]
        shows_noise = is_quiet and not is_allowed and any(map(_has_logprobs, pairs))
        reference = {**answers, **self.reference}
        if shows_noise:  # more of them make the permutation test finer, and the noise between nights a part of theirs
            both = {name: (*self.reference[name], *answers[name]) for name in likely}
            reference |= {
                name: found for name, found in both.items() if len(found) <= _MOST_REFERENCE and all(one.logprobs for one in found)
            }
        return replace(
            self,
            began_at=self.began_at or at,
            looked_at=at,
            reference=reference,
            opened_by={} if _is_closer(_moves(self.reference, answers), self.opened_by) else self.opened_by,
            allowed=answers if is_allowed else {},
            nights=self.nights + (shows_noise and at[:10] != self.looked_at[:10]),
            noise=max(self.noise, noise_of(pairs)) if shows_noise else self.noise,
        )

    @property
    def floor(self) -> float:
        """The root mean square up to which differences of log-probabilities are no evidence."""
        return FLOOR if self.nights < _NIGHTS else min(FLOOR, max(LEAST_FLOOR, _TIMES_NOISE * self.noise))

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
        step = step_of(answer for each in pairs for answer in (*each.before, *each.after))
        pairs = [replace(each, floor=max(self.floor, step / 2)) for each in pairs]
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
        self.endpoint = endpoint
        self._lake = Lake(home)

    def read(self) -> Epoch:
        """The current epoch, by the file; by the rows if the file is lost."""
        return self._of_file() or self.read_newest()

    def read_newest(self) -> Epoch:
        """The current epoch, by the file and the rows after it: a process that was killed may have written the rows alone."""
        epoch = self._of_file() or Epoch()
        for row in self._rows(_COLUMNS, after=epoch.looked_at):
            answers = {
                each["asked"]: tuple(map(_answer, each["answers"]))
                for each in row["answers"]
                if each["is_canary"] and each["error"] is None and not is_border(each["asked"])
            }
            at = row["looked_at"].isoformat(timespec="microseconds")
            if row["epoch"] > epoch.number:
                epoch = replace(epoch, number=row["epoch"] - 1).next(answers, at)
            else:
                is_quiet = row["outcome"] != "different"
                draws = {each["asked"]: [one["text"] for one in each["answers"]] for each in row["answers"] if is_border(each["asked"])}
                borders = epoch.borders.after(draws, row.get("n_searched") or 0, at[:10], row.get("p_border"), is_quiet=is_quiet)
                epoch = replace(epoch.after(answers, at, is_allowed=row["outcome"] == ALLOWED, is_quiet=is_quiet), borders=borders)
        return epoch

    def write(self, epoch: Epoch, rows: Sequence[EndpointStateRow], run_id: str) -> None:
        """Record looks, and then the epoch after them."""
        append(self._lake, _TABLE, rows, run_id)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(self._path) as temporary:
            temporary.write_text(json.dumps(asdict(epoch), ensure_ascii=False), "utf-8")

    def last_facts(self) -> Mapping[str, object] | None:
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
            return Epoch(**{**found, **kept, "borders": Borders(**found.get("borders", {}))})
        return None

    def _rows(self, columns: Sequence[str], *, after: str = "") -> list[EndpointStateRow]:
        """These columns of the rows of this endpoint, the oldest first; if `after` is given, only of later looks."""
        where, since = pc.field("endpoint") == self.endpoint, datetime.fromisoformat(after) if after else None
        if since is not None:
            where &= pc.field("looked_at") > since
        rows = cast(list[EndpointStateRow], records_of(self._lake, _TABLE, columns, where=where, written_after=since))
        return sorted(rows, key=lambda row: (row["looked_at"], row["epoch"]))


def minute(time: str) -> str:
    """A time of an epoch as it is shown."""
    return time[:16].replace("T", " ")


def answer_rows(answers: Iterable[Answer]) -> list[CanaryText]:
    """Answers as the rows of `endpoint_states` hold them."""
    return [{"text": each.text, "is_cut": each.is_cut, "tokens": list(each.tokens), "logprobs": list(each.logprobs)} for each in answers]


def _moves(before: Answers, after: Answers) -> dict[str, float]:
    """By how much answers moved, by prompt."""
    return {name: moved(Compared(before=before[name], after=answers)) for name, answers in after.items() if name in before}


def _is_closer(moves: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Whether answers moved by less than a third as much, in the canaries of both."""
    same = moves.keys() & others.keys()
    return math.fsum(moves[name] for name in same) < math.fsum(others[name] for name in same) / 3


def _answer(found: CanaryText) -> Answer:
    return Answer(text=found["text"], is_cut=found["is_cut"], tokens=tuple(found["tokens"]), logprobs=tuple(found["logprobs"]))
