import base64
import contextlib
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import mlflow.store.tracking.sqlalchemy_store
import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from eval_dagster.addresses import Addresses, noted
from eval_dagster.errors import TrackingError
from eval_dagster.tracking.logged_runs import RESULT_KEY_TAG
from eval_dagster.tracking.tracked_result import LEFT_OUT_TAG, LONG_NAMES_TAG, TrackedResult, table_file, tracked_name
from eval_dagster.tracking.tracker import Tracker

REVISION = "c30699e8356da336a370243923dbaf21066bb9fe"
METRICS = pd.DataFrame({"metric": ["accuracy", "accuracy"], "subject": [None, "anatomy"], "value": [0.25, 0.5]})
SAMPLES = pd.DataFrame({"sample_id": ["s1", "s2"], "prompt": ["What?", "Why?"], "accuracy": [1.0, None]})


def result(key: str = "k1", **changes: Any) -> TrackedResult:
    fields: dict[str, Any] = {
        "result_key": key,
        "run_name": "mmlu · smollm2-135m",
        "params": {"num_fewshot": 5, "subjects": ["anatomy", "virology"], "limit": None},
        "metrics": {"accuracy": 0.25, "accuracy/anatomy": 0.5, "pass@1": 0.75, "nothing": None, "undefined": float("nan")},
        "tags": {"eval": "mmlu", "model": "smollm2-135m"},
        "dataset_name": "mmlu",
        "dataset_source": "cais/mmlu",
        "dataset_revision": REVISION,
        "dataset_digest": "0123456789abcdef",
        "dataset_rows": 2,
        "dataset_example": {"question": "What?", "choices": ["a", "b"], "answer": 1, "easy": True},
        "tables": {"metrics": METRICS, "samples": SAMPLES},
    }
    return TrackedResult(**(fields | changes))


def tracker(home: Path) -> Tracker:
    return Tracker(home=home, tracking_uri=None, experiment="tests")


