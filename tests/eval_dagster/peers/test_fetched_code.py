"""No code that `evaluate.load` finds is run by a task of another package, and a task that needs it is refused before a model is asked."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval_dagster.errors import TaskDefinitionError, UsageError
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.peers.lm_eval import configurations
from eval_dagster.peers.workers import fetched_code
from eval_dagster.peers.workers.fetched_code import FetchedCodeError, function_that_fetches, without_fetched_code
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, Partition, StageFailure
from eval_dagster.tasks.benchmark import Answer
from tests.eval_dagster.peers.conftest import QuizEnvironment
from tests.eval_dagster.peers.quiz_registry import QuizRegistry

PLANTED = """
from pathlib import Path
Path({marker!r}).write_text("the planted code ran")
import datasets
import evaluate


class Planted(evaluate.Metric):
    def _info(self):
        features = datasets.Features({{"predictions": datasets.Value("string"), "references": datasets.Value("string")}})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {{"exact": 1.0}}
"""
TASK = """
task: planted
dataset_path: csv
dataset_kwargs: {{data_files: {{test: rows.csv}}}}
output_type: generate_until
test_split: test
doc_to_text: {text}
doc_to_target: "{{{{answer}}}}"
process_docs: !function utils.docs
process_results: !function utils.results
generation_kwargs: {{until: ["."], max_gen_toks: 5}}
metric_list: [{{metric: right, aggregation: !function utils.aggregate, higher_is_better: true}}]
"""
UTILS = """
import evaluate
from evaluate import load
from functools import partial


def text(doc):
    {text}
    return doc["question"]


def docs(rows):
    {docs}
    return rows


def results(doc, found):
    {results}
    return {{"right": 1.0}}


def aggregate(items):
    {aggregate}
    return sum(items) / len(items)


def apart():
    {apart}


{at_import}
"""
PLACES = ("text", "docs", "results", "aggregate", "at_import")
SHOWN = {
    "a call": 'evaluate.load("planted")',
    "a name of its own": 'load("planted")',
    "an import": 'from evaluate import load as other; other("planted")',
    "a function apart": "apart()",
}
HIDDEN = 'getattr(evaluate, "lo" + "ad")("planted")'
"""A call that cannot be seen before it is made."""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the code writes that lies in the working directory."""
    for name in ("planted", "squad_v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(PLANTED.format(marker=str(tmp_path / "marker")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    configurations._read.cache_clear()
    configurations._loaded.cache_clear()
    return tmp_path / "marker"


def project(folder: Path, task: str) -> Project:
    config = {"models": {"model": {"backend": "scripted", "default": "one"}}, "evals": {"it": {"task": task}}}
    (folder / "evals.yaml").write_text(yaml.safe_dump(config))
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def written(folder: Path, place: str, call: str, apart: str = "pass") -> Project:
    (folder / "rows.csv").write_text("question,answer\nFirst?,one\n")
    (folder / "planted.yaml").write_text(TASK.format(text="!function utils.text"))
    code = {**dict.fromkeys(PLACES, "pass"), "apart": apart, place: call}
    (folder / "utils.py").write_text(UTILS.format(**code))
    return project(folder, "planted.yaml")


def test_the_planted_code_would_run(marker: Path) -> None:
    import evaluate as package

    assert package.load("planted").compute(predictions=["a"], references=["a"]) == {"exact": 1.0}
    assert marker.read_text() == "the planted code ran"


def test_a_task_of_the_package_is_refused_before_anything_runs(marker: Path) -> None:
    with pytest.raises(
        TaskDefinitionError, match=r"lm_eval:squadv2 scores by evaluate\.load, which _squad_metric in squadv2/task\.py calls"
    ):
        project(marker.parent, "lm_eval:squadv2").task("it")
    assert not marker.exists()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", SHOWN)
def test_a_task_whose_functions_ask_for_it_is_refused(marker: Path, place: str, way: str) -> None:
    opened = written(marker.parent, place, SHOWN[way], apart='return evaluate.load("planted")')
    with pytest.raises(TaskDefinitionError, match=r"evaluate\.load.*refused: it fetches code"):
        opened.task("it")
    assert not marker.exists()


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_a_call_that_is_seen_only_when_it_is_made_runs_nothing(marker: Path, place: str) -> None:
    opened = written(marker.parent, place, HIDDEN)
    try:
        outcomes = list(evaluate(opened, [("it", "model")], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    except UsageError as error:
        assert place == "at_import"
        assert "refused: it fetches code" in str(error)  # noqa: PT017 - other places are failures of their stage
    else:
        failed = [each for each in outcomes if isinstance(each, StageFailure)]
        assert failed
        assert "evaluate.load('planted') is refused: it fetches code" in failed[0].message
    assert not marker.exists()


@pytest.mark.long
def test_a_task_without_such_a_call_runs(marker: Path) -> None:
    opened = written(marker.parent, "apart", "pass", apart='return evaluate.load("planted")')  # a function that nothing calls
    outcomes = list(evaluate(opened, [("it", "model")], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert not [each for each in outcomes if isinstance(each, StageFailure)]
    (row,) = read_rows(Partition(project=opened, eval_name="it", model="model", run_id="look").require("sample_scores").path)
    assert row["value"] == 1.0
    assert not marker.exists()


def test_other_code_of_the_process_is_not_kept_from_it(marker: Path) -> None:
    from evaluate import load

    with without_fetched_code(), pytest.raises(FetchedCodeError, match=r"evaluate\.load\('planted'\) is refused"):
        load("planted")
    assert not marker.exists()
    load("planted")
    assert marker.exists()


FAKE = """
def evaluation_module_factory(path):
    exec(open(f"{path}/{path}.py").read())


def load(path):
    evaluation_module_factory(path)
"""
"""A package `evaluate` without the packages that the real one needs."""


def test_a_process_of_another_environment_runs_nothing(quiz: QuizEnvironment, marker: Path) -> None:
    package = quiz.site_packages / "evaluate"
    package.mkdir()
    (package / "__init__.py").write_text("from .loading import load\n")
    (package / "loading.py").write_text(FAKE)
    benchmark = QuizRegistry().within(quiz.python).benchmark("sums", Path())
    rows = benchmark.read("all", lambda _: [], fewshot=False)
    answers = [Answer(prompt="", texts=["fetch"])]
    (found,) = benchmark.score_all("all", rows, [(rows.evaluated[0], answers)])
    assert "FetchedCodeError: evaluate.load('planted') is refused" in str(found)
    assert not marker.exists()


def test_the_package_is_watched_when_it_is_imported_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "evaluate" / "__init__.py").write_text("from .loading import load\n")
    (tmp_path / "evaluate" / "loading.py").write_text(FAKE)
    for name in [each for each in sys.modules if each.partition(".")[0] == "evaluate"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not isinstance(each, fetched_code._Finder)])
    monkeypatch.syspath_prepend(str(tmp_path))
    with without_fetched_code():
        from evaluate import load

        with pytest.raises(FetchedCodeError):
            load("planted")
    for name in ("evaluate", "evaluate.loading"):
        monkeypatch.delitem(sys.modules, name)


def test_what_calls_a_function_of_that_name_of_another_module_is_not_refused() -> None:
    def harmless(text: str) -> Any:
        import json

        return json.load(text)  # type: ignore[arg-type]

    assert function_that_fetches([harmless], lambda _: True) is None
