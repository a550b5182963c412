"""Programs run in the sandbox alone, and there alone where it is allowed."""

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eval_dagster.errors import EvalDagsterError, RequirementError, UsageError
from eval_dagster.sandbox import Program, SandboxPolicy, SandboxResult, probe, require_sandbox, run_python, running, sandbox_policy, walls

Run = Callable[..., SandboxResult]


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
