"""A suite of one eval and one model in a remembered lake, with what is true of it, night by night."""

import gc
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from remembered_lake import RememberedLake, remember

from eval_dagster.gate import judgement, results, scored_again
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import accept, write_result
from eval_dagster.lake.format.parquet_files import FileInfo
from eval_dagster.lake.tables.rows import prompt_row, sample_row
from eval_dagster.metrics.base import BaseMetric, CompletionMetric
from eval_dagster.project import Project
from eval_dagster.records import Completion, Message, Request, ResponseType, Role, Row, Sample, Score
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.stages import aggregation, rescoring
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.rescoring import OldAnswers, score_again
from eval_dagster.stages.score_columns import scores_in
from eval_dagster.stages.scores import content_version, scores_of, scoring_versions
from eval_dagster.tasks.base import BaseTask
from eval_dagster.versions.hashes import stable_hash

N = 50
"""Questions of the first night."""


def _is_right(response: Completion) -> float:
    return float(response.completion_text.strip("#") == response.ground_truth)


class Accuracy(CompletionMetric):
    NAME = "accuracy"
    IS_PROPORTION = True

    def calculate(self, response: Completion) -> float:
        return _is_right(response)


class Percent(CompletionMetric):
    NAME = "accuracy"
    BOUNDS = (0.0, 100.0)

    def calculate(self, response: Completion) -> float:
        return 100 * _is_right(response)


class Wrong(CompletionMetric):
    NAME = "accuracy"
    HIGHER_IS_BETTER = False
    IS_PROPORTION = True
    BEST = 0.0

    def calculate(self, response: Completion) -> float:
        return 1 - _is_right(response)


class Marked(CompletionMetric):
    """Reads answers with a mark alone, which the model has not always written."""

    NAME = "accuracy"
    IS_PROPORTION = True

    def calculate(self, response: Completion) -> float:
        if not response.completion_text.endswith("#"):
            raise ValueError("the answer has no mark")
        return _is_right(response)


class Renamed(Accuracy):
    NAME = "share_right"


class Length(CompletionMetric):
    """Blind: it is the same for all answers."""

    NAME = "length"
    BEST = None

    def calculate(self, response: Completion) -> float:
        return float(len(response.completion_text) > 0)


FORMS: Sequence[type[BaseMetric[Any]]] = (Accuracy, Percent, Wrong, Marked, Renamed)


class Questions(BaseTask[str]):
    NAME = "Questions"
    DATASET_PATH = "own"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    SUBJECTS = ("all",)

    def _get_instruction_text(self, item: Row) -> str:
        return str(item["q"])

    def _get_ground_truth(self, item: Row) -> str:
        return "right"


@cache
def _task(metrics: tuple[type[BaseMetric[Any]], ...]) -> type[BaseTask[Any]]:
    return type("Questions", (Questions,), {"METRICS": list(metrics), "__module__": __name__, "__qualname__": "Questions"})


