"""The course of an episode as people read it: what was said and called, step by step."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from eval_dagster.records import SUBJECT


@dataclass(frozen=True, kw_only=True)
class Step:
    """A message, an answer or a call of a tool."""

    who: str
    """The speaker, or the tool with its arguments."""
    text: str
    is_call: bool = False
    error: str | None = None
    """The error. Null if there is none."""
    seconds: float | None = None


def steps_of(episode: str | None) -> list[Step]:
    """The steps of the column `episode` of `responses`. Empty for a single question."""
    if episode is None:
        return []
    course = json.loads(episode)
    found: list[Step] = []
    for each in sorted([*course["turns"], *course["tool_calls"]], key=lambda each: each["number"]):
        if "role" not in each:
            called = f"{each['name']}({each['arguments']})"
            found.append(Step(who=called, text=each["result"] or "", is_call=True, error=each["error"], seconds=each["seconds"]))
            continue
        to = "" if each["role"] == SUBJECT else f" to {each['role']}"
        told = [message for message in each["new_messages"] if message["role"] in ("system", "user")]
        found += [Step(who=f"{message['role']}{to}", text=message["content"]) for message in told]
        answer = each["answer"] or {}
        who = "model" if each["role"] == SUBJECT else each["role"]
        if answer.get("content") or each["error"] is not None:
            found.append(Step(who=who, text=answer.get("content", ""), error=each["error"], seconds=each["latency_s"]))
    return found


def parting(one: Sequence[Step], other: Sequence[Step]) -> int | None:
    """The position of the first step in which two episodes differ. None if they do not."""
    for position in range(max(len(one), len(other))):
        pair = [each[position] if position < len(each) else None for each in (one, other)]
        if pair[0] is None or pair[1] is None or (pair[0].who, pair[0].text) != (pair[1].who, pair[1].text):
            return position
    return None
