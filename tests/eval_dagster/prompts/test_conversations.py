"""Requests of conversations: one that goes on is written as one that is written anew."""

from random import Random
from typing import Any

import pytest

from eval_dagster.errors import DataError
from eval_dagster.prompts.conversations import Conversations
from eval_dagster.prompts.formatters import ConcatFormatter, ConversationFormatter, IdentityFormatter, Llama3Formatter
from eval_dagster.prompts.rendering import Rendering, named
from eval_dagster.records import Message, Role, ToolCall, Turn
from eval_dagster.tasks.base import BaseTask, Formatter


class Talk(BaseTask[str]):
    """A task whose hooks are not called."""

    NAME = "Talk"


FORMATTERS: dict[str, Formatter] = {
    "plain": ConcatFormatter(),
    "identity": IdentityFormatter(),
    "llama3": Llama3Formatter(),
    "sent": ConversationFormatter(),
    "merged": ConversationFormatter("merge"),
}
TEXTS = ("", " ", "Say:", "a\n", "\n b", 'with "quotes" and "messages":null', '"prompt":null', "\ud800", "ä\u2028")


def _message(chance: Random) -> Message:
    role, text = chance.choice([Role.USER, Role.ASSISTANT, Role.SYSTEM, Role.TOOL]), chance.choice(TEXTS)
    if role is Role.TOOL:
        return Turn(role, text, (), f"c{chance.randint(0, 9)}")
    if role is Role.ASSISTANT and chance.random() < 0.5:
        calls = [ToolCall(call_id=f"c{n}", name="look", arguments_text=chance.choice(TEXTS)) for n in range(chance.randint(1, 2))]
        return Turn(role, text, tuple(calls))
    return Message(role, text)


@pytest.mark.parametrize("name", FORMATTERS)
def test_a_conversation_that_goes_on_asks_as_one_that_is_written_anew(name: str) -> None:
    chance = Random(5)
    grown = Conversations(Rendering(task=Talk(), formatter=FORMATTERS[name]), is_scripted=True)
    asked: dict[str, list[Message]] = {"one": [], "other": []}
    for _ in range(300):
        talk = chance.choice(list(asked))
        if chance.random() < 0.1:  # another branch, or the next run
            asked[talk] = asked[talk][: chance.randint(0, len(asked[talk]))]
        asked[talk] = [*asked[talk], *(_message(chance) for _ in range(chance.randint(1, 3)))]
        if chance.random() < 0.05:
            grown.end(talk)
        settings: dict[str, Any] = {"tools": ('{"function": {"name": "look"}}',)} if chance.random() < 0.5 else {}
        if chance.random() < 0.3:
            settings |= {"temperature": 0.5, "repetition": chance.randint(0, 2), "stop_sequences": (chance.choice(TEXTS[1:]),)}
        anew = Conversations(Rendering(task=Talk(), formatter=FORMATTERS[name]), is_scripted=True)
        request = grown.request(asked[talk], conversation=talk, **settings)
        assert request == anew.request(asked[talk], **settings)
        assert request.request_id == named(request).request_id


def test_what_a_conversation_shares_with_the_request_before_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    whole = ConcatFormatter.format

    def counted(self: ConcatFormatter, messages: Any, *, images: int = 0) -> str:
        seen.append(len(messages))
        return whole(self, messages, images=images)

    monkeypatch.setattr(ConcatFormatter, "format", counted)
    talk = Conversations(Rendering(task=Talk(), formatter=ConcatFormatter()))
    messages = [Message(Role.USER, f"{number}") for number in range(40)]
    talk.request(messages[:39], conversation="one")
    seen.clear()
    talk.request(messages, conversation="one")
    assert max(seen) == 2
    talk.end("one")
    talk.request(messages, conversation="one")
    assert max(seen) == 40


def test_a_request_without_a_message_is_an_error() -> None:
    with pytest.raises(DataError, match="without a message"):
        Conversations(Rendering(task=Talk(), formatter=ConcatFormatter())).request([])


def test_repetitions_leave_nothing_in_the_memory() -> None:
    conversations = Conversations(Rendering(task=Talk(), formatter=ConcatFormatter()), is_scripted=True)
    asked = [Message(Role.USER, "Draw a number.")]
    ids = {conversations.request(asked, temperature=0.5, repetition=number).request_id for number in range(50)}
    assert len(ids) == 50
    assert len(conversations._frames) == 1