@dataclass
class World:
    """A suite and what is true of it, night by night."""

    random: random.Random
    lake: RememberedLake
    project: Callable[[type[BaseTask[Any]]], Project]
    questions: list[int] = field(default_factory=lambda: list(range(N)))
    right: set[int] = field(default_factory=set)
    form: type[BaseMetric[Any]] = Accuracy
    is_first: bool = True
    """Whether accuracy comes before the blind metric."""
    is_gone: bool = False
    has_mark: bool = False
    ids: int = 0
    errors: set[int] = field(default_factory=set)
    log: list[str] = field(default_factory=list)

    def task(self) -> type[BaseTask[Any]]:
        if self.is_gone:
            return _task((Length,))
        return _task((self.form, Length) if self.is_first else (Length, self.form))

    # What can happen between two nights.

    def falls(self) -> None:
        known = sorted(self.right & set(self.questions))
        self.right -= set(self.random.sample(known, min(len(known), self.random.choice((1, 6, 11, 16, 25)))))

    def rises(self) -> None:
        unknown = sorted(set(self.questions) - self.right)
        self.right |= set(self.random.sample(unknown, min(len(unknown), self.random.choice((1, 6, 20)))))

    def another_metric(self) -> None:
        self.form = self.random.choice(FORMS)

    def another_order(self) -> None:
        self.is_first = not self.is_first

    def metric_goes(self) -> None:
        self.is_gone = not self.is_gone

    def answers_get_a_mark(self) -> None:
        self.has_mark = True

    def rows_are_appended(self) -> None:
        new = self._new(self.random.choice((1, 5, 20)))
        self.questions += new
        self.right |= {q for q in new if self.random.random() < 0.7}

    def rows_are_replaced(self) -> None:
        gone = set(self.random.sample(self.questions, min(len(self.questions), self.random.choice((1, 6, 22, 28)))))
        self.questions = [q for q in self.questions if q not in gone] + self._new(len(gone))

    def limit(self) -> None:
        self.questions = self.questions[: max(10, len(self.questions) - self.random.choice((3, 12, 30)))]

    def ids_change(self) -> None:
        self.ids += 1

    def samples_fail(self) -> None:
        self.errors = set(self.random.sample(self.questions, min(len(self.questions), self.random.choice((0, 1, 2, 2, 5, 15)))))

    def more_samples_fail(self) -> None:
        others = sorted(set(self.questions) - self.errors)
        self.errors |= set(self.random.sample(others, min(len(others), 2)))

    def file_is_lost(self) -> None:
        path = self.random.choice(sorted(self.lake.kept))
        if self.random.random() < 0.5:
            del self.lake.kept[path]
        else:
            self.lake.kept[path].is_damaged = True
        self.log.append(str(path))

    def _new(self, count: int) -> list[int]:
        start = max([*self.questions, *self.right, N]) + 1
        return list(range(start, start + count))

    def evaluate(self) -> Project:
        """Evaluate tonight's answers as the stages do, and write what has changed."""
        task, lake = self.task(), self.lake
        project, time = self.project(task), lake.next_time("", "")
        samples = [
            Sample(sample_id=f"{self.ids}-{q}", content_id=str(q), subject="all", split="test", row_index=place, row={"q": q})
            for place, q in enumerate(self.questions)
        ]
        version = stable_hash([each.sample_id for each in samples])

        def info(of: str, inputs: dict[str, str], **more: Any) -> FileInfo:
            return FileInfo(fingerprint=of, version=of, run_id="night", materialized_at=time, inputs=inputs, **more)

        source = type("Source", (), {"path": "own", "revision": ""})()
        lake.put("samples", [sample_row("e", each, source, version) for each in samples], info(version, {}), "e")
        prompts = [_prompt(each) for each in samples]
        inputs = {"dataset_snapshot": version, "rendered_prompts": f"p{version}"}
        asked = lake.put("prompts", [prompt_row("e", "m", each, 0, "p") for each in prompts], info(f"p{version}", inputs), "e", "m")
        model = stable_hash([sorted(self.right & set(self.questions)), sorted(self.errors), self.has_mark])
        inputs |= {"model": model, "model_content": model}
        responses = {sample.sample_id: self._response(q, sample.sample_id) for q, sample in zip(self.questions, samples, strict=True)}
        outputs = stable_hash([version, model])
        lake.put("responses", list(responses.values()), info(outputs, inputs), "e", "m")
        inputs |= {"model_outputs": outputs}
        partition = Partition(project=project, eval_name="e", model="m", run_id="night")
        answers = OldAnswers(
            prompts=lake.current("prompts", "e", "m") or pytest.fail(str(asked)),
            responses=responses,
            samples={each.sample_id: each for each in samples},
        )
        rows = score_again(partition, answers)
        made = scoring_versions(task)
        scored = lake.put("scores", rows, info(f"{content_version(rows)}-{stable_hash(made)}", inputs, made_of=made), "e", "m")
        of_scores = lake.read(scored).info
        assert of_scores is not None
        aggregated = [
            {**row, "eval": "e", "model": "m", "scores_file": str(scored.relative_to(lake.root))}
            for row in metric_rows(task, scores_in(rows))
        ]
        inputs |= {"sample_scores": of_scores.version}
        version = stable_hash([of_scores.version, outputs, [row["metric_version"] for row in aggregated]])
        lake.put("metrics", aggregated, info(version, inputs), "e", "m")
        return project

    def night(self) -> GateResult:
        """Evaluate and judge, and keep the judgement."""
        result = judgement.judge(self.evaluate(), "nightly", run_id="gate")
        write_result(self.lake, result)
        return result

    def accept(self) -> None:
        """Accept what is red or a gap, as a person does."""
        self.lake.now += timedelta(seconds=1)
        accept(self.lake, "nightly", evals=["e"], models=[], by="me", why="because")
        self.lake.now += timedelta(seconds=1)

    def _response(self, q: int, sample_id: str) -> dict[str, Any]:
        error = "no answer" if q in self.errors else None
        text = ("right" if q in self.right else "wrong") + ("#" if self.has_mark else "")
        texts = [] if error else [text]
        return {
            **dict.fromkeys(("input", "choice_logprobs", "choice_token_logprobs", "choice_is_greedy", "unconditioned_logprobs", "logits")),
            **{name: [] for name in ("choice_logprobs", "choice_token_logprobs", "choice_is_greedy", "input_token_ids")},
            "sample_id": sample_id,
            "text": texts,
            "text_post_processed": texts,
            "reasoning": [None] * len(texts),
            "error": error,
            "output_token_ids": [[] for _ in texts],
            "finish_reason": ["stop"] * len(texts),
            "truncated_tokens": 0,
            "padded_tokens": 0,
            "latency_s": 0.0,
            "retryable": False,
            "tool_calls": (),
        }


