"""Cases of metrics that run programs."""

import sys
from pathlib import Path
from typing import Any

from writing import Case, context, metric, text

sys.path.append(str(Path(__file__).resolve().parents[1] / "side_by_side"))
from programs import MULTIPL_E

TESTS = (
    "import unittest\nclass TestCases(unittest.TestCase):\n    def test_one(self):\n        self.assertEqual(add(1), 2)\n"
    "    def test_two(self):\n        self.assertEqual(add(-1), 0)\n"
)
LANGUAGES = ("cpp", "js", "php", "sh")


def _tested(program: str, **others: Any) -> Case:
    functions = {"snippet_merge_fn": "unittest_merge_snippets", "output_parse_fn": "_parse_unittest_output"}
    given = {
        "run_env": "python:3.12-slim",
        "code_prompt": "def add(x):",
        "test_code": TESTS,
        "benchmark_timeout": 5,
        "package_downloads": {},
        **{name: {"function": function} for name, function in functions.items()},
        **others,
    }
    return text(program, context=context("completion.code_execution_pass_at_one:CodeExecutionPassAtOneContext", **given))


def _multipl_e(language: str, body: str) -> Case:
    prompt, _, tests = MULTIPL_E[language]
    given = context("completion.multipl_e_assertion:MultiPLEMetricContext", prompt=prompt, tests=tests, language=language)
    return text(body, context=given)


TESTED = [
    _tested("def add(x):\n    return x + 1"),
    _tested("def add(x):\n    return x + 2"),
    _tested("def add(x)\n    return"),
    _tested("import time\ndef add(x):\n    time.sleep(60)"),
    text("def add(x):\n    return x + 1"),
]
CODE: list[Case] = [
    *metric(
        "completion.code_assertion",
        "CodeCompletionAssertion",
        [
            text("print(1 + 1 == 2)"),
            text("print('The result is', True)"),
            text("print(True)\nprint('done')"),
            text("print(False)"),
            text("raise ValueError('True')"),
            text("print(True"),
            text("import time\ntime.sleep(100)", once=True),
        ],
    ),
    *metric("completion.code_execution_pass_at_one", "CodeExecutionPassAtOne CodeExecutionPassAtOneWithCodebench", TESTED),
    *metric(
        "completion.multipl_e_assertion",
        "MultiPLECodeAssertion",
        [
            *(_multipl_e(language, MULTIPL_E[language][1]) for language in LANGUAGES),
            *(_multipl_e(language, "  oops oops\n") for language in LANGUAGES),
            text("x", context=context("completion.multipl_e_assertion:MultiPLEMetricContext", prompt="", tests="", language="cobol")),
            text("x"),
        ],
    ),
]
