"""Prompts as lighteval assembles them from a `Doc` and its examples."""

from collections.abc import Sequence
from typing import cast

from eval_dagster.records import Message, Role
from eval_dagster.tasks.doc import Doc

_ANSWER = cast(Role, str(Role.ASSISTANT.value))
"""The role of an example's answer. It is a text equal to the role. So a chat template gets the answer with its leading white space, which
formatters remove for `Role.ASSISTANT`."""


def plain_prompt(doc: Doc, examples: Sequence[Doc]) -> str:
    """Instruction, examples and query with a blank line between them. An answer follows its query after a space."""
    instruction = [] if doc.instruction is None else [doc.instruction]
    shown = [f"{query_of(example)} {example.get_golds()[0].strip()}" for example in examples]
    return "\n\n".join([*instruction, *shown, query_of(doc)])


def chat_messages(doc: Doc, examples: Sequence[Doc]) -> list[Message]:
    """A turn for each query and each example's answer. The instruction opens the first turn, with nothing after it."""
    messages = []
    for example in examples:
        messages += [Message(Role.USER, query_of(example)), Message(_ANSWER, example.get_golds()[0])]
    messages.append(Message(Role.USER, query_of(doc)))
    first = messages[0]
    return [Message(first.role, f"{doc.instruction or ''}{first.content}"), *messages[1:]]


def query_of(doc: Doc) -> str:
    """The query; an instruction at its beginning is removed, and the rest stripped."""
    if doc.instruction is not None and doc.query.startswith(doc.instruction):
        return doc.query.removeprefix(doc.instruction).strip()
    return doc.query
