"""Checkpoints of a training run are found when they are complete, evaluated as models, and known after they are deleted."""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from huggingface_hub import constants
from servers.object_store import moto_store
from starlette.testclient import TestClient
from training_runs import evaluated, opened, pieces, saved, settle, sharded
from transformers import AutoModelForCausalLM

from eval_dagster.checkpoints import kept, remembered, step_of
from eval_dagster.cli.show import list_checkpoints
from eval_dagster.config.models import HubSource, KeepConfig, TransformersModel
from eval_dagster.errors import ConfigError, ModelNotFoundError
from eval_dagster.gate.judgement import judge
from eval_dagster.gate.records import Outcome
from eval_dagster.lake.catalog.catalog import CatalogReader, read_rows
from eval_dagster.lake.records import records_of
from eval_dagster.lake.remote.store import Store
from eval_dagster.models.transformers.weights.completeness import examined, examined_names
from eval_dagster.pages.report.histories import learning_curve_markdown
from eval_dagster.pages.report.writing import write_report
from eval_dagster.pages.server.application import application
from eval_dagster.project import Project
from eval_dagster.stages.partition import StageFailure, StageResult


@pytest.mark.long
def test_a_training_run_is_evaluated_checkpoint_by_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    for step in (100, 200):
        saved(tiny_model, tmp_path / "runs" / f"checkpoint-{step}")
    project = opened(tmp_path)
    assert project.select(suite="nightly") == (["sums"], ["run-step-0000200", "run-step-0000100"]), "the newest first"
    outcomes = evaluated(project, *project.select(suite="nightly"))
    assert all(isinstance(each, StageResult) for each in outcomes), outcomes
    rows = read_rows(project.lake, "select family, eval, step, model from learning_curves")
    assert [tuple(row.values()) for row in rows] == [
        ("run", "sums", 100, "run-step-0000100"),
        ("run", "sums", 200, "run-step-0000200"),
    ]
    result = judge(project, "nightly", run_id="run")
    assert result.outcome is Outcome.FIRST
    page = write_report(project, result).read_text()
    for part in ("Learning curves", "exact_number at 2 steps", "run · sums", "never left its band", "noise not known yet"):
        assert part in page
    assert page.count("<figure") == 1, "a checkpoint with one result has no history of its own"
    markdown = learning_curve_markdown(project.lake, "run", "sums")
    assert markdown is not None
    assert markdown.startswith("![learning curve](data:image/svg+xml;base64,")
    assert "never left its band" in markdown
    assert learning_curve_markdown(project.lake, "run") is None, "one eval has no mean"
    client = TestClient(application(CatalogReader(project.lake)), base_url="http://127.0.0.1:4000")
    assert '<a href="/curves?run=run">run</a>' in client.get("/leaderboard").text
    shown = client.get("/curves?run=run")
    assert shown.status_code == 200
    assert "exact_number at 2 steps" in shown.text
    assert client.get("/curves?run=another").status_code == 400


@pytest.mark.long
def test_the_suite_of_a_deleted_checkpoint_is_judged_by_the_others(tiny_model: Path, tmp_path: Path) -> None:
    for step in (100, 200):
        saved(tiny_model, tmp_path / "runs" / f"checkpoint-{step}")
    (tmp_path / "runs" / "checkpoint-100" / "generation_config.json").write_text("{}")  # else both would have the same answers
    settle(tmp_path / "runs" / "checkpoint-100")
    project = opened(tmp_path)
    evaluated(project, ["sums"], list(project.config.models))
    judge(project, "nightly", run_id="run")
    shutil.rmtree(tmp_path / "runs" / "checkpoint-100")
    changed = opened(tmp_path, limit=3)
    evaluated(changed, ["sums"], list(changed.config.models))
    result = judge(changed, "nightly", run_id="run")
    assert [row.model for row in result.regressions] == ["run-step-0000200"]
    assert any("sums|run-step-0000100 was not evaluated: " in each and "the checkpoint was deleted" in each for each in result.warnings)


