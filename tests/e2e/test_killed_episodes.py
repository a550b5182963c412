"""`kill -9` of runs of episodes: what was answered is not asked again, and the tables are those of a run that nobody disturbed."""

import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from episode_runs import TURNS, asked, note_of, start
from few import few
from servers.calling import calling_server

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import Lake

pytestmark = pytest.mark.e2e
_TABLES = (
    "select sample_id, status, result, n_turns, n_tool_calls from episodes",
    "select sample_id, number, place, request_id, new_messages, text from turns",
    "select sample_id, number, call_id, arguments, result, error from tool_calls",
    "select sample_id, metric, value from scores order by all",
)


def _tables(folder: Path) -> list[object]:
    lake = Lake(folder / "home")
    return [read_rows(lake, query) for query in _TABLES]


@pytest.mark.long
@pytest.mark.timeout(7200)
@few("kills", [3, 200], kept=1)
def test_killed_again_and_again_episodes_are_those_of_an_undisturbed_run(kills: int, tmp_path: Path) -> None:
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    undisturbed = start(calm)
    undisturbed.join()
    assert undisturbed.exitcode == 0
    assert len(asked(calm)) == len(set(asked(calm))) == 150

    chance, done, whole = random.Random(20261129), 0, 0
    while done < kills:
        folder = killed.with_name(f"killed-{whole}")
        before = len(asked(folder))
        process = start(folder, is_last=False)
        wanted = before + chance.randint(1, 25)
        while process.is_alive() and len(asked(folder)) < wanted:
            time.sleep(0.002)
        if process.is_alive() and done < kills:
            process.kill()
            done += 1
        process.join()
        if process.exitcode == 0:
            whole += 1
    for number in range(whole + 1):
        last = start(killed.with_name(f"killed-{number}"))
        last.join()
        assert last.exitcode == 0
    for number in range(whole + 1):
        folder = killed.with_name(f"killed-{number}")
        sent = asked(folder)
        assert set(sent) == set(asked(calm))
        assert _tables(folder) == _tables(calm)
        assert not list((folder / "home" / "episodes").rglob("*.journal"))
    repeated = sum(len(asked(killed.with_name(f"killed-{number}"))) - 150 for number in range(whole + 1))
    assert repeated <= kills, "at a kill one request is under way, since the model answers one after the other"


_UNDER_WAY = 8
"""Requests that are under way at a server at once."""


@pytest.mark.long
@pytest.mark.timeout(7200)
@few("kills", [3, 200], kept=1)
def test_what_a_server_answered_is_not_asked_again_after_a_kill(kills: int, tmp_path: Path) -> None:
    with calling_server(note_of) as server:
        server.say = lambda _episode, _turn: time.sleep(0.003)
        server.models = ["calm", *(f"killed-{number}" for number in range(kills + 1))]

        def begin(folder: Path, *, is_last: bool = True) -> BaseProcess:
            section = f'base_url: "{server.url}", model: {folder.name}, concurrency: {_UNDER_WAY}'
            return start(
                folder,
                is_last=is_last,
                writer=f"{{backend: openai, {section}, prompt_format: chat, canaries: 0}}",
            )

        calm = tmp_path / "calm"
        undisturbed = begin(calm)
        undisturbed.join()
        assert undisturbed.exitcode == 0
        every = sorted((episode, turn) for episode in range(3) for turn in range(TURNS))
        assert sorted(server.asked_of["calm"]) == every

        chance, done, whole = random.Random(20261130), 0, 0
        while done < kills:
            folder = tmp_path / f"killed-{whole}"
            wanted = len(server.asked_of[folder.name]) + chance.randint(1, 25)
            process = begin(folder, is_last=False)
            while process.is_alive() and len(server.asked_of[folder.name]) < wanted:
                time.sleep(0.002)
            if process.is_alive() and done < kills:
                process.kill()
                done += 1
            process.join()
            whole += process.exitcode == 0
        folders = [tmp_path / f"killed-{number}" for number in range(whole + 1)]
        for folder in folders:
            last = begin(folder)
            last.join()
            assert last.exitcode == 0
            assert sorted(set(server.asked_of[folder.name])) == every
            assert _tables(folder) == _tables(calm)
            assert not list((folder / "home" / "episodes").rglob("*.journal"))
        repeated = sum(len(server.asked_of[folder.name]) - len(every) for folder in folders)
        assert repeated <= 3 * kills, "the three episodes have one request under way each"
