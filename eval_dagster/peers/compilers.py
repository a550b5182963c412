"""How programs in several languages are built, and what their compilers need in the sandbox."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from eval_dagster.errors import RequirementError
from eval_dagster.sandbox import Toolchain
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
