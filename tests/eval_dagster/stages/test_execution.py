"""Metrics that need something of the project or the machine: permission to run code, or a package."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from running_stages import run_all

from eval_dagster.errors import DataError, MachineError, RequirementError
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.project import Project
from eval_dagster.sandbox import Program, execution_allowed, run_python
from eval_dagster.stages.partition import allowed_execution

TASK = """
    from pathlib import Path
    from eval_dagster.errors import DataError, MachineError
    from eval_dagster.metrics.base import CompletionMetric
    from eval_dagster.metrics.code_execution import CodeExecutionPassAtOne
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.metrics.base import extra_module
    from eval_dagster.metrics.repeated import pass_at_k
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Double(BaseTask[str]):
        NAME = "Double"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [CodeExecutionPassAtOne]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            tests = ["assert double(2) == 4", "assert double(-1) == -2", "assert double(0) == 1"]
            return {"test": [{"question": f"Write double, {n}.", "test": test} for n, test in enumerate(tests)]}

        def _get_instruction_text(self, item):
            return item["question"]

        def _get_ground_truth(self, item):
            return "def double(x): return 2 * x"

    class Twice(Double):
        NUM_SAMPLES = 2
        METRICS = [pass_at_k(CodeExecutionPassAtOne, 2)]

    class NeedsPackage(CompletionMetric):
        NAME = "needs_package"

        def calculate(self, response):
            return extra_module("a_package_to_come", self.NAME).SCORE

    class Stumbling(CompletionMetric):
        NAME = "stumbling"

        def calculate(self, response):
            if reason := Path(__file__).with_name("reason.txt").read_text():
                raise {"MachineError": MachineError, "OSError": OSError, "DataError": DataError}[reason]("no")
            return 1.0

    class Failing(Double):
        METRICS = [Stumbling]

    class Packaged(Double):
        METRICS = [ExactMatch, NeedsPackage]
"""
CONFIG = """
    sandbox: {{allow_code_execution: {allowed}}}
    models:
      scripted: {{backend: scripted, default: "def double(x): return 2 * x", generation: {{temperature: 0.5}}}}
    evals:
      double: {{task: "double.py:{name}"}}
"""


@pytest.fixture
def project(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Callable[..., Project]:
    def make(name: str, allowed: str = "false") -> Project:
        write("double.py", TASK)
        return open_project(CONFIG.format(name=name, allowed=allowed))

    return make


def errors_of(project: Project) -> list[str]:
    return [failure.message for failure in run_all(project, [("double", "scripted")])[1]]


@pytest.mark.long
@pytest.mark.parametrize("name", ["Double", "Twice"])
def test_without_leave_nothing_is_asked_of_the_model(project: Callable[..., Project], name: str) -> None:
    refused = project(name)
    first, *_ = errors_of(refused)
    assert "eval double: pass@" in first
    assert "would run code that a model wrote, which evals.yaml does not allow; set sandbox.allow_code_execution: true" in first
    assert refused.lake.current("samples", "double") is not None
    for relation in ("prompts", "responses", "scores", "metrics"):
        assert refused.lake.current(relation, "double", "scripted") is None


@pytest.mark.long
@pytest.mark.usefixtures("_sandbox")
@pytest.mark.parametrize("name", ["Double", "Twice"])
def test_with_leave_programs_are_scored(project: Callable[..., Project], name: str) -> None:
    project(name)  # refused, or not asked at all: neither is remembered
    allowed = project(name, "true")
    assert errors_of(allowed) == []
    scores = allowed.lake.require("scores", "sample_scores", "double", "scripted")
    assert [(row["value"], row["error"]) for row in read_rows(scores.path)] == [(1, None), (1, None), (0, None)]


@pytest.mark.long
@pytest.mark.usefixtures("_sandbox")
def test_a_sandbox_that_does_not_start_is_tried_again(project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = project("Double", "true")
    with monkeypatch.context() as broken:
        broken.setattr("eval_dagster.sandbox.walls.PYTHON", "/no/such/python")
        assert errors_of(allowed) == []
    scores = allowed.lake.require("scores", "sample_scores", "double", "scripted")
    assert scores.info.counts["errors"] == scores.info.counts["retryable_errors"] == 3
    assert {row["value"] for row in read_rows(scores.path)} == {None}
    assert all(row["error"].startswith("MachineError: ") for row in read_rows(scores.path))
    results, _ = run_all(allowed, [("double", "scripted")])
    assert results["model_outputs", "double"].cached
    assert not results["sample_scores", "double"].cached
    scores = allowed.lake.require("scores", "sample_scores", "double", "scripted")
    assert [row["value"] for row in read_rows(scores.path)] == [1, 1, 0]
    assert scores.info.counts["retryable_errors"] == 0
    assert run_all(allowed, [("double", "scripted")])[0]["sample_scores", "double"].cached


@pytest.mark.long
@pytest.mark.parametrize(("kind", "retried"), [(MachineError, True), (OSError, True), (DataError, False)])
def test_only_what_the_machine_failed_at_is_tried_again(
    project: Callable[..., Project], write: Callable[[str, str], Path], kind: type[Exception], retried: bool
) -> None:
    failing = project("Failing")
    reason = write("reason.txt", kind.__name__)
    for _ in range(2):
        results, failures = run_all(failing, [("double", "scripted")])
        assert (results["sample_scores", "double"].file.info.counts["errors"], failures) == (3, [])
    assert results["sample_scores", "double"].cached is not retried
    reason.write_text("")
    results, _ = run_all(failing, [("double", "scripted")])
    values = {row["value"] for row in read_rows(results["sample_scores", "double"].file.path)}
    assert values == ({1.0} if retried else {None})


def test_leave_goes_no_further_than_the_stage(project: Callable[..., Project]) -> None:
    with allowed_execution(project("Double")), pytest.raises(RequirementError, match="not allowed"):
        run_python(Program(code="pass"))
    with allowed_execution(project("Double", "true")):
        assert execution_allowed()
    with pytest.raises(RequirementError, match="not allowed"):
        run_python(Program(code="pass"))


def test_a_machine_without_a_sandbox_fails_before_the_model_runs(project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise RequirementError("no sandbox here; install bubblewrap")

    monkeypatch.setattr("eval_dagster.stages.partition.require_sandbox", none)
    allowed = project("Double", "true")
    assert errors_of(allowed)[0] == "eval double: no sandbox here; install bubblewrap"
    assert allowed.lake.current("responses", "double", "scripted") is None


@pytest.mark.long
def test_a_missing_package_is_no_score_and_is_not_remembered(
    project: Callable[..., Project], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = project("Packaged")
    (message,) = errors_of(packaged)[:1]
    assert "needs_package needs the Python package of 'a_package_to_come'" in message
    assert "pip install 'eval_dagster[metrics]'" in message
    assert packaged.lake.current("responses", "double", "scripted") is not None
    assert packaged.lake.current("scores", "double", "scripted") is None
    folder = tmp_path / "installed"
    folder.mkdir()
    (folder / "a_package_to_come.py").write_text("SCORE = 0.5")
    monkeypatch.syspath_prepend(folder)
    assert errors_of(packaged) == []
    scores = packaged.lake.require("scores", "sample_scores", "double", "scripted")
    assert {(row["metric"], row["value"]) for row in read_rows(scores.path)} == {("exact_match", 1.0), ("needs_package", 0.5)}
    sys.modules.pop("a_package_to_come")
