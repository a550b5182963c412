"""Pages beside the results that the stages make: written once, in Dagster and in MLflow, and never in the way of a result."""

import os
from pathlib import Path

import pytest
from mlflow import MlflowClient
from page_contents import content_of
from scripted_nights import Nights

import eval_dagster.pages.samples.page as page_module
from eval_dagster.addresses import noted
from eval_dagster.assets.materializations import materialization
from eval_dagster.assets.names import Names
from eval_dagster.errors import TrackingError
from eval_dagster.pages.samples.places import page_path
from eval_dagster.pipeline import Outcome, evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageResult
from eval_dagster.tracking.tracker import Tracker

EVAL, MODEL = "capitals-completion", "mine"


def _run(project: Project) -> StageResult:
    outcomes = list(evaluate(project, [(EVAL, MODEL)], stages=set(STAGES), run_id="again", reporter=SilentReporter()))
    return _of_metrics(outcomes)


def _of_metrics(outcomes: list[Outcome]) -> StageResult:
    [found] = [each for each in outcomes if each.stage == "task_metrics" and (each.eval_name, each.model) == (EVAL, MODEL)]
    assert isinstance(found, StageResult)
    return found


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Nights:
    found = Nights(tmp_path_factory.mktemp("nights"))
    found.run()
    return found


@pytest.mark.long
def test_each_result_has_a_page_that_is_written_once(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    result = _of_metrics(nights.run(completion=0.6))
    project = nights.project()
    path = page_path(project.home, EVAL, MODEL)
    assert result.files == {"samples_page": path}
    assert result.warnings == ()
    content = content_of(path.read_bytes())
    assert content["materialized_at"] == result.file.info.materialized_at
    assert sum(sample.get("flip") == "worse" for sample in content["samples"]) > 20
    written = path.stat().st_mtime_ns
    assert _run(project).cached
    assert path.stat().st_mtime_ns == written
    path.unlink()
    assert _run(project).cached  # no metric is computed for it
    assert content_of(path.read_bytes()) == content
    written = path.stat().st_mtime_ns
    monkeypatch.setattr(page_module, "_version", lambda: "another version")
    assert _run(project).cached
    assert path.stat().st_mtime_ns == written, "another version of the package makes no current page anew"


@pytest.mark.long
def test_a_page_that_did_not_reach_mlflow_is_sent_by_the_next_run(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    project = nights.project()
    page_path(project.home, EVAL, MODEL).unlink()

    def refuse(*_: object) -> None:
        raise TrackingError("MLflow is full")

    with monkeypatch.context() as patch:
        patch.setattr(Tracker, "begin_log_file", refuse)
        result = _run(project)
    assert [each.endswith("is not in MLflow: MLflow is full") for each in result.warnings] == [True]
    assert "samples_in_mlflow" not in result.links
    sent: list[Path] = []
    monkeypatch.setattr(Tracker, "begin_log_file", lambda _, run, path: lambda: sent.append(path))
    with noted(project.home, {"mlflow": "http://127.0.0.1:5017"}, os.getpid()):
        assert _run(nights.project()).links["samples_in_mlflow"].startswith("http://127.0.0.1:5017/#/")
    assert sent == [page_path(project.home, EVAL, MODEL)]
    assert "samples_in_mlflow" not in _run(nights.project()).links, "no server of MLflow runs"
    assert len(sent) == 1


@pytest.mark.long
def test_it_is_linked_in_dagster_and_in_mlflow(nights: Nights) -> None:
    project = nights.project()
    with noted(project.home, {"mlflow": "http://127.0.0.1:5017"}, os.getpid()):
        result = _run(project)
    run = result.file.info.inputs["mlflow_run"]
    client = MlflowClient(tracking_uri=f"sqlite:///{project.home / 'mlflow.db'}")
    assert "samples.html" in {each.path for each in client.list_artifacts(run)}
    assert Path(client.download_artifacts(run, "samples.html")).read_bytes() == result.files["samples_page"].read_bytes()
    metadata = materialization(result, Names(), {}).metadata
    assert metadata["samples_page"].value == str(page_path(project.home, EVAL, MODEL))
    assert metadata["samples_in_mlflow"].value == f"{result.links['mlflow_run']}/artifacts/samples.html"


@pytest.mark.long
def test_a_page_that_cannot_be_written_costs_no_result(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "pages").write_text("a file is in the way")
    result = _of_metrics(nights.run())
    assert result.file.info.counts["samples"] == 180
    assert [each.partition(":")[0] for each in result.warnings] == [f"no page of the samples of {EVAL}|{MODEL}"]
    assert result.files == {}


@pytest.mark.long
def test_trials_have_no_page(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.write_models()
    assert _run(nights.project().trial(3)).files == {}
    assert not (tmp_path / "home" / "pages").exists()
