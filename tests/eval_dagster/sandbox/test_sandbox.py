"""What a program in the sandbox can do, and what it cannot."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from busy_processor import busy_processor

from eval_dagster.errors import EvalDagsterError, MachineError, RequirementError, UsageError
from eval_dagster.sandbox import (
    Program,
    SandboxPolicy,
    SandboxResult,
    probe,
    require_sandbox,
    run_python,
    running,
    sandbox_policy,
    walls,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def mark() -> Iterator[str]:
    """A word by which a program's traces are found; none may be left."""
    word = f"mark{uuid4().hex}"
    yield word
    deadline = time.monotonic() + 5
    while (left := _processes(word)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    assert not [path for folder in ("/tmp", "/var/tmp", "/dev/shm", Path.home(), Path.cwd()) for path in Path(folder).glob(f"*{word}*")]


def _processes(word: str) -> list[list[str]]:
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if any(word in part for part in line):
            found.append(line)
    return found


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


def test_a_program_that_comes_to_its_end(run_program: Run) -> None:
    result = run_program("import sys\nprint('grüß', __name__)\nprint('oh', file=sys.stderr)")
    assert (result.completed, result.exit_code, result.ended_by) == (True, 0, "exit")
    assert (result.stdout, result.stderr) == ("grüß __main__\n", "oh\n")
    assert 0 < result.duration_s < 10


def test_the_module_bears_the_name_that_is_given(run_program: Run) -> None:
    code = """
    import dataclasses, sys, __future__
    @dataclasses.dataclass
    class Point:
        x: "int"
    assert sys.modules["program"].Point is Point
    if __name__ == "__main__":
        raise RuntimeError
    """
    assert run_program(code, name="program").completed


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "exit_code", "trace"),
    [
        ("raise ValueError('no')", 1, "ValueError: no"),
        ("assert 1 == 2", 1, "AssertionError"),
        ("def f(:", 1, "SyntaxError"),
        ("'\0'", 1, "null bytes"),
        ("import nothing_of_this_name", 1, "ModuleNotFoundError"),
        ("import sys; sys.exit(3)", 3, ""),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_a_program_that_fails(run_program: Run, code: str, exit_code: int, trace: str) -> None:
    result = run_program(code)
    assert (result.completed, result.exit_code, result.ended_by) == (False, exit_code, "exit")
    assert trace in result.stderr


@pytest.mark.parametrize(
    "code",
    ["import os; os._exit(0)", "import sys; sys.exit()", "raise SystemExit(0)", "exit()", "import os; os.execv('/usr/bin/true', ['true'])"],
)
def test_an_early_exit_is_no_success(run_program: Run, code: str) -> None:
    result = run_program(code)
    assert (result.completed, result.exit_code) == (False, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    "code",
    [
        "sys.stdout.close()",
        "sys.stderr.close(); os.close(2)",
        "sys.stdout = None",
        "sys.stdout = object()",
        "sys.stdout = io.StringIO()",
        "os.close(1)",
        "del sys.stderr",
    ],
)
def test_a_program_may_close_or_replace_its_streams(run_program: Run, code: str) -> None:
    result = run_program(f"import io, os, sys\nprint('said before')\n{code}")
    assert result.completed, result.stderr
    assert result.stdout == ("" if code == "os.close(1)" else "said before\n")


def test_a_child_that_ends_early_does_not_stand_for_its_parent(run_program: Run) -> None:
    # The child comes to the last line too; the parent fails.
    assert not run_program("import os\nif os.fork():\n    os.wait()\n    raise ValueError").completed


def test_the_standard_library_alone_can_be_imported(run_program: Run) -> None:
    code = """
    import glob, os, subprocess, sys
    assert not any("-packages" in path for path in sys.path), sys.path
    for prefix in (sys.base_prefix, "/usr", "/usr/local"):
        for folder in glob.glob(f"{prefix}/lib/python3*/*-packages"):
            assert not os.listdir(folder), f"{folder} holds {os.listdir(folder)}"
    child = subprocess.run([sys.executable, "-c", "import pip"], capture_output=True, text=True)
    assert "No module named 'pip'" in child.stderr, child
    import json, sqlite3, decimal
    try:
        exit(0)
    except SystemExit:
        pass
    """
    result = run_program(code, timeout_s=60)
    assert result.completed, result.stderr
    assert not run_program(f"import sys; sys.path.append({sysconfig.get_path('purelib')!r}); import numpy").completed


def test_standard_input_is_closed_and_the_environment_empty(run_program: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "of this process")
    code = """
    import os, sys
    assert sys.stdin.read() == ""
    assert set(os.environ) == {"PATH", "HOME", "LANG", "PYTHONHASHSEED", "MALLOC_ARENA_MAX"}, os.environ
    """
    assert not run_program("input()").completed
    result = run_program(code)
    assert result.completed, result.stderr


def test_what_it_writes_to_every_descriptor_forges_no_report(run_program: Run) -> None:
    code = """
    import os
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b'\\n{"exit_code": 0, "completed": true}')
        except OSError:
            pass
    os._exit(0)
    """
    result = run_program(code)
    assert (result.completed, result.exit_code) == (False, 0)


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


def test_it_writes_to_its_own_folder_alone(run_program: Run, mark: str, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("as it was")
    places = [f"/tmp/{mark}", f"/var/tmp/{mark}", f"{Path.home()}/{mark}", f"{Path.cwd()}/{mark}", f"/{mark}"]
    places += [f"{sys.base_prefix}/{mark}", f"/usr/{mark}", f"{tmp_path}/kept", running.__file__, f"{Path(running.__file__).parent}/{mark}"]
    code = f"""
    import os
    written = []
    for place in {places!r}:
        try:
            with open(place, "a") as file:
                file.write("x")
        except OSError:
            continue
        written.append(place)
    print(*written)
    """
    assert run_program(code).stdout.split() == [f"/tmp/{mark}"]
    assert (tmp_path / "kept").read_text() == "as it was"


def test_it_reads_no_file_of_the_user(run_program: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    for path in (tmp_path / "secret", Path("/etc/passwd"), Path(__file__), Path("/proc/self/environ")):
        assert "FileNotFoundError" in run_program(f"open({str(path)!r})").stderr


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


def test_there_is_no_network(run_program: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = run_program(f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=3)")
        assert not result.completed
        assert "OSError" in result.stderr or "ConnectionRefusedError" in result.stderr
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not run_program("import socket; socket.getaddrinfo('example.org', 80)").completed
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0eval-dagster-test")
        listener.listen()
        code = "import socket; socket.socket(socket.AF_UNIX).connect('\\0eval-dagster-test')"
        assert "ConnectionRefusedError" in run_program(code).stderr


def test_it_can_neither_see_nor_kill_other_processes(run_program: Run) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        code = f"""
        import os, signal
        print(os.getppid())
        for process in ({os.getpid()}, {bystander.pid}, os.getppid(), -1):
            try:
                os.kill(process, signal.SIGKILL)
            except OSError as problem:
                print(process, problem.strerror)
        """
        result = run_program(code)
        assert result.stdout.startswith("1\n")
        assert f"{bystander.pid} No such process" in result.stdout
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_it_has_no_privileges_and_gets_none(run_program: Run) -> None:
    code = """
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    assert os.getuid() == os.geteuid() != 0
    assert os.getgroups() in ([], [os.getgid()]), os.getgroups()
    for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000):
        assert libc.unshare(flag) == -1
    assert libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == -1
    assert libc.ptrace(16, 1, 0, 0) == -1
    assert libc.sched_setaffinity(1, 8, ctypes.byref(ctypes.c_uint64(1))) == -1 and ctypes.get_errno() == 1
    os.nice(1)  # its own may be set
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    for attempt in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.chroot("/tmp"), lambda: os.setgroups([0])):
        try:
            attempt()
        except OSError:
            continue
        raise AssertionError
    """
    result = run_program(code)
    assert result.completed, result.stderr


def test_hashes_are_the_same_in_every_run(run_program: Run) -> None:
    assert len({run_program("print(hash('a'), {'a', 'b', 'c'})").stdout for _ in range(3)}) == 1


def test_two_at_a_time(run_program: Run) -> None:
    results: list[SandboxResult] = []

    def one(word: str) -> None:
        with sandbox_policy(SandboxPolicy(allowed=True)):
            results.append(run_program(f"open('word', 'w').write('{word}')\nprint(open('word').read())"))

    threads = [threading.Thread(target=one, args=(word,)) for word in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.stdout for result in results) == ["a\n", "b\n"]


def test_it_ends_with_the_process_that_asked(run_program: Run, mark: str) -> None:
    script = f"""
from eval_dagster.sandbox import *
with sandbox_policy(SandboxPolicy(allowed=True)):
    run_python(Program(code="import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(1000)', '{mark}'])"),
               Limits(timeout_s=1000))
"""
    asking = subprocess.Popen([sys.executable, "-c", script])
    try:
        # A process that has only been forked has the command of the one that asked, and so the mark, within a longer word.
        deadline = time.monotonic() + 60
        while not (runs := any(command[-1] == mark for command in _processes(mark))) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert runs
    finally:
        asking.kill()
        asking.wait()


def test_no_descriptor_is_left_open(run_program: Run) -> None:
    run_program("pass")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for code in ("pass", "1/0", "import os; os._exit(0)"):
        run_program(code)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("policy", [SandboxPolicy(), SandboxPolicy(allowed=False)])
def test_nothing_runs_unless_it_is_allowed(policy: SandboxPolicy) -> None:
    with sandbox_policy(policy), pytest.raises(UsageError, match=r"(?s)not allowed.*sandbox:\n    allow_code_execution: true"):
        run_python(Program(code="pass"))


def test_a_policy_holds_for_its_block_and_its_thread_alone() -> None:
    problems: list[Exception] = []

    def elsewhere() -> None:
        try:
            run_python(Program(code="pass"))
        except Exception as problem:
            problems.append(problem)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert isinstance(problems[0], UsageError)
    with sandbox_policy(SandboxPolicy(allowed=False)), pytest.raises(UsageError):
        run_python(Program(code="pass"))


@pytest.fixture
def _not_tried_yet() -> Iterator[None]:
    """This process has not found out yet whether the sandbox works, before the test and after it."""
    require_sandbox.cache_clear()
    yield
    require_sandbox.cache_clear()


def bubblewrap_that_prints(folder: Path, text: str) -> None:
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 1\n")
    program.chmod(0o755)


@pytest.mark.usefixtures("_not_tried_yet")
@pytest.mark.parametrize(
    ("prints", "user", "restriction", "container", "expected"),
    [
        (
            None,
            0,
            "0",
            False,
            "the program bwrap is not installed. Install bubblewrap: apt install bubblewrap .* or dnf install bubblewrap",
        ),
        (
            "bwrap: uid map",
            1000,
            "1",
            False,
            r"bwrap: uid map\. AppArmor denies .*: sudo sysctl kernel\.apparmor_restrict_unprivileged_userns=0",
        ),
        ("bwrap: uid map", 1000, "0", False, "The kernel must allow user namespaces: sudo sysctl user.max_user_namespaces=10000"),
        (
            "bwrap: namespace",
            1000,
            "0",
            True,
            "A container .*: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined",
        ),
        ("bwrap: loopback", 0, "1", True, "A container .*: docker run --cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt apparmor=unc"),
        ("something else", 0, "0", False, r"something else\. The sandbox needs bubblewrap, and Linux on x86_64 or aarch64"),
    ],
)
def test_without_bubblewrap_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prints: str | None, user: int, restriction: str, container: bool, expected: str
) -> None:
    """The message has the reason, and what to do about it."""
    if prints:
        bubblewrap_that_prints(tmp_path, prints)
    settings = tmp_path / "apparmor_restrict_unprivileged_userns"
    settings.write_text(f"{restriction}\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(walls, "_APPARMOR", settings)
    monkeypatch.setattr(walls, "_CONTAINER", (tmp_path,) if container else ())
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with sandbox_policy(SandboxPolicy(allowed=True)), pytest.raises(RequirementError, match=f"no sandbox for it: .*{expected}"):
        run_python(Program(code="print('ran')"))


def test_the_launcher_may_lie_where_installed_packages_do(run_program: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install` into the system's own Python: the launcher is in a folder that looks empty to the program."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as prefix:  # the sandbox has its own /tmp
        Path(prefix).chmod(0o755)
        packages = Path(prefix, f"lib/python3.{sys.version_info.minor}/site-packages")
        packages.mkdir(parents=True)
        for file in running._FOLDER.glob("*.py"):
            shutil.copy(file, packages)
        monkeypatch.setattr(running, "_FOLDER", packages)
        monkeypatch.setattr(running, "_script", running._script.__wrapped__)
        monkeypatch.setattr(walls, "_SYSTEM", (*walls._SYSTEM, prefix))
        for cached in (walls.visible_paths, walls.package_folders):
            monkeypatch.setattr(walls, cached.__name__, cached.__wrapped__)
        probe()
        result = run_program(f"import os; print(os.listdir({prefix!r} + '/lib'), os.listdir({str(packages)!r}))")
    assert (result.completed, result.stdout) == (True, f"['python3.{sys.version_info.minor}'] []\n"), result.stderr


def test_a_wall_with_a_gap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `bwrap` that builds no walls: the launcher runs in the open, and the trial says so instead of letting programs in."""
    monkeypatch.setattr(walls, "bubblewrap", lambda disk_bytes, toolchain: [])
    with pytest.raises(EvalDagsterError, match=r"the code|Permission denied"):
        probe()


def test_a_sandbox_that_fails_is_no_failed_program(run_program: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walls, "DEVICES", ("/dev/no-such-device",))
    with pytest.raises(EvalDagsterError, match="no-such-device"):
        run_program("pass")
