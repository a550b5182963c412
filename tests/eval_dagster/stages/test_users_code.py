"""Users' code that ends the process by an exception, gives what does not fit, or changes what it was given."""

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from running_stages import run_all
from users_code_cells import DEADLY, EVAL, EXPECTED, PLACES, SAMPLE, SAMPLES, STAGES, cells, write_project

from eval_dagster.errors import DataError, EndedError, ModelError, described
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import Lake
from eval_dagster.metrics.base import CompletionMetric, ItemMetric
from eval_dagster.project import Project
from eval_dagster.prompts.views import apart
from eval_dagster.records import Completion, GenerationSettings, ModelResponse, Request
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.answer_faults import misfit
from eval_dagster.stages.score_columns import scores_in
from eval_dagster.stages.scores import score_response
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.samples import TaskRow, build_samples
from eval_dagster.users_code import calling, doing

VIEW = Completion(completion_text="4", row={"i": 1, "parts": [1, 2]}, ground_truths=["4"])


@pytest.mark.long
def test_what_ends_a_process_is_an_error_of_its_sample_or_its_eval(tmp_path: Path) -> None:
    chosen = cells(faults=["exit0", "wrong", "changes"])
    write_project(tmp_path, chosen)
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    keys = {cell: ("good", "-".join(cell)) if cell[0] == "model" else ("-".join(cell), "good") for cell in chosen}
    _, failures = run_all(project, [*keys.values(), ("good", "good")])
    failed = {(each.eval_name, each.model): each for each in failures if each.model is not None}
    metrics = read_rows(project.lake, "select * from metrics where subject is null and metric = 'right'")
    found = {(row["eval"], row["model"]): (row["value"], row["n"], row["n_errors"]) for row in metrics}
    assert found.pop(("good", "good")) == (1.0, SAMPLES, 0)
    for (place, fault), key in keys.items():
        expected = EXPECTED[place][fault]
        if expected == EVAL and STAGES[place] != "dataset_snapshot":
            assert failed[key].stage == STAGES[place], (place, fault)
        errors = int(expected == SAMPLE)
        assert found.get(key) == (None if expected == EVAL else (1.0, SAMPLES - errors, errors)), (place, fault)
    texts = {row["error"] for row in read_rows(project.lake, "select error from scores where error is not null")}
    assert "SystemExit: 0 (model-model-exit0.py, line 12)" in texts


def test_no_deadly_cell_is_left_out() -> None:
    assert {fault for _, fault in cells(faults=DEADLY)} == set(DEADLY)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("places", [["metric"], [each for each in PLACES if each != "model"]], ids=["metric", "all"])
def test_code_that_ends_the_process_costs_its_eval_alone(tmp_path: Path, places: Sequence[str]) -> None:
    chosen = cells(places, DEADLY if len(places) > 1 else ["dies"])
    write_project(tmp_path, chosen)
    program = Path(__file__).with_name("watched_stages.py")
    done = subprocess.run([sys.executable, str(program), "run", str(tmp_path)], capture_output=True, text=True, timeout=900, check=True)
    found = json.loads(done.stdout)
    assert found["scores"] == {"good": 1.0}
    for place, fault in chosen:
        stage, message = found["failed"][f"{place}-{fault}"]
        assert stage == STAGES[place]
        assert "the process ended" in message
        assert ("code_timeout" in message) is (fault == "loops")
    assert found["failed"].keys() == {"-".join(cell) for cell in chosen}
    assert done.stderr.count("error: the process ended") == len(chosen), "no part is tried twice"


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("late"), BaseException("odd")])
def test_an_exception_that_ends_a_process_is_an_error_of_the_code(error: BaseException) -> None:
    with pytest.raises(EndedError) as raised, doing("stage"), calling("the metric m", "a"):
        raise error
    assert described(raised.value) == f"{type(error).__name__}: {error}"


def test_a_person_can_interrupt_the_code() -> None:
    with pytest.raises(KeyboardInterrupt), doing("stage"), calling("the metric m", "a"):
        raise KeyboardInterrupt


class _UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _metric(name: str, code: Callable[[Completion], Any]) -> type[CompletionMetric]:
    return type(name, (CompletionMetric,), {"NAME": name, "calculate": lambda _, response: code(response)})


def _raise(error: BaseException) -> None:
    raise error


