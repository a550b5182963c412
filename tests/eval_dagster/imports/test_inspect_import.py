"""Logs of inspect_ai in the lake, read from small files in its format that the tests write themselves."""

import json
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from commands import run_command
from inspect_logs import DEFLATE, STORED, ZSTANDARD, ToolUse, log_header, log_sample, write_archive, write_log

from eval_dagster.errors import LakeError, UsageError
from eval_dagster.freshness import partition_states
from eval_dagster.gate.judgement import judge
from eval_dagster.gate.planning import plan_samples
from eval_dagster.gate.results import write_result
from eval_dagster.imported_tasks import imported_task
from eval_dagster.imports import spooled_tables
from eval_dagster.imports.importing import ImportedLog, import_logs, publish_imported
from eval_dagster.imports.inspect_archive import log_files
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import Lake
from eval_dagster.lake.remote.mirror import mirror_lake
from eval_dagster.project import Project
from eval_dagster.records.judgements import Regression, Verdict
from eval_dagster.results.comparison import compare_points
from eval_dagster.results.materializations import history
from eval_dagster.retention import Keep, Policy, prune
from eval_dagster.stages.imported import imported_result

Rows = list[dict[str, Any]]


def _imported(lake: Lake, *paths: Path, taken: tuple[str, ...] = ()) -> list[ImportedLog]:
    found = list(import_logs(lake, paths, taken=taken))
    publish_imported(lake, found)
    return found


def _rows(lake: Lake, query: str) -> Rows:
    return [dict(row) for row in read_rows(lake, query if " " in query else f"from {query}")]


def _files(lake: Lake) -> set[Path]:
    return set(lake.root.rglob("*.parquet"))


def _night(folder: Path, day: int, right: int, **header: Any) -> Path:
    """A log of a hundred answers, of which so many are right."""
    samples = [log_sample(i, f"ANSWER {i}", scores={"match": "C" if i < right else "I"}, uuid=f"{day}-{i}") for i in range(100)]
    return write_log(folder / f"{day}.eval", log_header(created=f"2026-03-{day:02}T02:00:00+01:00", **header), samples)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "home")


@pytest.mark.long
@pytest.mark.parametrize("method", [ZSTANDARD, DEFLATE, STORED])
def test_a_log_becomes_rows_of_all_relations_whatever_its_packing(lake: Lake, tmp_path: Path, method: int) -> None:
    tools = [ToolUse(name="add", arguments={"x": 1, "y": 2}, result="3"), ToolUse(name="add", arguments={"x": 3}, error="y is missing")]
    samples = [
        log_sample(
            1, "It is 4.", scores={"match": {"value": "C", "answer": "4", "explanation": "as wanted"}}, tools=tools, system="Brief!"
        ),
        log_sample("b", "5", scores={"match": "I"}, target=["4", "four"], limit="token"),
    ]
    path = write_log(tmp_path / "one.eval", log_header(asked=2), samples, method=method)
    [found] = _imported(lake, path)
    assert (found.state, found.answers, found.errors, found.warnings) == ("imported", 2, 0, [])
    [metric] = _rows(lake, "metrics")
    assert (metric["eval"], metric["model"], metric["metric"], metric["value"], metric["n"]) == ("addition", "mock_m", "match", 0.5, 2)
    assert metric["materialized_at"].isoformat() == "2026-03-01T02:00:00+00:00"
    assert metric["ci_low"] < 0.5 < metric["ci_high"]
    assert [row["sample_name"] for row in _rows(lake, "from samples order by sample_name")] == ["1", "b"]
    prompts = _rows(lake, "from prompts order by sample_name")
    assert prompts[0]["prompt"] == "system: Brief!\n\nuser: What is 1+1?"
    assert prompts[1]["gold"] == ["4", "four"]
    responses = _rows(lake, "from responses order by sample_name")
    assert [row["text"] for row in responses] == [["It is 4."], ["5"]]
    assert responses[0]["prompt_tokens"] == 10
    score = _rows(lake, "from scores where sample_name = '1'")[0]
    assert json.loads(score["explanation"]) == {"answer": ["4"], "judge_response": ["as wanted"]}
    assert [row["status"] for row in _rows(lake, "from episodes order by sample_name")] == ["done", "tokens"]
    turns = _rows(lake, "from turns where sample_id in (select sample_id from samples where sample_name = '1') order by number")
    assert [(row["number"], row["text"], row["n_tool_calls"], row["latency_s"]) for row in turns] == [
        (0, "", 1, 0.5),
        (2, "", 1, 0.5),
        (4, "It is 4.", 0, 0.5),
    ]
    calls = _rows(lake, "from tool_calls order by number")
    assert [(row["name"], json.loads(row["arguments"]), row["result"], row["error"], row["seconds"]) for row in calls] == [
        ("add", {"x": 1, "y": 2}, "3", None, 0.25),
        ("add", {"x": 3}, "", "unknown: y is missing", 0.25),
    ]