def _prompt(sample: Sample) -> RenderedPrompt:
    text = str(sample.row["q"])
    return RenderedPrompt(
        sample_id=sample.sample_id,
        source_id=sample.sample_id,
        subject="all",
        response_type=ResponseType.COMPLETION,
        messages=(Message(Role.USER, text),),
        request=Request(request_id=text, prompt=text),
        ground_truths=("right",),
        truth_is_list=False,
    )


CONFIG = """
models: {m: {backend: scripted, function: "m.py:answer"}}
evals: {e: {task: t, num_fewshot: 0}}
suites: {nightly: {evals: [e], models: [m], gate: {confirm: false, alpha: 0.5}}}
"""


def remembered_worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], World]:
    """A function that makes a world from a seed. One world at a time can be used."""
    (tmp_path / "evals.yaml").write_text(CONFIG)
    (tmp_path / "m.py").write_text("")
    opened = Project.open(tasks={"t": _task((Accuracy, Length))}, config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    held = remember(monkeypatch)
    monkeypatch.setattr(judgement, "find_looks", lambda *args, **settings: iter(()))
    # Versions take a second each. A class has the same version as long as it has the same name here.
    monkeypatch.setattr(aggregation, "metric_versions", lambda task, metrics: {each.NAME: each.__name__ for each in metrics})
    for module in (scored_again, sys.modules[__name__]):
        monkeypatch.setattr(module, "scoring_versions", lambda task: {"task": str([each.__name__ for each in task.METRICS]), "code": ""})
    monkeypatch.setattr(gc, "collect", lambda *generation: 0)  # statsmodels collects garbage in each call
    known: dict[Any, list[Score]] = {}

    def scores(task: BaseTask[Any], samples: Any, answered: Any, asked: Any) -> Iterator[tuple[RenderedPrompt, Score]]:
        """Each text is scored once by each form of the metrics, which are pure."""
        for prompt, response in answered:
            key = tuple(task.METRICS), tuple(response.text), response.error
            if key not in known:
                known[key] = [score for _, score in scores_of(task, samples, iter([(prompt, response)]), asked)]
            yield from ((prompt, score) for score in known[key])

    monkeypatch.setattr(rescoring, "scores_of", scores)

    def world(seed: int) -> World:
        lake = held["lake"] = RememberedLake()
        monkeypatch.setattr(results, "datetime", lake.clock())

        def project(task: type[BaseTask[Any]]) -> Project:
            return replace(opened, lake=lake, tasks={"t": task}, _loaded_tasks={"t": task})

        made = World(random=random.Random(seed), lake=lake, project=project)
        made.right = set(made.random.sample(made.questions, int(N * made.random.choice((0.6, 0.8, 0.95)))))
        return made

    return world
