"""What a program in the sandbox can do, and what it cannot."""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox_traces import processes_with

from eval_dagster.sandbox import SandboxPolicy, SandboxResult, running, sandbox_policy

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
        while not (runs := any(command[-1] == mark for command in processes_with(mark))) and time.monotonic() < deadline:
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
