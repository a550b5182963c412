import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from eval_dagster.config.models import SystemRole, TransformersModel
from eval_dagster.errors import ModelError
from eval_dagster.models.base import Model, ModelHandle
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.prompts.formatters import (
    ChatTemplateFormatter,
    ConcatFormatter,
    ConversationFormatter,
    IdentityFormatter,
    Llama3Formatter,
    formatter_for,
    verbatim,
)
from eval_dagster.records import Message, ModelResponse, Request, Role
from eval_dagster.tasks.base import Formatter

SYSTEM = Message(Role.SYSTEM, "Be brief.")
EXAMPLE = [Message(Role.USER, "Q: 1+1?\nA:"), Message(Role.ASSISTANT, " 2")]
QUESTION = Message(Role.USER, "Q: 2+2?\nA:")


class BracketHandle(ModelHandle):
    """A model handle whose template writes `[role]content` and leaves a cue open."""

    def __init__(self, version: str = "1") -> None:
        self._version = version

    def check(self) -> None: ...

    def version(self) -> str:
        return "weights"

    def content_version(self) -> str:
        return "weights"

    def image_mark(self) -> str:
        return "<image>"

    def apply_chat_template(self, messages: Sequence[Message], *, images: int = 0) -> str:
        text = f"{images} images " * bool(images) + "".join(f"[{message.role}]{message.content}" for message in messages)
        return text if messages[-1].role is Role.ASSISTANT else f"{text}[assistant]"

    def template_version(self) -> str:
        return self._version

    def load(self) -> Model:
        class Mute(Model):
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


TURN = "[{{ message['role'] }}]{{ message['content'] }}"
TEMPLATES = {
    "has the role": "{% for message in messages %}" + TURN + "{% endfor %}[assistant]",
    "refuses it": (
        "{% for message in messages %}{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        + TURN
        + "{% endfor %}[assistant]"
    ),
    "leaves it out": "{% for message in messages %}{% if message['role'] != 'system' %}" + TURN + "{% endif %}{% endfor %}[assistant]",
}
ASKED = [SYSTEM, *EXAMPLE, QUESTION]
OWN = "[system]Be brief.[user]Q: 1+1?\nA:[assistant]2[user]Q: 2+2?\nA:[assistant]"
MERGED = "[user]Be brief.\n\nQ: 1+1?\nA:[assistant]2[user]Q: 2+2?\nA:[assistant]"


def chat(template: str, tokenizer: PreTrainedTokenizerFast, folder: Path, role: SystemRole = "auto") -> ChatTemplateFormatter:
    """The formatter of a model with a chat template."""
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATES[template])
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "model.safetensors").touch()
    config = TransformersModel.model_validate({"backend": "transformers", "source": {"folder": str(folder)}, "device": "cpu"})
    formatter = formatter_for("chat", TransformersHandle("chat", config, folder=folder, home=folder), role)
    assert isinstance(formatter, ChatTemplateFormatter)
    return formatter


@pytest.mark.parametrize(("template", "text"), [("has the role", OWN), ("refuses it", MERGED), ("leaves it out", MERGED)])
def test_a_system_message_that_a_template_has_no_turn_for_opens_the_first_turn(
    template: str, text: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    formatter = chat(template, tokenizer, tmp_path)
    assert formatter.format(ASKED) == text
    assert formatter.merges_system(ASKED) is (text == MERGED)
    assert not formatter.merges_system(ASKED[1:]), "there is nothing to merge"
    assert formatter.format(ASKED[1:]) == text.replace("[system]Be brief.", "").replace("Be brief.\n\n", "")
    assert verbatim(formatter).format(ASKED) == text.replace("[assistant]2", "[assistant] 2"), "benchmarks of other packages, too"


def test_the_way_to_write_system_messages_is_settable(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    assert chat("has the role", tokenizer, tmp_path, "merge").format(ASKED) == MERGED
    assert chat("has the role", tokenizer, tmp_path, "require").format(ASKED) == OWN
    with pytest.raises(ModelError, match=r"refuses a conversation of the turns \[system, user.*System role not supported"):
        chat("refuses it", tokenizer, tmp_path, "require").format(ASKED)
    with pytest.raises(ModelError, match=r"leaves the system message out.*`system_role: merge`"):
        chat("leaves it out", tokenizer, tmp_path, "require").format(ASKED)
    assert len({chat("has the role", tokenizer, tmp_path, role).version() for role in ("auto", "merge", "require")}) == 3


def test_messages_for_a_server_are_merged_on_request_alone() -> None:
    first = Message(Role.USER, "Be brief.\n\nQ: 1+1?\nA:")
    assert ConversationFormatter().sent(ASKED)[0] == SYSTEM
    assert ConversationFormatter("merge").sent(ASKED) == (first, Message(Role.ASSISTANT, "2"), QUESTION)
    assert ConversationFormatter("merge").format(ASKED).startswith("[user]\nBe brief.\n\nQ: 1+1?")
    cue = Message(Role.ASSISTANT, "Answer:")
    assert ConversationFormatter("merge").sent([SYSTEM, cue]) == (Message(Role.USER, "Be brief."), cue), "without a question"
