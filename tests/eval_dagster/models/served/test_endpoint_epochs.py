"""A model that changes behind its name on a server is noticed by the next run; one that does not change is not asked anew."""

import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from no_mlflow import NoMlflow
from servers.faults import Fault, faulty_proxy
from servers.stub import Stub, stub_server

from eval_dagster.gate.judgement import judge
from eval_dagster.gate.wording import evidence
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_table, write_parquet
from eval_dagster.lake.records import records_of
from eval_dagster.models.base import Look, ModelHandle
from eval_dagster.pipeline import Outcome, evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records import Check
from eval_dagster.results.comparison import compare_points
from eval_dagster.results.materializations import history
from eval_dagster.stages.outputs import materialize_outputs
from eval_dagster.stages.partition import STAGES, Partition, StageFailure, StageResult
from eval_dagster.stages.prompts import materialize_prompts
from eval_dagster.stages.snapshot import materialize_snapshot

Night = Callable[..., list[Outcome]]
CONFIG = """
    models:
      served: {{backend: openai, base_url: "{base_url}", model: stub, concurrency: 8, patience_s: 1, timeout_s: 2{keys}}}
    evals:
      sums: {{task: arithmetic, limit: {limit}}}
    suites:
      nightly: {{evals: [sums], models: [served]}}
"""
LOOK, AGAIN = 24, 20
"""Calls of a look: 12 canaries, each twice; 10 cached requests, each twice, where the canaries have no earlier answers."""


@pytest.fixture
def stub(running: Stub) -> Iterator[Stub]:
    running.reset()
    yield running
    running.change(salt="", logprobs="lists", noise=0.0, logit_noise=0.0)


@pytest.fixture
def night(stub: Stub, tmp_path: Path) -> Night:
    """Make the answers current, as a new process does; the metrics too, if asked."""

    def night(base_url: str = "", *, limit: int = 10, to_the_end: bool = False, **keys: Any) -> list[Outcome]:
        project = project_of(tmp_path, base_url or stub.base_url, limit=limit, **keys)
        stub.reset()
        run = f"run{len(looks(tmp_path))}"
        if to_the_end:
            return list(evaluate(project, [("sums", "served")], stages=set(STAGES), run_id=run, reporter=SilentReporter()))
        materialize_snapshot(project, "sums", run)
        materialize_prompts(Partition(project=project, eval_name="sums", model="served", run_id=run))
        return list(materialize_outputs(project, "served", ["sums"], run, SilentReporter()))

    return night


def project_of(folder: Path, base_url: str, limit: int = 10, **keys: Any) -> Project:
    more = "".join(f", {name}: {value}" for name, value in keys.items())
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG.format(base_url=base_url, keys=more, limit=limit)))
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    return replace(project, tracker=NoMlflow(home=project.home, tracking_uri=None, experiment="none"))


def looks(folder: Path) -> list[dict[str, Any]]:
    return sorted(records_of(Lake(folder / "home"), "endpoint_states"), key=lambda row: row["looked_at"])


def asked(stub: Stub) -> int:
    return sum(stub.counts().received.values())


def warnings(outcomes: list[Outcome]) -> set[str]:
    """The warnings, but those of the stub's texts, which are rarely numbers and may be cut off."""
    assert not [each for each in outcomes if isinstance(each, StageFailure)], outcomes
    found = {text for each in outcomes if not isinstance(each, StageFailure) for text in each.warnings}
    return {text for text in found if not any(f": {check}: " in text for check in (Check.NO_ANSWER_FOUND, Check.CUT_OFF))}


def failures(outcomes: list[Outcome]) -> list[str]:
    return [each.message for each in outcomes if isinstance(each, StageFailure)]