def test_a_log_that_was_imported_adds_nothing(lake: Lake, tmp_path: Path) -> None:
    path = _night(tmp_path, 1, 60)
    _imported(lake, path)
    before = _files(lake)
    copy = tmp_path / "elsewhere" / "copy.eval"
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    assert [each.state for each in _imported(lake, path, copy)] == ["known", "known"]
    assert _files(lake) == before


def test_values_of_all_kinds_become_numbers_or_reasons_and_never_zeros(lake: Lake, tmp_path: Path) -> None:
    values = ["C", "I", "P", "N", True, 0.25, "0.75", "yes", "maybe", None, float("nan")]
    samples = [log_sample(i, "x", scores={"mixed": value}) for i, value in enumerate(values)]
    samples.append(log_sample(99, None, error="RuntimeError('the sandbox broke')"))
    write_log(tmp_path / "one.eval", log_header(scorers=("mixed",)), samples)
    [found] = _imported(lake, tmp_path / "one.eval")
    rows = {row["sample_name"]: row for row in _rows(lake, "scores")}
    assert [rows[str(i)]["value"] for i in range(len(values))] == [1, 0, 0.5, 0, 1, 0.25, 0.75, 1, None, None, None]
    assert (rows["99"]["value"], rows["99"]["error"]) == (None, "RuntimeError('the sandbox broke')")
    assert "'maybe'" in rows["8"]["error"]
    assert "not scored" in rows["9"]["error"]
    assert "not scored" in rows["10"]["error"]
    [metric] = _rows(lake, "metrics")
    assert metric["value"] == pytest.approx(4.5 / 8)
    assert (metric["n"], metric["n_errors"], found.errors) == (8, 4, 4)
    assert {row["sample_name"]: row["error"] for row in _rows(lake, "from responses where error is not null")} == {
        "99": "RuntimeError('the sandbox broke')"
    }


def test_a_header_with_numbers_that_json_has_not_is_read(lake: Lake, tmp_path: Path) -> None:
    headline = {"scorer": "match", "score": "match", "value": float("nan"), "best": float("inf")}
    path = write_log(tmp_path / "one.eval", log_header(headline=headline), [log_sample(1, "x", scores={"match": float("nan")})])
    [found] = _imported(lake, path)
    assert (found.state, found.answers, found.errors) == ("imported", 1, 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "created"),
    [
        ({"temperature": "hot"}, "2026-03-01T00:00:00Z"),
        ({"seed": "abc"}, "2026-03-01T00:00:00Z"),
        ({"max_tokens": [1]}, "2026-03-01T00:00:00Z"),
        ({}, "0001-01-01T00:00:00+05:00"),
        ({}, "0001-01-01T00:00:00"),
        ({}, "yesterday"),
    ],
)
def test_an_odd_header_does_not_affect_other_logs(lake: Lake, tmp_path: Path, config: dict[str, Any], created: str) -> None:
    header = log_header(created=created)
    header["plan"]["config"] = config
    odd = write_log(tmp_path / "odd.eval", header, [log_sample(1, "x", scores={"match": "C"})])
    found = {each.path: each for each in _imported(lake, odd, _night(tmp_path, 1, 50))}
    assert [each.state for each in found.values()] == ["failed", "imported"]
    assert "header.json" in str(found[odd].problem)


