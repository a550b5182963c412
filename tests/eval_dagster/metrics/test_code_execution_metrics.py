"""Programs run in the sandbox; where the machine has none, the tests that need it are skipped."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from eval_dagster.errors import DataError, UsageError
from eval_dagster.metrics.base import response_kind
from eval_dagster.metrics.code_execution import CodeExecutionPassAtOne, checks_of, program_of
from eval_dagster.metrics.repeated import maj_at_k, pass_at_k
from eval_dagster.records import Completion, MetricContext
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy

SHARED = Path(os.environ.get("EVAL_DAGSTER_SHARED") or Path(__file__).resolve().parents[4] / "shared")
HUMANEVAL = SHARED / "datasets/openai/openai_humaneval/openai_humaneval/test-00000-of-00001.parquet"

PREFIX = 'def double(x: int) -> int:\n    """Return twice x."""\n'
TEST = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2\n"


@pytest.fixture
def _isolated(_sandbox: None) -> Iterator[None]:
    with sandbox_policy(SandboxPolicy(allowed=True)):
        yield


class Quick(CodeExecutionPassAtOne):
    NAME = "quick_pass@1"
    TIMEOUT_S = 2.0


def answer(text: str, **changes: object) -> Completion:
    context = {"code_prefix": PREFIX, "test": TEST, "entry_point": "double", **changes}
    return Completion(completion_text=text, context=MetricContext(**context))


@pytest.mark.long
@pytest.mark.usefixtures("_isolated")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("    return 2 * x\n", 1),
        ("    return x + x", 1),
        ("    return 2 * x\n\nif __name__ == '__main__':\n    print(input())", 1),
        ("    return x", 0),
        ("", 0),
        ("    pass", 0),
        ("    return 2 * x +", 0),
        ("    return nothing", 0),
        # A text that is not Unicode is no program.
        ("    return '\ud800' and 2 * x", 0),
        ("    return 2 * x  # \N{SNOWMAN} grüß", 1),
        # Neither an early exit nor a check of its own helps.
        ("    return x\n\nimport os\nos._exit(0)", 0),
        ("    return x\n\nimport sys\nsys.exit(0)", 0),
        ("    import os\n    os._exit(0)", 0),
        ("    return x\n\ndef check(candidate):\n    pass", 0),
        ("    while True:\n        pass", 0),
        ("    import os\n    while True:\n        os.fork()", 0),
        ("    x = ' ' * 2**20\n    while True:\n        x += x", 0),
        ("    import socket\n    socket.create_connection(('127.0.0.1', 22), 1)\n    return 2 * x", 0),
        ("    open('/usr/written', 'w')\n    return 2 * x", 0),
        ("    while True:\n        print('x' * 10**6)", 0),
        ("    import os, signal\n    os.kill(os.getppid(), signal.SIGKILL)\n    os.kill(1, signal.SIGKILL)\n    return x", 0),
    ],
)
def test_a_program_passes_or_fails(text: str, expected: float) -> None:
    assert Quick().calculate(answer(text)) == expected


@pytest.mark.usefixtures("_isolated")
def test_a_program_has_the_memory_of_its_metric_and_no_more() -> None:
    class Small(Quick):
        NAME = "small_pass@1"
        MEMORY_BYTES = 2**27

    held = answer("    held = bytearray(2**28)\n    return 2 * x")
    assert [metric().calculate(held) for metric in (Quick, Small)] == [1, 0]
    assert Small().calculate(answer("    return 2 * x")) == 1
    assert CodeExecutionPassAtOne.MEMORY_BYTES == 2**30
    assert Quick().calculate(answer("    held = bytearray(2**30)\n    return 2 * x")) == 0


@pytest.mark.long
@pytest.mark.usefixtures("_isolated")
def test_a_program_has_the_time_of_its_metric_and_no_more() -> None:
    slow = answer("    import time\n    time.sleep(1.5)\n    return 2 * x")

    class Hurried(Quick):
        NAME = "hurried_pass@1"
        TIMEOUT_S = 0.5

    assert CodeExecutionPassAtOne.TIMEOUT_S == 10
    assert [metric().calculate(slow) for metric in (CodeExecutionPassAtOne, Hurried)] == [1, 0]


@pytest.mark.usefixtures("_isolated")
def test_a_program_is_a_module_and_no_script() -> None:
    assert Quick().calculate(answer("    assert __name__ == 'program'\n    return 2 * x")) == 1


def test_what_a_metric_of_programs_says_of_itself() -> None:
    for metric in (CodeExecutionPassAtOne, pass_at_k(CodeExecutionPassAtOne, 2)):
        assert metric.EXECUTES_CODE
        assert metric.HIGHER_IS_BETTER
    assert CodeExecutionPassAtOne.IS_PROPORTION


def test_what_is_run() -> None:
    whole = answer("    return 2 * x")
    assert (program_of(whole), checks_of(whole)) == (f"{PREFIX}    return 2 * x\n", f"{TEST}\n\ncheck(double)\n")
    alone = answer("x = 1", code_prefix=None, entry_point=None, test="assert x")
    assert (program_of(alone), checks_of(alone)) == ("x = 1\n", "assert x\n")
    of_row = Completion(completion_text="x = 1", row={"test": "assert x", "entry_point": "x"})
    assert (program_of(of_row), checks_of(of_row)) == ("x = 1\n", "assert x\n\ncheck(x)\n")


def test_without_tests_there_is_no_value() -> None:
    with pytest.raises(DataError, match=r"there is no 'test' \(code that tests\).*return it from _get_context"):
        CodeExecutionPassAtOne().calculate(answer("", test=None))


def test_a_project_must_allow_it() -> None:
    with pytest.raises(UsageError, match=r"sandbox\.allow_code_execution: true"):
        CodeExecutionPassAtOne().calculate(answer("    return 2 * x"))


@pytest.mark.usefixtures("_isolated")
def test_pass_at_k_of_programs() -> None:
    texts = ["    return 2 * x", "    return x", "    return x * 2", "    return 3 * x"]
    metric = pass_at_k(CodeExecutionPassAtOne, 2)
    # Two of four are right: 1 - C(2, 2) / C(4, 2) = 5/6.
    assert metric().calculate_all([answer(text) for text in texts]) == pytest.approx(5 / 6)
    assert metric.NAME == "pass@2"
    assert response_kind(metric) is Completion


def test_programs_do_not_vote() -> None:
    with pytest.raises(UsageError, match="does not say what a text's answer is"):
        maj_at_k(CodeExecutionPassAtOne, 2)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.usefixtures("_isolated")
@pytest.mark.skipif(not HUMANEVAL.is_file(), reason=f"no rows of HumanEval in {SHARED}")
def test_every_canonical_solution_of_humaneval_passes() -> None:
    rows = pq.read_table(HUMANEVAL).to_pylist()

    def score(row: dict[str, str]) -> float:
        context = MetricContext(code_prefix=row["prompt"], test=row["test"], entry_point=row["entry_point"])
        with sandbox_policy(SandboxPolicy(allowed=True)):
            return CodeExecutionPassAtOne().calculate(Completion(completion_text=row["canonical_solution"], context=context))

    with ThreadPoolExecutor(2) as pool:
        scores = dict(zip([row["task_id"] for row in rows], pool.map(score, rows), strict=True))
    assert len(scores) == 164
    assert [task for task, value in scores.items() if value != 1] == []
