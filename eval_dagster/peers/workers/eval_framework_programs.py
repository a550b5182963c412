"""Sends the programs of eval-framework's metrics to eval_dagster, whose sandbox runs them, in the place of its containers.

It is imported before eval-framework, so that its modules take these names.
"""

from __future__ import annotations

import base64
import importlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import llm_sandbox
from llm_sandbox.exceptions import SandboxTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

_NAMES = ("SandboxSession", "run_python_code", "execute_python_code_with_tests", "get_or_create_pool")
_DEFAULT_S = 60.0


def runs_programs(metric: type[Any]) -> bool:
    """Whether a metric runs programs: its module, or the module of a base, has the names for it."""
    modules = {base.__module__ for base in metric.__mro__ if base.__module__ != "builtins"}
    return any(hasattr(sys.modules[module], name) for module in modules for name in _NAMES)


class Output(NamedTuple):
    """The output of a command, and its status."""

    stdout: str
    stderr: str
    exit_code: int

    def success(self) -> bool:
        """Whether the command ended without an error."""
        return self.exit_code == 0


class SandboxSession:
    """Files and commands, by the names of the package `llm_sandbox`."""

    def __init__(self, *, pool: Any = None, lang: Any = "python", **_: Any) -> None:
        self._lang, self._pool = str(getattr(lang, "value", lang)), pool if isinstance(pool, dict) else {}
        self._files: dict[str, str] = {}
        self._commands: list[str] = []

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End. Nothing is left of a session."""

    def copy_to_runtime(self, src: str, dest: str) -> None:
        """Give the session a copy of a file."""
        self._files[dest] = base64.b64encode(Path(src).read_bytes()).decode()

    def execute_command(self, command: str) -> Output:
        """Run a command after the commands before it."""
        self._commands.append(command)
        return self._run({"commands": self._commands})

    def run(self, code: str, timeout: float | None = None) -> Output:
        """Run a program. Raises `SandboxTimeoutError` if it takes too much time."""
        return self._run({"code": code, "timeout_s": timeout or _DEFAULT_S})

    def _run(self, what: dict[str, object]) -> Output:
        packages = [*(self._pool.get("libraries") or ()), *(["codebench"] if self._pool.get("dockerfile") else [])]
        found = _ask()("run_program", {"language": self._lang, "files": self._files, "packages": packages, **what})
        if found.get("timed_out"):
            raise SandboxTimeoutError(found["stderr"] or "the program took too much time")
        return Output(found["stdout"], found["stderr"], found["exit_code"])


def _ask() -> Callable[[str, dict[str, object]], Any]:
    found: Callable[[str, dict[str, object]], Any] = sys.modules["__main__"].ask
    return found


def install() -> None:
    """Let modules that are imported from now on take these names, and not the package's."""
    setattr(llm_sandbox, "SandboxSession", SandboxSession)  # noqa: B010 - a package without types
    try:
        pools = importlib.import_module("llm_sandbox.pool")
    except ImportError:
        return
    setattr(pools, "create_pool_manager", lambda **given: _Pool(given))  # noqa: B010


def install_late() -> None:
    """Take the place of a download that only a container needs."""
    try:  # releases before 0.11 import it with the first task that has it
        module = importlib.import_module("eval_framework.metrics.completion.multipl_e_assertion")
    except ImportError:
        return
    if hasattr(module, "_get_javatuples_jar"):
        file = Path(tempfile.gettempdir()) / "no-jar-is-needed"
        file.touch()
        setattr(module, "_get_javatuples_jar", lambda: str(file))  # noqa: B010


class _Pool(dict[str, object]):
    """The settings of containers: none is started."""

    def close(self) -> None:
        """Nothing to do."""
