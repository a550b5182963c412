"""Programs and commands that the metrics of a worker ask for: what runs in the sandbox, and what is refused."""

import base64
from collections.abc import Iterator

import pytest

from eval_dagster.errors import DataError, RequirementError
from eval_dagster.peers.programs import run_program
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy

COMMANDS = ["mkdir -p /tmp/made/before", "timeout 20 bash /tmp/made/program.sh"]


@pytest.fixture
def _allowed() -> Iterator[None]:
    with sandbox_policy(SandboxPolicy(allowed=True)):
        yield


def file(text: str) -> dict[str, str]:
    return {"/tmp/made/program.sh": base64.b64encode(text.encode()).decode()}


@pytest.mark.usefixtures("_sandbox", "_allowed")
def test_a_command_sees_the_files_and_what_the_commands_before_it_made() -> None:
    right = run_program("python", file("ls /tmp/made/before && echo $((3 + 4))\n"), [], commands=COMMANDS)
    assert right == {"stdout": "7\n", "stderr": "", "exit_code": 0, "timed_out": False}
    wrong = run_program("python", file("echo 7; exit 3\n"), [], commands=["echo earlier", *COMMANDS])
    assert (wrong["stdout"], wrong["exit_code"]) == ("7\n", 1)


@pytest.mark.usefixtures("_sandbox", "_allowed")
def test_a_program_in_python() -> None:
    assert run_program("python", {}, [], code="print(3)") == {"stdout": "3\n", "stderr": "", "exit_code": 0, "timed_out": False}
    assert run_program("python", {}, [], code="raise SystemExit(5)")["exit_code"] == 1
    late = run_program("python", {}, [], code="while True: pass", timeout_s=1.0)
    assert late == {"stdout": "", "stderr": "the program took more than 1 s", "exit_code": 124, "timed_out": True}


def test_nothing_runs_without_the_projects_permission() -> None:
    with pytest.raises(RequirementError, match="allow_code_execution: true"):
        run_program("python", {}, [], code="print(3)")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("rustc code.rs", "'rustc' cannot run in the sandbox"),
        ("sh -c 'javac X.java'", "'javac' cannot"),
        ("no_such_tool", "needs the program"),
    ],
)
def test_a_command_that_the_sandbox_lacks(command: str, reason: str) -> None:
    with pytest.raises(RequirementError, match=reason):
        run_program("python", {}, [], commands=[command])


def test_a_language_that_the_sandbox_lacks() -> None:
    with pytest.raises(RequirementError, match="'java' cannot run in the sandbox; it has python"):
        run_program("java", {}, [], code="x")


@pytest.mark.parametrize(("packages", "code"), [(["codebench"], "import numpy as np"), (["pyyaml"], "x = 1\n  from yaml import load")])
def test_a_program_that_needs_a_package_of_its_container(packages: list[str], code: str) -> None:
    with pytest.raises(DataError, match=r"the program needs (numpy|pyyaml), which the container of eval-framework has"):
        run_program("python", {}, packages, code=code)
