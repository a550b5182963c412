"""A folder in the sandbox, in which the model of an episode runs programs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import run_command
from running_episodes import World, says

import eval_dagster as ed
from eval_dagster.episodes.episode import Ask
from eval_dagster.errors import RequirementError
from eval_dagster.sandbox import SandboxPolicy, require_sandbox, sandbox_policy
from eval_dagster.tasks.episodes import Reply


@pytest.fixture
def _sandbox() -> Iterator[None]:
    try:
        require_sandbox()
    except RequirementError as problem:
        pytest.skip(str(problem))
    with sandbox_policy(SandboxPolicy(allowed=True)):
        yield


@pytest.mark.usefixtures("_sandbox")
def test_a_command_finds_the_files_of_earlier_ones_and_nothing_else_of_them() -> None:
    folder = ed.SandboxFolder({"data/table.csv": "a,b\n1,2\n"})
    assert folder.run("cat data/table.csv") == "a,b\n1,2\n"
    assert (
        folder.run("echo 'print(6 * 7)' > program.py; chmod +x program.py; ln -s program.py link; sleep 60 & echo started") == "started\n"
    )
    assert folder.run("python3 program.py; test -x program.py && ls") == "42\ndata\nprogram.py\n"
    assert folder.write("notes/one.txt", "Grüße") == "7 bytes in notes/one.txt"
    assert folder.run("cat notes/one.txt; cat nowhere.txt; exit 3").splitlines() == [
        "Grüßecat: nowhere.txt: No such file or directory",
        "[exit status 3]",
    ]
    assert folder.read("program.py") == "print(6 * 7)\n"
    assert folder.run("rm -r data notes; touch empty") == ""
    assert dict(folder.files) == {"program.py": b"print(6 * 7)\n", "empty": b""}
    assert folder.run("python3 -c \"import socket; socket.create_connection(('127.0.0.1', 80))\"").endswith("[exit status 1]")
    assert folder.run("cat /etc/passwd /work 2>&1 | grep -c root") == "0\n[exit status 1]"


@pytest.mark.long
@pytest.mark.usefixtures("_sandbox")
def test_a_command_beyond_a_limit_changes_no_file() -> None:
    class Small(ed.SandboxFolder):
        SECONDS = 1.0
        DISK_BYTES = 2**20
        OUTPUT_BYTES = 200

    folder = Small({"kept": "x"})
    assert folder.run("echo y > kept; while :; do :; done") == "[stopped: more than 1 s; no file has changed]"
    assert "No space left on device\n[exit status 1]" in folder.run("python3 -c 'print(\"x\" * 3_000_000)' > big; false")
    assert folder.read("kept") == "x"
    assert folder.run("kill -9 $PPID; echo never") == "[failed: the sandbox ended; no file has changed]"
    assert folder.run("python3 -c 'print(\"a\" * 250)'") == "a" * 200 + "\n[cut off after 200 bytes]"
    with pytest.raises(ValueError, match="does not fit: the folder may hold 1 MiB"):
        folder.write("big", "x" * 2**20)


@pytest.mark.long
@pytest.mark.usefixtures("_sandbox")
def test_a_folder_stays_usable_whatever_a_command_leaves() -> None:
    folder = ed.SandboxFolder({"kept": "x"})
    assert folder.run("mkdir d; echo 1 > d/in; echo 2 > f; chmod 000 d f; printf x > \"$(printf 'a\\377b')\"") == ""
    assert folder.run("cat d/in f; ls | wc -l") == "1\n2\n4\n"
    deep = "python3 -c \"import os\nfor i in range(900): os.mkdir('e'); os.chdir('e')\""
    many = "mkdir m; for i in $(seq 6000); do : > m/$i; done"
    for command in (deep, many):
        assert folder.run(command).endswith("bytes; no file has changed]")
        assert folder.run("ls | wc -l") == "4\n"
    assert folder.run("ln -s / root; mkfifo pipe; ls root | grep -c tmp") == "1\n"
    assert folder.run("ls | wc -l") == "4\n"


def test_a_file_that_is_read_is_cut_as_an_output_is() -> None:
    folder = ed.SandboxFolder({f"file{number:03}": "x" * 30_000 for number in range(30)})
    assert folder.read("file001") == "x" * 20_000 + "\n[cut off after 20,000 bytes]"
    with pytest.raises(FileNotFoundError, match=r"the files are: file000, .*, file019 and 10 more"):
        folder.read("other")


@pytest.mark.parametrize("path", ["a/b", "a/b/c/d", "a"])
def test_no_file_is_a_folder_too(path: str) -> None:
    folder = ed.SandboxFolder({"a/b/c": "1"})
    with pytest.raises(ValueError, match="expected no file that is also a folder"):
        folder.write(path, "2")
    assert dict(folder.files) == {"a/b/c": b"1"}


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../../b", ".", "a\0b", "x" * 256, "d/" * 600 + "x", "\ud800"])
def test_a_path_lies_within_the_folder(path: str) -> None:
    with pytest.raises(ValueError, match="expected one within the folder"):
        ed.SandboxFolder().write(path, "")


def test_a_file_that_is_not_there_is_named_beside_those_that_are() -> None:
    with pytest.raises(FileNotFoundError, match=r"no file 'b'; the files are: a"):
        ed.SandboxFolder({"a": "1"}).read("b")


def test_nothing_runs_unless_the_project_allows_it() -> None:
    with pytest.raises(RequirementError, match="allow_code_execution: true"):
        ed.SandboxFolder().run("true")


class Shell(ed.EpisodeTask[Any]):
    """A task whose model runs commands."""

    NAME = "Shell"
    TOOLS = (ed.SandboxFolder,)


_COMMANDS = ("echo one >> log", "date +%N >> log", "wc -l < log", "head -n 1 log")


def _typist(ask: Ask) -> Reply:
    turn = sum(message.role is ed.Role.TOOL for message in ask.messages)
    return says("done") if turn == len(_COMMANDS) else says(run=json.dumps({"command": _COMMANDS[turn]}))


@pytest.mark.usefixtures("_sandbox")
@pytest.mark.parametrize("stop", range(1, 5))
def test_a_killed_episode_goes_on_in_a_folder_that_its_recorded_commands_have_made(tmp_path: Path, stop: int) -> None:
    """One of them writes the clock, so that the folder is not the same, and the episode goes on all the same."""
    world = World(tmp_path, _typist)
    world.is_killed, world.stops_after = True, stop
    with pytest.raises(KeyboardInterrupt):
        world.run(Shell)
    world.stops_after = None
    (end,) = world.run(Shell).values()
    assert end.status == "done"
    told = [each.value.result for each in end.effects if each.kind == "tool" and each.value]
    assert told == ["", "", "2\n", "one\n"]
    assert set(world.asked.values()) == {1}


_TASK = """
import eval_dagster as ed


