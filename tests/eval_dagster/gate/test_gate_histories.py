"""Random histories of a suite: a true fall of 20 points is never green without a mark, and nothing improved that did not rise.

A history is a few nights. In each, some of these change: what the model knows, the metric's scale, direction, name or order, what it can
read, the rows, their ids, their number, which samples are errors, and a file of the lake. What is true is known from the model itself.
"""

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

from eval_dagster.errors import UsageError
from eval_dagster.gate import acceptances, judgement, scored_again
from eval_dagster.gate.acceptances import accept
from eval_dagster.gate.records import Regression
from eval_dagster.gate.results import write_result
from eval_dagster.lake.files import FileInfo
from eval_dagster.lake.rows import prompt_row, sample_row
from eval_dagster.metrics.base import BaseMetric, CompletionMetric
from eval_dagster.project import Project
from eval_dagster.records import Completion, Message, Request, ResponseType, Role, Row, Sample
from eval_dagster.rendered_prompt import RenderedPrompt
from eval_dagster.stages import aggregation
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.old_answers import OldAnswers, score_again
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.scores import content_version, scoring_versions
from eval_dagster.statistics.verdicts import Verdict
from eval_dagster.tasks.base import BaseTask
from eval_dagster.versions import stable_hash

N = 50
FALL = 0.2
SHORT, LONG = 100, 10_000


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
            {**row, "eval": "e", "model": "m", "scores_file": str(scored.relative_to(lake.root))} for row in metric_rows(task, rows)
        ]
        inputs |= {"sample_scores": of_scores.version}
        version = stable_hash([of_scores.version, outputs, [row["metric_version"] for row in aggregated]])
        lake.put("metrics", aggregated, info(version, inputs), "e", "m")
        return project

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


@dataclass(frozen=True)
class Truth:
    """What is true of a state: the questions that were asked, and the answers that were right."""

    questions: frozenset[int]
    right: frozenset[int]

    @property
    def share(self) -> float:
        return len(self.questions & self.right) / len(self.questions)

    def share_of(self, later: "Truth") -> float:
        """The share of its questions that a later model answers right."""
        return len(self.questions & later.right) / len(self.questions)

    def rose(self, later: "Truth", *, common: bool) -> bool:
        questions = self.questions & later.questions if common else self.questions
        return len(questions & later.right) > len(questions & self.right)


WEIGHTS: dict[Callable[[World], None], float] = {
    World.falls: 3,
    World.rises: 1,
    World.another_metric: 2,
    World.another_order: 1,
    World.metric_goes: 0.5,
    World.answers_get_a_mark: 0.5,
    World.rows_are_appended: 0.5,
    World.rows_are_replaced: 0.7,
    World.limit: 0.4,
    World.ids_change: 0.3,
    World.samples_fail: 0.6,
    World.more_samples_fail: 0.6,
    World.file_is_lost: 1.5,
}
OF_ACCURACY = ("accuracy", "share_right")


def _is_marked(row: Regression) -> bool:
    """Whether a row says that more than the model's answers differs: samples went, or files could not be read."""
    reason = row.reason or ""
    return any("went" in mark for mark in row.marks) or "cannot be read" in reason or row.verdict is Verdict.ACCEPTED_GAP


