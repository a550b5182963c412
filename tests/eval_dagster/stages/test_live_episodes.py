"""Episodes on servers: requests are sent as they come, over open connections, and each answer goes on at once."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from running_stages import run_all
from servers.calling import CallingServer, calling_server

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.project import Project

TURNS, EPISODES = 10, 12
TASK = f'''
    import eval_dagster as ed


    def add(x: int, y: int) -> int:
        """Add two numbers."""
        return x + y


    class Adding(ed.EpisodeTask):
        NAME = "Adding"
        DATASET_PATH = "adding"
        SAMPLE_SPLIT = "test"
        METRICS = (ed.ExactMatch,)
        TOOLS = (add,)

        def _load_dataset(self, subject):
            return {{"test": [{{"n": n}} for n in range({EPISODES})]}}

        def _get_instruction_text(self, item):
            return f"Question {{item['n']}}: add one {TURNS - 1} times."

        def _get_ground_truth(self, item):
            return "{TURNS - 1}"
'''


def running() -> AbstractContextManager[CallingServer]:
    return calling_server(lambda turn: None if turn == TURNS - 1 else ("add", {"x": turn, "y": 1}))


@pytest.fixture
def server() -> Iterator[CallingServer]:
    with running() as server:
        yield server


@pytest.fixture
def project_of(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Callable[..., Project]:
    write("adding.py", TASK)

    def project(*servers: CallingServer, canaries: int = 0) -> Project:
        replicas = [other.url for other in servers[1:]]
        return open_project(f"""
            models:
              served:
                {{backend: openai, base_url: "{servers[0].url}", replicas: {json.dumps(replicas)}, model: m, prompt_format: chat,
                  concurrency: 8, canaries: {canaries}}}
            evals:
              adding: {{task: "adding.py:Adding"}}
              again: {{task: "adding.py:Adding"}}
        """)

    return project


EACH_ONCE = [(episode, turn) for episode in range(EPISODES) for turn in range(TURNS)]


def _run(project: Project, name: str = "adding") -> str:
    """Run an eval, and return its failure."""
    _, failures = run_all(project, [(name, "served")])
    publish(project.lake)
    return failures[0].message if failures else ""


@pytest.mark.long
def test_a_slow_answer_holds_up_its_own_episode_alone(server: CallingServer, project_of: Callable[..., Project]) -> None:
    def say(episode: int, turn: int) -> None:
        if (episode, turn) == (0, 1):
            until = time.monotonic() + 60
            while len(server.answered) < (EPISODES - 1) * TURNS + 1 and time.monotonic() < until:
                time.sleep(0.01)

    server.say = say
    project = project_of(server)
    assert not _run(project)
    assert sorted(server.asked) == EACH_ONCE
    others = [each for each in server.answered if each[0] != 0]
    assert server.answered.index((0, 1)) == len(others) + 1, "all other episodes ended before"
    assert read_rows(project.lake, "select value from leaderboard") == [{"value": 1.0}]
    assert max(server.connections.values()) > 3
    assert len(server.connections) <= 8 + 1, "the connections stay open from turn to turn"


def test_evals_of_one_run_share_the_session_of_their_model(server: CallingServer, project_of: Callable[..., Project]) -> None:
    project = project_of(server)
    _, failures = run_all(project, [("adding", "served"), ("again", "served")])
    assert failures == []
    assert sorted(server.asked) == EACH_ONCE
    publish(project.lake)
    assert read_rows(project.lake, "select value, n_errors from leaderboard") == [{"value": 1.0, "n_errors": 0}] * 2


@pytest.mark.long
@pytest.mark.parametrize("names", [("adding", "adding"), ("adding", "again")])
def test_two_runs_at_once_ask_everything_once(server: CallingServer, project_of: Callable[..., Project], names: tuple[str, str]) -> None:
    server.say = lambda _episode, _turn: time.sleep(0.05)
    problems: list[str] = []
    projects = [project_of(server) for _ in names]  # before the threads, since it writes the configuration

    def run(project: Project, name: str) -> None:
        problems.append(_run(project, name))

    threads = [threading.Thread(target=run, args=each) for each in zip(projects, names, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == ["", ""]
    assert sorted(server.asked) == EACH_ONCE


@pytest.mark.long
def test_what_another_run_asks_is_waited_for_and_asked_if_it_failed(server: CallingServer, project_of: Callable[..., Project]) -> None:
    both, projects = threading.Barrier(2), {name: project_of(server) for name in ("adding", "again")}

    def say(episode: int, turn: int) -> None:
        if (episode, turn) == (3, 4) and server.asked.count((3, 4)) == 1:
            time.sleep(1)
            raise ConnectionError  # the answer is lost, and the request is sent again

    server.say = say
    problems: list[str] = []

    def run(name: str) -> None:
        both.wait()
        problems.append(_run(projects[name], name))

    threads = [threading.Thread(target=run, args=(name,)) for name in projects]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == ["", ""]
    assert sorted(server.asked) == sorted([*EACH_ONCE, (3, 4)])


@pytest.mark.long
def test_a_key_that_is_refused_ends_the_eval_and_keeps_what_was_answered(server: CallingServer, project_of: Callable[..., Project]) -> None:
    def say(_episode: int, turn: int) -> None:
        if turn == 5:
            server.refuses = 401

    server.say = say
    assert "401" in _run(project_of(server))
    answered = set(server.answered)
    assert answered
    server.reset()
    server.say, server.refuses = lambda _episode, _turn: None, None
    project = project_of(server)
    assert not _run(project)
    assert sorted({*server.asked, *answered}) == EACH_ONCE
    assert not answered & set(server.asked)
    assert len(server.asked) == len(set(server.asked))
    assert read_rows(project.lake, "select value from leaderboard") == [{"value": 1.0}]


@pytest.mark.long
def test_what_is_stored_needs_no_server(server: CallingServer, project_of: Callable[..., Project]) -> None:
    assert not _run(project_of(server, canaries=3))
    server.reset()
    server.refuses = 0
    assert not _run(project_of(server, canaries=3), "again")
    assert server.asked == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_waits_for_the_answers_under_way(
    server: CallingServer, project_of: Callable[..., Project], tmp_path: Path, number: int
) -> None:
    project_of(server)  # it writes the files
    gone = threading.Event()

    def say(_episode: int, turn: int) -> None:
        if turn == 3:
            gone.wait(60)
            time.sleep(0.5)

    server.say = say
    environment = {**os.environ, "EVAL_DAGSTER_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "eval_dagster.cli.program", "run", "--eval", "adding"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while sum(turn == 3 for _, turn in server.asked) < 8 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    time.sleep(0.3)
    gone.set()
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0, output
    assert "waits for the answers that are under way" in output
    assert len(server.asked) < len(EACH_ONCE)
    server.say = lambda _episode, _turn: None
    assert not _run(project_of(server))
    assert sorted(server.asked) == EACH_ONCE, "what was under way at the signal was stored"


@pytest.mark.long
def test_a_conversation_stays_at_its_server(project_of: Callable[..., Project]) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(running()) for _ in range(3)]
        for each in servers:
            each.say = lambda _episode, _turn: time.sleep(0.02)
        assert not _run(project_of(*servers))
        assert sorted(each for server in servers for each in server.asked) == EACH_ONCE
        places: dict[int, set[int]] = defaultdict(set)
        for place, each in enumerate(servers):
            for episode, _ in each.asked:
                places[episode].add(place)
        assert sum(len(found) == 1 for found in places.values()) >= EPISODES - 2
        assert len({place for found in places.values() for place in found}) > 1


@pytest.mark.long
def test_a_server_that_goes_down_leaves_its_conversations_to_another_one(project_of: Callable[..., Project]) -> None:
    with ExitStack() as stack:
        first, other = stack.enter_context(running()), stack.enter_context(running())

        def say(_episode: int, turn: int) -> None:
            time.sleep(0.02)
            if turn >= 4:
                first.refuses = 0

        first.say = say
        other.say = lambda _episode, _turn: time.sleep(0.02)
        project = project_of(first, other)
        assert not _run(project)
        assert sorted({*first.answered, *other.answered}) == EACH_ONCE
        assert read_rows(project.lake, "select value from leaderboard") == [{"value": 1.0}]