def client_of(home: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{home}/mlflow.db")


def all_runs(home: Path) -> list[Any]:
    client = client_of(home)
    experiment = client.get_experiment_by_name("tests")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def table_of(home: Path, run_id: str, monkeypatch: pytest.MonkeyPatch, name: str = "samples") -> pd.DataFrame:
    # `load_table` looks for the run in MLflow's default store, whatever its client's own store is.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
    client = client_of(home)
    return client.load_table(client.get_run(run_id).info.experiment_id, table_file(name), run_ids=[run_id])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that most tests share: creating one takes over a second."""
    home = tmp_path_factory.mktemp("a home")
    tracker(home).exists("0" * 32)
    return home


@pytest.mark.long
def test_a_result_is_a_finished_run_with_all_that_was_given(home: Path) -> None:
    run = client_of(home).get_run(tracker(home).log(result()))
    assert run.info.run_name == "mmlu · smollm2-135m"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"num_fewshot": "5", "subjects": "['anatomy', 'virology']", "limit": "None"}
    assert run.data.metrics == {"accuracy": 0.25, "accuracy/anatomy": 0.5, "pass_at_1": 0.75}
    assert run.data.tags.items() >= {"eval": "mmlu", "model": "smollm2-135m", RESULT_KEY_TAG: "k1"}.items()
    assert run.info.artifact_uri.startswith((home / "mlartifacts").as_uri())


@pytest.mark.long
def test_the_dataset_is_an_input_of_the_run(home: Path) -> None:
    (used,) = client_of(home).get_run(tracker(home).log(result())).inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest, used.dataset.source_type) == ("mmlu", "0123456789abcdef", "hugging_face")
    assert json.loads(used.dataset.source) == {"path": "cais/mmlu", "revision": REVISION}
    assert json.loads(used.dataset.profile) == {"num_rows": 2}
    types = {column["name"]: column["type"] for column in json.loads(used.dataset.schema)["mlflow_colspec"]}
    assert types == {"question": "string", "choices": "any", "answer": "long", "easy": "boolean"}


def test_a_dataset_without_a_commit_is_a_local_one(home: Path) -> None:
    source = {"dataset_name": "mine", "dataset_source": "my/rows", "dataset_revision": None, "dataset_example": {}}
    run_id = tracker(home).log(result("local", **source))
    (used,) = client_of(home).get_run(run_id).inputs.dataset_inputs
    assert (used.dataset.source_type, json.loads(used.dataset.source)) == ("local", {"uri": "my/rows"})


def test_metrics_and_samples_are_tables_that_mlflow_reads(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = tracker(home).log(result())
    metrics = table_of(home, run_id, monkeypatch, "metrics")
    assert metrics["subject"].fillna("all").tolist() == ["all", "anatomy"]
    assert metrics["value"].tolist() == [0.25, 0.5]
    shown = json.loads(client_of(home).get_run(run_id).data.tags["mlflow.loggedArtifacts"])
    assert [each["path"] for each in shown] == ["metrics.json", "samples.json"]
    table = table_of(home, run_id, monkeypatch)
    assert table["sample_id"].tolist() == ["s1", "s2"]
    assert table["accuracy"].isna().tolist() == [False, True]


def test_the_same_key_gives_the_same_run_and_writes_nothing_twice(home: Path) -> None:
    first = tracker(home).log(result("again"))
    before = client_of(home).get_run(first)
    assert tracker(home).log(result("again", metrics={"accuracy": 0.9}, params={"num_fewshot": 0})) == first
    assert client_of(home).get_run(first).to_dictionary() == before.to_dictionary()
    assert len(client_of(home).get_metric_history(first, "accuracy")) == 1
    assert tracker(home).log(result("another")) != first


def test_what_is_too_long_or_too_much_for_mlflow_is_cut_and_split(home: Path) -> None:
    metrics = {f"accuracy/{number}": number / 1200 for number in range(1200)}
    params = {f"param{number}": number for number in range(150)} | {"long": "x" * 7000}
    run = client_of(home).get_run(tracker(home).log(result("long", metrics=metrics, params=params, tags={"long": "y" * 9000})))
    assert run.data.metrics == metrics
    assert len(run.data.params) == 151
    assert run.data.params["long"].endswith("xxx ... [cut from 7,000 characters]")
    assert run.data.tags["long"].endswith("yyy ... [cut from 9,000 characters]")
    assert len(run.data.params["long"]) == 6000


ODD_NAMES = ["", ".", "..", "a" * 300, "a" * 299 + "b", "a/b", "/a", "a//b", "a:b", "a_b", "a@b", "größe", "\ud800", "\0", "it's", "a\nb"]


def test_names_and_texts_of_any_kind_reach_mlflow(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics = {name: number / 100 for number, name in enumerate(ODD_NAMES)}
    texts = {name: f"\ud800\0{name}" for name in ODD_NAMES}
    changes = {"run_name": "\ud800" * 300, "params": texts, "tags": texts, "dataset_name": "\udfff" * 600, "dataset_source": "\ud800"}
    changes["dataset_example"] = {"\ud800" * 300_000: 1}
    run = client_of(home).get_run(tracker(home).log(result("odd", metrics=metrics, **changes)))
    assert run.info.status == "FINISHED"
    assert caplog.records == [], "nothing was left out"
    assert len(run.data.metrics) == len(run.data.params) == len(ODD_NAMES), "different names stay different"
    assert run.data.metrics == {tracked_name(name): value for name, value in metrics.items()}
    assert run.data.params[tracked_name("a:b")] == "\\ud800\\x00a:b"
    assert run.data.tags[tracked_name("a:b")] == "\\ud800\\x00a:b"
    full = json.loads(run.data.tags[LONG_NAMES_TAG])
    assert full == {tracked_name(name): name for name in ODD_NAMES if len(name) > 250}


def test_what_mlflow_refuses_is_left_out_alone_counted_and_said(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow of another release may refuse names that this one takes."""
    validate = mlflow.store.tracking.sqlalchemy_store._validate_batch_log_data

    def refuse(metrics: list[Any], params: list[Any], tags: list[Any]) -> Any:
        if any(each.key in ("bad", "worse") for each in (*metrics, *params)):
            raise MlflowException("no bad names", INVALID_PARAMETER_VALUE)
        return validate(metrics, params, tags)

    monkeypatch.setattr(mlflow.store.tracking.sqlalchemy_store, "_validate_batch_log_data", refuse)
    odd = pd.DataFrame({"text": pd.Series(["\ud800"], dtype=object)})
    changes = {"metrics": {"good": 1.0, "bad": 0.0}, "params": {"fine": 1, "worse": 2}, "tables": {"metrics": METRICS, "samples": odd}}
    run = client_of(home).get_run(tracker(home).log(result("refused", **changes)))
    assert (run.info.status, run.data.metrics, run.data.params) == ("FINISHED", {"good": 1.0}, {"fine": "1"})
    left_out = run.data.tags[LEFT_OUT_TAG]
    assert left_out.startswith("3 left out: metric 'bad': no bad names; param 'worse': no bad names; table 'samples': UnicodeEncodeError")
    (message,) = caplog.messages
    assert left_out in message
    assert [each["path"] for each in json.loads(run.data.tags["mlflow.loggedArtifacts"])] == ["metrics.json"]


def test_an_upgrade_of_mlflow_works_on_a_copy_and_a_kill_on_the_way_costs_the_copy(home: Path, tmp_path: Path) -> None:
    """As MLflow of an earlier release left the store: without tables that came later, and without the note of its release."""
    shutil.copy(home / "mlflow.db", tmp_path / "mlflow.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        revision = database.execute("select version_num from alembic_version").fetchone()[0]
        database.execute("pragma user_version = 0")
    (tmp_path / ".mlflow.db.building").write_text("left by a process that was killed")
    inode = (tmp_path / "mlflow.db").stat().st_ino
    tracker(tmp_path).prepare()
    assert {path.name for path in tmp_path.iterdir()} - {"mlartifacts"} == {"mlflow.db", "mlflow.lock"}
    assert (tmp_path / "mlflow.db").stat().st_ino == inode, "where nothing changes, those who have it open keep it"
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("select version_num from alembic_version").fetchone()[0] == revision
        assert database.execute("pragma user_version").fetchone()[0] > 3_000_000


def test_a_run_can_be_looked_for_and_linked_to(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tracker(home)
    run_id = runs.log(result("link"))
    experiment_id = client_of(home).get_run(run_id).info.experiment_id
    monkeypatch.delenv("EVAL_DAGSTER_MLFLOW_UI", raising=False)
    assert runs.exists(run_id)
    assert runs.run_link(run_id) is None, "no server of MLflow is known"
    with noted(home, {"mlflow": "http://127.0.0.1:5017"}, os.getpid()):
        assert runs.run_link(run_id) == f"http://127.0.0.1:5017/#/experiments/{experiment_id}/runs/{run_id}"
        assert runs.run_link(run_id, public=True) is None, "whoever reads a notice is elsewhere"
    assert runs.run_link(run_id) is None, "the server has ended"
    public = Addresses(home=home, public={"mlflow": "https://evals.example/mlflow/"})
    published = Tracker(home=home, tracking_uri=None, experiment="tests", addresses=public)
    assert published.run_link(run_id, public=True) == f"https://evals.example/mlflow/#/experiments/{experiment_id}/runs/{run_id}"
    monkeypatch.setenv("EVAL_DAGSTER_MLFLOW_UI", "https://mlflow.example/")
    assert runs.run_link(run_id) == f"https://mlflow.example/#/experiments/{experiment_id}/runs/{run_id}"
    with pytest.raises(TrackingError, match="has no run nothing"):
        runs.run_link("nothing")


def test_a_run_is_looked_for_in_the_store_of_a_home_without_mlflow(home: Path) -> None:
    """A run that finds all current asks for nothing else, and would wait over a second for MLflow's import."""
    run_id = tracker(home).log(result("no import"))
    gone = tracker(home).log(result("no import, gone"))
    client_of(home).delete_run(gone)
    code = (
        "import sys; from pathlib import Path; from eval_dagster.tracking.tracker import Tracker; home, *runs = sys.argv[1:]; "
        "tracker = Tracker(home=Path(home), tracking_uri=None, experiment='x'); "
        "print([tracker.exists(run) for run in runs], tracker.run_link(runs[0])); "
        "assert 'mlflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, str(home), run_id, gone, "f" * 32], capture_output=True, text=True, check=False)
    assert done.stdout == "[True, False, False] None\n", done.stderr


def test_runs_that_are_made_and_deleted_after_the_first_question_are_seen(home: Path) -> None:
    """All runs are read at the first one. The database is asked again once it has changed."""
    first = tracker(home).log(result("asked first"))
    asking, others = tracker(home), tracker(home)
    assert asking.exists(first)
    second = others.log(result("made later"))
    assert asking.exists(second)
    client_of(home).delete_run(first)
    assert not asking.exists(first)
    assert not asking.exists("f" * 32)


def test_a_home_may_have_any_name(home: Path, tmp_path: Path) -> None:
    run_id = tracker(home).log(result("names"))
    odd = tmp_path / "50 % of #1?"
    odd.mkdir()
    shutil.copy(home / "mlflow.db", odd / "mlflow.db")
    assert [tracker(odd).exists(each) for each in (run_id, "f" * 32)] == [True, False]


@pytest.mark.parametrize("name", ["a?b", "a%41b"])
def test_a_home_whose_path_mlflow_would_misread_is_an_error_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(TrackingError, match=r"MLflow's store cannot be .*choose another folder"):
        tracker(tmp_path / name).log(result())
    assert list(tmp_path.iterdir()) == [], "nothing is made elsewhere"


def test_a_deleted_run_is_not_there_and_its_key_gets_a_new_one(home: Path) -> None:
    runs = tracker(home)
    run_id = runs.log(result("deleted"))
    client_of(home).delete_run(run_id)
    assert not runs.exists(run_id)
    assert not runs.exists("f" * 32)
    assert runs.log(result("deleted")) != run_id


def test_a_run_that_was_left_half_written_is_completed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker(home).log(result())
    client = client_of(home)
    experiment_id = client.get_experiment_by_name("tests").experiment_id  # type: ignore[union-attr]
    half = client.create_run(experiment_id, tags={RESULT_KEY_TAG: "half"}, run_name="mmlu · smollm2-135m").info.run_id
    client.log_metric(half, "accuracy", 0.25)
    client.log_param(half, "num_fewshot", 5)
    client.log_text(half, '{"columns":["sample_id","pro', table_file("samples"))

    assert tracker(home).log(result("half")) == half
    run = client.get_run(half)
    assert run.info.status == "FINISHED"
    assert run.data.metrics.keys() == {"accuracy", "accuracy/anatomy", "pass_at_1"}
    assert len(client.get_metric_history(half, "accuracy")) == 1
    assert run.data.params.keys() == {"num_fewshot", "subjects", "limit"}
    assert len(run.inputs.dataset_inputs) == 1
    assert len(table_of(home, half, monkeypatch)) == 2


class DeadlySamples(pd.DataFrame):
    """Ends the process, as a kill would, after everything but the table was written."""

    def to_json(self, *args: Any, **settings: Any) -> None:  # type: ignore[override]
        os._exit(9)


def log_and_die(home: Path) -> None:
    tracker(home).log(result("killed", tables={"metrics": METRICS, "samples": DeadlySamples()}))


@pytest.mark.long
def test_a_killed_process_leaves_a_run_that_the_next_completes(home: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=log_and_die, args=(home,))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    (left,) = [run for run in all_runs(home) if run.data.tags[RESULT_KEY_TAG] == "killed"]
    assert left.info.status == "RUNNING"

    assert tracker(home).log(result("killed")) == left.info.run_id
    run = client_of(home).get_run(left.info.run_id)
    assert run.info.status == "FINISHED"
    assert len(run.inputs.dataset_inputs) == 1
    assert len(client_of(home).get_metric_history(run.info.run_id, "accuracy")) == 1


def log_a_few(home: Path, number: int, start: Any, answers: Any) -> None:
    start.wait()
    runs = tracker(home)
    answers.put([runs.log(result("shared")), runs.log(result(f"own-{number}")), runs.log(result("shared"))])


@pytest.mark.long
def test_processes_that_open_a_new_store_at_once_all_succeed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(4), context.Queue()
    processes = [context.Process(target=log_a_few, args=(tmp_path, number, start, answers)) for number in range(4)]
    for process in processes:
        process.start()
    given = [answers.get(timeout=90) for _ in processes]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len({run_id for first, _, last in given for run_id in (first, last)}) == 1
    runs = all_runs(tmp_path)
    assert len(runs) == 5
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert all(len(client_of(tmp_path).get_metric_history(run.info.run_id, "accuracy")) == 1 for run in runs)


@pytest.mark.long
def test_a_new_store_is_opened_without_a_word_and_nothing_is_left_in_the_current_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); from eval_dagster.tracking.tracker import Tracker; "
        "assert 'mlflow' not in sys.modules and 'pandas' not in sys.modules; "
        "Tracker(home=Path('home'), tracking_uri=None, experiment='x').prepare()"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[3])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_deleted_experiment_is_an_error_that_says_how_to_restore_it(tmp_path: Path) -> None:
    tracker(tmp_path).log(result())
    experiment_id = all_runs(tmp_path)[0].info.experiment_id
    client_of(tmp_path).delete_experiment(experiment_id)
    with pytest.raises(TrackingError, match=f"mlflow experiments restore --experiment-id {experiment_id}"):
        tracker(tmp_path).log(result("k2"))


def test_a_server_out_of_reach_is_an_error_without_the_password(tmp_path: Path) -> None:
    started = time.monotonic()
    server = Tracker(home=tmp_path, tracking_uri="http://me:secret@127.0.0.1:1", experiment="x")
    with pytest.raises(TrackingError, match=r"http://\*\*\*@127\.0\.0\.1:1 could not look for run") as caught:
        server.exists("0" * 32)
    assert "secret" not in str(caught.value)
    assert time.monotonic() - started < 20


def test_a_server_of_an_address_with_a_user_is_reached(tmp_path: Path) -> None:
    """The user and the password are sent, and are in no text."""
    seen: list[str | None] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://me:sec%40ret@127.0.0.1:{server.server_port}"
        with pytest.raises(TrackingError) as caught:
            Tracker(home=tmp_path, tracking_uri=address, experiment="x").exists("0" * 32)
        server.shutdown()
    assert set(seen) == {f"Basic {base64.b64encode(b'me:sec@ret').decode()}"}
    assert len(seen) > 1, "after the health, MLflow itself asked"
    assert not re.search("sec(%40|@)ret", "".join(traceback.format_exception(caught.value)))


def test_a_key_with_a_quote_is_refused() -> None:
    with pytest.raises(ValueError, match="holds a quote"):
        result("it's")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of an MLflow server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    store = ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--artifacts-destination", str(tmp_path / "artifacts")]
    command = [sys.executable, "-m", "mlflow", "server", *store, "--port", address.split(":")[1], "--workers", "1"]
    variables = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # processes for what is not asked here
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=variables, start_new_session=True)
        try:
            wait_for(f"http://{address}/health")
            yield f"http://{address}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def wait_for(address: str) -> None:
    for _ in range(240):
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.25)
    raise TimeoutError(address)


