"""The metric of MultiPL-E: programs in several languages, how they are built, and what their compilers need in the sandbox."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from eval_dagster.errors import DataError, RequirementError
from eval_dagster.metrics.base import MetricResult
from eval_dagster.peers.eval_framework.code import COMPANIONS, ProgramTimeoutError
from eval_dagster.peers.eval_framework.contexts import BaseMetricContext, extract_context_metric
from eval_dagster.peers.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.peers.eval_framework.responses import Completion
from eval_dagster.sandbox import Limits, Program, Toolchain, run_python
from eval_dagster.sandbox.walls import is_visible

PATH = "/usr/local/bin:/usr/bin:/bin"
"""The search path of every program in the sandbox."""
_JAVATUPLES = ("/usr/share/java/javatuples.jar", "/usr/local/share/java/javatuples.jar")
"""MultiPL-E's programs in Java import this library."""
_JVM = ("-Xmx2g", "-XX:ActiveProcessorCount=1")
"""Without these, heap and threads grow with the machine, beyond the limits of the sandbox."""
_RUST_FILES = ("bin/rustc", "lib/rustlib", "lib/librustc_driver-*", "lib/libLLVM*", "lib/libstd-*")
"""The compiler's own files: other programs may lie beside it."""
_JAVA_FILES = ("bin", "lib", "conf", "conf/security/java.security", "lib/jvm.cfg")
"""Distributions keep the settings below /etc, with symbolic links to them."""
_LIMITS = Limits(timeout_s=60.0, memory_bytes=2**33)
"""The engines of JavaScript and Java reserve far more address space than they use."""
_TIMED = ("cpp", "js")
"""Languages in which a program that takes too much time is an error. In the others, eval-framework ends it by a command, as a wrong one."""
_RUNNER = """
import os, subprocess, sys
os.chdir("/tmp")
with open({file!r}, "w") as file:
    file.write({text!r})
for command in {commands!r}:
    ended = subprocess.run(command, env={{"PATH": {path!r}, "HOME": "/tmp"}}, stdin=subprocess.DEVNULL)
    if ended.returncode:
        sys.exit(1)
"""


@dataclass(frozen=True, kw_only=True)
class Build:
    """The commands that build and run a program, one after the other."""

    commands: tuple[tuple[str, ...], ...]
    toolchain: Toolchain | None = None


@cache
def build_of(language: str) -> Build:
    """How a program of a language, in the file `code.<language>`, is built and run.

    Raises:
        RequirementError: The machine lacks a compiler or an interpreter.
    """
    return LANGUAGES[language]()


def _cpp() -> Build:
    return Build(commands=((_tool("g++"), "-std=c++17", "code.cpp", "-o", "program"), ("./program",)))


def _java() -> Build:
    compiler = str(Path(_compiler("javac")).resolve())
    home = Path(compiler).parent.parent
    if missing := [name for name in ("bin/java", *_JAVA_FILES) if not (home / name).exists()]:
        raise RequirementError(
            f"{compiler} is not part of a Java development kit: {home} has no {missing[0]}; install one, openjdk-17-jdk for instance"
        )
    if not is_visible(str(home)) and any((home / "lib").glob("python*")):
        raise RequirementError(
            f"{compiler} shares {home} with other programs, whose files programs in Java would see; install it in a folder of its own"
        )
    library = next((path for path in _JAVATUPLES if Path(path).is_file()), None)
    if library is None:
        raise RequirementError(
            f"programs in Java need the library javatuples, which this machine does not have as {' or '.join(_JAVATUPLES)}; "
            "on Debian and Ubuntu: apt install libjavatuples-java"
        )
    java, paths = str(home / "bin/java"), tuple(str((home / name).resolve()) for name in _JAVA_FILES)
    return Build(
        commands=(
            (compiler, *(f"-J{option}" for option in _JVM), "-encoding", "UTF8", "-cp", library, "-d", ".", "code.java"),
            (java, *_JVM, "-ea", "-cp", f".:{library}", "Problem"),
        ),
        toolchain=Toolchain(executable=java, paths=paths),
    )


def _rust() -> Build:
    compiler, linker = _compiler("rustc"), _tool("cc")
    ended = subprocess.run([compiler, "--print", "sysroot"], cwd="/", capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RequirementError(f"{compiler} --print sysroot failed: {ended.stderr.strip()}; repair this installation of Rust")
    root = Path(ended.stdout.strip()).resolve()
    paths = [str(path) for pattern in _RUST_FILES for path in root.glob(pattern)]
    own = str(root / "bin/rustc")
    # A compiler of rustup names a linker that looks for its parts by /proc/self/exe.
    linking = (f"-Clinker={linker}", "-Clink-arg=-fuse-ld=bfd")
    return Build(
        commands=((own, *linking, "code.rs", "-o", "program"), ("./program",)), toolchain=Toolchain(executable=own, paths=tuple(paths))
    )


def _interpreted(tool: str, language: str) -> Callable[[], Build]:
    return lambda: Build(commands=((_tool(tool), f"code.{language}"),))


LANGUAGES: Mapping[str, Callable[[], Build]] = {
    "cpp": _cpp,
    "java": _java,
    "js": _interpreted("node", "js"),
    "php": _interpreted("php", "php"),
    "rs": _rust,
    "sh": _interpreted("bash", "sh"),
}


def _tool(name: str) -> str:
    """The path of a program that every sandbox has, without symbolic links: these may lead through folders that the sandbox lacks."""
    return str(Path(_found(name, PATH)).resolve())


def _compiler(name: str) -> str:
    """The path of a compiler that may be anywhere: the user's own first."""
    return _found(name, f"{os.environ.get('PATH', os.defpath)}:{PATH}")


def _found(name: str, path: str) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        raise RequirementError(f"the programs need {name}, which this machine does not have in {path}; install it")
    return found


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
            RequirementError: The machine has no compiler or interpreter of the language.
            DataError: The language is not known.
            ProgramTimeoutError: A program in C++ or JavaScript takes more than a minute. In other languages it is wrong.
        """
        context = extract_context_metric(response, MultiPLEMetricContext)
        if context.language not in LANGUAGES:
            raise DataError(f"the language is {context.language!r}; expected one of {', '.join(LANGUAGES)}")
        build = build_of(context.language)
        whole = f"{context.prompt}{response.completion}\n{context.tests}"
        runner = _RUNNER.format(file=f"code.{context.language}", text=whole, commands=build.commands, path=PATH)
        ended = run_python(Program(code=runner), _LIMITS, build.toolchain)
        if ended.ended_by == "timeout" and context.language in _TIMED:
            raise ProgramTimeoutError(f"the program took more than {_LIMITS.timeout_s:g} s")
        return [result(self, ended.completed, code_execution_trace=json.dumps([ended.stdout, ended.stderr]))]
