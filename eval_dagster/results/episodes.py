"""The course of an episode as people read it: what was said and called, step by step."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
    is_wrong: bool = False
    """Whether a metric names it as the first wrong call."""


_WRONG_CALL = re.compile(r"(?:turn (\d+), )?call (\d+): ")
"""The beginning of an explanation that names a call."""


def steps_of(episode: str | None) -> list[Step]:
    """The steps of the column `episode` of `responses`. Empty for a single question."""
    if episode is None:
        return []
    course = json.loads(episode)
    made = {each["call_id"] for each in course["tool_calls"]}
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
        for call in answer.get("tool_calls", ()):
            if call["call_id"] not in made:  # the task only reads it
                found.append(Step(who=f"{call['name']}({call['arguments_text']})", text="", is_call=True))
    return found


def marked(steps: Sequence[Step], explanations: Iterable[str | None]) -> list[Step]:
    """The steps, of which one is marked if an explanation names a call as wrong: `call 2: ...` of the episode, or `turn 3, call 2: ...`.

    A turn begins with what a user says.
    """
    wrong = next((found for text in explanations if text and (found := _WRONG_CALL.match(text))), None)
    if wrong is None:
        return list(steps)
    wanted_turn, wanted_call = int(wrong[1] or 0), int(wrong[2])
    turn = calls = 0
    for position, step in enumerate(steps):
        if step.who == "user" and (position == 0 or steps[position - 1].who != "user"):
            turn, calls = turn + 1, 0 if wanted_turn else calls
        calls += step.is_call
        if step.is_call and calls == wanted_call and turn == (wanted_turn or turn):
            return [*steps[:position], replace(step, is_wrong=True), *steps[position + 1 :]]
    return list(steps)


def parting(one: Sequence[Step], other: Sequence[Step]) -> int | None:
    """The position of the first step in which two episodes differ. None if they do not."""
    for position in range(max(len(one), len(other))):
        pair = [each[position] if position < len(each) else None for each in (one, other)]
        if pair[0] is None or pair[1] is None or (pair[0].who, pair[0].text) != (pair[1].who, pair[1].text):
            return position
    return None
