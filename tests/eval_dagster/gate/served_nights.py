"""Nights of a suite on a served model, evaluated and judged in this process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from no_mlflow import NoMlflow
from served_numbers import write_files
from servers.stub import Stub

from eval_dagster.gate.confirmation import confirm
from eval_dagster.gate.judgement import judge
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import write_result
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure


class ServedNights:
    """A home that is evaluated and judged in this process."""

    def __init__(self, folder: Path, stub: Stub) -> None:
        self.folder, self.stub = folder, stub
        self._night = 0

    def project(self, **settings: Any) -> Project:
        write_files(self.folder, self.stub.base_url, user=f"night {self._night}", **settings)
        project = Project.open(tasks={}, config_path=self.folder / "evals.yaml", home=self.folder / "home")
        return replace(project, tracker=NoMlflow(home=self.folder / "home", tracking_uri=None, experiment="nights"))

    def evaluate(self, *, is_new: bool = True, **settings: Any) -> Project:
        """Evaluate, by default with new requests."""
        self._night += is_new
        project = self.project(**settings)
        outcomes = list(
            evaluate(project, [("numbers", "served")], stages=set(STAGES), run_id=f"night-{self._night}", reporter=SilentReporter())
        )
        assert not [each for each in outcomes if isinstance(each, StageFailure)]
        return project

    def night(self, *, is_new: bool = True, **settings: Any) -> GateResult:
        """Evaluate, judge and confirm, and keep the judgement."""
        project = self.evaluate(is_new=is_new, **settings)
        result = confirm(project, judge(project, "nightly", run_id=f"gate-{self._night}"))
        write_result(project.lake, result)
        return result
