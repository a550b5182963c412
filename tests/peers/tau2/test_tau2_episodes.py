"""τ²-bench as evals: from the environment to the metrics, with a scripted agent and user, killed in the middle of an episode.

`TAU2_PYTHON` names the Python of an environment of `eval-dagster environments add tau2`.
"""

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from eval_dagster.errors import TaskDefinitionError, UsageError
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.peers.processes.registry import close_processes
from eval_dagster.peers.tau2 import Tau2Registry, Tau2Task
from eval_dagster.project import Project
from eval_dagster.records import MetricContext
from eval_dagster.stages.partition import Partition
from eval_dagster.tasks.episodes import EpisodeSample

PYTHON = os.environ.get("TAU2_PYTHON")
pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="TAU2_PYTHON is not set: the Python of `eval-dagster environments add tau2`"),
    pytest.mark.timeout(600),
]
PEOPLE = """
    import json
    import os
    import re
    from pathlib import Path

    import eval_dagster as ed

    HERE = Path(__file__).parent
    TASKS = json.loads((HERE / "tasks.json").read_text())


    def note(request):
        with (HERE / "asked.log").open("a") as file:
            file.write(request.request_id + "\\n")
        if len((HERE / "asked.log").read_text().split()) == int((HERE / "kill_at").read_text()):
            os._exit(9)


    def next_call(request, expected):
        done = len(re.findall(r"^\\w+\\(\\{.*\\}\\)$", request.prompt, re.MULTILINE))
        if done == len(expected):
            return None
        name, _, arguments = expected[done].partition("(")
        call = {"id": "", "type": "function", "function": {"name": name, "arguments": arguments[:-1]}}
        return ed.ModelResponse(text=("",), finish_reason=("stop",), tool_calls=((json.dumps(call),),))


    def agent(request):
        note(request)
        task = next((each for each in TASKS if f"task {each['id']}, please" in request.prompt), None)
        return (task and next_call(request, task["expected"].splitlines())) or "Done."


    def user(request):
        note(request)
        task = next(each for each in TASKS if each["system"].strip() in request.prompt)
        return "Thanks. ###STOP###" if "Done." in request.prompt else f"task {task['id']}, please"


    def caller(request):
        task = next(each for each in TASKS if each["system"].strip() in request.prompt)
        return next_call(request, task["expected"].splitlines()) or user(request)
"""
CONFIG = """
    environments: {{tau2: {python}}}
    models:
      agent: {{backend: scripted, function: "people.py:agent"}}
      user: {{backend: scripted, function: "people.py:user"}}
      caller: {{backend: scripted, function: "people.py:caller"}}
    evals:
      retail: {{task: "tau2:retail", roles: {{user: user}}, limit: 2}}
      telecom: {{task: "tau2:telecom", roles: {{user: caller}}, limit: 1}}
"""
RUN = """
import sys
from pathlib import Path
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure

project = Project.open(config_path=Path("evals.yaml"), home=Path("home"))
found = list(evaluate(project, [(name, "agent") for name in sys.argv[1:]], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
assert not [each for each in found if isinstance(each, StageFailure)], found
"""


def task_of(domain: str, folder: Path) -> type[Tau2Task]:
    task = Tau2Registry().within(Path(str(PYTHON))).benchmark(domain, folder)
    assert issubclass(task, Tau2Task)
    return task


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project. Its temporary files are in a folder of their own."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    close_processes()
    rows = [task_of(domain, tmp_path)()._load_dataset("default")["base"] for domain in ("retail", "telecom")]
    (tmp_path / "tasks.json").write_text(json.dumps([*rows[0][:2], rows[1][0]]))
    (tmp_path / "people.py").write_text(textwrap.dedent(PEOPLE))
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG.format(python=PYTHON)))
    yield tmp_path
    close_processes()


def run(folder: Path, *evals: str, kill_at: int = 0) -> int:
    (folder / "kill_at").write_text(str(kill_at))
    return subprocess.run([sys.executable, "-c", RUN, *evals], cwd=folder, check=False).returncode


def rewards(folder: Path, eval_name: str) -> list[float | None]:
    opened = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    current = Partition(project=opened, eval_name=eval_name, model="agent", run_id="look").current("sample_scores")
    assert current is not None
    return [row["value"] for row in read_rows(current.path)]


def test_a_killed_episode_goes_on_with_the_same_state(folder: Path) -> None:
    assert run(folder, "retail", kill_at=9) == 9
    assert run(folder, "retail") == 0
    assert rewards(folder, "retail") == [1.0, 1.0]
    asked = Counter((folder / "asked.log").read_text().split())
    # Two episodes were under way at the kill: of the batch that was asked, no answer had been stored.
    assert sum(times - 1 for times in asked.values()) <= 2
    assert max(asked.values()) == 2
    assert list((folder / "temporary").glob("tau2-*")) == []


def test_the_simulated_user_calls_tools_of_its_own(folder: Path) -> None:
    assert run(folder, "telecom") == 0
    assert rewards(folder, "telecom") == [1.0]
    # The agent has no tool of the user.
    task = task_of("telecom", folder)
    assert not {json.loads(each)["function"]["name"] for each in task.OF_ROLE["assistant"]} & {"toggle_airplane_mode", "toggle_roaming"}


def test_a_process_that_dies_gets_the_calls_again(folder: Path) -> None:
    task = task_of("retail", folder)
    row = json.loads((folder / "tasks.json").read_text())[0]
    sample = EpisodeSample(
        sample_id="0", messages=(), ground_truths=(), context=MetricContext(**task()._get_context(row)), subject="default"
    )
    world = task.WORLD(sample)
    for line in row["expected"].splitlines():
        name, _, arguments = line.partition("(")
        world.call(name, json.loads(arguments[:-1]))
    task.WORLD.PROCESS.close()
    assert world.reward([], [])["reward"] == 1.0
    assert task.WORLD(sample).reward([], [])["reward"] == 0.0


def test_what_is_wrong_is_named(folder: Path) -> None:
    with pytest.raises(TaskDefinitionError, match="there is no domain 'train'; there are: airline, retail, telecom"):
        task_of("train", folder)
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG.format(python=PYTHON)).replace("roles: {user: user}, ", ""))
    with pytest.raises(UsageError, match=r"tau2:retail needs a model in the role user.*roles: \{user: MODEL\}"):
        Project.open(config_path=folder / "evals.yaml", home=folder / "home").check(["retail"], ["agent"])
