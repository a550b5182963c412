"""Runs programs that the metrics of another package's worker ask for, in the sandbox."""

import base64
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from eval_dagster.errors import DataError
from eval_dagster.peers.eval_framework.code import BIG_CODE_BENCH_PACKAGE_MAPPING, ProgramTimeoutError
from eval_dagster.peers.eval_framework.metrics.multipl_e import LANGUAGES, PATH, build_of
from eval_dagster.peers.eval_framework.sandbox_sessions import SandboxSession
from eval_dagster.peers.workers.messages import ProgramEnded
from eval_dagster.sandbox import Limits, Program, run_python

_MEMORY_BYTES = 2**33
"""Engines of JavaScript and Java reserve far more address space than they use."""
_CODEBENCH = "codebench"
_IMPORTED = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)
_TIMED_OUT = 124
_RUNNER = """
import os, subprocess, sys
os.chdir("/tmp")
with open({file!r}, "wb") as file:
    file.write({content!r})
for command in {commands!r}:
    ended = subprocess.run(command, env={{"PATH": {path!r}, "HOME": "/tmp"}}, stdin=subprocess.DEVNULL)
    if ended.returncode:
        sys.exit(1)
"""
"""Runs commands until one fails. Then it ends with the status 1, whatever the status of the command was."""


def run_program(
    language: str,
    files: Mapping[str, str],
    packages: Sequence[str],
    code: str | None = None,
    timeout_s: float = 60.0,
    commands: Sequence[str] = (),
) -> ProgramEnded:
    """Run a program of a worker, or the last one of its commands after the others.

    Args:
        language: Its language, as the package `llm_sandbox` names it.
        files: Base64 of the contents of files, by path.
        packages: Packages that its container would have; `codebench` stands for BigCodeBench's.
        code: The program.
        timeout_s: Most seconds that the program may take.
        commands: The commands, if there is no program.

    Raises:
        DataError: The program imports a package that the sandbox does not have.
        RequirementError: The project does not allow execution, or the machine lacks the sandbox or a compiler.
    """
    if code is not None:
        _require_standard_library(code, packages)
    own = next((path for path in files if PurePosixPath(path).stem == "code" and PurePosixPath(path).suffix[1:] in LANGUAGES), None)
    if code is not None and language in ("cpp", "javascript"):
        return _built({"javascript": "js"}.get(language, language), code.encode(), timeout_s, whole=True)
    if own is not None:
        if commands and commands[-1].startswith("mkdir"):
            return {"stdout": "", "stderr": "", "exit_code": 0, "timed_out": False}
        # A compiler that is a command of its own is followed by the program.
        whole = "rustc" not in (commands[-1] if commands else "")
        limit = next((int(each) for each in re.findall(r"^timeout (\d+) ", commands[-1])), timeout_s) if commands else timeout_s
        found = _built(PurePosixPath(own).suffix[1:], base64.b64decode(files[own]), limit, whole=whole)
        return {**found, "exit_code": _TIMED_OUT, "timed_out": False} if found["timed_out"] else found
    session = SandboxSession(lang=language)
    with tempfile.TemporaryDirectory() as folder:
        for number, (path, content) in enumerate(files.items()):
            file = Path(folder) / str(number)
            file.write_bytes(base64.b64decode(content))
            session.copy_to_runtime(str(file), path)
    try:
        if code is not None:
            output = session.run(code, timeout_s)
        else:
            for command in commands:
                output = session.execute_command(command)
    except ProgramTimeoutError as error:
        return {"stdout": "", "stderr": str(error), "exit_code": _TIMED_OUT, "timed_out": True}
    return {"stdout": output.stdout, "stderr": output.stderr, "exit_code": output.exit_code, "timed_out": False}


def _built(language: str, content: bytes, timeout_s: float, *, whole: bool) -> ProgramEnded:
    """Build and run the file of a program; only its first command unless it is the whole."""
    build = build_of(language)
    commands = build.commands if whole else build.commands[:1]
    runner = _RUNNER.format(file=f"code.{language}", content=content, commands=commands, path=PATH)
    ended = run_python(Program(code=runner), Limits(timeout_s=timeout_s, memory_bytes=_MEMORY_BYTES), build.toolchain)
    return {
        "stdout": ended.stdout,
        "stderr": ended.stderr,
        "exit_code": 0 if ended.completed else 1,
        "timed_out": ended.ended_by == "timeout",
    }


def _require_standard_library(code: str, packages: Sequence[str]) -> None:
    known = {name: package for name, package in BIG_CODE_BENCH_PACKAGE_MAPPING.items() if package}
    given = known if _CODEBENCH in packages else {name: package for name, package in known.items() if package in packages}
    if lacking := sorted({given[name] for name in _IMPORTED.findall(code) if name in given}):
        raise DataError(
            f"the program needs {', '.join(lacking)}, which the container of eval-framework has; the sandbox has Python's standard library "
            "alone"
        )
