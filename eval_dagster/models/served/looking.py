"""Looks at a server, to find a change of the model behind a name. One process at a time looks, and records what it saw.

In a look it is asked canaries, each twice, and the answers are compared with earlier ones. Where that shows little, some cached requests
are asked again.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from eval_dagster.config.models import OpenAIModel
from eval_dagster.lake.tables.columns import AnswerRow
from eval_dagster.lake.tables.events import EndpointAnswer, EndpointStateRow
from eval_dagster.models.base import Known, Look
from eval_dagster.models.served.border_looks import BorderLook, BorderLooker, border_calls
from eval_dagster.models.served.borders import DRAWS, LEVEL, SUSPICION, drawn_of_each
from eval_dagster.models.served.calls.answer_records import BadAnswerError
from eval_dagster.models.served.calls.bodies import Call
from eval_dagster.models.served.canaries import LIKELY_TOKENS, MOST_TOKENS, Answer, canaries_by_name, canary_call
from eval_dagster.models.served.model import ServedModel
from eval_dagster.models.served.scoring.responses import CallReply, report_of
from eval_dagster.models.served.watch import (
    ALLOWED,
    Answers,
    Change,
    Compared,
    Epoch,
    EpochFile,
    answer_rows,
    differences,
    minute,
)
from eval_dagster.progress.reporting import SilentReporter, current_reporter, use_reporter
from eval_dagster.records import ModelResponse, Request
from eval_dagster.stores.locks import locked

MOST = 10
"""Requests that are asked again in a look."""
_MOST_CHOICE_TOKENS = 30
"""Tokens of all choices among them, since a server may need a call for each."""
_TIMES = 2
"""How often a question is asked in a look, so that the noise of the server is measured."""
_FEWEST_CANARIES = 10
"""Fewer notice nothing."""


def chosen(known: Sequence[Known]) -> Iterator[tuple[Request, Answer]]:
    """Short forms of the first requests that are cheap to ask, each with its cached answer."""
    count = tokens = 0
    for request, row in known:
        if row["error"] is not None or count == MOST:
            continue
        if request.choices is None:
            settings = request.generation
            if settings is None or settings.temperature > 0:  # the text is drawn at random
                continue
            most = MOST_TOKENS if settings.max_tokens is None else min(MOST_TOKENS, settings.max_tokens)
            asked = replace(request, generation=replace(settings, max_tokens=most, num_samples=1))
        else:
            size = sum(map(len, row["choice_token_logprobs"]))
            if tokens + size > _MOST_CHOICE_TOKENS:
                continue
            tokens += size
            asked = replace(request, unconditioned_prompt=None)
        count += 1
        yield asked, cached_answer(row)


def cached_answer(row: AnswerRow) -> Answer:
    """The answer in a row of the response cache."""
    if row["text"]:
        return Answer(text=row["text"][0], is_cut=row["finish_reason"][0] == "length")
    return _of_choices([sum(values) for values in row["choice_token_logprobs"]], row["choice_token_logprobs"])


def answer_of(response: ModelResponse) -> Answer | None:
    """The answer in a response; None if it failed, or has no text."""
    if response.error is not None:
        return None
    if response.text:
        return Answer(text=response.text[0], is_cut=response.finish_reason[0] == "length") if response.text[0] else None
    return _of_choices(response.logprobs, response.token_logprobs)


def _of_choices(sums: Sequence[float], tokens: Sequence[Sequence[float]]) -> Answer:
    """The log-probabilities of choices as if each were one token: their errors grow with the root of the number of tokens."""
    values = tuple(total / math.sqrt(max(1, len(each))) for total, each in zip(sums, tokens, strict=True))
    return Answer(text="", tokens=tuple(map(str, range(len(values)))), logprobs=values)


@dataclass(kw_only=True)
class Question:
    """A canary or a cached request, with its answers."""

    asked: str
    """The name of a canary, the id of a request."""
    is_canary: bool
    reference: tuple[Answer, ...]
    """Earlier answers; empty if there is none."""
    allowance: float = 0.0
    answers: list[Answer] = field(default_factory=list)
    error: str | None = None

    @property
    def is_answered(self) -> bool:
        """Whether all answers are there."""
        return len(self.answers) == _TIMES

    def compared(self) -> Compared | None:
        """The comparison with the earlier answers; None where answers are missing."""
        if not self.reference or not self.is_answered:
            return None
        return Compared(before=self.reference, after=self.answers, allowance=self.allowance)

    def row(self) -> EndpointAnswer:
        """The question as a row of `endpoint_states` holds it."""
        pair = self.compared()
        difference, noise = (None, None) if pair is None else differences(pair)
        return {
            "asked": self.asked,
            "is_canary": self.is_canary,
            "reference": answer_rows(self.reference),
            "answers": answer_rows(self.answers),
            "difference": difference,
            "noise": noise,
            "error": self.error,
        }


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The findings of one look."""

    at: datetime
    """UTC."""
    change: Change
    is_allowed: bool
    """Whether only the allowance of the epoch keeps it from being a change."""
    questions: Sequence[Question]
    calls: int
    cost: float | None
    fingerprint: str | None
    border: BorderLook

    @property
    def is_suspicious(self) -> bool:
        """Whether a second look is needed."""
        p_value = self.border.p_value
        return self.change.is_significant or (p_value is not None and p_value < SUSPICION)

    @property
    def is_suspected(self) -> bool:
        """Whether the border inputs of a second look show what may be a change."""
        p_value = self.border.p_value
        return p_value is not None and p_value < LEVEL and drawn_of_each(self.border.draws) > DRAWS

    def answers(self) -> Answers:
        """The answers to the canaries."""
        return _answers(self.questions)

    def described(self) -> str:
        """The findings of the look, in one line."""
        change, failed = self.change, self.failed
        seen = f"{change.n_different} of {change.n_compared} answers differ, p = {max(change.p_value, change.p_ties):.1g}"
        first = f"{len(self.answers())} canaries have answers, with which later looks are compared"
        parts = [seen] if change.n_compared else [first] if self.answers() else []
        noise = "other differences may be noise between restarts; they begin an epoch if the next look finds the same answers"
        parts += [noise] if self.is_allowed else []
        parts += [f"{len(failed)} of {len(self.questions)} questions failed, the first by {failed[0].error}"] if failed else []
        return "; ".join([*parts, *self.border.said])

    @property
    def failed(self) -> list[Question]:
        """The questions without all answers."""
        return [each for each in self.questions if not each.is_answered]