def test_a_lake_that_cannot_be_written_is_no_fault_of_the_log(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    path = _night(tmp_path, 1, 50)
    for owner, name in ((Lake, "write"), (spooled_tables, "TemporaryFile")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, full)
            with pytest.raises(LakeError, match=r"written.*No space left"):
                list(import_logs(lake, [path]))


def test_dictionaries_and_lists_of_scores_are_metrics_of_their_own(lake: Lake, tmp_path: Path) -> None:
    samples = [log_sample(i, "x", scores={"pkg/detail": {"length": i, "ok": i % 2 == 0}, "parts": [1, i]}) for i in range(4)]
    samples.append(log_sample(9, "x", scores={"parts": [0, 0]}, error="the scorer detail raised"))
    headline = {"scorer": "pkg/detail", "score": "ok", "metric": "mean"}
    write_log(tmp_path / "one.eval", log_header(scorers=("pkg/detail", "parts"), headline=headline), samples)
    _imported(lake, tmp_path / "one.eval")
    found = {row["metric"]: (row["value"], row["n"], row["n_errors"], row["is_headline"]) for row in _rows(lake, "metrics")}
    assert found == {
        "pkg.detail/length": (1.5, 4, 1, False),
        "pkg.detail/ok": (0.5, 4, 1, True),
        "parts/0": (0.8, 5, 0, False),
        "parts/1": (1.2, 5, 0, False),
    }


def test_a_key_that_a_dictionary_lacks_is_an_error_and_an_answer_counts_once(lake: Lake, tmp_path: Path) -> None:
    given: list[dict[str, object]] = [
        {"detail": {"a": 1, "b": 0}, "match": "C"},
        {"detail": {"a": 1}, "match": "C"},
        {"detail": {"b": 1}, "match": "odd"},
    ]
    samples = [log_sample(i, "x", scores=scores) for i, scores in enumerate(given)]
    [found] = _imported(lake, write_log(tmp_path / "one.eval", log_header(scorers=("detail", "match")), samples))
    counts = {row["metric"]: (row["value"], row["n"], row["n_errors"]) for row in _rows(lake, "metrics")}
    assert counts == {"detail/a": (1.0, 2, 1), "detail/b": (0.5, 2, 1), "match": (1.0, 2, 1)}
    assert found.errors == 2


def test_seconds_that_a_log_does_not_tell_are_not_zero(lake: Lake, tmp_path: Path) -> None:
    told, untold = log_sample(1, "x", scores={"match": "C"}), log_sample(2, "y", scores={"match": "C"})
    untold |= {"events": [], "working_time": None, "total_time": None}
    _imported(lake, write_log(tmp_path / "one.eval", log_header(), [told, untold]))
    assert [row["latency_s"] for row in _rows(lake, "select latency_s from responses order by sample_name")] == [0.5, None]


def test_a_damaged_result_is_broken_and_not_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "evals.yaml").write_text("models:\n  mock_m: {backend: imported}\nevals:\n  addition: {task: imported}\n")
    lake = Lake(tmp_path / "home")
    _imported(lake, _night(tmp_path, 1, 80))
    [file] = (lake.root / "scores").rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-50])
    project = Project.open(config_path=tmp_path / "evals.yaml", home=lake.home, tasks={})
    [state] = partition_states(project, ["addition"], ["mock_m"])
    assert {stage for stage, cell in state.cells.items() if cell.state == "broken"} == {"sample_scores"}
    with pytest.raises(LakeError):
        imported_result(project, "sample_scores", "addition", "mock_m")
    assert "writes a new file" not in caplog.text


def test_epochs_are_answers_to_one_sample_that_are_not_independent(lake: Lake, tmp_path: Path) -> None:
    samples = [log_sample(i, "x", scores={"match": "CI"[i % 2]}, epoch=epoch) for i in range(20) for epoch in (1, 2, 3)]
    write_log(tmp_path / "three.eval", log_header(created="2026-03-02T00:00:00Z"), samples)
    write_log(tmp_path / "one.eval", log_header(), samples[::3])
    _imported(lake, tmp_path / "three.eval", tmp_path / "one.eval")
    one, three = _rows(lake, "from metrics_history order by materialized_at")
    assert (three["n"], three["n_clusters"], three["value"]) == (60, 20, 0.5)
    assert three["stderr"] == pytest.approx(one["stderr"], rel=0.05)  # the same answers three times tell nothing new
    assert _rows(lake, "select count(*) as n from samples") == [{"n": 20}]
    assert _rows(lake, "select count(*) as n from scores join samples on source_id = samples.sample_id") == [{"n": 60}]