@pytest.mark.long
def test_a_changed_model_is_noticed_the_same_night_and_named_by_the_gate(night: Night, stub: Stub, tmp_path: Path) -> None:
    assert warnings(night(to_the_end=True)) == set()
    assert asked(stub) == LOOK + 30
    judge(project_of(tmp_path, stub.base_url), "nightly", run_id="judge")
    assert warnings(night(to_the_end=True)) == set()
    assert asked(stub) == LOOK
    stub.change(salt="another model")
    [warning] = warnings(night(to_the_end=True))
    assert "the answers of stub at " in warning
    assert "All requests of served are asked anew, in epoch 1" in warning
    assert asked(stub) == 2 * LOOK + 30
    rows = looks(tmp_path)
    assert [(row["outcome"], row["epoch"], row["epoch_rose"]) for row in rows] == [
        ("first", 0, False),
        ("same", 0, False),
        ("different", 0, False),
        ("different", 1, True),
    ]
    project = project_of(tmp_path, stub.base_url)
    before, after = history(project.lake, "sums", "served")
    assert {each.causes for each in compare_points(after, before, project.task("sums").METRICS)} == {("endpoint",)}
    result = judge(project, "nightly", run_id="judge")
    [row] = result.regressions
    assert row.cause == "endpoint"
    assert "the server of served has another model behind its name" in "".join(result.warnings)
    assert "endpoint (another model behind the server's name)" in evidence(row)
    changed = read_rows(project.lake, "select changed from score_history order by materialized_at")
    assert [each["changed"] for each in changed] == [[], ["endpoint"]]
    shown = "select count(*) as n from endpoint_answers where epoch = 1 and is_canary and reference <> answers"
    assert read_rows(project.lake, shown)[0]["n"] >= 10
    assert warnings(night()) == set()
    assert asked(stub) == LOOK


@pytest.mark.long
@pytest.mark.parametrize("logprobs", ["lists", "none"])
@pytest.mark.parametrize("third", ["", "a third model"])
def test_two_changes_on_consecutive_nights_begin_two_epochs(night: Night, stub: Stub, tmp_path: Path, third: str, logprobs: str) -> None:
    """The third night finds the first model again, or a third one, before any look has confirmed the second."""
    stub.change(logprobs=logprobs)
    night(limit=1)
    for number, salt in enumerate(("another model", third), start=1):
        stub.change(salt=salt)
        assert f"epoch {number}" in "".join(warnings(night(limit=1)))
    assert [row["epoch"] for row in looks(tmp_path)] == [0, 0, 1, 1, 2]


@pytest.mark.long
def test_texts_alone_show_another_model(night: Night, stub: Stub, tmp_path: Path) -> None:
    stub.change(logprobs="none")
    for _ in range(2):
        assert warnings(night()) == set()
    stub.change(salt="another model")
    assert "epoch 1" in "".join(warnings(night()))
    assert [row["epoch"] for row in looks(tmp_path)] == [0, 0, 0, 1]


def test_a_pinned_model_keeps_its_answers(night: Night, stub: Stub, tmp_path: Path) -> None:
    night(pin="commit-1")
    stub.change(salt="another model")
    [warning] = warnings(night(pin="commit-1"))
    assert "change `pin` if it is another model" in warning
    assert asked(stub) == 2 * LOOK
    assert [(row["outcome"], row["epoch"]) for row in looks(tmp_path)] == [("first", 0), ("different", 0), ("different", 0)]
    assert warnings(night(pin="commit-2")) == set()
    assert asked(stub) == LOOK + 30


def endpoint_finding(folder: Path) -> dict[str, Any]:
    rows = "select * exclude (materialized_at) from eval_findings where check_name = 'endpoint_changed'"
    [row] = read_rows(Lake(folder / "home"), rows)
    return row