def test_the_command_shows_what_each_checkpoint_waits_for(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2, 3):
        saved(shards, tmp_path / "runs" / f"checkpoint-{step}")
    next((tmp_path / "runs" / "checkpoint-3").glob("*00002-of*")).unlink()
    opened(tmp_path, checkpoints="{folder: runs, keep: {last: 1}}")
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    list_checkpoints("run")
    lines = [" ".join(line.replace("│", " ").split()) for line in capsys.readouterr().out.splitlines()]
    times = [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "TIME", line) for line in lines if "checkpoint-" in line]
    assert times == [
        "3 waiting runs/checkpoint-3 shard 2 of 3 (model-00002-of-00003.safetensors) is missing",
        "2 ready TIME runs/checkpoint-2",
        "1 left out TIME runs/checkpoint-1 `keep` keeps the last 1",
    ]


@pytest.mark.long
def test_a_deleted_checkpoint_keeps_its_results_and_is_not_evaluated_anew(tiny_model: Path, tmp_path: Path) -> None:
    for step in (100, 200):
        saved(tiny_model, tmp_path / "runs" / f"checkpoint-{step}")
    project = opened(tmp_path)
    evaluated(project, ["sums"], ["run-step-0000100"])
    project.checkpoints()
    shutil.rmtree(tmp_path / "runs")
    again = opened(tmp_path)
    assert list(again.config.models) == ["run-step-0000100"], "one without results is not in the lists"
    outcomes = evaluated(again, ["sums", "capitals"], ["run-step-0000100", "run-step-0000200"])
    kept = [each for each in outcomes if (each.eval_name, each.model) == ("sums", "run-step-0000100")]
    assert [isinstance(each, StageResult) and each.cached for each in kept] == [True] * 4, kept
    failures = [each for each in outcomes if isinstance(each, StageFailure)]
    assert [(each.eval_name, each.model, each.status) for each in failures] == [
        ("capitals", "run-step-0000100", "not evaluated"),
        ("sums", "run-step-0000200", "not evaluated"),
        ("capitals", "run-step-0000200", "not evaluated"),
    ]
    for each in failures:
        assert re.search(r"the checkpoint was deleted \(was at runs/checkpoint-\d00, seen complete on 2.* UTC\)", each.message), (
            each.message
        )