@pytest.mark.long
def test_logs_are_results_in_the_order_of_their_times_however_they_come(lake: Lake, tmp_path: Path) -> None:
    paths = [_night(tmp_path, day, right) for day, right in ((1, 80), (2, 79), (3, 40))]
    for path in (paths[2], paths[0], paths[1]):
        _imported(lake, path)
    assert [row["value"] for row in _rows(lake, "from score_history order by materialized_at")] == [0.8, 0.79, 0.4]
    assert _rows(lake, "select value from metrics") == [{"value": 0.4}]
    first, _, last = history(lake, "addition", "mock_m")
    [found] = compare_points(last, first, [])
    assert found.comparison.n_common == 100
    assert found.comparison.difference == pytest.approx(-0.4)
    assert found.causes == ()


@pytest.mark.long
def test_what_differs_between_logs_is_named(lake: Lake, tmp_path: Path) -> None:
    _night(tmp_path, 1, 80)
    _night(tmp_path, 2, 80, packages={"inspect_ai": "0.3.999"})
    other = [log_sample(i, "x", question=f"How much is {i}+1?", scores={"match": "C"}) for i in range(100)]
    write_log(tmp_path / "3.eval", log_header(created="2026-03-03T00:00:00Z"), other)
    _imported(lake, *log_files(tmp_path))
    first, second, third = history(lake, "addition", "mock_m")
    assert compare_points(second, first, [])[0].causes == ("engine",)
    assert [row["changed_inputs"] for row in _rows(lake, "select changed_inputs from metrics")] == [["data"]]
    assert compare_points(third, second, [])[0].comparison.n_common == 0


def test_arguments_of_a_task_make_another_eval(lake: Lake, tmp_path: Path) -> None:
    sample = log_sample(1, "x", scores={"match": "C"})
    write_log(
        tmp_path / "a.eval", log_header(task="inspect_evals/arc", args={"challenge": True, "shots": 5}, model="openai/gpt-4o"), [sample]
    )
    [found] = _imported(lake, tmp_path / "a.eval")
    assert found.log is not None
    assert (found.log.eval, found.log.model) == ("arc.challenge-true.shots-5", "openai_gpt-4o")


@pytest.mark.long
def test_an_evaluation_that_was_killed_is_imported_and_replaced_when_it_has_ended(lake: Lake, tmp_path: Path) -> None:
    samples = [log_sample(i, "x", scores={"match": "C"}) for i in range(4)]
    path = tmp_path / "one.eval"
    write_log(path, log_header(asked=4), samples[:3], is_ended=False)
    [found] = _imported(lake, path)
    assert found.answers == 3
    assert "started" in found.warnings[0]
    assert "3 of 4" in found.warnings[0]
    write_log(path, log_header(asked=4), samples)
    [found] = _imported(lake, path)
    assert (found.state, found.answers, found.warnings) == ("imported", 4, [])
    [metric] = _rows(lake, "metrics_history")
    assert metric["n"] == 4
    assert metric["materialized_at"].isoformat() == "2026-03-01T02:00:00.000001+00:00"  # no gate takes it for the result before
    assert _rows(lake, "select count(*) as n from samples") == [{"n": 4}]
    assert len([file for file in _files(lake) if "metrics" in file.parts]) == 1
    write_log(path, log_header(asked=4, status="error"), samples)
    _imported(lake, path)
    assert [row["materialized_at"].microsecond for row in _rows(lake, "metrics_history")] == [2]


def test_a_result_is_replaced_after_the_new_one_is_published(lake: Lake, tmp_path: Path) -> None:
    samples = [log_sample(i, "x", scores={"match": "C"}) for i in range(4)]
    path = write_log(tmp_path / "one.eval", log_header(), samples[:3], is_ended=False)
    _imported(lake, path)
    old = _files(lake)
    write_log(path, log_header(), samples)
    [found] = import_logs(lake, [path])  # and is killed before it publishes
    assert old <= _files(lake)
    assert set(found.replaced) == {file for file in old if "samples" not in file.parts}
    [again] = _imported(lake, path)
    assert (again.state, set(again.replaced)) == ("known", set(found.replaced))
    assert not _files(lake) & set(found.replaced)
    assert [row["n"] for row in _rows(lake, "metrics_history")] == [4]