@pytest.mark.long
def test_a_result_with_answers_from_before_a_change_says_so(night: Night, stub: Stub, tmp_path: Path) -> None:
    night(to_the_end=True, pin="commit-1")
    assert (endpoint_finding(tmp_path)["status"], endpoint_finding(tmp_path)["n_of"]) == ("clean", 30)
    stub.change(salt="another model")
    found = "\n".join(warnings(night(to_the_end=True, pin="commit-1")))
    row = endpoint_finding(tmp_path)
    assert (row["status"], row["n"], row["n_of"], len(set(row["sample_ids"]))) == ("found", 30, 30, 5)
    assert row["seen"].startswith("30 of 30 answers are older than the look of ")
    assert row["effect"] == "the score is of a model that the server has no more"
    assert "sums|served: endpoint_changed: 30 of 30 answers are older" in found
    again = night(to_the_end=True, pin="commit-1")
    assert all(isinstance(each, StageResult) and each.cached for each in again), "it is looked at once"
    night(to_the_end=True, pin="commit-1", limit=15)
    row = endpoint_finding(tmp_path)
    assert (row["status"], row["n"], row["n_of"]) == ("found", 30, 45)
    assert row["effect"] == "the score mixes answers of several models"
    stub.change(salt="")
    night(to_the_end=True, pin="commit-1", limit=15)
    row = endpoint_finding(tmp_path)
    assert (row["status"], row["n"], row["n_of"]) == ("found", 15, 45), "the first model is back, and the others are of another one"
    night(to_the_end=True, pin="commit-2", limit=15)
    assert (endpoint_finding(tmp_path)["status"], endpoint_finding(tmp_path)["n_of"]) == ("clean", 45)


@pytest.mark.long
def test_answers_that_were_asked_anew_after_a_change_are_sound(night: Night, stub: Stub, tmp_path: Path) -> None:
    night(to_the_end=True)
    stub.change(salt="another model")
    assert "epoch 1" in "".join(warnings(night(to_the_end=True)))
    assert (endpoint_finding(tmp_path)["status"], endpoint_finding(tmp_path)["n_of"]) == ("clean", 30)


@pytest.mark.long
def test_answers_without_a_time_are_not_called_sound(night: Night, stub: Stub, tmp_path: Path) -> None:
    """Those of earlier releases have none."""
    night(to_the_end=True, pin="commit-1")
    outputs = Lake(tmp_path / "home").current("responses", "sums", "served")
    assert outputs is not None
    write_parquet(outputs.path, read_table(outputs.path).drop_columns(["answered_at"]), outputs.info)
    stub.change(salt="another model")
    night(to_the_end=True, pin="commit-1")
    row = endpoint_finding(tmp_path)
    assert (row["status"], row["seen"]) == ("not checked", "the server changed, and 30 answers have no time")


def test_a_server_that_nobody_looked_at_is_not_called_sound(night: Night, tmp_path: Path) -> None:
    night(to_the_end=True, canaries=0)
    row = endpoint_finding(tmp_path)
    assert row["status"] == "not checked"
    assert row["seen"] == "the server does not name its state (`server_fingerprint`), and there was no look at it"


def test_without_canaries_nothing_is_asked(night: Night, stub: Stub, tmp_path: Path) -> None:
    night(canaries=0)
    assert asked(stub) == 30
    night(canaries=0)
    assert asked(stub) == 0
    assert looks(tmp_path) == []


def test_a_version_is_read_without_a_look(night: Night, stub: Stub, tmp_path: Path) -> None:
    night()
    stub.reset()
    handle = project_of(tmp_path, stub.base_url).handle("served")
    handle.check()
    assert handle.version()
    assert asked(stub) == 0


@pytest.mark.long
def test_canaries_that_fail_are_counted_and_begin_no_epoch(stub: Stub, tmp_path: Path) -> None:
    """Each call meets four faults, which are the four attempts of the first look; the second look is the first with answers."""
    (tmp_path / "proxy").mkdir()
    stub.change(logprobs="none")
    with faulty_proxy(stub.server, tmp_path / "proxy", share=1.0, most=4, faults=[Fault.GARBAGE]) as proxy:
        found = [look(tmp_path, proxy.base_url) for _ in range(2)]
        stub.change(salt="another model")
        found.append(look(tmp_path, proxy.base_url))
    assert ["no canary was answered" in "".join(each.warnings) for each in found] == [True, False, False]
    assert [(row["outcome"], row["n_failed"], row["epoch"]) for row in looks(tmp_path)] == [
        ("first", 20, 0),
        ("first", 0, 0),
        ("different", 0, 0),
        ("different", 0, 1),
    ]


def look(folder: Path, base_url: str) -> Look:
    return handle_of(folder, base_url).look(list, "run")


