"""How a change of the model behind a name is noticed: canaries, a test whether their answers changed, and epochs.

Canaries are prompts that a server is asked in every run. Their answers changed if they differ by more than asking twice differs by, and in
more questions than rounding can explain. Epochs of an endpoint are times in which its answers stayed the same, with the answers that
opened each of them.

The rows of the relation `endpoint_states` are the record of epochs. A file in the home holds the newest state, so that the version of a
model is read without the lake. If the file is lost, it is made of the rows.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow.compute as pc

from eval_dagster.config.models import OpenAIModel
from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import append, records_of
from eval_dagster.lake.tables.events import CanaryText, EndpointStateRow
from eval_dagster.models.served.calls.answer_records import BadAnswerError, Choice, Ending, read_token_logprobs
from eval_dagster.models.served.calls.answers import TextReader
from eval_dagster.models.served.calls.bodies import CHAT, Call, text_calls, without_nulls
from eval_dagster.records import GenerationSettings, Message, Request, Role
from eval_dagster.stores.whole_files import replaced

LEVEL = 1e-4
"""Both p-values have to be below it, in a look and in a second one right after it. An unchanged model passes all that far less often."""
FLOOR = 0.05
"""Differences of log-probabilities up to this root mean square are no evidence. Restarts, batches and caches of prefixes move logits by up
to 0.06, and so the log-probabilities of 12 greedy tokens by less than this in 97 of 100 prompts."""
_MOST = -1e-9
"""A greater log-probability is taken for this one: some servers write 0 for a certain token."""
_TIES_OF_TEXTS, _TIES_OF_LOGPROBS = 0.25, 0.05
"""Share of questions whose answers an unchanged server may give in another way after a restart. Between logits that differ by rounding, a
greedy text takes the other way; measured on a model of 135M parameters, whose texts have more such ties than those of larger models."""
_TIES_OF_NOISY_TEXTS = 0.5
"""The same share, of texts with an allowance."""
_GRID = 1000
"""Steps of a difference by 1, to which statistics are rounded."""
MOST_TOKENS = 12
"""Tokens of an answer. Longer greedy texts differ between runs of an unchanged server more often."""
VERSION = 1
"""Version of the calls of canaries and of how their answers are read. Raise it if these change: the earlier answers, which would differ
for that reason, are then no reference. Epochs go on."""
PROMPTS = (
    "The capital of Portugal is",
    "17 + 26 =",
    "def is_even(n):\n    return",
    "La capitale de l'Italie est",
    "Monday, Tuesday, Wednesday,",
    "The chemical symbol of silver is",
    "A train travels 60 km in 45 minutes. In one hour it travels",
    "for (int i = 0; i <",
    "Der Hund lief über die",
    "Shopping list:\n- bread\n- milk\n-",
    "Water boils at sea level at a temperature of",
    "9 * 8 =",
    "SELECT name FROM users WHERE",
    "El color del cielo es",
    "Once there was a fox who",
    "The planet with the most moons is",
    "1, 1, 2, 3, 5, 8, 13,",
    "<html>\n<head>\n<title>",
    "日本の首都は",
    "Dear Sir or Madam,\nI am writing to",
    "The author of War and Peace is",
    "The square root of 144 is",
    '{"name": "Anna", "age": 31, "city": "',
    "Столица России —",
)
"""Facts, arithmetic, code, other languages, lists and prose in turn, so that the first of them are of all kinds."""
_TABLE = "endpoint_states"
_COLUMNS = ("looked_at", "epoch", "outcome", "answers")
ALLOWED = "allowed"
"""The outcome of a look whose answers differ by what may be noise between restarts."""
_MOST_NOISE = 0.3
"""The greatest difference that is taken for noise between restarts. Models that are not of one family differ by more."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer to a question: its text, and the tokens with their log-probabilities if the server gives them."""

    text: str
    is_cut: bool = False
    """Whether the text ends because it may not be longer."""
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Natural logarithms."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The answers to one question at two times."""

    before: Sequence[Answer]
    after: Sequence[Answer]
    """Two at least, so that what asking twice differs by is known."""
    allowance: float = 0.0
    """A difference up to this is no evidence. 0 if no noise between the times is known."""


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
                excess = math.sqrt(max(0.0, between - within - max(FLOOR, each.allowance) ** 2))
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

    For log-probabilities it is the mean square of the moves, up to the first token that is not the same.
    """
    if not has_logprobs:
        is_beginning = (a.is_cut and b.text.startswith(a.text)) or (b.is_cut and a.text.startswith(b.text))
        return 0.0 if is_beginning else float(a.text != b.text)
    moves: list[float] = []
    for token, other, first, second in zip(a.tokens, b.tokens, a.logprobs, b.logprobs, strict=False):
        if token != other:
            moves.append(max(abs(first - second), _least_move(second, first), _least_move(first, second)))
            break
        moves.append(abs(first - second))
    return min(1.0, sum([move * move for move in moves]) / len(moves))


def _least_move(value: float, best: float) -> float:
    """The least by which a token moved that is the most probable now, where another one had the log-probability `best` before."""
    return value - math.log1p(-math.exp(min(best, _MOST)))


def canaries_by_name(count: int) -> dict[str, str]:
    """The names of the first canaries. A name is the prompt; from the second version of the canaries on, it also has the version."""
    return {prompt if VERSION == 1 else f"{prompt} (version {VERSION})": prompt for prompt in PROMPTS[:count]}


def is_chat(config: OpenAIModel) -> bool:
    """Whether canaries are sent as messages: if the conversations of requests are."""
    return config.prompt_format == "chat" and config.send == "messages"


def canary_call(prompt: str, config: OpenAIModel, *, with_logprobs: bool) -> Call:
    """The call for an answer to a canary."""
    settings = GenerationSettings(max_tokens=MOST_TOKENS, temperature=config.generation.temperature)
    messages = (Message(Role.USER, prompt),) if is_chat(config) else None
    call = text_calls(Request(request_id="canary", prompt=prompt, messages=messages, generation=settings), config)[0]
    wanted: dict[str, object] = {"logprobs": True if call.path == CHAT else 1} if with_logprobs else {}
    return Call(
        path=call.path, body=without_nulls({**wanted, **call.body}, config), read=partial(read_answer, reasons=config.finish_reasons)
    )


def read_answer(choice: Choice, reasons: Mapping[str, Ending]) -> Answer:
    """The answer in a choice, with its reasoning.

    Raises:
        BadAnswerError: It has no text.
    """
    found = TextReader(reasons=reasons)(choice)
    text = (found.reasoning or "") + found.text
    if not text:
        raise BadAnswerError("the answer is empty, which shows nothing about the model", helps_to_retry=False)
    try:
        tokens = read_token_logprobs(choice)
    except BadAnswerError:
        tokens = []
    values = [token.logprob for token in tokens]
    known: Sequence[float] = [value for value in values if value is not None]
    has_all = len(known) == len(values)
    return Answer(
        text=text,
        is_cut=found.finish_reason == "length",
        tokens=tuple(token.token for token in tokens) if has_all else (),
        logprobs=tuple(known) if has_all else (),
    )


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

    def mark(self) -> list[int | str] | int:
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
                if each["is_canary"] and each["error"] is None
            }
            at = row["looked_at"].isoformat(timespec="microseconds")
            if row["epoch"] > epoch.number:
                epoch = replace(epoch, number=row["epoch"] - 1).next(answers, at)
            else:
                epoch = epoch.after(answers, at, is_allowed=row["outcome"] == ALLOWED)
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
            return Epoch(**{**found, **kept})
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
