"""Metric files in eval-framework's style beside a task: directions, missing values, judges, programs, LaTeX."""

import sys
from functools import partial
from pathlib import Path

import pytest
from user_metrics import Load, load_metric, scores

from eval_dagster.errors import DataError, RequirementError, TaskDefinitionError
from eval_dagster.metrics.base import is_higher_better
from eval_dagster.peers.eval_framework.code import _parse_unittest_output, execute_python_code_with_tests, unittest_merge_snippets
from eval_dagster.peers.eval_framework.sandbox_sessions import SandboxSession, get_docker_address
from eval_dagster.peers.raw_answers import RawCompletion
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.score_columns import scores_in
from eval_dagster.tasks.base import BaseTask

SIZES = """
class Sizes(BaseMetric[Completion]):
    NAME = "sizes"

    def calculate(self, response):
        if response.error is not None:
            return [MetricResult(metric_name=self.NAME, value=None, higher_is_better=False, error=response.error)]
        size = float(len(response.completion))
        return [
            MetricResult(metric_name=f"{self.NAME}/distance", value=size, higher_is_better=False),
            MetricResult(metric_name=f"{self.NAME}/is_long", value=float(size > 3), higher_is_better=True),
        ]


class Lengths(Sizes):
    NAME = "lengths"
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return partial(load_metric, tmp_path)


def test_values_of_both_directions(load: Load) -> None:
    for name in ("Sizes", "Lengths"):
        metric = load(SIZES, name)
        assert scores(metric) == {f"{metric.NAME}/distance": 6.0, f"{metric.NAME}/is_long": 1.0}
        assert not is_higher_better(metric, f"{metric.NAME}/distance")
        assert is_higher_better(metric, f"{metric.NAME}/is_long")


def test_each_value_has_its_direction_in_the_tables(load: Load) -> None:
    metric = load(SIZES, "Lengths")
    task = type("Asked", (BaseTask,), {"NAME": "Asked", "METRICS": [metric]})
    shared = {"sample_id": "1", "subject": "all", "cluster": "1", "item": None, "error": None}
    rows = metric_rows(task, scores_in([{**shared, "metric": name, "value": value} for name, value in scores(metric).items()]))
    found = {row["metric"]: (row["value"], row["higher_is_better"]) for row in rows}
    assert found == {"lengths/distance": (6.0, False), "lengths/is_long": (1.0, True)}


PARTS = """
class Parts(BaseMetric[Completion]):
    NAME = "parts"

    def calculate(self, response):
        found = {"given": 1.0, "none": None} if response.completion else {"none": None}
        results = [MetricResult(metric_name=f"{self.NAME}/{key}", value=value, higher_is_better=True) for key, value in found.items()]
        failed = Error(error_class="ValueError", message="no number", traceback="")
        wrong = MetricResult(metric_name="wrong", value=None, higher_is_better=True, error=failed)
        return [wrong, wrong] if response.completion == "wrong" else results
"""


def test_a_result_without_a_value(load: Load) -> None:
    metric = load(PARTS, "Parts")
    assert scores(metric) == {"parts/given": 1.0}
    assert "gave none and no reason" in str(scores(metric, "")["parts"])
    assert "ValueError: no number" in str(scores(metric, "wrong")["parts"])


def test_a_raw_answer_has_two_names() -> None:
    assert RawCompletion(text="a").completion == RawCompletion(completion="a").text == "a"


LATEX = """
from sympy.parsing.latex import parse_latex


class SameNumber(BaseMetric[Completion]):
    NAME = "same_number"

    def calculate(self, response):
        try:
            found = parse_latex(response.completion) - parse_latex("0.5")
        except Exception:
            found = 1
        return [MetricResult(metric_name=self.NAME, value=float(found == 0), higher_is_better=True)]
