"""Runs programs that the metrics of another package's worker ask for, in the sandbox."""

import base64
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from eval_dagster.errors import DataError, RequirementError
from eval_dagster.peers.compilers import LANGUAGES, PATH, build_of
from eval_dagster.peers.workers.messages import ProgramEnded
from eval_dagster.sandbox import Limits, Program, run_python

_MEMORY_BYTES = 2**33
"""Engines of JavaScript and Java reserve far more address space than they use."""
_COMMANDS_S = 120.0
"""Most seconds of all commands together, if a command has no limit of its own."""
_CODEBENCH = "codebench"
_SAME_NAME = (
    "blake3 chardet cryptography django flask folium gensim geopandas geopy holidays keras librosa lxml matplotlib mechanize "
    "natsort nltk numpy openpyxl pandas prettytable psutil pyquery pytesseract pytz regex requests rsa scipy seaborn sendgrid "
    "shapely soundfile statsmodels sympy tensorflow textblob texttable werkzeug wikipedia wordcloud wordninja wtforms xlwt "
    "xmltodict"
)
_PACKAGES = {
    **{name: name for name in _SAME_NAME.split()},
    "PIL": "pillow",
    "Crypto": "pycryptodome",
    "Levenshtein": "python-Levenshtein",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "faker": "Faker",
    "flask_login": "flask-login",
    "flask_mail": "flask-mail",
    "flask_restful": "flask-restful",
    "flask_wtf": "flask-wtf",
    "mpl_toolkits": "matplotlib",
    "python_http_client": "python-http-client",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Modules that programs of BigCodeBench import -> packages."""
_IMPORTED = re.compile(r"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)
_NO_COMMANDS = re.compile(r"\b(javac?|rustc|cargo|go|ruby|Rscript)\b")
_TIMED_OUT = 124
"""The status of a command that took too much time."""
_BUILD = """
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
_SESSION = """
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
"""Runs all commands, and shows the output of the last one."""


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
    contents = {path: base64.b64decode(content) for path, content in files.items()}
    if code is None:
        found = _run(contents, commands, _COMMANDS_S)
        return {**found, "timed_out": False}
    if language != "python":
        raise RequirementError(f"programs in {language!r} cannot run in the sandbox; it has python, cpp and javascript")
    found = _run({**contents, "code.py": code.encode()}, ["python3 code.py"], timeout_s)
    return {**found, "stdout": "", "stderr": f"the program took more than {timeout_s:g} s"} if found["timed_out"] else found


def _run(files: Mapping[str, bytes], commands: Sequence[str], seconds: float) -> ProgramEnded:
    code = _SESSION.format(files=dict(files), commands=[_found(shlex.split(each)) for each in commands], path=PATH)
    ended = run_python(Program(code=code), Limits(timeout_s=seconds, memory_bytes=_MEMORY_BYTES))
    is_late = ended.ended_by == "timeout"
    status = 0 if ended.completed else _TIMED_OUT if is_late else 1
    return {"stdout": ended.stdout, "stderr": ended.stderr, "exit_code": status, "timed_out": is_late}


def _built(language: str, content: bytes, timeout_s: float, *, whole: bool) -> ProgramEnded:
    """Build and run the file of a program; only its first command unless it is the whole."""
    build = build_of(language)
    commands = build.commands if whole else build.commands[:1]
    runner = _BUILD.format(file=f"code.{language}", content=content, commands=commands, path=PATH)
    ended = run_python(Program(code=runner), Limits(timeout_s=timeout_s, memory_bytes=_MEMORY_BYTES), build.toolchain)
    return {
        "stdout": ended.stdout,
        "stderr": ended.stderr,
        "exit_code": 0 if ended.completed else 1,
        "timed_out": ended.ended_by == "timeout",
    }


def _require_standard_library(code: str, packages: Sequence[str]) -> None:
    given = _PACKAGES if _CODEBENCH in packages else {name: package for name, package in _PACKAGES.items() if package in packages}
    if lacking := sorted({given[name] for name in _IMPORTED.findall(code) if name in given}):
        raise DataError(
            f"the program needs {', '.join(lacking)}, which the container of eval-framework has; the sandbox has Python's standard library "
            "alone"
        )


def _found(words: list[str]) -> list[str]:
    """A command with the paths of its programs, without symbolic links: these may lead through folders that the sandbox lacks."""
    if missing := _NO_COMMANDS.search(" ".join(words)):
        raise RequirementError(f"the program {missing[0]!r} cannot run in the sandbox by a command of a metric")
    places = [0, 2] if words[0] == "timeout" else [0]
    return [_path(word) if place in places and "/" not in word else word for place, word in enumerate(words)]


def _path(name: str) -> str:
    found = shutil.which(name, path=PATH)
    if found is None:
        raise RequirementError(f"the metric needs the program {name!r}, which this machine does not have in {PATH}; install it")
    return str(Path(found).resolve())
