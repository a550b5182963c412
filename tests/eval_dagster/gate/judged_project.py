"""A suite of two evals and two scripted models, evaluated night by night with what differs from the last one."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from no_mlflow import NoMlflow

from eval_dagster.gate.early_stop import EarlyStop
from eval_dagster.gate.judgement import judge
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import write_result
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records.judgements import Regression
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult

TASK = """
    from eval_dagster.metrics.base import CompletionMetric
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Words(CompletionMetric):
        NAME = "words"
        HIGHER_IS_BETTER = {higher}

        def calculate(self, response):
            return {words}

    class Renamed(ExactMatch):
        NAME = "renamed"

    class Numbers(BaseTask[str]):
        NAME = "Numbers"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        ID_FIELD = "n"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [{metrics}]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {{"test": [{{"n": n, "answer": f"word {{n}}"}} for n in {numbers!r}]}}

        def _get_instruction_text(self, item):
            return f"{question} {{item['n']}}"

        def _get_ground_truth(self, item):
            return {answer}
"""
ANSWERS = """
    def {name}(request):
        number = int(request.prompt.split()[-1])
        {raising}
        return "wrong" if number in {wrong!r} else f"word {{number}}"
"""
CONFIG = """
    models:
      one: {{backend: scripted, function: "one.py:answer", generation: {{temperature: 1.0}}}}
      two: {{backend: scripted, function: "two.py:answer"}}
    evals:
      left: {{task: "left.py:Numbers", num_samples: {texts}}}
      right: {{task: "right.py:Numbers"}}
    suites:
      nightly: {{evals: [left, right], models: {models}, baseline: "{baseline}", gate: {{{gate}}}}}
"""


class Nights:
    """A home and the files around it, written anew for each night."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self._write_files()

    def project(self, *, models: str = "[one]", baseline: str = "previous", gate: str = "", texts: int = 1) -> Project:
        self._write("evals.yaml", CONFIG.format(models=models, baseline=baseline, gate=gate, texts=texts))
        project = Project.open(tasks={}, config_path=self.folder / "evals.yaml", home=self.home)
        return replace(project, tracker=NoMlflow(home=self.home, tracking_uri=None, experiment="nights"))

    def evaluate(
        self,
        *,
        models: Sequence[str] = ("one",),
        evals: Sequence[str] = ("left", "right"),
        texts: int = 1,
        gate: str | None = None,
        baseline: str = "last_passed",
        run_id: str = "night",
        **files: Any,
    ) -> tuple[list[StageResult], list[StageFailure]]:
        """One night with the files as `_write_files` makes them, and so many texts a prompt of `left`. The catalog is not published.

        `gate` are the settings of a gate that may stop evals early.
        """
        self._write_files(**files)
        partitions = [(name, model) for name in evals for model in models]
        project, stopping = self.project(texts=texts), None
        if gate is not None:
            project = self.project(texts=texts, models=f"[{', '.join(models)}]", baseline=baseline, gate=gate)
            stopping = EarlyStop.of(project, "nightly", run_id)
        with patch("eval_dagster.pipeline.publish"):  # a third of the time of a night, and the gate reads files
            made = evaluate(project, partitions, stages=set(STAGES), run_id=run_id, reporter=SilentReporter(), stopping=stopping)
            outcomes = list(made)
        return [each for each in outcomes if isinstance(each, StageResult)], [each for each in outcomes if isinstance(each, StageFailure)]

    def judge(self, *, since: datetime | None = None, **settings: Any) -> GateResult:
        return judge(self.project(**settings), "nightly", run_id="gate", since=since)

    def night(self, *, gate: str = "", baseline: str = "last_passed", models: Sequence[str] = ("one",), **files: Any) -> GateResult:
        """Evaluate, judge, by default against the last state that passed, and keep the judgement."""
        self.evaluate(models=models, gate=gate, baseline=baseline, **files)
        result = self.judge(baseline=baseline, gate=gate, models=f"[{', '.join(models)}]")
        write_result(self.project().lake, result)
        return result

    def _write_files(
        self,
        *,
        wrong: Sequence[int] = (),
        wrong_of_two: Sequence[int] = (),
        numbers: Sequence[int] = tuple(range(40)),
        right: Sequence[int] = tuple(range(100, 140)),
        question: str = "Say",
        answer: str = 'item["answer"]',
        words: str = "1.0",
        metric: str = "ExactMatch",
        metrics: str = "",
        higher: bool = True,
        raising: str = "",
        function: str = "answer",
    ) -> None:
        """Write the files of a night. What is raised, and what the function is called: of the model `one`.

        Numbers to metric, but for `right`, are of the eval `left`; `right` are the numbers of the eval `right`.
        """
        metrics = metrics or ", ".join(dict.fromkeys([metric, "Words"]))
        own = TASK.format(numbers=list(numbers), question=question, answer=answer, words=words, metrics=metrics, higher=higher)
        self._write("left.py", own)
        shared = {"question": "Say", "answer": 'item["answer"]', "words": "1.0", "metrics": "ExactMatch, Words", "higher": True}
        self._write("right.py", TASK.format(numbers=list(right), **shared))
        self._write("one.py", ANSWERS.format(wrong=list(wrong), raising=raising, name=function))
        self._write("two.py", ANSWERS.format(wrong=list(wrong_of_two), raising="", name="answer"))

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(text))


def row(result: GateResult, eval_name: str = "left", model: str = "one", metric: str | None = "exact_match") -> Regression:
    """The one row of an eval, a model and a metric."""
    (found,) = [each for each in result.regressions if (each.eval, each.model, each.metric) == (eval_name, model, metric)]
    return found


def now() -> datetime:
    return datetime.now(UTC)
