"""The metric of MultiPL-E: programs in several languages, which run in the sandbox."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from eval_dagster.compat.eval_framework.code import COMPANIONS, ProgramTimeoutError
from eval_dagster.compat.eval_framework.contexts import BaseMetricContext, extract_context_metric
from eval_dagster.compat.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.compat.eval_framework.responses import Completion
from eval_dagster.errors import DataError, RequirementError
from eval_dagster.metrics.base import MetricResult
from eval_dagster.sandbox import Limits, Program, SandboxResult, run_python

_PATH = "/usr/local/bin:/usr/bin:/bin"
"""What the sandbox shows of the machine's programs."""
_SECONDS = 60.0
_MEMORY_BYTES = 2**33
"""A JavaScript engine reserves far more address space than it uses."""
_RUNNER = """
import subprocess, sys
for name, text in {files!r}.items():
    open(name, "w").write(text)
for command in {commands!r}:
    ended = subprocess.run(command, env={{"PATH": {path!r}, "HOME": "/tmp"}}, stdin=subprocess.DEVNULL)
    if ended.returncode:
        sys.exit(1)
"""


@dataclass(frozen=True)
class _Language:
    """How a program in a language is built and run."""

    file: str
    commands: tuple[tuple[str, ...], ...]


_LANGUAGES = {
    "cpp": _Language("code.cpp", (("g++", "-std=c++17", "code.cpp", "-o", "program"), ("./program",))),
    "js": _Language("code.js", (("node", "code.js"),)),
    "php": _Language("code.php", (("php", "code.php"),)),
    "sh": _Language("code.sh", (("bash", "code.sh"),)),
}
_NOT_IN_THE_SANDBOX = {"java": "javac reads its settings in /etc", "rs": "rustc reads /proc"}
"""Languages that cannot run, and why."""


class MultiPLEMetricContext(BaseMetricContext):
    """The beginning of a program, its tests, and their language."""

    prompt: str
    tests: str
    language: str


class MultiPLECodeAssertion(BaseMetric[Completion]):
    """Whether a program with its tests ends without an error."""

    NAME = "MultiPL-E Code Assertion"
    IS_PROPORTION = True
    EXECUTES_CODE = True
    COMPANIONS = COMPANIONS

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1 or 0.

        Raises:
            RequirementError: The machine has no compiler or interpreter of the language, or it cannot run in the sandbox.
            DataError: The language is not known.
            ProgramTimeoutError: The program takes more than a minute.
        """
        context = extract_context_metric(response, MultiPLEMetricContext)
        if reason := _NOT_IN_THE_SANDBOX.get(context.language):
            raise RequirementError(f"programs in the language {context.language!r} cannot run in the sandbox: {reason}, which it lacks")
        language = _LANGUAGES.get(context.language)
        if language is None:
            raise DataError(f"the language is {context.language!r}; expected one of {', '.join(_LANGUAGES)}")
        tools = _tools(context.language, language)
        whole = f"{context.prompt}{response.completion}\n{context.tests}"
        runner = _RUNNER.format(
            files={language.file: whole}, commands=[[tools[name], *rest] for name, *rest in language.commands], path=_PATH
        )
        ended = _run(Program(code=f"import os\nos.chdir('/tmp')\n{runner}"))
        if ended.ended_by == "timeout":
            raise ProgramTimeoutError(f"the program took more than {_SECONDS:g} s")
        return [result(self, ended.completed, code_execution_trace=json.dumps([ended.stdout, ended.stderr]))]


def _run(program: Program) -> SandboxResult:
    limits = Limits(timeout_s=_SECONDS, memory_bytes=_MEMORY_BYTES)
    try:
        return run_python(program, limits)
    except FileNotFoundError:  # a compiler's process ended while its threads were counted
        return run_python(program, limits)


def _tools(name: str, language: _Language) -> dict[str, str]:
    """The paths of the programs in the commands, without symbolic links: these may lead through folders that the sandbox lacks."""
    wanted = {command[0] for command in language.commands}
    found = {tool: tool if tool.startswith("./") else shutil.which(tool, path=_PATH) for tool in wanted}
    if missing := [tool for tool, path in found.items() if path is None]:
        raise RequirementError(
            f"programs in the language {name!r} need {', '.join(sorted(missing))}, which this machine does not have in {_PATH}; install it"
        )
    return {tool: path if path.startswith("./") else str(Path(path).resolve()) for tool, path in found.items() if path is not None}
