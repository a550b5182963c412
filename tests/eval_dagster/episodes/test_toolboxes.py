"""Tools that depend on the sample: a `Toolbox` gets every call, and is rebuilt by its calls."""

from pathlib import Path
from typing import Any

import pytest
from running_episodes import World, says

from eval_dagster import EpisodeTask, Role, Toolbox
from eval_dagster.episodes.episode import Ask
from eval_dagster.episodes.tools import definitions, tools_of
from eval_dagster.errors import MachineError, TaskDefinitionError
from eval_dagster.tasks.episodes import EpisodeSample, Reply

MADE: list[str] = []
"""The samples of the boxes that were made."""
CALLED: list[str] = []


def price(item: str) -> float:
    """The price of an item."""
    return {"apple": 2.0}[item]


class Box(Toolbox):
    """Remembers what is put into it."""

    def __init__(self, sample: EpisodeSample) -> None:
        MADE.append(sample.sample_id)
        self.names: list[str] = []

    def call(self, name: str, arguments: dict[str, object]) -> object:
        if name == "broken":
            raise MachineError("the process of the box ended")
        CALLED.append(name)
        self.names.append(f"{name} {arguments}")
        return self.names


class Boxed(EpisodeTask[Any]):
    NAME = "Boxed"
    TOOLS = (Box, price)


@pytest.fixture(autouse=True)
def _nothing_made() -> None:
    MADE.clear()
    CALLED.clear()


def speak(ask: Ask) -> Reply:
    """A model that puts three things into its box, asks for a price in between, and says what it was told."""
    told = [message.content for message in ask.messages if message.role is Role.TOOL]
    steps = [{"put": '{"what": 1}'}, {"price": '{"item": "apple"}'}, {"take": "{}"}, {"put": "[1]"}]
    return says("", **steps[len(told)]) if len(told) < len(steps) else says("|".join(told))


def test_it_gets_every_call_that_no_other_tool_has(tmp_path: Path) -> None:
    ends = World(tmp_path, speak).run(Boxed, 2)
    put, cost, take, wrong = str(ends["2"].reply and ends["2"].reply.text).split("|")
    assert (put, cost) == ("""["put {'what': 1}"]""", "2.0")
    assert take == """["put {'what': 1}","take {}"]"""
    assert wrong.startswith("Error: the arguments are no JSON object")
    assert sorted(set(MADE)) == ["1", "2"]
    assert [each.details["kind"] for each in ends["1"].effects if each.kind == "tool"] == ["stateful", "pure", "stateful", None]


def test_it_is_rebuilt_by_its_calls_when_an_episode_goes_on(tmp_path: Path) -> None:
    whole = World(tmp_path / "whole", speak).run(Boxed)
    world = World(tmp_path / "cut", speak)
    world.stops_after = 2
    with pytest.raises(KeyboardInterrupt):
        world.run(Boxed)
    world.stops_after = None
    MADE.clear()
    CALLED.clear()
    [end] = world.run(Boxed).values()
    assert end.reply == whole["1"].reply
    assert CALLED[:2] == ["put", "take"]
    CALLED.clear()
    world.run(Boxed)
    assert not CALLED, "a finished episode is not called again"


def test_a_failure_of_the_machine_is_not_told_to_the_model(tmp_path: Path) -> None:
    def breaking(ask: Ask) -> Reply:
        assert not any(message.role is Role.TOOL for message in ask.messages)
        return says("", broken="{}")

    [end] = World(tmp_path, breaking).run(Boxed).values()
    assert (end.status, end.retryable) == ("error", True)
    assert "the process of the box ended" in str(end.error)


def test_its_tools_are_not_among_the_definitions() -> None:
    assert len(definitions(tools_of(Boxed.TOOLS, "Boxed"))) == 1
    with pytest.raises(TaskDefinitionError, match="two subclasses of Toolbox"):
        tools_of((Box, type("Other", (Box,), {})), "Boxed")