def _history(world: World) -> tuple[list[str], int]:
    """Live through a history. Returns what is wrong with it, and the number of falls that it has."""
    states: dict[Any, Truth] = {}
    passed: Truth | None = None
    wrong: list[str] = []
    falls = 0
    names = list(WEIGHTS)
    for night in range(world.random.randint(3, 6)):
        chosen = world.random.choices(names, list(WEIGHTS.values()), k=world.random.choice((0, 1, 1, 2, 3)) if night else 0)
        # Half of the answers better and more than half worse would be a fall that no test can tell from chance.
        for change in dict.fromkeys(each for each in chosen if each is not World.rises or World.falls not in chosen):
            world.log.append(f"{night} {change.__name__}")
            change(world)
        world.questions = list(world.questions)
        now = Truth(questions=frozenset(world.questions), right=frozenset(world.right))
        project = world.evaluate()
        result = judgement.judge(project, "nightly", run_id="gate")
        write_result(world.lake, result)
        states |= {row.materialized_at: now for row in result.regressions if row.materialized_at}
        seen = "; ".join(
            f"{row.metric} {row.verdict.value} {row.baseline_value} {row.value} {row.marks} {row.reason}" for row in result.regressions
        )
        world.log.append(f"  {result.outcome.value}: {seen}")
        rows = [row for row in result.regressions if row.metric in OF_ACCURACY or row.metric is None]
        has_fallen = passed is not None and passed.share_of(now) <= passed.share - FALL
        falls += has_fallen
        if result.is_green and has_fallen and not any(map(_is_marked, rows)):
            wrong.append(
                f"night {night}: green, and of the baseline's questions {passed.share_of(now):.2f} are right, not {passed.share:.2f}"
            )
        for row in rows:
            before = states.get(row.baseline_materialized_at)
            if row.verdict is Verdict.IMPROVED and before is not None and not before.rose(now, common=_is_marked(row)):
                wrong.append(f"night {night}: improved, and nothing rose")
        if result.is_green and any(row.is_passed for row in rows):
            passed = now
        elif not result.is_green and world.random.random() < 0.3:
            world.lake.now += timedelta(seconds=1)
            try:
                accept(world.lake, "nightly", evals=["e"], models=[], by="me", why="because")
                passed = None if world.is_gone else now
                world.log.append("  accepted")
            except UsageError as error:
                world.log.append(f"  not accepted: {error}")
            world.lake.now += timedelta(seconds=1)
    return wrong, falls


CONFIG = """
models: {m: {backend: scripted, function: "m.py:answer"}}
evals: {e: {task: t, num_fewshot: 0}}
suites: {nightly: {evals: [e], models: [m], gate: {confirm: false, alpha: 0.5}}}
"""


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], tuple[World, list[str], int]]]:
    """A history by its seed."""
    (tmp_path / "evals.yaml").write_text(CONFIG)
    (tmp_path / "m.py").write_text("")
    opened = Project.open(tasks={"t": _task((Accuracy, Length))}, config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    held = remember(monkeypatch)
    monkeypatch.setattr(judgement, "find_looks", lambda *args, **settings: iter(()))
    # Versions take a second each. A class has the same version as long as it has the same name here.
    monkeypatch.setattr(aggregation, "metric_versions", lambda task, metrics: {each.NAME: each.__name__ for each in metrics})
    for module in (scored_again, sys.modules[__name__]):
        monkeypatch.setattr(module, "scoring_versions", lambda task: {"task": str([each.__name__ for each in task.METRICS]), "code": ""})

    gc.freeze()  # statsmodels collects garbage in each call

    def history(seed: int) -> tuple[World, list[str], int]:
        lake = held["lake"] = RememberedLake()
        monkeypatch.setattr(acceptances, "datetime", lake.clock())

        def project(task: type[BaseTask[Any]]) -> Project:
            return replace(opened, lake=lake, tasks={"t": task}, _loaded_tasks={"t": task})

        world = World(random=random.Random(seed), lake=lake, project=project)
        world.right = set(world.random.sample(world.questions, int(N * world.random.choice((0.6, 0.8, 0.95)))))
        return (world, *_history(world))

    yield history
    gc.unfreeze()


def _check(live: Callable[[int], tuple[World, list[str], int]], seeds: Sequence[int]) -> None:
    falls = 0
    for seed in seeds:
        world, wrong, fallen = live(seed)
        falls += fallen
        assert not wrong, f"history {seed}: {wrong}\n" + "\n".join(world.log)
    assert falls > len(seeds) / 4, "the histories have too few falls to tell anything"


def test_no_fall_is_green_without_a_mark_and_nothing_improves_that_did_not_rise(live: Any) -> None:
    _check(live, range(SHORT))


@pytest.mark.long
def test_the_same_of_ten_thousand_histories(live: Any) -> None:
    _check(live, range(SHORT, LONG))