@pytest.fixture(scope="module")
def shards(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = sharded(tiny_model, tmp_path_factory.mktemp("shards"))
    assert len(list(folder.glob("*.safetensors"))) >= 3
    return folder


def recorded(project: Project) -> list[int]:
    """The steps of all rows of the registry."""
    return sorted(row["step"] for row in records_of(project.lake, "checkpoints"))


@pytest.mark.long
def test_twenty_growing_checkpoints_are_each_found_once_and_never_too_early(shards: Path, tmp_path: Path) -> None:
    project, chance = opened(tmp_path), random.Random(1)
    complete: list[int] = []
    for step in range(10, 210, 10):
        names = sorted(path.name for path in shards.iterdir())
        chance.shuffle(names)
        names.sort(key=lambda name: not name.endswith(".jinja"))  # nothing but time tells whether a text has ended
        if not complete:  # what the first one has is expected of the others; nothing but time tells of more files to come
            names.sort(key=lambda name: name == "tokenizer.json")
        folder = tmp_path / "runs" / f"step_{step}"
        for is_whole in pieces(shards, folder, names):
            if is_whole:
                complete.append(step)
            this = next(each for each in project.checkpoints() if each.step == step)
            assert (this.state, bool(this.reason)) == (("ready", False) if is_whole else ("waiting", True)), (names, this)
            assert recorded(project) == complete
        if len(complete) == 2:
            shutil.rmtree(folder)
    found = project.checkpoints()
    assert [each.step for each in found] == list(range(200, 0, -10)), "the newest first"
    assert [each.step for each in found if each.state == "deleted"] == [20]
    assert recorded(project) == complete


def test_the_reason_names_the_file_that_is_missing(shards: Path, tmp_path: Path) -> None:
    folder = saved(shards, tmp_path / "checkpoint-1")
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    assert examined(folder) == ("ready", "")
    content = (folder / names[2]).read_bytes()
    (folder / names[2]).unlink()
    assert examined(folder) == ("waiting", f"shard 3 of {len(names)} ({names[2]}) is missing")
    (folder / names[2]).write_bytes(content[:-1])
    settle(folder)
    sizes = f"{len(content) - 1:,} of {len(content):,} bytes"
    assert examined(folder) == ("waiting", f"shard 3 of {len(names)} ({names[2]}) has {sizes}")
    (folder / names[2]).write_bytes(content)
    state, reason = examined(folder)
    assert state == "waiting"
    assert "a file changed" in reason, "sizes have to be steady"
    (folder / names[2]).write_bytes(content + b"more")
    assert examined(folder)[0] == "refused"
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "optimizer.pt").touch()
    assert examined(folder) == ("waiting", "the weights (*.safetensors) are missing")
    (folder / "pytorch_model.bin").touch()
    assert examined(folder)[0] == "refused"
    assert "pickled weights alone (pytorch_model.bin)" in examined(folder)[1]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        *(("checkpoint-500", 500), ("step_500", 500), ("step500-tokens2B", 500), ("iter_0000500", 500), ("global_step500", 500)),
        *(("stage2-step500-tokens2B", 500), ("epoch=1-step=500", 500), ("ba500-rank0", 500), ("500", 500), ("ckpt-7", 7)),
        *(("final", None), ("step-10k", None), ("run-7b", None), ("a-1-2", None), ("v1.5", None)),
    ],
)
def test_steps_are_read_from_the_usual_names(name: str, step: int | None) -> None:
    assert step_of(name) == step


@pytest.mark.parametrize(
    ("keep", "steps"),
    [
        ({"every": 10}, [10, 20]),
        ({"last": 5}, [19, 20, 21, 22, 23]),
        ({"every": 10, "last": 5}, [10, 19, 20, 21, 22, 23]),
        ({"every": 1}, list(range(1, 24))),
        ({"last": 100}, list(range(1, 24))),
    ],
)
def test_a_rule_keeps_every_tenth_and_the_last_five(keep: dict[str, int], steps: list[int]) -> None:
    assert sorted(kept(range(1, 24), KeepConfig(**keep))) == steps