@pytest.mark.long
def test_a_gate_judges_a_log_again_when_it_has_ended(tmp_path: Path) -> None:
    suite = "suites:\n  nightly: {evals: [addition], models: [mock_m]}\n"
    imported = "models:\n  mock_m: {backend: imported}\nevals:\n  addition: {task: imported}\n"
    (tmp_path / "evals.yaml").write_text(imported + suite)
    lake = Lake(tmp_path / "home")

    def judged(log: Path) -> Regression:
        [found] = _imported(lake, log)
        assert found.state == "imported"
        result = judge(Project.open(config_path=tmp_path / "evals.yaml", home=lake.home, tasks={}), "nightly", run_id="gate")
        write_result(lake, result)
        return result.regressions[0]

    assert judged(_night(tmp_path, 1, 80)).is_passed
    assert judged(_night(tmp_path, 2, 79)).is_passed
    header = log_header(created="2026-03-03T02:00:00+01:00")
    right, left = ([log_sample(i, "x", scores={"match": "C" if i < most else "I"}) for i in range(100)] for most in (100, 45))
    unfinished = judged(write_log(tmp_path / "3.eval", header, right[:99], is_ended=False))
    assert (unfinished.is_passed, unfinished.value) == (True, 1.0), unfinished.reason
    ended = judged(write_log(tmp_path / "3.eval", header, left))  # another scorer has scored it anew
    assert (ended.verdict, ended.value, ended.baseline_value) == (Verdict.REGRESSED, 0.45, 0.79), ended.reason


def test_the_latest_of_several_states_of_a_log_is_imported_once(lake: Lake, tmp_path: Path) -> None:
    samples = [log_sample(i, "x", scores={"match": "C"}) for i in range(4)]
    ended = write_log(tmp_path / "a.eval", log_header(), samples)
    killed = write_log(tmp_path / "backup" / "a.eval", log_header(), samples[:3], is_ended=False)
    scored = write_log(tmp_path / "a-scored.eval", log_header(), [log_sample(i, "x", scores={"match": "I"}) for i in range(4)])
    os.utime(ended, (1000, 1000))
    found = {each.path: each for each in _imported(lake, ended, killed, scored)}
    assert {path: each.state for path, each in found.items()} == {scored: "imported", ended: "known", killed: "known"}
    assert str(scored) in found[killed].warnings[0]
    before = _files(lake)
    assert {each.state for each in _imported(lake, ended, killed, scored)} == {"known"}
    [alone] = _imported(lake, killed)
    assert (alone.state, "later state" in alone.warnings[0]) == ("known", True)
    assert _files(lake) == before
    assert [(row["n"], row["value"]) for row in _rows(lake, "metrics_history")] == [(4, 0.0)]


@pytest.mark.long
def test_one_damaged_log_or_sample_does_not_affect_the_others(lake: Lake, tmp_path: Path) -> None:
    good, cut = _night(tmp_path, 1, 50), _night(tmp_path, 2, 50)
    cut.write_bytes(cut.read_bytes()[:-200])
    text = tmp_path / "3.eval"
    text.write_text("no archive")
    header = log_header(created="2026-03-04T00:00:00Z")
    samples = [log_sample(i, "x", scores={"match": "C"}) for i in range(3)]
    members = [
        ("header.json", json.dumps(header).encode()),
        *((f"samples/{i}.json", json.dumps(s).encode()) for i, s in enumerate(samples)),
    ]
    part = tmp_path / "4.eval"
    write_archive(part, [*members, ("samples/7.json", b'{"id": 7, "epoch"'), ("samples/1.json", json.dumps(samples[1]).encode())])
    found = {each.path: each for each in _imported(lake, good, cut, text, part)}
    assert found[good].state == "imported"
    assert found[part].answers == 3
    assert found[cut].state == found[text].state == "failed"
    assert str(cut) in str(found[cut].problem)
    assert "7.json" in found[part].warnings[0]
    assert "1 sample" in found[part].warnings[0]
    flipped = bytearray(good.read_bytes())
    with zipfile.ZipFile(good) as archive:
        place = archive.getinfo("samples/5_epoch_1.json").header_offset + 60
    flipped[place] ^= 0xFF
    damaged = tmp_path / "5.eval"
    damaged.write_bytes(flipped)
    [again] = _imported(Lake(tmp_path / "other"), damaged)
    assert again.answers == 99
    assert "5_epoch_1" in again.warnings[0]


