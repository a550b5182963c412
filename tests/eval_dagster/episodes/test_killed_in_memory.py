"""Runs of episodes that end at random points as killed processes do: nothing that was answered is asked again, and all else is equal."""

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from few import few
from running_episodes import World, says

from eval_dagster import EpisodeTask, Role
from eval_dagster.episodes.episode import Ask, EpisodeEnd
from eval_dagster.tasks.episodes import Reply

_TURNS = 50


class Notes:
    """A folder with notes."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())

    def write(self, name: str, text: str) -> list[str]:
        """Write a note, and return all."""
        (self.folder / name).write_text(text)
        return sorted(f"{path.name}={path.read_text()}" for path in self.folder.iterdir())


class Writing(EpisodeTask[Any]):
    """The model writes notes, and sees all of them after each."""

    NAME = "Writing"
    TOOLS = (Notes,)


def _writer(ask: Ask) -> Reply:
    turn = sum(message.role is Role.TOOL for message in ask.messages)
    if turn == _TURNS - 1:
        return says(f"done after {ask.messages[-1].content}")
    return says("", write=f'{{"name": "note{turn % 7}", "text": "{turn}"}}')


def _told(ends: dict[str, EpisodeEnd]) -> dict[str, object]:
    return {
        name: (end.status, end.reply, [(each.place, each.kind, each.name, each.key, each.value) for each in end.effects])
        for name, end in ends.items()
    }


@pytest.mark.timeout(1200)
@few("kills", [12, 800], kept=1)
def test_runs_that_are_killed_at_random_points_end_as_one_that_nobody_disturbed(
    kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    calm = World(tmp_path / "calm", _writer)
    expected = _told(calm.run(Writing, 3))
    assert sum(calm.asked.values()) == 3 * _TURNS

    chance, done, whole = random.Random(20261130), 0, 0
    while done < kills:
        world = World(tmp_path / f"{whole}", _writer)
        world.is_killed = True
        while True:
            world.stops_after = sum(world.asked.values()) + chance.randint(1, 25) if done < kills else None
            try:
                ends = world.run(Writing, 3)
                break
            except KeyboardInterrupt:
                done += 1
                if chance.random() < 0.2:  # the machine loses the end of what it was writing
                    for journal in (tmp_path / f"{whole}").glob("*.journal"):
                        journal.write_bytes(journal.read_bytes()[: -chance.randint(1, 200)])
        assert _told(ends) == expected
        assert world.asked == calm.asked, "each request is asked once"
        whole += 1
    assert done == kills