@pytest.mark.long
@pytest.mark.e2e
def test_a_server_takes_a_result_and_shows_it_at_its_own_address(
    server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Tracker(home=tmp_path / "home", tracking_uri=server, experiment="tests")
    run_id = runs.log(result())
    assert runs.log(result()) == run_id
    assert runs.run_link(run_id) == f"{server}/#/experiments/1/runs/{run_id}"
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["mlflow.lock"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    assert len(MlflowClient(tracking_uri=server).load_table("1", table_file("samples"), run_ids=[run_id])) == 2


@pytest.mark.parametrize("how", [shutil.copytree, shutil.move], ids=["copied", "renamed"])
def test_a_home_that_was_copied_or_renamed_has_its_artifacts_in_its_own_folder(
    tmp_path: Path, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow keeps absolute addresses: before, a copy wrote into the original."""
    before, after = tmp_path / "a home", tmp_path / "another" / "höme"
    first = tracker(before).log(result())
    after.parent.mkdir()
    how(before, after)
    left = sorted(path.name for path in before.rglob("*"))
    page = tmp_path / "2026.html"
    page.write_text("a page")
    second = tracker(after).log(result("k2"))
    report = tracker(after).log_page(page, key="report/nightly/1", run_name="nightly · report", tags={})
    assert sorted(path.name for path in before.rglob("*")) == left, "nothing is written into the old folder"
    artifacts = after / "mlartifacts"
    assert (artifacts / report / "artifacts" / page.name).read_text() == "a page"
    assert all((artifacts / run_id / "artifacts" / "samples.json").is_file() for run_id in (first, second))
    shutil.rmtree(before, ignore_errors=True)
    assert len(table_of(after, first, monkeypatch)) == len(SAMPLES), "what was logged before is read from the new folder"
    assert tracker(after).log(result()) == first


def test_a_page_has_metrics_which_are_written_once(home: Path, tmp_path: Path) -> None:
    (page := tmp_path / "page.html").write_text("a page")
    metrics = {"all/a model": 0.5, "all/a model.stderr": 0.125, "all/b@2": None, "all/c": math.nan, "é" * 300: 1.0}
    runs = {tracker(home).log_page(page, key="report/a", run_name="a · report", tags={}, metrics=metrics) for _ in range(2)}
    assert len(runs) == 1
    run_id = runs.pop()
    data = client_of(home).get_run(run_id).data
    long = tracked_name("é" * 300)
    assert data.metrics == {"all/a model": 0.5, "all/a model.stderr": 0.125, long: 1.0}
    assert json.loads(data.tags[LONG_NAMES_TAG]) == {long: "é" * 300}
    assert len(client_of(home).get_metric_history(run_id, "all/a model")) == 1
    many = {f"{'é' * 300}{number}": 1.0 for number in range(50)}  # MLflow refuses a tag that names them all
    run_id = tracker(home).log_page(page, key="report/many", run_name="many · report", tags={}, metrics=many)
    assert len(client_of(home).get_run(run_id).data.metrics) == 50


def test_a_store_elsewhere_whose_artifacts_cannot_be_written_says_where_they_are(tmp_path: Path) -> None:
    """The store is of several projects, so that its addresses stay as they are."""
    before = tmp_path / "before"
    uri = f"sqlite:///{tmp_path}/shared.db"
    Tracker(home=before, tracking_uri=uri, experiment="tests").log(result())
    shutil.rmtree(before)
    before.write_text("in the way")
    with pytest.raises(TrackingError, match=rf"artifacts of the experiment 'tests' in {before}/mlartifacts, which cannot be made"):
        Tracker(home=tmp_path / "after", tracking_uri=uri, experiment="tests").log(result("k2"))


def _log_page_and_die(home: Path, page: Path) -> None:
    MlflowClient.log_artifact = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    tracker(home).log_page(page, key="report/nightly/killed", run_name="nightly · report", tags={})


@pytest.mark.long
def test_a_page_whose_process_was_killed_is_no_run_at_work_for_ever(home: Path, tmp_path: Path) -> None:
    """Nobody asks for its key again: the next judgement has a key of its own."""
    page = tmp_path / "2026.html"
    page.write_text("a page")
    process = multiprocessing.get_context("spawn").Process(target=_log_page_and_die, args=(home, page))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL

    def status() -> str:
        (left,) = [run for run in all_runs(home) if run.data.tags[RESULT_KEY_TAG] == "report/nightly/killed"]
        return str(left.info.status)

    assert status() == "RUNNING"
    tracker(home).log_page(page, key="report/nightly/next", run_name="nightly · report", tags={})
    assert status() == "KILLED"
    tracker(home).log_page(page, key="report/nightly/killed", run_name="nightly · report", tags={})
    assert status() == "FINISHED", "who asks for it again completes it"
