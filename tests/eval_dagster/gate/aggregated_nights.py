"""A suite of several evals of one scripted model with aggregates, evaluated and judged night by night."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from no_mlflow import NoMlflow

from eval_dagster.gate.judgement import judge
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import write_result
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records.aggregate_judgements import AggregateRegression
from eval_dagster.stages.partition import STAGES

TASK = """
    from eval_dagster.metrics.base import CompletionMetric
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.metrics.translation import ChrF
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Share(CompletionMetric):
        NAME = "share"
        BOUNDS = (0.0, 1.0)

        def calculate(self, response):
            gold = response.ground_truths[0].split()
            return len(set(response.completion_text.split()) & set(gold)) / len(gold)

    class Own(BaseTask[str]):
        NAME = "Own"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        ID_FIELD = "n"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [{metrics}]
        SUBJECTS = {subjects!r}
        HEADLINE_AGGREGATION = "{headline}"

        def _load_dataset(self, subject):
            chosen = {numbers!r}[{subjects!r}.index(subject) :: {count}]
            return {{"test": [{{"n": n, "answer": f"the word {{n}}"}} for n in chosen]}}

        def _get_instruction_text(self, item):
            return f"{{item['n']}} {question}"

        def _get_ground_truth(self, item):
            return item["answer"]
"""
ANSWERS = """
    def answer(request):
        number, _, eval_name = request.prompt.strip().partition(" ")
        {raising}
        wrong = {wrong!r}
        return "the wrong answer" if int(number) in wrong.get(eval_name.split()[0], ()) else f"the word {{number}}"
"""
Numbers = Mapping[str, Sequence[int]]


class AggregatedNights:
    """A home, and the files around it."""

    def __init__(
        self,
        folder: Path,
        numbers: Numbers,
        *,
        aggregates: str = "{all: {}}",
        gate: str = "",
        baseline: str = "last_passed",
        subjects: int = 1,
        metrics: Mapping[str, str] | None = None,
        models: Sequence[str] = ("one",),
    ) -> None:
        self.folder, self.numbers, self.subjects = folder, dict(numbers), [f"s{n}" for n in range(subjects)]
        self.aggregates, self.gate, self.baseline, self.models = aggregates, gate, baseline, list(models)
        self.metrics = dict(metrics or {})

    def project(self) -> Project:
        models = ", ".join(f'{name}: {{backend: scripted, function: "{name}.py:answer"}}' for name in self.models)
        evals = ", ".join(f'{name}: {{task: "{name}.py:Own"}}' for name in self.numbers)
        text = f"""
            models: {{{models}}}
            evals: {{{evals}}}
            suites:
              nightly:
                evals: [{", ".join(self.numbers)}]
                models: [{", ".join(self.models)}]
                baseline: "{self.baseline}"
                gate: {{{self.gate}}}
                aggregates: {self.aggregates}
        """
        self._write("evals.yaml", text)
        project = Project.open(tasks={}, config_path=self.folder / "evals.yaml", home=self.folder / "home")
        return replace(project, tracker=NoMlflow(home=self.folder / "home", tracking_uri=None, experiment="nights"))

    def evaluate(self, wrong: Numbers | None = None, *, raising: str = "pass", evals: Sequence[str] = ()) -> None:
        """One night, in which the model answers these numbers of each eval wrong."""
        for name in self.models:
            of_model = {each: list(numbers) for each, numbers in (wrong or {}).items()}
            self._write(f"{name}.py", ANSWERS.format(wrong=of_model, raising=raising))
        for name, numbers in self.numbers.items():
            text = TASK.format(
                numbers=list(numbers),
                subjects=self.subjects,
                count=len(self.subjects),
                headline="macro" if len(self.subjects) > 1 else "micro",
                question=name,
                metrics=self.metrics.get(name, "ExactMatch"),
            )
            self._write(f"{name}.py", text)
        partitions = [(name, model) for name in evals or self.numbers for model in self.models]
        with patch("eval_dagster.pipeline.publish"):
            list(evaluate(self.project(), partitions, stages=set(STAGES), run_id="night", reporter=SilentReporter()))

    def judge(self) -> GateResult:
        """Judge the suite, and keep the judgement."""
        result = judge(self.project(), "nightly", run_id="gate")
        write_result(self.project().lake, result)
        return result

    def night(self, wrong: Numbers | None = None, *, raising: str = "pass", evals: Sequence[str] = ()) -> GateResult:
        """Evaluate some evals, by default all, and judge."""
        self.evaluate(wrong, raising=raising, evals=evals)
        return self.judge()

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(text))


def aggregate(result: GateResult, name: str = "all", model: str = "one") -> AggregateRegression:
    """The one row of an aggregate and a model."""
    (found,) = [each for each in result.aggregates if (each.aggregate, each.model) == (name, model)]
    return found


def separate(evals: int, samples: int) -> dict[str, list[int]]:
    """The numbers of evals that share none."""
    return {f"e{n}": list(range(1000 * n, 1000 * n + samples)) for n in range(evals)}