class Sums(ed.EpisodeTask):
    NAME = "Sums"
    DATASET_PATH = "sums"
    SAMPLE_SPLIT = "test"
    METRICS = (ed.ExactMatch,)
    TOOLS = (ed.SandboxFolder,)

    def _load_dataset(self, subject):
        return {"test": [{"n": 3}, {"n": 4}]}

    def _get_instruction_text(self, item):
        return f"Add the numbers from 1 to {item['n']} by a program."

    def _get_ground_truth(self, item):
        return str(item["n"] * (item["n"] + 1) // 2)
"""
_MODEL = """
import json

import eval_dagster as ed


def writer(request):
    number = request.prompt.split(" to ")[1].split()[0]
    results = request.prompt.rpartition("\\n\\n")[2].strip()
    if "run(" in request.prompt:
        return results
    name, given = "run", {"command": f"echo 'print(sum(range({number} + 1)))' > add.py && python3 add.py"}
    call = {"id": "", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
    return ed.ModelResponse(text=("",), finish_reason=("stop",), tool_calls=((json.dumps(call),),))
"""


def _project(folder: Path, allow: bool) -> None:
    (folder / "sums.py").write_text(_TASK)
    (folder / "writer.py").write_text(_MODEL)
    evals = {
        "models": {"writer": {"backend": "scripted", "function": "writer.py:writer"}},
        "evals": {"sums": {"task": "sums.py:Sums"}},
        "sandbox": {"allow_code_execution": allow},
    }
    (folder / "evals.yaml").write_text(yaml.safe_dump(evals))


@pytest.mark.long
def test_an_eval_whose_tools_run_code_needs_the_permission_of_its_project(tmp_path: Path) -> None:
    _project(tmp_path, allow=False)
    done = run_command("run", folder=tmp_path)
    assert done.returncode == 1
    assert "eval sums: SandboxFolder would run code that a model wrote, which evals.yaml does not allow" in done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.usefixtures("_sandbox")
def test_a_model_solves_its_task_by_programs_of_its_own(tmp_path: Path) -> None:
    _project(tmp_path, allow=True)
    done = run_command("run", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    query = "select status, result, n_tool_calls from episodes order by result"
    shown = run_command("sql", query, "--format", "csv", folder=tmp_path).stdout
    assert shown.split() == ["status,result,n_tool_calls", "done,10,1", "done,6,1"]
    assert "1.000" in done.stdout
