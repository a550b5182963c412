"""Episodes in memory: a model that is a function of the conversation, and that counts what it is asked."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from eval_dagster.episodes.episode import Ask, EpisodeEnd
from eval_dagster.episodes.recording import EpisodeJournal
from eval_dagster.episodes.running import Answers, Episodes, Later
from eval_dagster.episodes.tools import tools_of
from eval_dagster.lake.tables.columns import Answer
from eval_dagster.lake.tables.rows import message_fields, response_row
from eval_dagster.records import Message, ModelResponse, Request, Role, ToolCall
from eval_dagster.tasks.episodes import EpisodeSample, EpisodeTask, Reply
from eval_dagster.versions.hashes import stable_hash

Speak = Callable[[Ask], Reply | ModelResponse]


class World:
    """A model, its answers, and the journal of episodes that ask it."""

    def __init__(self, folder: Path, speak: Speak) -> None:
        self.speak = speak
        self.asked: Counter[str] = Counter()
        """How often each request was sent."""
        self.batches: list[int] = []
        """Requests that were sent together."""
        self.answers: dict[str, Answer] = {}
        self.stops_after: int | None = None
        """The run ends, as by an interruption, when it would send another request after so many."""
        self.is_killed = False
        """Whether the run ends as a process that is killed: what the journal has not written is lost."""
        self._folder = folder
        self._asks: dict[str, Ask] = {}

    def run(
        self, task: type[EpisodeTask[Any]], count: int = 1, roles: Sequence[str] = (), most_call_s: float | None = None
    ) -> dict[str, EpisodeEnd]:
        """Run episodes of a task about the numbers from 1, and return how each ended."""
        journal = EpisodeJournal(self._folder, task.__name__, {str(number): "" for number in range(1, count + 1)})
        episodes = Episodes(
            task(),
            tools_of(task.TOOLS, task.__name__),
            journal,
            request_of=self._request,
            reply_of=lambda _role, _request, answer: _reply(answer),
            roles=roles,
            seed=0,
            at_once=100,
            most_call_s=most_call_s,
        )
        recorded = journal.read()
        episodes.known = {
            (each.name, each.key): self.answers[each.key]
            for effects in recorded.values()
            for each in effects.values()
            if each.key in self.answers and not self.answers[each.key].get("retryable")
        }
        try:
            return {end.sample_id: end for end in episodes.run(samples(count), recorded, self._ask)}
        except KeyboardInterrupt:
            if self.is_killed:
                journal._lines.clear()
            raise
        finally:
            journal.close()

    def _request(self, _: EpisodeSample, ask: Ask) -> Request:
        turns = [message_fields(message) for message in ask.messages]
        repetition = ask.repetition if ask.temperature else 0
        name = stable_hash([ask.role, turns, list(ask.tools), ask.temperature, repetition])
        self._asks[name] = ask
        return Request(request_id=name, prompt="")

    def _ask(self, role: str, requests: Sequence[Request], _: Later) -> Answers:
        self.batches.append(len(requests))
        for request in requests:
            if self.stops_after is not None and sum(self.asked.values()) >= self.stops_after:
                raise KeyboardInterrupt
            name = request.request_id
            if name in self.answers and not self.answers[name].get("retryable"):
                continue  # it is in the cache
            self.asked[name] += 1
            said = self.speak(self._asks[name])
            if isinstance(said, Reply):
                calls = tuple(f"{call.name}|{call.arguments_text}" for call in said.tool_calls)
                said = ModelResponse(text=(said.text,), finish_reason=("stop",), tool_calls=(calls,))
            self.answers[name] = cast(Answer, {**response_row(name, said, "v"), "retryable": said.retryable})
        return {(role, request.request_id): self.answers[request.request_id] for request in requests}


def samples(count: int) -> list[EpisodeSample]:
    """Questions about the numbers from 1."""
    return [
        EpisodeSample(sample_id=str(n), messages=[Message(Role.USER, f"Count to {n}.")], ground_truths=[str(n)], context=None, subject="")
        for n in range(1, count + 1)
    ]


def says(text: str = "", **calls: str) -> Reply:
    """An answer of the model, which calls tools with these arguments."""
    return Reply(text=text, tool_calls=[ToolCall(call_id="", name=name, arguments_text=given) for name, given in calls.items()])


def _reply(answer: Answer) -> Reply:
    calls = [each.partition("|") for each in (answer["tool_calls"] or [[]])[0]]
    return Reply(text=answer["text"][0], tool_calls=[ToolCall(call_id="", name=name, arguments_text=given) for name, _, given in calls])
