"""The limits of a program in the sandbox: time, processes, memory and what it writes."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from busy_processor import busy_processor

from eval_dagster.errors import MachineError
from eval_dagster.sandbox import SandboxResult, running

ROOT = Path(__file__).resolve().parents[3]


def run_without_root(code: str) -> dict[str, Any]:
    """What becomes of a program whose sandbox an ordinary user started, in a process of its own."""
    script = f"""
import dataclasses, json, sys
from eval_dagster.errors import EvalDagsterError
from eval_dagster.sandbox import Program, SandboxPolicy, probe, run_python, sandbox_policy
try:
    probe()
except EvalDagsterError as problem:
    sys.exit(str(problem))
with sandbox_policy(SandboxPolicy(allowed=True)):
    try:
        print(json.dumps(dataclasses.asdict(run_python(Program(code={textwrap.dedent(code)!r})))))
    except EvalDagsterError as problem:
        print(json.dumps({{"error": str(problem)}}))
"""
    user: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    reasons = []
    for python in (sys.executable, "/usr/bin/python3"):  # the first may lie where nobody else may read
        try:
            done = subprocess.run([python, "-B", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False, **user)
        except OSError as problem:
            reasons.append(str(problem))
            continue
        if done.returncode == 0:
            return json.loads(done.stdout)  # type: ignore[no-any-return]
        reasons.append(done.stderr.strip().rpartition("\n")[2])
    pytest.skip(f"no sandbox without root here: {'; '.join(reasons)}")


Run = Callable[..., SandboxResult]


def test_a_loop_without_end_is_killed(run_program: Run) -> None:
    begin = time.monotonic()
    result = run_program("while True: pass", timeout_s=1)
    assert (result.completed, result.exit_code, result.ended_by) == (False, None, "timeout")
    assert 1 <= result.duration_s < 30  # its own second takes longer on a busy machine
    assert time.monotonic() - begin < 90


@pytest.mark.long
def test_a_busy_machine_fails_no_program_and_saves_none(run_program: Run) -> None:
    with busy_processor():
        computing = run_program("import time\nwhile time.process_time() < 0.4: pass", timeout_s=1)
        sleeping = run_program("import time; time.sleep(600)", timeout_s=1)
        endless = run_program("while True: pass", timeout_s=1)
    assert (computing.completed, computing.ended_by) == (True, "exit")
    assert computing.duration_s > 1
    assert [(each.completed, each.ended_by) for each in (sleeping, endless)] == [(False, "timeout")] * 2


@pytest.mark.long
def test_a_program_that_the_machine_never_runs_is_a_failure_of_the_machine(run_program: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PATIENCE", 2)
    with busy_processor(), pytest.raises(MachineError, match=r"the machine was too busy: of 2 s the program had less than its 1 s"):
        run_program("while True: pass", timeout_s=1)


@pytest.mark.long
@pytest.mark.parametrize(("hidden", "shown"), [("times_of_threads", {}), ("processes_of_program", None)])
def test_without_the_kernels_times_the_limit_is_one_of_wall_time(
    run_program: Run, monkeypatch: pytest.MonkeyPatch, hidden: str, shown: object
) -> None:
    """No `schedstat`, as in gVisor, or no processes of other users, as under `hidepid`."""
    monkeypatch.setattr(running, hidden, lambda process: shown)
    assert run_program("import time; time.sleep(0.3)", timeout_s=5).completed
    result = run_program("import time; time.sleep(600)", timeout_s=1)
    assert (result.completed, result.ended_by) == (False, "timeout")
    assert 1 <= result.duration_s < 10


@pytest.mark.long
@pytest.mark.parametrize("pause", ["", "time.sleep(0.01); "])
def test_one_that_writes_now_and_then_is_killed_too(run_program: Run, pause: str) -> None:
    code = f"import sys, time\nwhile True:\n    {pause}sys.stdout.write('x'); sys.stdout.flush()"
    assert run_program(code, timeout_s=1, output_bytes=2**30).ended_by == "timeout"


def test_signals_do_not_save_it(run_program: Run) -> None:
    code = """
    import ctypes, os, signal, time
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, 0)
    os.setsid() if os.getpgid(0) != os.getpid() else None
    print("ready", flush=True)
    while True:
        time.sleep(1)
    """
    result = run_program(code, timeout_s=1)
    assert (result.ended_by, result.stdout) == ("timeout", "ready\n")


@pytest.mark.long
def test_a_program_of_the_same_user_cannot_interrupt_the_init_process(run_program: Run) -> None:
    code = """
    import os, signal, time
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        os.kill(1, number)
    time.sleep(0.5)
    raise ValueError("this is the program's failure")
    """
    result = run_without_root(code)
    assert (result.get("completed"), result.get("exit_code")) == (False, 1), result
    assert "this is the program's failure" in result["stderr"]


def test_processor_time_counts_for_each_process(run_program: Run) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_CPU))"
    assert run_program(code, timeout_s=2.5).stdout == "(4, 4)\n"


@pytest.mark.long
def test_a_fork_bomb_stays_small_and_leaves_nothing(run_program: Run, mark: str) -> None:
    code = f"""
    import os, subprocess, sys
    while True:
        try:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", "{mark}"], start_new_session=True)
            os.fork()
        except OSError:
            pass
    """
    before, seen = len(psutil.pids()), 0

    def watch() -> None:
        nonlocal seen
        while not done.wait(0.1):
            seen = max(seen, len(psutil.pids()) - before)

    done = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = run_program(code, timeout_s=2)
    finally:
        done.set()
        watcher.join()
    assert (result.completed, result.ended_by) == (False, "timeout")
    assert seen < 300


def test_what_it_leaves_running_ends_with_it(run_program: Run, mark: str) -> None:
    code = f"""
    import os, subprocess, sys
    for number in range(3):
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(1000)", "{mark}"],
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
    if os.fork() == 0:
        os.setsid()
        import time
        time.sleep(1000)
    """
    begin = time.monotonic()
    result = run_program(code, timeout_s=30)
    assert (result.completed, result.exit_code) == (True, 0)
    assert time.monotonic() - begin < 25


def test_memory_is_limited(run_program: Run) -> None:
    result = run_program("x = bytes(2**20)\nwhile True:\n    x += x", memory_bytes=2**28)
    assert not result.completed
    assert "MemoryError" in result.stderr
    assert run_program("x = bytearray(2**25)", memory_bytes=2**28).completed


_WORKERS = """
import os, time
def hold(mebibytes):
    return bytearray(b"x") * (mebibytes * 2**20)
