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
from eval_dagster.sandbox import Limits, Program, run_python

_PATH = "/usr/local/bin:/usr/bin:/bin"
"""What the sandbox shows of the machine's programs."""
_JAVATUPLES = "/usr/share/java/javatuples.jar"
_SECONDS = 60.0
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
    needs: tuple[str, ...] = ()
    """Files that must be there."""


_LANGUAGES = {
    "cpp": _Language("code.cpp", (("g++", "-std=c++17", "code.cpp", "-o", "program"), ("./program",))),
    "java": _Language(
        "code.java",
        (
            ("javac", "-J-Xmx512m", "-encoding", "UTF8", "-cp", _JAVATUPLES, "-d", ".", "code.java"),
            ("java", "-Xmx512m", "-ea", "-cp", f".:{_JAVATUPLES}", "Problem"),
        ),
        (_JAVATUPLES,),
    ),
    "js": _Language("code.js", (("node", "code.js"),)),
    "php": _Language("code.php", (("php", "code.php"),)),
    "rs": _Language("code.rs", (("rustc", "code.rs", "-o", "program"), ("./program",))),
    "sh": _Language("code.sh", (("bash", "code.sh"),)),
}


class MultiPLEMetricContext(BaseMetricContext):
    """The beginning of a program, its tests, and their language."""

    prompt: str
    tests: str
    language: str


class MultiPLECodeAssertion(BaseMetric[Completion]):
    """Whether a program with its tests ends without an error."""

    NAME = "MultiPL-E Code Assertion"
    EXECUTES_CODE = True
    COMPANIONS = COMPANIONS

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1 or 0.

        Raises:
            RequirementError: The machine has no compiler or interpreter of the language.
            DataError: The language is not known.
            ProgramTimeoutError: The program takes more than a minute.
        """
        context = extract_context_metric(response, MultiPLEMetricContext)
        language = _LANGUAGES.get(context.language)
        if language is None:
            raise DataError(f"the language is {context.language!r}; expected one of {', '.join(_LANGUAGES)}")
        _require(context.language, language)
        whole = f"{context.prompt}{response.completion}\n{context.tests}"
        runner = _RUNNER.format(files={language.file: whole}, commands=[list(each) for each in language.commands], path=_PATH)
        ended = run_python(Program(code=f"import os\nos.chdir('/tmp')\n{runner}"), Limits(timeout_s=_SECONDS, memory_bytes=2**33))
        if ended.ended_by == "timeout":
            raise ProgramTimeoutError(f"the program took more than {_SECONDS:g} s")
        return [result(self, ended.completed, code_execution_trace=json.dumps([ended.stdout, ended.stderr]))]


def _require(name: str, language: _Language) -> None:
    tools = {command[0] for command in language.commands if not command[0].startswith("./")}
    missing = sorted(tool for tool in tools if shutil.which(tool, path=_PATH) is None)
    missing += [file for file in language.needs if not Path(file).exists()]
    if missing:
        raise RequirementError(
            f"programs in the language {name!r} need {', '.join(missing)}, which this machine does not have in {_PATH}; install it"
        )