def handle_of(folder: Path, base_url: str) -> ModelHandle:
    return project_of(folder, base_url).handle("served")


def test_cached_answers_are_used_while_the_server_is_down(night: Night, tmp_path: Path) -> None:
    with stub_server(tmp_path) as other:
        address = other.base_url
        night(address)
    project_of(tmp_path, address).check(["sums"], ["served"])
    [warning] = warnings(night(address))
    assert "no server answers at" in warning
    assert "Cached answers of served are used, as the look at " in warning
    [failure] = failures(night(address, limit=11))
    assert "no server answers at" in failure


def test_an_epoch_outlives_the_folder_of_endpoints(night: Night, stub: Stub, tmp_path: Path) -> None:
    night()
    stub.change(salt="another model")
    night()
    shutil.rmtree(tmp_path / "home" / "endpoints")
    assert warnings(night()) == set()
    assert asked(stub) == LOOK
    assert looks(tmp_path)[-1]["epoch"] == 1


def test_answers_of_a_lost_epoch_are_not_used_for_another_model(night: Night, stub: Stub, tmp_path: Path) -> None:
    """All records are lost, and the response cache is not. Ten cached requests, asked again, show that the model is another one."""
    night()
    first = version(tmp_path, stub)
    versions = {first}
    for salt in ("second", "third"):
        for folder in ("endpoints", "lake/endpoint_states"):
            shutil.rmtree(tmp_path / "home" / folder)
        stub.change(salt=salt)
        night()
        assert asked(stub) == 2 * (LOOK + AGAIN) + 30
        versions.add(version(tmp_path, stub))
    assert len(versions) == 3


def version(folder: Path, stub: Stub) -> str:
    return project_of(folder, stub.base_url).handle("served").version()


def test_two_runs_at_once_begin_one_epoch(night: Night, stub: Stub, tmp_path: Path) -> None:
    night()
    stub.change(salt="another model")
    handles = [handle_of(tmp_path, stub.base_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda handle: handle.look(list, "run"), handles))
    assert sorted(len(each.warnings) for each in found) == [0, 0, 0, 1]
    assert [row["epoch"] for row in looks(tmp_path)] == [0, 0, 1, 1, 1, 1]


@pytest.mark.long
def test_a_kill_between_record_and_file_leaves_the_record(night: Night, stub: Stub, tmp_path: Path) -> None:
    night()
    [file] = (tmp_path / "home" / "endpoints" / "epochs").glob("*.json")
    before = file.read_text()
    stub.change(salt="another model")
    night()
    file.write_text(before)
    assert warnings(night()) == set()
    assert asked(stub) == LOOK
    assert looks(tmp_path)[-1]["epoch"] == 1


@pytest.mark.long
def test_a_look_that_is_killed_leaves_no_trace(tmp_path: Path) -> None:
    with stub_server(tmp_path, slots=1, base_s=0.05) as slow:
        project = project_of(tmp_path, slow.base_url)
        code = "import sys; from pathlib import Path; from eval_dagster.project import Project; "
        code += "Project.open(config_path=Path(sys.argv[1]), home=Path(sys.argv[2])).handle('served').look(list, 'killed')"
        process = subprocess.Popen([sys.executable, "-c", code, str(project.config_path), str(project.home)])
        deadline = time.monotonic() + 120
        while asked(slow) < 10 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None
        process.kill()
        process.wait()
        assert looks(tmp_path) == []
        slow.change(slots=0)
        assert look(tmp_path, slow.base_url).warnings == ()
    assert [(row["outcome"], row["n_failed"]) for row in looks(tmp_path)] == [("first", 0)]


@pytest.mark.long
def test_thirty_nights_of_an_unchanged_server_begin_no_epoch(night: Night, stub: Stub, tmp_path: Path) -> None:
    stub.change(logit_noise=0.06, noise=0.02)
    for _ in range(30):
        night()
    rows = looks(tmp_path)
    assert len(rows) == 30
    assert {row["epoch"] for row in rows} == {0}
    assert all(row["noise"] > 0 for row in rows[1:])
