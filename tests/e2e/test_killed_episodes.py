"""`kill -9` of runs of episodes: what was answered is not asked again, and the tables are those of a run that nobody disturbed."""

import random
import time
from pathlib import Path

import pytest
from episode_runs import asked, start
from few import few

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


@pytest.mark.timeout(1500)
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