"""


def test_a_file_reads_latex(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    metric = load(LATEX, "SameNumber")
    assert scores(metric, "0.5") == {"same_number": 1.0}
    assert scores(metric, "0.7") == {"same_number": 0.0}
    assert capsys.readouterr().out == ""
    assert set(metric.PACKAGES) == {"antlr4-python3-runtime", "sympy"}


LATE = """
class Late(BaseMetric[Completion]):
    NAME = "late"

    def __init__(self):
        from eval_framework.metrics.completion.f1 import calculate_f1

        self._f1 = calculate_f1

    def calculate(self, response):
        from eval_framework.metrics.completion.text_counter import WordCounter

        value = self._f1(response.completion.split(), ["a"]) * WordCounter._count_words(response.completion)
        return [MetricResult(metric_name=self.NAME, value=value, higher_is_better=True)]
"""


def test_imports_within_methods(load: Load) -> None:
    assert scores(load(LATE, "Late"), "a b") == {"late": pytest.approx(4 / 3)}
    lacking = load(LATE.replace("eval_framework.metrics.completion.f1", "nowhere_at_all"), "Late")
    assert "ModuleNotFoundError: No module named 'nowhere_at_all'" in str(scores(lacking)["late"])


PROGRAM = """
from llm_sandbox import SandboxSession
from eval_framework.tasks.utils import get_or_create_pool


class Prints(BaseMetric[Completion]):
    NAME = "prints"

    def calculate(self, response):
        return self._result(response.completion)

    def _result(self, program):
        with SandboxSession(pool=get_or_create_pool(image="bash:5.2"), lang="python") as session:
            session.execute_command("mkdir -p /tmp/made/before")
            session.copy_to_runtime(program, "/tmp/made/program.sh")
            found = session.execute_command("timeout 20 bash /tmp/made/program.sh")
        return [MetricResult(metric_name=self.NAME, value=float(found.success() and found.stdout == "7\\n"), higher_is_better=True)]
"""


@pytest.mark.usefixtures("_sandbox")
def test_a_file_runs_programs(load: Load, tmp_path: Path) -> None:
    metric = load(PROGRAM, "Prints")
    assert metric.EXECUTES_CODE
    (tmp_path / "right.sh").write_text("ls /tmp/made/before && echo $((3 + 4))\n")
    (tmp_path / "wrong.sh").write_text("echo 7; exit 3\n")
    with pytest.raises(RequirementError, match="allow_code_execution: true"):
        scores(metric, str(tmp_path / "right.sh"))
    with sandbox_policy(SandboxPolicy(allowed=True)):
        assert scores(metric, str(tmp_path / "right.sh")) == {"prints": 1.0}
        assert scores(metric, str(tmp_path / "wrong.sh")) == {"prints": 0.0}
        assert SandboxSession(lang="python").run("print(3)").stdout == "3\n"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("rustc code.rs", "'rustc' cannot run in the sandbox"),
        ("sh -c 'javac X.java'", "'javac' cannot"),
        ("no_such_tool", "needs the program"),
    ],
)
def test_programs_that_the_sandbox_lacks(command: str, reason: str) -> None:
    with pytest.raises(RequirementError, match=reason):
        SandboxSession().execute_command(command)
    with pytest.raises(RequirementError, match="cannot run in the sandbox; it has python"):
        SandboxSession(lang="java").run("x")
    with pytest.raises(RequirementError, match="a database server in a container"):
        get_docker_address()


def test_a_container_with_packages_is_not_there() -> None:
    with pytest.raises(DataError, match="the program needs numpy"):
        execute_python_code_with_tests(
            code="import numpy, math",
            test_code="",
            dockerfile="Dockerfile",
            package_mapping={},
            merge_code_fn=unittest_merge_snippets,
            image=None,
            timeout=5,
            parse_output_fn=_parse_unittest_output,
        )


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="this Python reads the file")
def test_the_syntax_of_a_later_python(load: Load) -> None:
    with pytest.raises(TaskDefinitionError, match=r"may use syntax of Python 3\.12, and this is Python 3\.11"):
        load("class Typed[Response](BaseMetric[Response]):\n    NAME = 'typed'\n", "Typed")
    with pytest.raises(TaskDefinitionError) as raised:
        load("class Typed[:\n", "Typed", head="")
    assert "3.12" not in str(raised.value)
