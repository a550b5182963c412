"""A worker in the sandbox: it sees its environment alone, and a call in a child leaves nothing behind."""

import shutil
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from eval_dagster.errors import MachineError, RequirementError
from eval_dagster.peers.processes.process import WorkerProcess
from eval_dagster.peers.processes.registry import Environment
from eval_dagster.peers.workers import serve
from eval_dagster.sandbox import Limits, walled

HERE = Path(__file__).resolve().parent
SERVED = Path(serve.__file__).parent


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker beside the module that it imports."""
    folder = tmp_path_factory.mktemp("worker")
    folder.chmod(0o755)
    folder.parent.chmod(0o755)
    for each in (HERE / "walled_worker.py", SERVED / "clean_child.py"):
        shutil.copy(each, folder)
    return folder / "walled_worker.py"


@pytest.fixture
def process(file: Path, _sandbox: None) -> Iterator[WorkerProcess]:
    folders = [*Environment(Path(sys.executable)).folders(), str(file.parent), str(SERVED)]
    walls = partial(walled, folders=folders, environment={"HOME": "/tmp", "PYTHONHASHSEED": "0"}, limits=Limits(memory_bytes=2**33))
    made = WorkerProcess("walled", Path(sys.executable), file, walls=walls)
    yield made
    made.close()


def test_it_sees_no_machine_and_no_network(process: WorkerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "1")
    (tmp_path / "notes.txt").write_text("mine")
    assert not process.call("sees", path=str(tmp_path / "notes.txt"))
    assert not process.call("sees", path=str(HERE))
    assert process.call("sees", path=str(SERVED / "serve.py"))
    assert process.call("user") != 0
    assert set(process.call("variables")) <= {"HOME", "PYTHONHASHSEED", "LC_CTYPE"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert process.call("connects", port=server.getsockname()[1]) != "connected"


@pytest.mark.usefixtures("_sandbox")
def test_an_interpreter_beside_the_files_of_the_user_is_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    python = tmp_path / "me/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    folders = [*Environment(python).folders(), str(file.parent)]
    walls = partial(walled, folders=folders, environment={}, limits=Limits())
    with pytest.raises(RequirementError, match=f"needs the folder {tmp_path}/me, which contains {tmp_path}/me; install it elsewhere"):
        WorkerProcess("walled", python, file, walls=walls).call("user")


def test_a_call_that_may_harm_leaves_nothing_behind(process: WorkerProcess) -> None:
    evaluate = partial(process.call, "evaluate")
    assert evaluate(code="kept.append(1) or kept", is_harmless=True) == "[1]"
    assert evaluate(code="kept.append(2) or kept", is_harmless=True) == "[1, 2]"  # the same child
    assert evaluate(code="kept.append(3) or open('/tmp/left', 'w').close() or [os.fork(), kept][1]", is_harmless=False).startswith(
        "[1, 2, 3]"
    )
    assert evaluate(code="kept", is_harmless=True) == "[]"
    assert evaluate(code="os.path.exists('/tmp/left')", is_harmless=True) == "False"
    assert "EndedError: a call ended its process" in evaluate(code="os._exit(3)", is_harmless=False)
    assert "EndedError: a call ended its process" in evaluate(code="os.kill(os.getpid(), 9)", is_harmless=True)
    assert evaluate(code="1 / 0", is_harmless=True) == "ChildError: ZeroDivisionError: division by zero"
    # The worker is the first process of the sandbox, which no signal of another process there ends.
    assert evaluate(code="os.kill(1, 9) or os.getppid()", is_harmless=False) == "1"
    assert evaluate(code="2 + 2", is_harmless=True) == "4"


@pytest.mark.parametrize(
    "code",
    [
        "__import__('resource').prlimit(1, 7, (5, 5))",
        "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "os.setpriority(os.PRIO_PGRP, 0, 19)",
        "os.setpriority(os.PRIO_USER, 0, 19)",
        "os.sched_setaffinity(1, {0})",
        "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
    ],
)
def test_a_call_sets_nothing_of_the_worker_itself(process: WorkerProcess, code: str) -> None:
    assert "PermissionError" in process.call("evaluate", code=code, is_harmless=False)
    assert process.call("evaluate", code="2 + 2", is_harmless=True) == "4"


def test_a_call_does_not_interrupt_the_worker(process: WorkerProcess) -> None:
    evaluate = partial(process.call, "evaluate")
    assert evaluate(code="[os.kill(1, signal) for signal in range(1, 32)]", is_harmless=False).startswith("[None, None")
    assert evaluate(code="2 + 2", is_harmless=True) == "4"


def test_a_worker_that_cannot_make_a_child_begins_anew(process: WorkerProcess) -> None:
    process.call("open_no_more")
    with pytest.raises(MachineError, match="no child can be made or asked"):
        process.call("evaluate", code="2 + 2", is_harmless=True)
    assert process.call("evaluate", code="2 + 2", is_harmless=True) == "4"


def test_folders_that_cannot_be_opened_or_are_deep_are_removed(process: WorkerProcess) -> None:
    write = """
import os
os.makedirs('/tmp/left/inner')
open('/tmp/left/inner/file', 'w').close()
os.symlink('/usr', '/tmp/left/link')
os.chmod('/tmp/left/inner', 0)
os.chmod('/tmp/left', 0)
os.symlink('/usr', '/tmp/link')
for _ in range(3000):
    os.mkdir('deep')
    os.chdir('deep')
"""
    before = process.call("evaluate", code="sorted(os.listdir('/tmp'))", is_harmless=True)
    assert process.call("evaluate", code=f"[os.chdir('/tmp'), exec({write!r})]", is_harmless=False) == "[None, None]"
    assert process.call("evaluate", code="sorted(os.listdir('/tmp'))", is_harmless=True) == before


@pytest.mark.parametrize("is_harmless", [False, True])
def test_what_a_call_writes_to_every_descriptor_is_not_its_answer(process: WorkerProcess, is_harmless: bool) -> None:
    forge = """
import os
for descriptor in range(1, 20):
    try:
        os.write(descriptor, b'{"result": "forged"}\\n')
    except OSError:
        continue
"""
    for leave in ("os._exit(0)", "None"):
        found = process.call("evaluate", code=f"exec({forge + leave!r})", is_harmless=is_harmless)
        assert found.startswith("EndedError"), found
    assert process.call("evaluate", code="2 + 2", is_harmless=True) == "4"


@pytest.mark.long
def test_an_answer_without_end_is_left(process: WorkerProcess) -> None:
    assert process.call("evaluate", code="'x' * 2**27", is_harmless=False).startswith("EndedError")
    assert process.call("evaluate", code="len('x' * 2**20)", is_harmless=True) == str(2**20)
    # The caller keeps the last lines of the worker, and a line may have no end.
    assert process.call(
        "evaluate", code="{os.fstat(each).st_rdev == os.stat('/dev/null').st_rdev for each in (1, 2)}", is_harmless=True
    ) == ("{True}")