class Looker:
    """Asks a server, and compares its answers with the answers of an epoch."""

    def __init__(self, model: ServedModel, config: OpenAIModel, known: Sequence[Known]) -> None:
        """`known` are requests with cached answers, in a random order."""
        self._model = model
        self._config = config
        self._known = list(chosen(known))
        self._likely = list(LIKELY_TOKENS)
        """Numbers of likely tokens to ask for, the first one now. Empty if the server gives none, so that texts are asked for."""
        self._calls = 0
        self._costs: list[float | None] = []
        self._fingerprint: str | None = None

    def look(self, epoch: Epoch, before: Seen | None = None) -> Seen:
        """Ask each question twice. Raises `StoppedError` if no request can succeed.

        In a second look, more tokens are drawn from the border inputs, beside the draws of the look `before`.
        """
        self._calls, self._costs = 0, []
        canaries = self._first_tokens(epoch) or self._texts(epoch)
        # Likely tokens show more than the texts of cached requests, if there are earlier ones to compare them with.
        is_enough = bool(self._likely) and all(each.reference for each in canaries)
        again = [] if is_enough else self._ask_again(_most_known(self._config, len(canaries)))
        questions = [*canaries, *again]
        change, is_allowed = epoch.judge([pair for each in questions if (pair := each.compared()) is not None], _answers(questions))
        border = BorderLook()
        if self._config.border_canaries:
            said = "border inputs are not asked, because log-probabilities show more"
            border = BorderLook(said=[said])
            if not self._likely:
                looker, first = BorderLooker(self._config, self._replies), before.border if before is not None else None
                border = looker.look(epoch.borders, first, may_search=not change.is_significant)
        return Seen(
            at=datetime.now(UTC),
            change=change,
            border=border,
            is_allowed=is_allowed,
            questions=questions,
            calls=self._calls,
            cost=None if None in self._costs else math.fsum(each or 0.0 for each in self._costs),
            fingerprint=self._fingerprint,
        )

    def _first_tokens(self, epoch: Epoch) -> list[Question]:
        """The canaries whose first token is asked for: all together, and then one by one, in another order.

        So the answers to one question differ by what batches and caches of prefixes move. Empty if the server gives no log-probabilities.
        """
        prompts = _affordable(self._config, first_tokens=True)
        canaries = _questions(prompts, epoch)
        while self._likely:
            calls = [canary_call(prompt, self._config, likely=self._likely[0]) for prompt in prompts.values()]
            [first] = self._replies(calls[:1])
            if isinstance(first, CallReply) and first.reply.content.says_something:
                break
            # One that refuses the number may accept a smaller one.
            self._likely = [] if isinstance(first, CallReply) else self._likely[1:]
        else:
            return []
        for each, reply in zip(canaries, [first, *self._replies(calls[1:])], strict=True):
            _note(each, reply)
        for each, reply in zip(reversed(canaries), self._replies(calls[::-1], one_by_one=True), strict=True):
            _note(each, reply)
        return canaries

    def _texts(self, epoch: Epoch) -> list[Question]:
        """The canaries of which a text is asked for."""
        prompts = _affordable(self._config, first_tokens=False)
        canaries = _questions(prompts, epoch)
        calls = [canary_call(prompt, self._config) for prompt in prompts.values()]
        for _ in range(_TIMES):
            for each, reply in zip(canaries, self._replies(calls), strict=True):
                _note(each, reply)
        return canaries

    def _replies(self, calls: Sequence[Call], *, one_by_one: bool = False) -> list[CallReply | BadAnswerError]:
        replies = self._model.replies(calls, one_by_one=one_by_one)
        for reply in replies:
            if isinstance(reply, CallReply):
                self._calls += reply.attempts
                self._costs.append(report_of([reply], self._config.price).cost)
                self._fingerprint = reply.reply.fingerprint or self._fingerprint
        return replies

    def _ask_again(self, most: int) -> list[Question]:
        """So many cached requests, asked again."""
        known = self._known[:most]
        questions = [Question(asked=request.request_id, is_canary=False, reference=(answer,)) for request, answer in known]
        requests = {
            f"{request.request_id}/{time}": (replace(request, request_id=f"{request.request_id}/{time}"), question)
            for (request, _), question in zip(known, questions, strict=True)
            for time in range(_TIMES)
        }
        with use_reporter(SilentReporter()):  # the look has progress of its own
            answered = self._model.respond([request for request, _ in requests.values()]) if requests else ()
        for request, response in answered:
            question = requests[request.request_id][1]
            if (answer := answer_of(response)) is not None:
                question.answers.append(answer)
            else:
                question.error = response.error or "the answer is empty"
            if response.report is not None:
                self._calls += response.report.attempts
                self._costs.append(response.report.cost)
        return questions


