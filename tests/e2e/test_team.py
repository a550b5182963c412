"""A team's own instance on a real PostgreSQL: `run` and `run --launch` give the tables of the built-in instance, whatever is killed."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from servers.postgres import Postgres, running_postgres
from teams import Team, differences
from ui_servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

RUN_S = 400
SUITE = ("--suite", "nightly")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The tables of a run on the built-in instance."""
    team = Team(tmp_path_factory.mktemp("plain") / "team", None)
    done = team.run(*SUITE)
    assert done.returncode == 0, done.stderr
    return team.tables()


@pytest.fixture
def make(tmp_path: Path, postgres: Postgres) -> Iterator[Callable[..., Team]]:
    teams: list[Team] = []

    def start(name: str, **settings: Any) -> Team:
        teams.append(Team(tmp_path / name, postgres, **settings))
        return teams[-1]

    yield start
    for team in teams:
        team.stop()


def runs(team: Team, postgres: Postgres) -> dict[str, tuple[str, str]]:
    """The status and the model of each run of a suite's job, by id."""
    database = team.variables["TEAM_DAGSTER"].rpartition("/")[2]
    query = """
        select runs.run_id, status, value
        from runs join run_tags on runs.run_id = run_tags.run_id and key = 'eval_dagster/model'
        where pipeline_name = 'suite_nightly'
    """
    return {run_id: (status, model) for run_id, status, model in postgres.query(query, database)}


def spans(team: Team) -> dict[int, tuple[str, float, float]]:
    """For each process that asked: the model, and when it asked first and last."""
    found: dict[int, tuple[str, float, float]] = {}
    for at, process, model, _ in team.asked():
        found[process] = (model, found.get(process, (model, at, at))[1], at)
    return found


def test_a_command_on_postgresql_gives_the_tables_of_the_built_in_instance(make: Callable[..., Team], plain: dict[str, list[str]]) -> None:
    team = make("in_process")
    done = team.run(*SUITE)
    assert done.returncode == 0, done.stderr
    assert differences(plain, team.tables()) == {}
    again = team.run(*SUITE)
    assert again.returncode == 0, again.stderr
    assert "Nothing to recompute" in again.stdout


def test_two_models_run_at_once_and_one_model_never_twice(make: Callable[..., Team], plain: dict[str, list[str]]) -> None:
    """The command is on another machine than the runs: it has a home of its own, and shares the lake at a URL."""
    team = make("launched")
    (team.folder / "shared").mkdir()
    team.variables["EVAL_DAGSTER_LAKE"] = f"file://{team.folder}/shared"
    laptop = team.folder / "laptop"
    team.serve(answer_s=0.3)
    other = team.start("other", "-m", "eval_dagster.cli", "run", "--eval", "sums", "--launch")
    done = team.run(*SUITE, "--launch", more={"EVAL_DAGSTER_HOME": str(laptop)})
    assert done.returncode == 0, done.stderr
    assert "Gate      nightly: First results" in done.stdout
    assert differences(plain, team.tables(laptop)) == {}
    assert other.wait(RUN_S) == 0, team.printed("other")
    assert team.asked_again() == 0
    by_model: dict[str, list[tuple[float, float]]] = {}
    for model, first, last in spans(team).values():
        by_model.setdefault(model, []).append((first, last))
    assert all(earlier[1] < later[0] for times in by_model.values() for earlier, later in pairwise(sorted(times)))
    (nines_from, nines_to), (sevens_from, sevens_to) = (sorted(by_model[model])[0] for model in ("nines", "sevens"))
    assert max(nines_from, sevens_from) < min(nines_to, sevens_to), "both models were at work at the same time"


def test_a_run_that_is_killed_is_marked_as_failed_and_nothing_is_asked_again(
    make: Callable[..., Team], postgres: Postgres, plain: dict[str, list[str]]
) -> None:
    team = make("killed")
    team.serve(answer_s=0.5)
    launched = team.start("launched", "-m", "eval_dagster.cli", "run", *SUITE, "--launch")
    until(lambda: len([each for each in team.asked() if each[2] == "nines"]) > 5, RUN_S, lambda: team.printed("launched"))
    process = next(process for process, (model, _, _) in spans(team).items() if model == "nines")
    psutil.Process(process).send_signal(signal.SIGKILL)

    def failed() -> bool:
        return {("FAILURE", "nines"), ("SUCCESS", "sevens")} == set(runs(team, postgres).values())

    until(failed, RUN_S, lambda: f"{runs(team, postgres)}\n{team.printed('daemon')}")
    assert launched.wait(RUN_S) == 1
    assert re.search(r"failed outside its steps: .*(SIGKILL|exit code -9|was killed)", team.printed("launched")), team.printed("launched")
    done = team.run(*SUITE, "--launch")
    assert done.returncode == 0, done.stderr
    assert differences(plain, team.tables()) == {}
    assert team.asked_again() <= 1, "one answer was under way"


@pytest.mark.parametrize("launch", [(), ("--launch",)], ids=["in process", "launched"])
def test_postgresql_restarts_in_the_middle(
    launch: tuple[str, ...], make: Callable[..., Team], postgres: Postgres, plain: dict[str, list[str]]
) -> None:
    team = make(f"restart{len(launch)}")
    if launch:
        team.serve(answer_s=0.3)
    command = team.start("command", "-m", "eval_dagster.cli", "run", *SUITE, *launch, more={"ANSWER_S": "0.3"})
    until(lambda: len(team.asked()) > 8, RUN_S, lambda: team.printed("command"))
    postgres.restart(down_s=2.0)
    status = command.wait(RUN_S)
    if status != 0:
        printed = team.printed("command")
        assert "Traceback" not in printed, printed
        assert "Dagster's" in printed or "failed" in printed, printed
    until(lambda: not launch or all(status in ("SUCCESS", "FAILURE") for status, _ in runs(team, postgres).values()), RUN_S, lambda: "")
    done = team.run(*SUITE)
    assert done.returncode == 0, done.stderr
    assert differences(plain, team.tables()) == {}
    assert team.asked_again() == 0


def test_following_can_be_stopped_taken_up_and_canceled(make: Callable[..., Team], postgres: Postgres) -> None:
    team = make("followed")
    team.serve(answer_s=4.0)
    follower = team.start("follower", "-m", "eval_dagster.cli", "run", *SUITE, "--launch")
    until(lambda: len(team.asked()) > 3, RUN_S, lambda: team.printed("follower"))
    os.kill(follower.pid, signal.SIGINT)
    assert follower.wait(60) != 0
    assert "The runs go on" in team.printed("follower")
    first = set(runs(team, postgres))
    again = team.start("again", "-m", "eval_dagster.cli", "run", *SUITE, "--launch")
    until(lambda: "in the queue of Dagster" in team.printed("again"), RUN_S, lambda: team.printed("again"))
    assert set(runs(team, postgres)) == first, "the runs that are there are followed, and no others are made"
    canceled = team.run(*SUITE, "--cancel")
    assert "being canceled" in canceled.stdout, canceled.stdout + canceled.stderr
    assert again.wait(RUN_S) == 1, team.printed("again")
    assert {dg.DagsterRunStatus.CANCELED.value} >= {status for status, _ in runs(team, postgres).values()}