def test_a_checkpoint_that_is_not_kept_is_no_model_until_it_is_named(tiny_model: Path, tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        saved(tiny_model, tmp_path / "runs" / f"checkpoint-{step}")
    project = opened(tmp_path, checkpoints="{folder: 'runs/checkpoint-*', keep: {last: 2}}")
    assert list(project.config.models) == ["run-step-0000004", "run-step-0000003"]
    assert project.select(models=["run"])[1] == ["run-step-0000004", "run-step-0000003"], "the run's name stands for its checkpoints"
    states = {each.step: (each.state, each.reason) for each in project.checkpoints()}
    assert states[2] == ("left out", "`keep` keeps the last 2")
    assert recorded(project) == [1, 2, 3, 4]
    assert project.select(models=["run-step-0000001"])[1] == ["run-step-0000001"]
    outcomes = evaluated(project, ["sums"], ["run-step-0000001"])
    assert all(isinstance(each, StageResult) for each in outcomes), outcomes


@pytest.mark.long
def test_two_processes_that_look_at_once_lose_no_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    project = opened(tmp_path)
    code = f"""
import time
from pathlib import Path
from eval_dagster.project import Project
project = Project.open(config_path=Path({str(tmp_path / "evals.yaml")!r}), home=Path({str(tmp_path / "home")!r}))
while not Path({str(tmp_path / "end")!r}).exists():
    project.checkpoints()
project.checkpoints()
"""
    lookers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    for step in range(1, 41):
        copy = saved(tiny_model, tmp_path / "written" / f"checkpoint-{step}")
        (tmp_path / "runs").mkdir(exist_ok=True)
        copy.rename(tmp_path / "runs" / copy.name)
    (tmp_path / "end").touch()
    assert [each.wait(timeout=120) for each in lookers] == [0, 0]
    known = remembered(project.lake)
    assert sorted(row.step for row in known.values()) == list(range(1, 41))
    assert {each.state for each in project.checkpoints()} == {"ready"}


@pytest.mark.long
def test_a_process_killed_while_it_records_leaves_the_registry_whole(tiny_model: Path, tmp_path: Path) -> None:
    saved(tiny_model, tmp_path / "runs" / "checkpoint-1")
    project = opened(tmp_path)
    project.checkpoints()
    before = remembered(project.lake)
    saved(tiny_model, tmp_path / "runs" / "checkpoint-2")
    code = f"""
import os, signal
from pathlib import Path
from eval_dagster.project import Project
project = Project.open(config_path=Path({str(tmp_path / "evals.yaml")!r}), home=Path({str(tmp_path / "home")!r}))
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
project.checkpoints()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == -signal.SIGKILL
    assert list((tmp_path / "home" / "lake" / "checkpoints").glob(".*.tmp")), "it was killed while it wrote"
    assert remembered(project.lake) == before
    project.checkpoints()
    assert recorded(project) == [1, 2]
    assert remembered(project.lake)["run-step-0000001"] == before["run-step-0000001"]


@pytest.mark.long
def test_a_checkpoint_with_other_weights_under_the_same_name_is_evaluated_anew(tiny_model: Path, tmp_path: Path) -> None:
    folder = saved(tiny_model, tmp_path / "runs" / "checkpoint-1")
    project = opened(tmp_path)
    evaluated(project, ["sums"], list(project.config.models))
    before = remembered(project.lake)["run-step-0000001"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.lm_head.weight.data += 1
    model.save_pretrained(folder)
    assert not opened(tmp_path).config.models, "it may still be being written"
    settle(folder)
    outcomes = evaluated(opened(tmp_path), ["sums"], list(project.config.models))
    assert [each.cached for each in outcomes if isinstance(each, StageResult) and each.stage == "model_outputs"] == [False]
    after = remembered(project.lake)["run-step-0000001"]
    assert after.model_content_version != before.model_content_version
    assert after.seen_at == before.seen_at


def test_wrong_settings_are_named_with_what_is_expected(tmp_path: Path) -> None:
    for checkpoints, message in (
        ("{folder: runs, keep: {}}", r"models\.run\.checkpoints\.keep: found an empty mapping; expected `every`, `last` or both"),
        ("{folder: runs, keep: {every: 0}}", r"models\.run\.checkpoints\.keep\.every: found 0; expected an integer of at least 1"),
        ("{path: runs}", r"models\.run\.checkpoints: found a mapping with path; expected one of: folder; url; hub and revisions"),
        ("{folder: runs}, source: {folder: x}", r"models\.run: .*found `source` and `checkpoints`; expected one of them"),
    ):
        with pytest.raises(ConfigError, match=message):
            opened(tmp_path, checkpoints=checkpoints)


class _Refs(BaseHTTPRequestHandler):
    """Answers with the branches of a repository."""

    branches: ClassVar[dict[str, str]] = {}

    def do_GET(self) -> None:
        refs = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit} for name, commit in self.branches.items()]
        found = self.path.startswith("/api/models/team/run/refs")
        body = json.dumps({"branches": refs, "converts": [], "tags": []} if found else {"error": "not found"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Be silent."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Refs]]:
    """A Hub on loopback with one repository."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refs) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield _Refs
        server.shutdown()


def test_branches_of_the_hub_are_checkpoints_at_the_commit_at_which_they_were_first_seen(hub: type[_Refs], tmp_path: Path) -> None:
    hub.branches = {"main": "0" * 40, "step1000": "1" * 40, "step2000": "2" * 40}
    branches = "{hub: team/run, revisions: 'step*'}"
    project = opened(tmp_path, checkpoints=branches)
    assert list(project.config.models) == [], "only a look asks the Hub"
    assert [(each.step, each.state) for each in project.checkpoints()] == [(2000, "ready"), (1000, "ready")]
    hub.branches = {"step1000": "9" * 40, "step3000": "3" * 40}
    assert [each.step for each in project.checkpoints()] == [3000, 2000, 1000]
    models = opened(tmp_path, checkpoints=branches).config.models
    sources = {name: section.source for name, section in models.items() if isinstance(section, TransformersModel)}
    assert sources == {f"run-step-000{step}000": HubSource(hub="team/run", revision=str(step) * 40) for step in (3, 2, 1)}, (
        "a branch that moves or goes is the model that it was"
    )
    with pytest.raises(ModelNotFoundError, match=r"the branches of team/other cannot be listed"):
        opened(tmp_path, checkpoints="{hub: team/other, revisions: '*'}").checkpoints()


@pytest.fixture(params=["file", "s3"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty prefix of an object store."""
    pytest.importorskip("obstore", reason="object storage is not installed: pip install 'eval_dagster[s3]'")
    if request.param == "file":
        (tmp_path / "bucket").mkdir()
        yield (tmp_path / "bucket").as_uri()
        return
    with moto_store(tmp_path) as store:
        for name, value in store.variables.items():
            monkeypatch.setenv(name, value)
        yield store.url("runs/tiny")


@pytest.mark.long
def test_checkpoints_in_an_object_store_are_downloaded_and_evaluated(
    bucket: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(examined_names.__kwdefaults__ or {}, "settled_s", 0.0)
    store, where = Store(bucket), f"{{url: '{bucket}'}}"
    names = sorted(path.name for path in tiny_model.iterdir())
    names.sort(key=lambda name: name == "tokenizer.json")
    project = opened(tmp_path, checkpoints=where)
    for step in (1, 2, 3):
        for name in names:
            assert step not in [each.step for each in project.checkpoints() if each.state == "ready"], name
            store.put_new(f"step{step}/{name}", (tiny_model / name).read_bytes())
    assert [(each.step, each.state) for each in project.checkpoints()] == [(3, "ready"), (2, "ready"), (1, "ready")]
    again = opened(tmp_path, checkpoints=where)
    assert list(again.config.models) == ["run-step-0000003", "run-step-0000002", "run-step-0000001"]
    outcomes = evaluated(again, ["sums"], ["run-step-0000003"])
    assert all(isinstance(each, StageResult) for each in outcomes), outcomes
    for step in (2, 3):
        for name in names:
            store.delete(f"step{step}/{name}")
    store.replace("step1/config.json", (tiny_model / "config.json").read_bytes() + b"\n")
    states = {each.step: each.state for each in again.checkpoints()}
    assert states == {1: "refused", 2: "deleted", 3: "deleted"}
    outcomes = evaluated(opened(tmp_path, checkpoints=where), ["sums"], ["run-step-0000003", "run-step-0000002"])
    of_model = {model: [each for each in outcomes if each.model == model] for model in ("run-step-0000003", "run-step-0000002")}
    assert all(isinstance(each, StageResult) and each.cached for each in of_model["run-step-0000003"])
    failure = of_model["run-step-0000002"][-1]
    assert isinstance(failure, StageFailure)
    assert failure.status == "not evaluated", failure.message
    assert f"the checkpoint was deleted (was at {bucket}/step2)" in failure.message
