"""Runs programs in the sandbox, by eval-framework's names, and names the packages that programs for BigCodeBench import."""

import ast
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from eval_dagster.errors import DataError
from eval_dagster.sandbox import Limits, Program, run_python

_STANDARD_LIBRARY = (
    "array ast base64 binascii bisect calendar cgi cmath codecs collections configparser csv ctypes datetime decimal difflib "
    "email enum errno fnmatch ftplib functools getpass glob gzip hashlib heapq hmac html http importlib inspect io ipaddress "
    "itertools json logging math mimetypes multiprocessing operator os pathlib pickle pkgutil platform queue random re select "
    "secrets shlex shutil signal smtplib socket sqlite3 ssl statistics string struct subprocess sys tarfile textwrap threading "
    "time turtle types typing unicodedata urllib uuid warnings xml zipfile zlib zoneinfo"
)
_SAME_NAME = (
    "blake3 chardet cryptography django flask folium gensim geopandas geopy holidays keras librosa lxml matplotlib mechanize "
    "natsort nltk numpy openpyxl pandas prettytable psutil pyquery pytesseract pytz regex requests rsa scipy seaborn sendgrid "
    "shapely soundfile statsmodels sympy tensorflow textblob texttable werkzeug wikipedia wordcloud wordninja wtforms xlwt "
    "xmltodict"
)
BIG_CODE_BENCH_PACKAGE_MAPPING: dict[str, str | None] = {
    **dict.fromkeys(_STANDARD_LIBRARY.split()),
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
"""Module -> package to install; None for a module of the standard library."""
MEMORY_BYTES = 2**29
"""Most memory of a program."""
COMPANIONS = ("eval_dagster.sandbox.launcher", "eval_dagster.sandbox.program", "eval_dagster.sandbox.tester")
_PLAIN_IMPORT = re.compile(r"import\s+([\w\s,.]+)")
_FROM_IMPORT = re.compile(r"from\s+([\w.]+)\s+import\s+")


class ProgramTimeoutError(Exception):
    """A program took too much time."""


class ExecutionResult(NamedTuple):
    """Whether the tests of a program passed, and what they wrote."""

    success: bool
    output: str


class SerializationError(Exception):
    """A function cannot be written as text, or read."""


class EncodingError(SerializationError):
    """A function cannot be written as text."""


class DecodingError(SerializationError):
    """A text names no function."""


class CallableSerializer:
    """Writes a function of a module as its name, and finds it by that."""

    @staticmethod
    def encode(fn: Callable[..., Any]) -> str:
        """The name of a function.

        Raises:
            EncodingError: It cannot be found by a name.
        """
        name = f"{fn.__module__}:{fn.__qualname__}"
        if "<" in name:
            raise EncodingError(f"{name} has no name by which it can be found; define it at the top level of its module")
        return name

    @staticmethod
    def decode(fn_str: str) -> Callable[..., Any]:
        """The function with a name.

        Raises:
            DecodingError: The name leads to nothing.
        """
        module, _, name = fn_str.partition(":")
        try:
            found: Any = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError) as problem:
            raise DecodingError(f"{fn_str!r} names no function: {problem}") from problem
        return found  # type: ignore[no-any-return]


def run_python_code(
    code: str,
    image: str | None = None,  # noqa: ARG001 - the sandbox takes no image
    dockerfile: str | None = None,  # noqa: ARG001
    input_files: list[tuple[str, str]] | None = None,
    timeout: int = 60,
    packages: list[str] | None = None,
    runtime_configs: Mapping[str, str] | None = None,  # noqa: ARG001 - the limit on memory is always there
) -> str:
    """Run a program in the sandbox, which has Python's standard library and nothing else.

    Returns:
        Its standard error, then its standard output, without outer white space.

    Raises:
        ProgramTimeoutError: It took too much time.
        DataError: It needs packages or files.
        RequirementError: The project does not allow execution, or the machine has no sandbox.
    """
    if packages or input_files:
        needed = ", ".join([*(packages or ()), *(name for _, name in input_files or ())])
        raise DataError(f"the program needs {needed}, and the sandbox has Python's standard library alone")
    found = run_python(Program(code=code), Limits(timeout_s=float(timeout), memory_bytes=MEMORY_BYTES))
    if found.ended_by == "timeout":
        raise ProgramTimeoutError(f"the program took more than {timeout} s")
    return (found.stderr + found.stdout).strip()


def unittest_merge_snippets(code: str, test_code: str) -> str:
    """The program with its tests, which run if it is started as a script."""
    start = "" if "unittest.main(" in test_code else "\n\nif __name__ == '__main__':\n  unittest.main()"
    return f"{code}\n\n{test_code}{start}"


def execute_python_code_with_tests(
    code: str,
    test_code: str,
    dockerfile: str | None,
    package_mapping: Mapping[str, str | None],
    merge_code_fn: Callable[[str, str], str],
    image: str | None,
    timeout: int,
    parse_output_fn: Callable[[str], ExecutionResult],
) -> ExecutionResult:
    """Run a program with its tests.

    Raises:
        ProgramTimeoutError: It took too much time.
        DataError: It imports a package that `package_mapping` names, or with a `dockerfile` any package.
        RequirementError: The project does not allow execution, or the machine has no sandbox.
    """
    whole = merge_code_fn(code, test_code)
    packages = get_external_dependencies(whole, package_mapping)
    if dockerfile is not None:  # a container that has packages
        packages = sorted(_imported(whole) - sys.stdlib_module_names)
    return parse_output_fn(run_python_code(whole, image=image, dockerfile=dockerfile, timeout=timeout, packages=packages))


def _imported(code: str) -> set[str]:
    """The packages that a program imports; empty if it does not parse, since it then fails as such."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


def _parse_unittest_output(output: str) -> ExecutionResult:
    if "OK" in output and "FAILED" not in output:
        count = re.search(r"Ran (\d+) tests? in [\d.]+s", output)
        return ExecutionResult(True, f"{count[1] if count else 'all'} tests passed")
    return ExecutionResult(False, f"tests did not pass: {output}")


def get_external_dependencies(code: str, package_mapping: Mapping[str, str | None]) -> list[str]:
    """The packages to install for the imports of a program."""
    return [package for name in extract_imports(code)[1] if (package := package_mapping.get(name))]


def extract_imports(code: str) -> tuple[list[str], set[str]]:
    """The lines of a program that import, and the names of the packages."""
    lines: list[str] = []
    packages: set[str] = set()
    for line in map(str.strip, code.split("\n")):
        if found := _PLAIN_IMPORT.match(line):
            names = [part.strip().split(".")[0].split(" as ")[0] for part in found[1].split(",")]
            packages.update(filter(None, names))
        elif found := _FROM_IMPORT.match(line):
            packages.add(found[1].split(".")[0])
        else:
            continue
        lines.append(line)
    return lines, packages