def test_a_metric_costs_the_next_one_nothing() -> None:
    metrics = [
        _metric("changes", lambda view: view.row.update(i=999) or view.row["parts"].append(3) or 1.0),
        _metric("truths", lambda view: view.ground_truths.clear() or 1.0),
        _metric("unspeakable", lambda _: _raise(_UnspeakableError())),
        _metric("exits", lambda _: _raise(SystemExit(0))),
        _metric("large", lambda _: 1e308),
        _metric("good", lambda view: float(view.row == {"i": 1, "parts": [1, 2]} and view.ground_truths == ["4"])),
    ]
    scores = {score.metric: score for score in score_response(metrics, [VIEW], None, "a")}
    assert scores["good"].value == 1.0
    assert scores["unspeakable"].error == "_UnspeakableError: (its text cannot be made: RuntimeError)"
    assert scores["exits"].error == "SystemExit: 0"
    assert scores["large"].value is None
    assert "no number that can be averaged" in str(scores["large"].error)
    assert scores["changes"].value == 1.0


def test_a_view_of_its_own_has_all_of_the_row() -> None:
    [sample] = build_samples({"test": [{"q": "a", "parts": [{"x": [1]}]}]}, "x")
    view = Completion(completion_text="", row=TaskRow(sample))
    own = apart(view)
    assert isinstance(own, Completion)
    assert (own.row, own.row.place, own.row.sample_id) == (view.row, view.row.place, view.row.sample_id)
    own.row["parts"][0]["x"].append(2)
    assert view.row["parts"] == [{"x": [1]}]


CHOICES = Request(request_id="a", prompt="p", choices=("x", "y", "z"))
TEXTS = Request(request_id="a", prompt="p", generation=GenerationSettings(num_samples=1))


@pytest.mark.parametrize(
    ("request_", "response", "said"),
    [
        (CHOICES, ModelResponse(logprobs=(-1.0, -2.0, -3.0, -4.0)), "4 logprobs for 3 choices; expected one for each"),
        (CHOICES, ModelResponse(logprobs=(-1.0, -2.0, -3.0), token_logprobs=((-1.0,), (-2.0,))), "2 logprobs for 3 choices"),
        (CHOICES, ModelResponse(logprobs=(-1.0, -2.0, math.nan)), "no finite number"),
        (CHOICES, ModelResponse(logprobs=(-1.0, -2.0, -3.0), argmax_logits_eq_gold=(True,)), "1 argmax_logits_eq_gold for 3 choices"),
        (CHOICES, ModelResponse(logprobs=(-1.0, -2.0, -3.0), unconditioned_logprobs=(-1.0,)), "1 unconditioned_logprobs for 3 choices"),
        (CHOICES, ModelResponse(text=("x",), finish_reason=("stop",)), "0 logprobs for 3 choices"),
        (TEXTS, ModelResponse(text=("1", "2"), finish_reason=("stop", "stop")), "2 texts; expected 1 texts of type str"),
        (TEXTS, ModelResponse(text=("1",)), "0 finish_reason for 1 texts"),
        (TEXTS, {"text": ["1"]}, "dict; expected a ModelResponse"),
        (Request(request_id="a", prompt="p", perplexity=True), ModelResponse(), "no log-probability of the text"),
        (CHOICES, ModelResponse(logprobs=(-1.0, -2.0, -3.0)), None),
        (TEXTS, ModelResponse(text=("1",), finish_reason=("stop",)), None),
        (TEXTS, ModelResponse(error="ValueError: broken"), None),
    ],
)
def test_an_answer_fits_its_request(request_: Request, response: object, said: str | None) -> None:
    found = misfit(request_, response)
    assert (found is None) if said is None else said in str(found)


@pytest.mark.parametrize("version", ["../../x", "", "a/b", ".hidden", "a" * 201, None, 5])
def test_a_version_of_a_model_is_no_path(tmp_path: Path, version: Any) -> None:
    with pytest.raises(ModelError, match="the model has the version"):
        ResponseCache(Lake(tmp_path), version)


@pytest.mark.parametrize("key", ["png;base64", "bytes;base64", "text;json", "unreadable;reason", "text;json;key", "bytes;base64;key;key"])
def test_a_row_keeps_keys_that_the_store_uses(key: str) -> None:
    rows = [{"a": {key: "5"}, key: 1}, {"a": [{key: 5, "other": None}], "b": b"\x00"}]
    for row, sample in zip(rows, build_samples({"test": rows}, "x"), strict=True):
        read = TaskRow(sample)
        assert {name: read.get(name) for name in row} == row


class _Sorts(ItemMetric[Completion]):
    NAME = "sorts"

    @classmethod
    def aggregate(cls, items: Sequence[Any]) -> float:
        for item in items:
            item.sort()
        return 1.0


def test_an_aggregate_that_changes_its_items_is_told_so() -> None:
    class Task(BaseTask[str]):
        NAME = "Task"
        METRICS: ClassVar = [_Sorts]

    rows = [
        {"metric": "sorts", "sample_id": f"s{i}", "subject": "x", "cluster": f"s{i}", "value": None, "item": "[3, 1]", "error": None}
        for i in range(8)
    ]
    with pytest.raises(DataError, match="the aggregate of the metric sorts changed items that it was given"):
        metric_rows(Task, scores_in(rows))
