"""The process that waits for the one that works: what it says, prints and passes on, however that one ends."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

SETTING = """
    import os, signal, sys, time
    from eval_dagster import users_code
    from eval_dagster.cli import program
    from eval_dagster.users_code import calling, doing, limited

    def segfault():
        os.kill(os.getpid(), signal.SIGSEGV)

    def end(status):
        users_code.ended(status)
        os._exit(status)

    def work():
    {work}

    program._work = work
    {setting}
    sys.argv = ["eval-dagster", "{command}"]
    program.program()
"""
ONE_OF_TWO = """
    for name in ("good", "bad"):
        try:
            with doing("sample_scores", [name], "m"), calling("the metric f1", "4711"):
                if name == "bad":
                    {fault}
            print("did", name, flush=True)
        except Exception as error:
            print("left out", name, error, flush=True)
    end(1)
"""


def started(work: str, command: str = "run", *, setting: str = "", start_new_session: bool = False) -> "subprocess.Popen[str]":
    """A command whose work is other code, with statements before it begins."""
    code = textwrap.dedent(SETTING).format(work=textwrap.indent(textwrap.dedent(work), "    "), command=command, setting=setting)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=start_new_session
    )


def ended(work: str, command: str = "run", *, setting: str = "") -> tuple[int, str, str]:
    """Status and output of a command whose work is other code."""
    process = started(work, command, setting=setting)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("status", [0, 1, 2, 3, 130])
def test_the_status_is_what_the_work_says_when_it_ends(status: int) -> None:
    assert ended(f"end({status})") == (status, "", "")


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        ("os._exit(0)", "with exit status 0, as by os._exit(0),"),
        ("os._exit(3)", "with exit status 3, as by os._exit(3),"),
        ("segfault()", "by SIGSEGV (a fault in compiled code)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "by SIGKILL (as the kernel ends processes where memory runs out)"),
        ("os.abort()", "by SIGABRT"),
    ],
)
def test_the_rest_goes_on_after_a_death_and_the_place_is_named(fault: str, how: str) -> None:
    status, out, err = ended(ONE_OF_TWO.format(fault=fault))
    said = f"the process ended {how} while it called the metric f1 for the sample 4711 in sample_scores of the eval bad on the model m"
    assert status == 1
    assert out.splitlines()[:2] == ["did good", "did good"]
    assert out.splitlines()[2].startswith(f"left out bad {said}; ")
    assert err.startswith(f"error: {said}; ")
    assert err.count("error: ") == 1


@pytest.mark.long
def test_an_endless_loop_ends_with_its_time() -> None:
    status, out, _ = ended("with limited(0.5):\n" + textwrap.indent(textwrap.dedent(ONE_OF_TWO), "    ").format(fault="while True: pass"))
    assert status == 1
    assert out.splitlines()[2].startswith("left out bad the process ended when its time was over (code_timeout) while it called the metric")


def test_a_command_that_cannot_go_on_has_failed() -> None:
    for work, command in (("os._exit(0)", "run"), (ONE_OF_TWO.format(fault="os._exit(0)"), "tasks")):
        status, _, err = ended(work, command)
        assert status == 1
        assert "the process ended with exit status 0" in err
        assert "goes on" not in err


def test_what_dies_again_is_not_tried_for_ever() -> None:
    status, _, err = ended("""users_code._set_work(users_code.Place(stage="sample_scores", evals=("a",), model="m")); os._exit(0)""")
    assert (status, err.count("error: ")) == (1, 2)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_work_which_says_the_status(sent: signal.Signals) -> None:
    process = started(
        "for each in (signal.SIGTERM, signal.SIGINT):\n    signal.signal(each, signal.default_int_handler)\n"
        "try:\n    print('at work', flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    end(130)"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    process.send_signal(sent)
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 130


def test_an_interrupt_while_the_work_imports_is_one_line() -> None:
    """A library would print a traceback, or go on without what it could not import."""
    process = started("try:\n    print('at work', flush=True)\n    time.sleep(60)\nexcept BaseException:\n    time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "interrupted\n")
    assert process.returncode == 130


def test_a_signal_to_all_processes_reaches_the_work_once() -> None:
    """As from a terminal, `timeout` and systemd."""
    work = """
        got = []
        signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
        print("at work", flush=True)
        while not got:
            time.sleep(0.01)
        time.sleep(0.3)
        print(len(got), flush=True)
        end(130)
    """
    process = started(work, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "1\n"
    assert process.returncode == 130


def test_a_process_that_was_stopped_for_a_while_goes_on() -> None:
    """Ctrl-Z stops a process, and `fg` continues it. Python then returns a signal that nobody sent."""
    process = started("time.sleep(5)\nend(3)")
    for _ in range(2):
        time.sleep(0.7)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.3)
        os.kill(process.pid, signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (3, "", "")


@pytest.mark.long
def test_a_call_does_not_use_the_time_for_which_it_was_stopped() -> None:
    work = """
        with limited(4), doing("sample_scores", ["good"], "m"), calling("the metric f1", "4711"):
            began, left = time.monotonic(), 2.5
            while left > 0:
                time.sleep(0.1)
                left -= 0.1
        end(3)
    """
    process = started(work, start_new_session=True)
    time.sleep(1.5)
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(6)
    os.killpg(process.pid, signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (3, "", "")


def test_a_process_that_a_signal_ends_at_once_is_not_begun_again() -> None:
    process = started("signal.signal(signal.SIGTERM, signal.SIG_DFL)\nprint('at work', flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == -signal.SIGTERM


def test_work_that_dies_after_an_interrupt_is_not_begun_again() -> None:
    process = started(
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\nusers_code._set_work(users_code.Place(stage='s', evals=('e',)))\n"
        "print('at work', flush=True)\ntime.sleep(60)"
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == -signal.SIGTERM


def test_the_work_dies_with_the_process_that_waits_for_it() -> None:
    process = started("print(os.getpid(), flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=30)
    until = time.monotonic() + 10
    while Path(f"/proc/{child}/stat").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.long
def test_a_process_that_waits_for_memory_ends_and_the_bound_is_named() -> None:
    """As OpenBLAS does, which tries for ever to get some."""
    status, _, err = ended(
        """
        kept = []
        try:
            while True:
                kept.append(bytearray(2**20))
        except MemoryError:
            while True:
                time.sleep(0.1)
    """,
        setting="program.FULL_S = 1; import resource; resource.setrlimit(resource.RLIMIT_AS, (600 * 2**20,) * 2)",
    )
    assert status == 1
    assert "the process ended when it waited for memory" in err
    assert "Its memory was bounded to 0.6 GB (ulimit -v), which may be the cause: raise the bound" in err


def test_the_process_that_waits_imports_nothing_of_the_work() -> None:
    code = "import sys; import eval_dagster.cli.program; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"dagster", "torch", "numpy", "pyarrow", "duckdb", "pydantic", "typer", "rich"} & set(found)