def work(mebibytes):
    held = hold(mebibytes)
    time.sleep({seconds})
    os._exit(0)
{before}
workers = []
for _ in range(8):
    if not (worker := os.fork()):
        {within}
    workers.append(worker)
for worker in workers:
    os.waitpid(worker, 0)
"""


def test_the_memory_of_all_processes_is_limited_together(run_program: Run) -> None:
    result = run_program(_WORKERS.format(seconds=20, before="", within="work(48)"), memory_bytes=2**27, timeout_s=30)
    assert (result.completed, result.exit_code, result.ended_by) == (False, None, "memory")
    assert result.duration_s < 10


def test_memory_that_processes_share_counts_once(run_program: Run) -> None:
    code = _WORKERS.format(seconds=1, before="held = hold(48)", within="time.sleep(1); os._exit(0)")
    result = run_program(code, memory_bytes=2**27)
    assert result.completed, result


def test_what_a_process_left_in_a_session_of_its_own_counts_too(run_program: Run) -> None:
    within = "os.setsid(); os.fork() and os._exit(0); work(48)"
    code = _WORKERS.format(seconds=20, before="", within=within) + "\ntime.sleep(20)"
    assert run_program(code, memory_bytes=2**27, timeout_s=30).ended_by == "memory"


@pytest.mark.parametrize(
    "call",
    [
        "os.memfd_create('x') + 1",
        "libc.shmget(0, ctypes.c_size_t(2**20), 0o1600) + 1",
        "libc.semget(0, 100, 0o1600) + 1",
        "libc.msgget(0, 0o1600) + 1",
    ],
)
def test_there_is_no_memory_that_belongs_to_no_process(run_program: Run, call: str) -> None:
    code = f"""
    import ctypes, os
    libc = ctypes.CDLL(None)
    try:
        got = {call}
    except PermissionError:
        got = 0
    assert not got
    """
    result = run_program(code)
    assert result.completed, result.stderr


@pytest.mark.long
def test_the_kernel_ends_it_first_where_memory_is_short(run_program: Run, mark: str) -> None:
    code = f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(2)', '{mark}'])"

    def watch() -> None:
        while not done.wait(0.05):
            for process in psutil.process_iter():
                with suppress(psutil.Error, OSError):
                    if process.cmdline()[-1:] == [mark]:
                        scores.add(Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip())

    done, scores = threading.Event(), set[str]()
    watcher = threading.Thread(target=watch)
    watcher.start()
    run_program(code)
    done.set()
    watcher.join()
    assert scores == {"1000"}


def test_output_is_limited(run_program: Run) -> None:
    result = run_program("import sys\nfor _ in range(10**7):\n    print('x' * 10**6)\n    print('y' * 10**6, file=sys.stderr)")
    assert (result.completed, result.exit_code, result.ended_by) == (False, None, "output")
    assert len(result.stdout) <= 2**20
    assert len(result.stderr) <= 2**20
    assert run_program("print('x' * 1000)", output_bytes=1001).completed


def test_disk_is_memory_and_limited(run_program: Run) -> None:
    code = """
    try:
        for number in range(100):
            with open(f"file{number}", "wb") as file:
                file.write(bytes(2**20))
    except OSError as problem:
        print(number, problem.strerror)
    """
    number, _, reason = run_program(code, disk_bytes=2**23).stdout.strip().partition(" ")
    assert 5 <= int(number) <= 8
    assert reason == "No space left on device"
    assert not run_program("open('big', 'wb').write(bytes(2**24))", disk_bytes=2**23).completed