def test_names_that_stand_for_something_else_are_refused(lake: Lake, tmp_path: Path) -> None:
    path = _night(tmp_path, 1, 50)
    [found] = _imported(lake, path, taken=("addition",))
    assert found.state == "failed"
    assert "evals.yaml has an eval 'addition'" in str(found.problem)
    assert not _files(lake)
    _imported(lake, path)
    [other] = _imported(lake, _night(tmp_path, 2, 50, task="pkg/addition"))
    assert other.state == "failed"
    assert "pkg/addition" in str(other.problem)
    [model] = _imported(lake, _night(tmp_path, 3, 50, model="mock_m"))
    assert model.state == "failed"
    assert "mock/m" in str(model.problem)


def test_a_name_stands_for_one_thing_on_all_models_and_evals(lake: Lake, tmp_path: Path) -> None:
    sample = [log_sample(1, "x", scores={"match": "C"})]
    named: list[tuple[str, str, dict[str, object]]] = [
        ("pkga/addition", "m/one", {}),
        ("pkgb/addition", "m/two", {}),
        ("other", "m_one", {}),
        ("other", "m/two", {"x": True}),
        ("other", "m/two", {"x": "true"}),
        ("other", "m/two", {"x": "a b"}),
        ("other", "m/three", {"x": "a_b"}),
    ]
    logs = [
        write_log(tmp_path / f"{number}.eval", log_header(task=task, model=model, args=args, eval_id=f"log {number}"), sample)
        for number, (task, model, args) in enumerate(named)
    ]
    found = {each.path: each for each in _imported(lake, *logs)}
    assert [found[log].state for log in logs] == ["imported", "failed", "failed", "imported", "imported", "imported", "failed"]
    assert "pkgb/addition; the eval addition has results of the task pkga/addition" in str(found[logs[1]].problem)
    assert "m/one" in str(found[logs[2]].problem)
    names = [row["eval"] for row in _rows(lake, "from metrics order by eval")]
    assert names == ["addition", "other.x-_true_", "other.x-a_b", "other.x-true"]
    again = {each.path: each for each in _imported(lake, *logs[1:3])}
    assert [each.state for each in again.values()] == ["failed", "failed"]


