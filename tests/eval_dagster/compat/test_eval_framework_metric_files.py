"""Metric files in eval-framework's style beside a task: directions, missing values, judges, programs, LaTeX."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.compat.eval_framework.code import _parse_unittest_output, execute_python_code_with_tests, unittest_merge_snippets
from eval_dagster.compat.eval_framework.responses import Completion
from eval_dagster.compat.eval_framework.sandbox_sessions import SandboxSession, get_docker_address
from eval_dagster.compat.raw_answers import RawCompletion
from eval_dagster.errors import DataError, RequirementError, TaskDefinitionError
from eval_dagster.metrics.base import BaseMetric, is_higher_better
from eval_dagster.records import Message, Role
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.scores import score_response
from eval_dagster.task_files.loading import load_task
from eval_dagster.tasks.base import BaseTask

HEAD = """
from eval_framework.metrics.base import BaseMetric, MetricResult
from eval_framework.shared.types import Completion, Error
"""
TASK = """
from {file} import {name}
from eval_framework.tasks.base import NO_SUBJECT, BaseTask, ResponseType


class Asked(BaseTask[str]):
    NAME = "Asked"
    DATASET_PATH = "somebody/questions"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "test"
    SUBJECTS = [NO_SUBJECT]
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [{name}]

    def _get_instruction_text(self, item):
        return item["question"]

    def _get_ground_truth(self, item):
        return item["answer"]
"""
Load = Callable[..., type[BaseMetric[Any]]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """A function from the text of a metric file and a class in it to the metric of a task beside it."""

    def loaded(text: str, name: str, *, head: str = HEAD) -> type[BaseMetric[Any]]:
        (tmp_path / "measured.py").write_text(f"{head}{text}")
        (tmp_path / "asked.py").write_text(TASK.format(file="measured", name=name))
        (metric,) = load_task("asked.py:Asked", {}, tmp_path).METRICS
        return metric

    return loaded


def scores(metric: type[BaseMetric[Any]], text: str = "a text", **others: Any) -> dict[str, float | str | None]:
    response = Completion(completion=text, **{"messages": [Message(Role.USER, "What?")], **others})
    return {score.metric: score.error or score.value for score in score_response([metric], [response], None)}


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
    rows = metric_rows(task, [{**shared, "metric": name, "value": value} for name, value in scores(metric).items()])
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


GRADER = """
from eval_framework.llm.base import BaseLLM
from eval_framework.metrics.llm.graders.language import Language
from eval_framework.metrics.llm.graders.models import GradingOutput, PromptTemplate, parse_json_output


class PolitenessOutput(GradingOutput):
    is_polite: bool | None


class RefusalGrader:
    TEMPLATES = {Language("en"): PromptTemplate(system_prompt="Reply {as JSON}.", user_prompt="Is this polite? {text}")}

    def __init__(self, grading_model: BaseLLM) -> None:
        self._model = grading_model

    def grade(self, text, language):
        messages = language.language_config(self.TEMPLATES).to_messages([], [("text", text)])
        reply = self._model.generate_from_messages([messages])[0]
        found = parse_json_output(reply.completion)
        return PolitenessOutput(is_polite=found.get("is_polite"), judge_prompt=reply.prompt, judge_response=reply.completion)
"""
JUDGE = """
from eval_framework.llm.base import BaseLLM
from eval_framework.metrics.llm.base import BaseLLMJudgeMetric
from eval_framework.metrics.llm.graders.language import Language
from eval_framework.metrics.llm.graders.refusal_grader import RefusalGrader
from eval_framework.shared.types import RawCompletion


class Politeness(BaseLLMJudgeMetric):
    NAME = "politeness"

    def __init__(self, llm_judge: BaseLLM):
        super().__init__(llm_judge)
        self._grader = RefusalGrader(llm_judge)

    def calculate(self, response):
        found = self._grader.grade(response.sanitized_completion, Language("en"))
        value = None if found.is_polite is None else float(found.is_polite)
        return [self._create_metric_result(self.NAME, True, value, llm_judge_prompt=found.judge_prompt)]


class Judge(BaseLLM):
    def generate_from_messages(self, messages, stop_sequences=None, max_tokens=None, temperature=None, top_p=None):
        shown = [" / ".join(message.content for message in each) for each in messages]
        reply = 'I say {"is_polite": true}' if "Please" in shown[0] else 'I say {"is_polite": false}' if "Go" in shown[0] else "{none}"
        sizes = {"prompt_sequence_positions": None, "completion_sequence_positions": None}
        return [RawCompletion(prompt=each, completion=reply, **sizes) for each in shown]


class WithJudge(Politeness):
    def __init__(self):
        super().__init__(Judge())
"""


def test_a_judge_that_the_metric_makes(load: Load, tmp_path: Path) -> None:
    (tmp_path / "refusal_grader.py").write_text(GRADER)
    metric = load(JUDGE, "WithJudge")
    assert scores(metric, "Please <|come|> in.") == {"politeness": 1.0}
    assert scores(metric, "Go.") == {"politeness": 0.0}
    assert "no value for 'politeness'" in str(scores(metric, "What?")["politeness"])
    (result,) = metric().calculate(Completion(completion="Go <|x|>"))
    assert result.llm_judge_prompt == "Reply {as JSON}. / Is this polite? Go <| x |>"


def test_a_judge_lacks_its_model_or_its_grader(load: Load, tmp_path: Path) -> None:
    metric = load(JUDGE, "WithJudge")
    with pytest.raises(RequirementError, match="copy the grader's file of eval_framework/metrics/llm/graders beside the metric's file"):
        scores(metric)
    (tmp_path / "refusal_grader.py").write_text(GRADER)
    with pytest.raises(RequirementError, match="the metric Politeness asks a judge model, and evals have none"):
        scores(load(JUDGE, "Politeness"))


def test_the_failure_of_a_judge(load: Load, tmp_path: Path) -> None:
    (tmp_path / "refusal_grader.py").write_text(GRADER)
    metric: Any = load(JUDGE, "WithJudge")()
    result = metric._create_metric_result("politeness", True, None, error=TimeoutError("no answer"))
    assert str(result.error) == "TimeoutError: no answer"


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


SIBLING = """
from eval_framework.metrics.completion.text_counter import WordCounter
from eval_framework.metrics.completion.voices import loud


class Loud(BaseMetric[Completion]):
    NAME = "loud"

    def calculate(self, response):
        return [MetricResult(metric_name=self.NAME, value=float(loud(response.completion)), higher_is_better=True)]
"""


def test_a_metric_file_imports_one_beside_it(load: Load, tmp_path: Path) -> None:
    with pytest.raises(TaskDefinitionError, match=r"offers no .voices. of .*; a copy of voices\.py beside"):
        load(SIBLING, "Loud")
    (tmp_path / "voices.py").write_text("def loud(text):\n    return text.isupper()\n")
    assert scores(load(SIBLING, "Loud"), "HEY") == {"loud": 1.0}


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
            session.execute_command("mkdir -p /tmp/made/by")
            session.copy_to_runtime(program, "/tmp/made/by/program.sh")
            found = session.execute_command("timeout 20 bash /tmp/made/by/program.sh")
        return [MetricResult(metric_name=self.NAME, value=float(found.success() and found.stdout == "7\\n"), higher_is_better=True)]
"""


@pytest.mark.usefixtures("_sandbox")
def test_a_file_runs_programs(load: Load, tmp_path: Path) -> None:
    metric = load(PROGRAM, "Prints")
    assert metric.EXECUTES_CODE
    (tmp_path / "right.sh").write_text("ls /tmp/made >/dev/null && echo $((3 + 4))\n")
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
