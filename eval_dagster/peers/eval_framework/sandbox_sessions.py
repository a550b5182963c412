"""Sessions of the package `llm_sandbox`, by its names: programs in several languages, which run in this project's sandbox."""

import re
import shlex
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

from eval_dagster.errors import RequirementError
from eval_dagster.peers.eval_framework.code import ProgramTimeoutError
from eval_dagster.sandbox import Limits, Program, SandboxResult, run_python

_PATH = "/usr/local/bin:/usr/bin:/bin"
"""The search path of commands in the sandbox."""
_SECONDS = 120.0
"""Most seconds of all commands of a session together, if a command has no limit of its own."""
_MEMORY_BYTES = 2**33
"""A JavaScript engine reserves far more address space than it uses."""
_TOO_LONG = 124
"""The status of a command that took too much time."""
_NOT_IN_THE_SANDBOX = re.compile(r"\b(javac?|rustc|cargo|go|ruby|Rscript)\b")
_RUNNER = """
import os, subprocess, sys
os.chdir("/tmp")
for name, content in {files!r}.items():
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "wb") as file:
        file.write(content)
*earlier, last = {commands!r}
settings = {{"env": {{"PATH": {path!r}, "HOME": "/tmp"}}, "stdin": subprocess.DEVNULL}}
for command in earlier:
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **settings)
if subprocess.run(last, **settings).returncode:
    sys.exit(1)
"""


class SupportedLanguage(StrEnum):
    """The languages that a session runs."""

    PYTHON = "python"
    CPP = "cpp"
    JAVASCRIPT = "javascript"


class DefaultImage(StrEnum):
    """The images of the languages. The sandbox uses none."""

    PYTHON = "python"
    CPP = "cpp"
    JAVASCRIPT = "javascript"


_LANGUAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    SupportedLanguage.PYTHON: ("code.py", ("python3 code.py",)),
    SupportedLanguage.CPP: ("code.cpp", ("g++ -std=c++17 code.cpp -o program", "./program")),
    SupportedLanguage.JAVASCRIPT: ("code.js", ("node code.js",)),
}
"""The file of a program in a language, and the commands that build and run it."""


class Output(NamedTuple):
    """The output of a command, and its status."""

    stdout: str
    stderr: str
    exit_code: int

    def success(self) -> bool:
        """Whether the command ended without an error."""
        return self.exit_code == 0


class SandboxSession:
    """Files and commands. A command sees the files and what the commands before it made: these run again before it, in a new sandbox."""

    def __init__(self, *, lang: str = SupportedLanguage.PYTHON, **_: Any) -> None:
        self._lang = lang
        self._files: dict[str, bytes] = {}
        self._commands: list[list[str]] = []

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End. Nothing is left of a session."""

    def copy_to_runtime(self, src: str, dest: str) -> None:
        """Give the session a copy of a file."""
        self._files[dest] = Path(src).read_bytes()

    def execute_command(self, command: str) -> Output:
        """Run a command.

        Raises:
            RequirementError: The sandbox lacks what the command needs, or the project does not allow execution.
        """
        self._commands.append(_found(shlex.split(command)))
        return self._run(_SECONDS)

    def run(self, code: str, timeout: float | None = None) -> Output:
        """Run a program in the language of the session.

        Raises:
            ProgramTimeoutError: It took too much time.
            RequirementError: The sandbox lacks the language, or the project does not allow execution.
        """
        if self._lang not in _LANGUAGES:
            raise RequirementError(f"programs in {self._lang!r} cannot run in the sandbox; it has {', '.join(_LANGUAGES)}")
        seconds = timeout or _SECONDS
        file, commands = _LANGUAGES[self._lang]
        self._files[file] = code.encode()
        *building, last = [_found(command.split()) for command in commands]
        for command in building:
            self._commands.append(command)
            if not (built := self._run(seconds)).success():
                return built
        self._commands.append(last)
        found = self._run(seconds)
        if found.exit_code == _TOO_LONG:
            raise ProgramTimeoutError(f"the program took more than {seconds:g} s")
        return found

    def _run(self, seconds: float) -> Output:
        code = _RUNNER.format(files=self._files, commands=self._commands, path=_PATH)
        ended = _in_sandbox(Program(code=code), Limits(timeout_s=seconds, memory_bytes=_MEMORY_BYTES))
        status = 0 if ended.completed else _TOO_LONG if ended.ended_by == "timeout" else 1
        return Output(ended.stdout, ended.stderr, status)


def _in_sandbox(program: Program, limits: Limits) -> SandboxResult:
    return run_python(program, limits)


def get_or_create_pool(image: str | None = None, **_: Any) -> str | None:
    """The containers of an image: none, a session runs in the sandbox."""
    return image


def get_docker_address() -> str:
    """Raises `RequirementError`: no server runs in a container."""
    raise RequirementError("the metric needs a database server in a container, and evals start none; choose another dialect or metric")


def _found(words: list[str]) -> list[str]:
    """A command with the paths of its programs, without symbolic links: these may lead through folders that the sandbox lacks."""
    if missing := _NOT_IN_THE_SANDBOX.search(" ".join(words)):
        raise RequirementError(
            f"the program {missing[0]!r} cannot run in the sandbox of a session; `MultiPLECodeAssertion` of eval_dagster runs Java and Rust"
        )
    places = [0, 2] if words[0] == "timeout" else [0]
    return [_path(word) if place in places and "/" not in word else word for place, word in enumerate(words)]


def _path(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        raise RequirementError(f"the metric needs the program {name!r}, which this machine does not have in {_PATH}; install it")
    return str(Path(found).resolve())