def look_calls(config: OpenAIModel, epoch: Epoch) -> list[Call]:
    """The calls for the canaries of a look, of the kind that a server was asked before."""
    first_tokens = _affordable(config, first_tokens=True)
    if first_tokens.keys() <= epoch.reference.keys():
        return [canary_call(prompt, config, likely=LIKELY_TOKENS[0]) for prompt in first_tokens.values()] * _TIMES
    texts = [canary_call(prompt, config) for prompt in _affordable(config, first_tokens=False).values()] * _TIMES
    return [*texts, *border_calls(config, epoch.borders)]


def _affordable(config: OpenAIModel, *, first_tokens: bool) -> Mapping[str, str]:
    """The canaries of a look by name: as many as may be asked in a minute, but 10 at least."""
    most = config.canaries if config.requests_per_minute is None else max(_FEWEST_CANARIES, config.requests_per_minute // _TIMES)
    return canaries_by_name(min(config.canaries, most), first_tokens=first_tokens)


def _most_known(config: OpenAIModel, canaries: int) -> int:
    """The number of cached requests of a look: as many as may be asked in the minute of its canaries."""
    return MOST if config.requests_per_minute is None else max(0, config.requests_per_minute // _TIMES - canaries)


def _questions(prompts: Mapping[str, str], epoch: Epoch) -> list[Question]:
    return [
        Question(asked=name, is_canary=True, reference=epoch.reference.get(name, ()), allowance=epoch.allowance(name)) for name in prompts
    ]


def _answers(questions: Sequence[Question]) -> Answers:
    """The answers to the canaries."""
    return {each.asked: tuple(each.answers) for each in questions if each.is_canary and each.is_answered}


def _note(question: Question, reply: CallReply | BadAnswerError) -> None:
    if isinstance(reply, CallReply):
        question.answers.append(reply.reply.content)
    else:
        question.error = f"{reply.kind}: {reply}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


class Watch:
    """Looks at one server, which is asked for one model in one way."""

    def __init__(self, name: str, config: OpenAIModel, home: Path, endpoint: str) -> None:
        """`name` is the model's in evals.yaml; `endpoint` identifies what is asked, and how."""
        self._name = name
        self._config = config
        self._lock = home / "endpoints" / "epochs" / f"{endpoint}.lock"
        self._file = EpochFile(self._lock.with_suffix(".json"), endpoint, home)
        self._epoch: Epoch | None = None

    @property
    def epoch(self) -> Epoch:
        """The epoch of the last look that this process knows."""
        if self._epoch is None:
            self._epoch = self._file.read()
        return self._epoch

    def last_facts(self) -> Mapping[str, object] | None:
        """The server's declaration at the newest recorded look; None before the first."""
        return self._file.last_facts()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process looks, and take the epoch that it left. Two processes that see one change begin one epoch."""
        with current_reporter().track(f"canaries of {self._name}", total=1, unit="looks") as advance, locked(self._lock):
            self._epoch = self._file.read_newest()
            yield
            advance()

    def look(self, model: ServedModel, config: OpenAIModel, known: Sequence[Known], facts: Mapping[str, object], run_id: str) -> Look:
        """Look once, and again if the first look found a change. If the second one finds it too, an epoch begins.

        Raises:
            StoppedError: No request can succeed. Nothing is recorded.
        """
        looker = Looker(model, config, known)
        rounds = [looker.look(self.epoch)]
        if rounds[0].is_suspicious:
            rounds.append(looker.look(self.epoch, rounds[0]))
        before, last = self.epoch, rounds[-1]
        at = last.at.isoformat(timespec="microseconds")
        border = last.border
        is_confirmed = before.borders.confirms(border.draws, at[:10], border.p_value)
        is_changed = is_confirmed or all(seen.change.is_significant for seen in rounds)
        if is_changed and config.pin is None:
            after = before.next(last.answers(), at)
        else:
            is_quiet = not (is_changed or last.change.is_significant)
            after = before.after(last.answers(), at, is_allowed=last.is_allowed, is_quiet=is_quiet)
            after = replace(
                after, borders=before.borders.after(border.draws, border.n_searched, at[:10], border.p_value, is_quiet=is_quiet)
            )
        message = self._message(last, before, is_changed=is_changed)
        rows = [self._row(seen, before, facts, run_id, "a second look follows") for seen in rounds[:-1]]
        rows.append(self._row(last, after, facts, run_id, message, rose=after.number > before.number, is_confirmed=is_confirmed))
        self._file.write(after, rows, run_id)
        self._epoch = after
        return Look(
            warnings=(message,) if is_changed or last.is_suspected or not last.answers() else (),
            notes={"endpoint": f"epoch {after.number}: {message}"},
            cost=math.fsum(seen.cost or 0.0 for seen in rounds),
        )

    def difference(self, model: ServedModel, config: OpenAIModel) -> str | None:
        """How the answers of another server of the model differ from the epoch's; None if they do not. Nothing is recorded."""
        config = config.model_copy(update={"border_canaries": False})
        looker, epoch = Looker(model, config, ()), replace(self.epoch, nights=0)  # the noise between servers is not known
        rounds = [looker.look(epoch)]
        if rounds[0].change.is_significant:
            rounds.append(looker.look(epoch))
        return f"its answers differ: {rounds[-1].described()}" if all(seen.change.is_significant for seen in rounds) else None

    def _row(
        self,
        seen: Seen,
        epoch: Epoch,
        facts: Mapping[str, object],
        run_id: str,
        message: str,
        *,
        rose: bool = False,
        is_confirmed: bool = False,
    ) -> EndpointStateRow:
        change, answers = seen.change, [each.row() for each in seen.questions]
        outcome = "suspected" if seen.is_suspected else ALLOWED if seen.is_allowed else "same"
        if change.is_significant or is_confirmed:
            outcome = "different"
        return {
            "model": self._name,
            "base_url": self._config.base_url,
            "name": self._config.model,
            "endpoint": self._file.endpoint,
            "run_id": run_id,
            "looked_at": seen.at,
            "outcome": outcome if change.n_compared else "first",
            "p_border": seen.border.p_value,
            "n_searched": seen.border.n_searched,
            "message": message,
            "epoch": epoch.number,
            "epoch_began_at": datetime.fromisoformat(epoch.began_at) if epoch.began_at else seen.at,
            "epoch_rose": rose,
            "facts": json.dumps(facts, sort_keys=True),
            "fingerprint": seen.fingerprint,
            "n_calls": seen.calls,
            "n_compared": change.n_compared,
            "n_different": change.n_different,
            "n_failed": len(seen.failed),
            "difference": _mean(each["difference"] for each in answers),
            "noise": _mean(each["noise"] for each in answers),
            "p_value": change.p_value if change.n_compared else None,
            "p_ties": change.p_ties if change.n_compared else None,
            "cost": seen.cost,
            "answers": [*answers, *seen.border.rows(self.epoch.borders.tokens, DRAWS)],
        }

    def _message(self, seen: Seen, before: Epoch, *, is_changed: bool) -> str:
        where = f"{self._config.model} at {self._config.base_url}"
        if not seen.answers():
            return (
                f"no canary was answered, so that a change of {where} is not noticed (`canaries: 0` switches them off): {seen.described()}"
            )
        if not is_changed:
            hint = "border inputs differ by more than the noise of earlier nights; an epoch begins if the next day's look finds it again"
            return f"{seen.described()}; {hint}" if seen.is_suspected else seen.described()
        since = f" since {minute(before.began_at)} UTC" if before.began_at else ""
        changed = f"the answers of {where} changed{since} ({seen.described()})"
        if self._config.pin is None:
            return f"{changed}: another model is behind the name. All requests of {self._name} are asked anew, in epoch {before.number + 1}"
        return f"{changed}. Earlier answers of {self._name} stay valid because `pin` is set; change `pin` if it is another model"
