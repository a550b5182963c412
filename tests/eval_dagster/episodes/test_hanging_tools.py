"""A tool that hangs ends its episode alone, by a limit of the task or by the time of users' code."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_episodes import World, says

from eval_dagster import EpisodeTask, Role, effect
from eval_dagster.episodes.episode import Ask
from eval_dagster.tasks.episodes import Reply


class Told(EpisodeTask[Any]):
    """A task with a name."""

    NAME = "Told"


class Wait:
    """Something that a tool waits for."""

    over = threading.Event()
    calls = 0


def hang(number: int) -> str:
    """Wait for what may never come."""
    Wait.calls += 1
    if number == 2:
        Wait.over.wait(60)
    return "done"


async def hang_asleep(number: int) -> str:
    """Wait, as code that calls a service."""
    Wait.calls += 1
    if number == 2:
        await asyncio.sleep(60)
    return "done"


@effect
def hang_with_effect(number: int) -> str:
    """Wait after something has happened."""
    return hang(number)


@pytest.fixture
def _waits() -> Iterator[None]:
    Wait.over.clear()
    Wait.calls = 0
    yield
    Wait.over.set()


def _hanging(ask: Ask) -> Reply:
    """A model that calls the only tool with the number of its question, and says what it got."""
    told = [message.content for message in ask.messages if message.role is Role.TOOL]
    name = json.loads(ask.tools[0])["function"]["name"]
    number = ask.messages[0].content.split()[-1].strip(".")
    return says(told[-1]) if told else says("I wait", **{name: json.dumps({"number": int(number)})})


@pytest.mark.usefixtures("_waits")
@pytest.mark.parametrize("tool", [hang, hang_asleep, hang_with_effect])
def test_a_tool_that_hangs_ends_its_episode_alone_at_the_limit_of_the_task(tmp_path: Path, tool: Any) -> None:
    made: type[Told] = type("Hanging", (Told,), {"MAX_TOOL_SECONDS": 0.3, "TOOLS": (tool,)})
    world = World(tmp_path, _hanging)
    ends = world.run(made, 3)
    assert {name: (end.status, end.reply and end.reply.text) for name, end in ends.items()} == {
        "1": ("done", "done"),
        "2": ("seconds", "I wait"),
        "3": ("done", "done"),
    }
    calls, asked = Wait.calls, world.asked.total()
    again = world.run(made, 3)
    assert {name: (end.status, end.reply) for name, end in again.items()} == {name: (end.status, end.reply) for name, end in ends.items()}
    assert world.asked.total() == asked
    assert (again["2"].status, Wait.calls - calls) == ("seconds", 0 if tool is hang_with_effect else 2), "pure tools are compared"


@pytest.mark.usefixtures("_waits")
@pytest.mark.parametrize("tool", [hang, hang_asleep, hang_with_effect])
def test_a_tool_that_hangs_is_an_error_after_the_time_of_users_code(tmp_path: Path, tool: Any) -> None:
    made: type[Told] = type("Hanging", (Told,), {"TOOLS": (tool,)})
    world = World(tmp_path, _hanging)
    ends = world.run(made, 3, most_call_s=0.3)
    assert [(end.status, end.retryable) for end in map(ends.get, "123") if end] == [("done", False), ("error", False), ("done", False)]
    name = "hang_with_effect" if tool is hang_with_effect else tool.__name__
    assert ends["2"].error == f"TimeoutError: the tool {name} took longer than 0.3 s, the most that code_timeout in evals.yaml allows"
    again = world.run(made, 3, most_call_s=0.3)["2"]
    assert again.status == ("interrupted" if tool is hang_with_effect else "error"), "what may have happened is not repeated"


class Slow:
    """Tools that are not made in time."""

    def __init__(self) -> None:
        Wait.over.wait(60)

    def look(self, number: int) -> str:
        """Look."""
        return str(number)


@pytest.mark.usefixtures("_waits")
def test_tools_that_are_not_made_in_time_are_the_error_of_their_episode(tmp_path: Path) -> None:
    made: type[Told] = type("Hanging", (Told,), {"TOOLS": (Slow,), "MAX_TOOL_SECONDS": 5})
    (end,) = World(tmp_path, _hanging).run(made, 1, most_call_s=0.3).values()
    assert end.status == "error"
    assert end.error == "TimeoutError: Slow was not made within 0.3 s, the most that code_timeout in evals.yaml allows"
