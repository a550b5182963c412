from collections.abc import Iterator, Sequence

import pytest

from eval_dagster.errors import ModelError
from eval_dagster.models.base import Model
from eval_dagster.prompts.formatters import (
    ChatTemplateFormatter,
    ConcatFormatter,
    Formatter,
    IdentityFormatter,
    Llama3Formatter,
    formatter_for,
)
from eval_dagster.records import Message, ModelResponse, Request, Role

SYSTEM = Message(Role.SYSTEM, "Be brief.")
EXAMPLE = [Message(Role.USER, "Q: 1+1?\nA:"), Message(Role.ASSISTANT, " 2")]
QUESTION = Message(Role.USER, "Q: 2+2?\nA:")


class BracketHandle:
    """A model handle whose template writes `[role]content` and leaves a cue open."""

    def __init__(self, version: str = "1") -> None:
        self._version = version

    def check(self) -> None: ...

    def version(self) -> str:
        return "weights"

    def image_mark(self) -> str:
        return "<image>"

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0) -> str:
        text = f"{images} images " * bool(images) + "".join(f"[{message.role}]{message.content}" for message in messages)
        return text if messages[-1].role is Role.ASSISTANT else f"{text}[assistant]"

    def template_version(self) -> str:
        return self._version

    def load(self) -> Model:
        class Mute:
            def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
                return iter(())

            def usage(self) -> tuple[()]:
                return ()

        return Mute()


def test_plain_text_parts_turns_by_a_blank_line_and_joins_answers() -> None:
    assert ConcatFormatter().format([SYSTEM, *EXAMPLE, QUESTION]) == "Be brief.\n\nQ: 1+1?\nA: 2\n\nQ: 2+2?\nA:"


@pytest.mark.parametrize(
    ("question", "answer", "joined"),
    [
        ("Answer:", " C", "Answer: C"),
        ("Answer: ", "C", "Answer: C"),
        ("Answer:", "C", "Answer: C"),
        ("Answer:\n", "C", "Answer:\nC"),
        ("Why?", "Answer: So", "Why?\nAnswer: So"),
        ("Why?", " So", "Why? So"),
        ("Why?\n", "Answer:", "Why?\nAnswer:"),
    ],
)
def test_plain_text_fills_the_gap_that_two_turns_leave(question: str, answer: str, joined: str) -> None:
    assert ConcatFormatter().format([Message(Role.USER, question), Message(Role.ASSISTANT, answer)]) == joined


def test_plain_text_has_nothing_after_a_cue() -> None:
    assert ConcatFormatter().format([Message(Role.USER, "Why?"), Message(Role.ASSISTANT, "Because")]) == "Why?\nBecause"
    assert ConcatFormatter().format([]) == ""


def test_identity_changes_nothing() -> None:
    assert IdentityFormatter().format([SYSTEM, *EXAMPLE, QUESTION]) == "Be brief.Q: 1+1?\nA: 2Q: 2+2?\nA:"


def test_llama3_opens_the_assistants_turn() -> None:
    start, end = "<|start_header_id|>", "<|end_header_id|>\n\n"
    assert Llama3Formatter().format([SYSTEM, *EXAMPLE, QUESTION]) == (
        f"<|begin_of_text|>{start}system{end}Be brief.<|eot_id|>{start}user{end}Q: 1+1?\nA:<|eot_id|>"
        f"{start}assistant{end}2<|eot_id|>{start}user{end}Q: 2+2?\nA:<|eot_id|>{start}assistant{end}"
    )
    cued = Llama3Formatter().format([QUESTION, Message(Role.ASSISTANT, "Answer:")])
    assert cued == f"<|begin_of_text|>{start}user{end}Q: 2+2?\nA:<|eot_id|>{start}assistant{end}Answer:"


def test_a_chat_template_is_the_models_and_answers_lose_their_leading_space() -> None:
    formatter = ChatTemplateFormatter(BracketHandle())
    assert formatter.format([*EXAMPLE, QUESTION]) == "[user]Q: 1+1?\nA:[assistant]2[user]Q: 2+2?\nA:[assistant]"
    assert formatter.format([QUESTION, Message(Role.ASSISTANT, "Answer:")]) == "[user]Q: 2+2?\nA:[assistant]Answer:"


def test_formats_have_names_versions_and_say_whether_they_bring_special_tokens() -> None:
    formatters = {name: formatter_for(name, BracketHandle()) for name in ("plain", "chat", "llama3", "identity")}
    assert [formatter.name for formatter in formatters.values()] == list(formatters)
    assert {name for name, formatter in formatters.items() if formatter.has_special_tokens} == {"chat", "llama3"}
    assert len({formatter.version() for formatter in formatters.values()}) == 4
    assert ChatTemplateFormatter(BracketHandle("1")).version() != ChatTemplateFormatter(BracketHandle("2")).version()


@pytest.mark.parametrize(
    ("formatter", "prompt"),
    [
        (ConcatFormatter(BracketHandle()), "Q: 1+1?\nA: 2\n\n<image><image>Q: 2+2?\nA:"),
        (IdentityFormatter(BracketHandle()), "Q: 1+1?\nA: 2<image><image>Q: 2+2?\nA:"),
        (ChatTemplateFormatter(BracketHandle()), "2 images [user]Q: 1+1?\nA:[assistant]2[user]Q: 2+2?\nA:[assistant]"),
    ],
)
def test_images_stand_before_the_text_of_the_last_user_turn(formatter: Formatter, prompt: str) -> None:
    assert formatter.format([*EXAMPLE, QUESTION], images=2) == prompt


def test_images_need_a_model() -> None:
    with pytest.raises(ModelError, match="needs a model that takes them"):
        ConcatFormatter().format([QUESTION], images=1)
