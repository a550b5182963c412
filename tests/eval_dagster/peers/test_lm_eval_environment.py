"""lm-eval in an environment of its own: the same requests, values and aggregates as in this process, whose packages serve as that one."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from few import few

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.peers.lm_eval import index
from eval_dagster.peers.lm_eval.registry import LmEvalProcessBenchmark, LmEvalRegistry
from eval_dagster.peers.processes.registry import close_processes
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.prompts.formatters import ConcatFormatter, verbatim
from eval_dagster.records import Message
from eval_dagster.stages.partition import STAGES, Partition, StageFailure, StageResult
from eval_dagster.stores.whole_files import user_cache
from eval_dagster.tasks.benchmark import Answer, Benchmark, BenchmarkRows, DatasetSplit, RenderSettings

CHOICES = """
task: colours
dataset_path: csv
dataset_kwargs: {data_files: {test: rows/test.csv, train: rows/train.csv}}
output_type: multiple_choice
test_split: test
fewshot_split: train
process_docs: !function code.upper
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{[first, second]}}"
doc_to_target: "{{label}}"
metric_list: [{metric: acc}, {metric: f1}]
metadata: {version: 1.0}
"""
TEXTS = """
task: texts
dataset_path: csv
dataset_kwargs: {data_files: {test: rows/test.csv, train: rows/train.csv}}
output_type: generate_until
test_split: test
fewshot_split: train
doc_to_text: "{{question}}"
doc_to_target: "{{first}} it is"
generation_kwargs: {until: ["\\n"], max_gen_toks: 7, do_sample: true, temperature: 0.5, top_p: 0.9}
repeats: 2
filter_list:
  - {name: first, filter: [{function: take_first}]}
  - {name: word, filter: [{function: regex, regex_pattern: "(black|white)"}, {function: take_first}]}
metric_list: [{metric: exact_match}, {metric: bleu}, {metric: !function code.share, aggregation: !function code.largest}]
"""
ROLLING = """
task: rolling
dataset_path: csv
dataset_kwargs: {data_files: {test: rows/test.csv}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}]
"""
FIXED = CHOICES.replace("task: colours", "task: fixed\nnum_fewshot: 0")
GROUP = "group: both\ntask: [colours, fixed]\naggregate_metric_list: [{metric: acc, weight_by_size: false}]\n"
CODE = """
def upper(rows):
    return rows.map(lambda row: {"question": row["question"].upper()})


def share(references, predictions, **_):
    return (len(references[0]), tuple(predictions))


def largest(items):
    assert all(isinstance(item, tuple) and isinstance(item[1], tuple) for item in items)
    return float(max(item[0] for item in items))
"""
MODEL = """
def answer(request):
    if request.perplexity:
        return [-0.5] * len(request.prompt.split())
    if request.choices is None:
        return "white it is"
    return [-0.25 if choice.strip() == "white" else -1.0 for choice in request.choices]