def test_own_and_imported_evals_and_models_are_no_pairs(tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text(
        "models:\n  mock_m: {backend: imported}\n  own: {backend: scripted, function: 'own.py:answer'}\n"
        "evals:\n  addition: {task: imported}\n  mine: {task: 'mine.py:Mine'}\n"
        "suites:\n  nightly: {evals: [addition, mine], models: [mock_m, own]}\n"
    )
    lake = Lake(tmp_path / "home")
    _imported(lake, _night(tmp_path, 1, 80))
    project = Project.open(config_path=tmp_path / "evals.yaml", home=lake.home, tasks={})
    pairs = [("addition", "mock_m"), ("mine", "own")]
    assert [(row.eval, row.model) for row in judge(project, "nightly", run_id="gate").regressions] == pairs
    assert [(state.eval, state.model) for state in partition_states(project, *project.select(suite="nightly"))] == pairs
    assert [(row.eval, row.model) for row in plan_samples(project, "nightly", 0.1)[0]] == pairs
    assert project.select(evals=["addition"]) == (["addition"], ["mock_m"])
    assert project.select(models=["mock_m"]) == (["addition"], ["mock_m"])
    assert project.select(evals=["mine"]) == project.select() == (["mine"], ["own"])
    assert project.select(imported=True) == project.select(suite="nightly") == (["addition", "mine"], ["mock_m", "own"])
    with pytest.raises(UsageError, match="none belong together"):
        project.select(evals=["mine"], models=["mock_m"])


@pytest.mark.long
def test_results_that_gc_deleted_are_not_imported_again(tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text("models:\n  mock_m: {backend: imported}\nevals:\n  addition: {task: imported}\n")
    lake = Lake(tmp_path / "home")
    paths = [_night(tmp_path, day, right) for day, right in ((1, 80), (2, 79), (3, 78))]
    _imported(lake, *paths)
    project = Project.open(config_path=tmp_path / "evals.yaml", home=lake.home, tasks={})
    policy = Policy(keep=Keep(count=1), catalogs=Keep(count=0))
    with ThreadPoolExecutor(1) as pool:
        with lake.lock("import"):  # files of an import are not deleted while it writes others
            pruning = pool.submit(prune, project, policy)
            with pytest.raises(TimeoutError):
                pruning.result(timeout=3)
        pruning.result()
    before = _files(lake)
    states = [each.state for each in _imported(lake, *paths)]
    assert states == ["deleted", "deleted", "known"]
    assert _files(lake) == before
    assert [row["value"] for row in _rows(lake, "from metrics_history order by materialized_at")] == [0.78]


def test_a_result_without_its_scores_is_repaired(lake: Lake, tmp_path: Path) -> None:
    path = _night(tmp_path, 1, 80)
    _imported(lake, path)
    for file in (lake.root / "scores").rglob("*.parquet"):
        file.unlink()
    assert [each.state for each in _imported(lake, path)] == ["imported"]
    assert _rows(lake, "select count(*) as n from scores") == [{"n": 100}]
    assert [row["n"] for row in _rows(lake, "metrics_history")] == [100]


def test_another_machine_with_the_lake_knows_the_metrics(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    for name in ("here", "there"):
        mirror_lake(tmp_path / name / "lake", f"file://{tmp_path / 'store'}")
    here, there = Lake(tmp_path / "here"), Lake(tmp_path / "there")
    _imported(here, _night(tmp_path, 1, 50))
    assert [metric.NAME for metric in imported_task(there, "addition").METRICS] == ["match"]


def test_a_missing_package_is_named(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(UsageError, match=r"zstandard is not installed.*eval_dagster\[inspect\]"):
        list(import_logs(lake, [_night_path(tmp_path)]))


def _night_path(folder: Path) -> Path:
    return write_log(folder / "stored.eval", log_header(), [log_sample(1, "x", scores={"match": "C"})], method=STORED)


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no such file"):
        log_files(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="is not a file of this kind"):
        log_files(tmp_path / "notes.txt")


def _commands(folder: Path) -> tuple[Path, Path]:
    """A project without an eval, with a log of 80 right answers; gives the folder of the logs and evals.yaml."""
    config = folder / "evals.yaml"
    config.write_text("# ours\nmodels: {}\nevals: {}\n")
    _night(folder / "logs", 1, 80)
    done = run_command("import-inspect", "logs", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "1 log imported, 0 known before, 0 failed" in done.stdout
    return folder / "logs", config


@pytest.mark.long
def test_commands_show_imported_results(tmp_path: Path) -> None:
    logs, config = _commands(tmp_path)
    text = config.read_text()
    assert text.startswith("# ours")
    assert "addition: {task: imported}" in text
    assert "mock_m: {backend: imported}" in text
    _night(logs, 2, 40)
    (logs / "broken.eval").write_text("nothing")
    done = run_command("import-inspect", "logs", folder=tmp_path)
    assert done.returncode == 1
    assert "1 log imported, 1 known before, 1 failed" in done.stdout
    assert "broken.eval" in done.stderr
    assert config.read_text() == text
    assert "0.400" in run_command("leaderboard", folder=tmp_path).stdout
    compared = run_command("compare", "mock_m", "mock_m@2026-03-01", folder=tmp_path).stdout
    assert "-0.400" in compared
    assert "40 worse in a" in compared
    for words in (("show", "addition", "--model", "mock_m"), ("tasks", "addition")):
        done = run_command(*words, folder=tmp_path)
        assert done.returncode != 0
        assert "the results of addition are imported" in done.stderr
    assert "imported: cannot be asked" in run_command("models", folder=tmp_path).stdout
    page = run_command("samples", "addition", "mock_m", folder=tmp_path)
    assert page.returncode == 0, page.stderr
    ended = run_command("run", "--eval", "addition", folder=tmp_path).stdout
    assert "Nothing to recompute" in ended
    assert "show " not in ended


@pytest.mark.long  # two runs with a gate
def test_the_gate_of_a_suite_judges_imported_nights(tmp_path: Path) -> None:
    logs, config = _commands(tmp_path)
    config.write_text(f"{config.read_text()}\nsuites:\n  nightly: {{evals: [addition], models: [mock_m]}}\n")
    first = run_command("run", "--suite", "nightly", folder=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    _night(logs, 2, 40)
    run_command("import-inspect", "logs", folder=tmp_path)
    judged = run_command("run", "--suite", "nightly", folder=tmp_path)
    assert judged.returncode == 1, judged.stdout + judged.stderr
    assert "addition on mock_m" in judged.stdout
    assert "regressed" in judged.stdout.lower()
    current = run_command("status", "--suite", "nightly", folder=tmp_path)
    assert current.returncode == 0
    assert "up to date" in current.stdout