"""


@pytest.fixture(scope="module")
def names() -> list[Path]:
    """The file with the names of lm-eval's tasks in the user's cache. It takes half a minute to make, and other tests need it, too."""
    index.package_index.cache_clear()
    index.package_index()
    return list(user_cache().glob(f"lm_eval-{index.VERSION}-{index._FORMAT}.json"))


@pytest.fixture
def folder(names: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tasks. All that the environment is asked is kept in a cache of its own, which has the names alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    user_cache().mkdir(parents=True)
    for file in names:
        shutil.copy2(file, user_cache())
    (tmp_path / "rows").mkdir()
    files = {"colours": CHOICES, "texts": TEXTS, "rolling": ROLLING, "fixed": FIXED, "both": GROUP}
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "rows/test.csv").write_text("question,first,second,label\nsnow?,white,black,0\ncoal?,black,white,0\nmilk?,black,white,1\n")
    (tmp_path / "rows/train.csv").write_text("question,first,second,label\nsalt?,white,black,0\nink?,black,white,0\n")
    return tmp_path


@pytest.fixture(autouse=True, scope="module")
def _one_process() -> Iterator[None]:
    yield
    close_processes()


class Shown(ConcatFormatter):
    """A chat format that shows every turn."""

    name = "chat"

    def format(self, messages: Sequence[Message], *, images: int = 0) -> str:
        return "".join(f"<{message.role}>{message.content}</>" for message in messages)


def both(folder: Path, name: str) -> tuple[Benchmark, LmEvalProcessBenchmark]:
    own: Any = LmEvalRegistry().benchmark(f"{name}.yaml", folder)
    other = LmEvalRegistry().within(Path(sys.executable)).benchmark(f"{name}.yaml", folder)
    assert isinstance(other, LmEvalProcessBenchmark)
    return own, other


def opened(folder: Path) -> Any:
    def read(split: DatasetSplit) -> list[dict[str, Any]]:
        lines = (folder / split.files[0]).read_text().splitlines()
        found = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
        return [{**row, "label": int(row["label"])} for row in found]

    return read


@pytest.mark.long
@pytest.mark.parametrize("chat", [False, True])
@few("name, shots", [("colours", 2), ("texts", 1), ("rolling", 0), ("both", 0), ("colours", 0), ("texts", 0)], kept=4)
def test_both_ask_and_score_the_same(folder: Path, name: str, shots: int, chat: bool) -> None:
    own, other = both(folder, name)
    plain = ("name", "num_fewshot", "is_macro", "response_type", "description")
    assert {key: getattr(own, key) for key in plain} == {key: getattr(other, key) for key in plain}
    assert list(own.subjects) == list(other.subjects)
    assert [(metric.name, metric.higher_is_better, metric.aggregate is None) for metric in own.metrics] == [
        (metric.name, metric.higher_is_better, metric.aggregate is None) for metric in other.metrics
    ]
    for subject in own.subjects:
        if shots:
            assert [replace(each) for each in own.splits(subject, fewshot=True)] == list(other.splits(subject, fewshot=True))
        rows = own.read(subject, opened(folder), fewshot=shots > 0)
        assert other.read(subject, opened(folder), fewshot=shots > 0) == rows
        formatter = verbatim(Shown() if chat else ConcatFormatter())
        settings = RenderSettings(num_fewshot=shots, seed=3, examples_per_sample=False, formatter=formatter)
        asked, again = list(own.render(subject, rows, settings)), list(other.render(subject, rows, settings))
        fields = (
            "prompt",
            "possible_completions",
            "max_tokens",
            "num_samples",
            "temperature",
            "top_p",
            "top_k",
            "response_type",
            "context",
        )
        for first, second in zip([each for row in asked for each in row], [each for row in again for each in row], strict=True):
            assert {field: getattr(first, field) for field in fields} == {field: getattr(second, field) for field in fields}
            assert tuple(first.stop_sequences or ()) == tuple(second.stop_sequences or ())
            assert (first.gold_indices, first.ground_truth) == (second.gold_indices, second.ground_truth)
        _same_values(own, other, subject, rows, asked)


def _same_values(own: Benchmark, other: LmEvalProcessBenchmark, subject: str, rows: BenchmarkRows, asked: Sequence[Any]) -> None:
    answered = []
    for row, questions in zip(rows.evaluated, asked, strict=True):
        answers = []
        for question in questions:
            choices = list(question.possible_completions or ())
            kind = question.response_type.value
            answers.append(
                Answer(
                    prompt=question.prompt,
                    choices=choices,
                    loglikelihoods=[-0.5 * (place + 1) for place in range(len(choices))] if kind == "loglikelihoods" else [-7.5],
                    is_greedy=[place == 0 for place in range(len(choices))],
                    texts=["white it is", "a black one"] if kind == "completion" else [],
                    context=question.context,
                )
            )
        answered.append((row, answers))
    first = [own.score(subject, rows, row, answers) for row, answers in answered]
    assert other.score_all(subject, rows, answered) == first
    for metric, again in zip(own.metrics, other.metrics, strict=True):
        if metric.aggregate is not None and again.aggregate is not None:
            for name in {key for row in first for key in row if key.partition("/")[0] == metric.name}:
                assert again.aggregate([row[name] for row in first]) == metric.aggregate([row[name] for row in first])


def _project(folder: Path, **more: Any) -> Project:
    config = {
        "models": {"model": {"backend": "scripted", "function": "model.py:answer"}},
        "evals": {"colours": {"task": "colours.yaml", "num_fewshot": 1}},
        **more,
    }
    (folder / "evals.yaml").write_text(yaml.safe_dump(config))
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def _run(project: Project) -> dict[str, StageResult]:
    outcomes = list(evaluate(project, [("colours", "model")], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert [each.message for each in outcomes if isinstance(each, StageFailure)] == []
    return {each.stage: each for each in outcomes if isinstance(each, StageResult)}


@pytest.mark.long
def test_an_eval_moves_to_an_environment_without_a_request(folder: Path) -> None:
    here = _project(folder)
    _run(here)
    named = {"lm_eval": sys.executable}
    there = _project(folder, environments=named)
    assert isinstance(there.task("colours").BENCHMARK, LmEvalProcessBenchmark)  # type: ignore[attr-defined]
    assert _run(there)["model_outputs"].cached  # the prompts are the same
    assert all(each.cached for each in _run(_project(folder, environments=named)).values())
    rows = read_rows(Partition(project=there, eval_name="colours", model="model", run_id="look").require("task_metrics").path)
    assert {row["metric"]: row["value"] for row in rows}["acc"] == pytest.approx(2 / 3)


@pytest.mark.long
def test_examples_that_a_configuration_forbids_are_refused_by_it_too(folder: Path) -> None:
    _, other = both(folder, "fixed")
    assert other.splits("fixed", fewshot=False)
    with pytest.raises(TaskDefinitionError, match="has `num_fewshot: 0` in its configuration"):
        other.splits("fixed", fewshot=True)


def test_names_suites_and_refusals_are_those_of_the_environment(folder: Path) -> None:
    registry = LmEvalRegistry().within(Path(sys.executable))
    assert registry.names() == LmEvalRegistry().names()
    assert registry.suite("leaderboard", folder) == LmEvalRegistry().suite("leaderboard", folder)
    with pytest.raises(TaskDefinitionError, match=r"^lm-eval has no task, group or tag 'hellaswg'"):
        registry.benchmark("hellaswg", folder)
    with pytest.raises(TaskDefinitionError, match=r"^lm_eval:squadv2 scores by evaluate\.load"):
        registry.benchmark("squadv2", folder)


@pytest.mark.long
@pytest.mark.parametrize(("name", "lacks"), [("minerva_math_algebra", "antlr4-python3-runtime==4.11"), ("ifeval", "immutabledict")])
def test_a_task_that_lacks_a_package_names_the_command_that_helps(folder: Path, name: str, lacks: str) -> None:
    with pytest.raises(TaskDefinitionError) as raised:
        LmEvalRegistry().benchmark(name, folder).version()
    assert lacks in str(raised.value)
    assert str(raised.value).endswith("`eval-dagster environments add lm_eval`")
    assert "pip install" not in str(raised.value)
    with pytest.raises(TaskDefinitionError, match=r"install it there: .* -m pip install PACKAGE"):
        LmEvalRegistry().within(Path(sys.executable)).benchmark(name, folder)
