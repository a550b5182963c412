"""Reports in the home and in MLflow."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest
from mlflow import MlflowClient
from scripted_nights import Nights

from eval_dagster.gate.judgement import judge
from eval_dagster.gate.records import GateResult
from eval_dagster.pages.report import contents, writing
from eval_dagster.pages.report.evidence import write_sample_pages
from eval_dagster.pages.report.writing import report, write_report
from eval_dagster.project import Project
from eval_dagster.records.judgements import Verdict
from eval_dagster.tracking.tracker import UI_VARIABLE


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    nights = Nights(tmp_path_factory.mktemp("nights"))
    nights.run()
    nights.run(capitals=0.4)
    return nights.project()


@pytest.fixture
def result(project: Project) -> GateResult:
    return judge(project, "nightly", run_id="gate")


@pytest.fixture
def client(project: Project) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{project.home / 'mlflow.db'}")


def _reports(client: MlflowClient) -> list[str]:
    experiment = client.get_experiment_by_name("eval_dagster")
    assert experiment is not None
    return [run.info.run_id for run in client.search_runs([experiment.experiment_id], "attributes.run_name = 'nightly · report'")]


@pytest.mark.long
def test_pages_are_kept_and_the_newest_has_a_name(project: Project, result: GateResult) -> None:
    first = write_report(project, result)
    later = replace(result, judged_at=result.judged_at.replace(year=result.judged_at.year + 1), regressions=[])
    second = write_report(project, later)
    folder = project.home / "reports" / "nightly"
    assert first.parent == second.parent == folder
    assert {path.name for path in folder.glob("*.html")} == {first.name, second.name, "latest.html"}
    assert (folder / "latest.html").read_bytes() == second.read_bytes() != first.read_bytes()
    assert first.name == f"{result.judged_at:%Y-%m-%dT%H-%M-%S-%fZ}.html"
    assert write_report(project, result) == first


@pytest.mark.long
def test_mlflow_has_the_page_and_the_pictures(
    project: Project, result: GateResult, client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(UI_VARIABLE, "https://mlflow.example")
    before = _reports(client)
    found = report(project, result)
    assert found.warnings == []
    assert found.page is not None
    (run_id,) = set(_reports(client)) - set(before)
    assert str(found.mlflow_link).endswith(f"/runs/{run_id}")
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert (run.data.tags["suite"], run.data.tags["tone"]) == ("nightly", "bad")
    assert run.data.tags["verdict"].startswith("1 of 6 results regressed: capitals on mine")
    page = client.download_artifacts(run_id, found.page.name, str(tmp_path))
    copy, own = Path(page).read_text("utf-8"), found.page.read_text("utf-8")
    assert 'class="samples"' in own
    without = re.sub(r'<p [^>]*><a class="samples".*?</p>', "", own)  # a link would be dead there
    assert copy == re.sub(r'(<th role="rowheader" scope="row">)<a href="[^"]*">(.*?)</a>', r"\1\2", without)

    metrics = project.lake.require("metrics", "task_metrics", "capitals", "mine")
    result_run = metrics.info.inputs["mlflow_run"]
    picture = client.download_artifacts(result_run, "score_history.svg", str(tmp_path))
    drawn = ElementTree.fromstring(Path(picture).read_text("utf-8"))
    assert (drawn.get("width"), drawn.get("height")) == ("570", "300")
    assert client.get_run(result_run).data.metrics["accuracy"] < 0.7

    again = report(project, result)
    assert again.mlflow_link == found.mlflow_link
    assert len(_reports(client)) == len(before) + 1


@pytest.mark.long
def test_of_many_histories_those_that_changed_are_drawn(project: Project, result: GateResult, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [write_report(project, result).read_text("utf-8")]
    monkeypatch.setattr(contents, "_MOST_HISTORIES", 2)
    pages.append(write_report(project, result).read_text("utf-8"))
    texts = [page.partition('id="history"')[2].partition("</section>")[0] for page in pages]
    titles = [re.findall(r"<h3>(.*?)</h3>", text) for text in texts]
    assert len(titles[1]) == 2
    assert "capitals · mine" in titles[1], "the one that regressed"
    assert [re.findall(r">(\d+) more have no picture", text) for text in texts] == [[], [str(len(titles[0]) - 2)]]


@pytest.mark.long
def test_a_picture_is_logged_with_a_new_result_alone(project: Project, result: GateResult, monkeypatch: pytest.MonkeyPatch) -> None:
    new = contents.collect(project, result).new_histories
    assert ("capitals", "mine") in [(each.eval, each.model) for each in new]
    assert all(len(each.points) > 1 for each in new)
    monkeypatch.setattr(contents, "judged_times", lambda lake, suite: [result.judged_at])
    assert contents.collect(project, replace(result, judged_at=result.judged_at + timedelta(seconds=1))).new_histories == []


@pytest.mark.long
def test_metrics_with_other_baselines_have_other_pages(project: Project, result: GateResult, tmp_path: Path) -> None:
    (row,) = result.red
    anchored = replace(row, metric="other", against="anchor", anchor=row.baseline, anchor_materialized_at=row.materialized_at)
    gone = replace(row, metric="third", baseline=None)
    both = replace(result, regressions=[row, anchored, gone, replace(row, metric="fourth")])
    links = write_sample_pages(project.lake, both, tmp_path / "report")
    folder = "report/capitals/mine"
    assert list(links.values()) == [
        f"{folder}/samples.html#show=worse&metric=accuracy",
        f"{folder}/samples_2.html#show=worse&metric=other",
        f"{folder}/samples_3.html#metric=third",  # compared with nothing, so that none is worse
        f"{folder}/samples.html#show=worse&metric=fourth",
    ]
    assert len({(tmp_path / folder / f"samples{each}.html").read_bytes() for each in ("", "_2", "_3")}) == 3


@pytest.mark.long
def test_mlflow_out_of_reach_costs_no_report(project: Project, result: GateResult, tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text(
        project.config_path.read_text().replace("models:", "mlflow: {tracking_uri: 'http://127.0.0.1:9'}\nmodels:", 1)
    )
    for name in ("mine.py", "other.py", "gone.py"):
        (tmp_path / name).write_text("def answer(request):\n    return ''\n")
    far = Project.open(tasks=project.tasks, config_path=tmp_path / "evals.yaml", home=project.home)
    found = report(far, result)
    assert found.page is not None
    assert found.page.exists()
    assert found.mlflow_link is None
    (warning,) = found.warnings
    assert warning.startswith("the report of nightly is not in MLflow: MLflow at http://127.0.0.1:9 could not")


@pytest.mark.long
def test_a_picture_that_cannot_be_drawn_costs_no_report(project: Project, result: GateResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise MemoryError("no room for a picture")

    monkeypatch.setattr(writing, "history_file", refuse)
    found = report(project, result)
    assert found.page is not None
    assert found.warnings == ["the report of nightly is not in MLflow: MemoryError: no room for a picture"]


@pytest.mark.long
def test_a_page_that_cannot_be_written_is_a_warning(project: Project, result: GateResult, tmp_path: Path) -> None:
    """Where the reports should lie, there is a file."""
    elsewhere = replace(project, home=tmp_path)
    (tmp_path / "reports").write_text("in the way")
    found = report(elsewhere, result)
    assert (found.page, found.mlflow_link) == (None, None)
    (warning,) = found.warnings
    assert warning.startswith("no report of nightly: ")


@pytest.mark.long
def test_a_report_needs_no_task_that_can_be_loaded(tmp_path: Path) -> None:
    """One file of a task that cannot be imported, and an eval that evals.yaml no longer has, cost nothing of the page."""
    nights = Nights(tmp_path)
    nights.run()
    result = judge(nights.project(), "nightly", run_id="gate")
    config = tmp_path / "evals.yaml"
    written = config.read_text().replace("capitals: {task: capitals}", 'capitals: {task: "broken.py:Broken"}')
    left_out = [line for line in written.splitlines() if not line.strip().startswith("arithmetic:")]
    config.write_text("\n".join(left_out).replace(", arithmetic]", "]"))
    (tmp_path / "broken.py").write_text("raise OSError('no such library')")
    project = Project.open(config_path=config, home=nights.project().home)
    page = write_report(project, result).read_text("utf-8")
    for shown in ("First results", "capitals · mine", "arithmetic · mine", '<section id="leaderboard">', '<section id="history">'):
        assert shown in page
    assert page.count("&#34;num_fewshot&#34;: 1") == 2, "by the prompts in the lake"
    assert "no such library" not in page


@pytest.mark.long
def test_a_page_that_cannot_be_drawn_says_so_and_has_the_verdicts(
    project: Project, result: GateResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = project.home / "reports" / "nightly" / "latest.html"
    write_report(project, replace(result, regressions=[replace(row, verdict=Verdict.NO_CHANGE_SEEN) for row in result.regressions]))
    yesterday = latest.read_bytes()

    def refuse(*_: object, **__: object) -> str:
        raise ValueError("no <font>")

    monkeypatch.setattr(writing, "render", refuse)
    found = report(project, result)
    assert found.warnings == ["the report of nightly has the verdicts alone: ValueError: no <font>"]
    text = latest.read_text("utf-8")
    assert latest.read_bytes() != yesterday
    alert, rest = text.index("could not be drawn"), text.index("<h1>")
    assert alert < rest, "it says so at the top"
    assert "ValueError: no &lt;font&gt;" in text
    assert "✗ nightly: 1 of 6 results regressed: capitals on mine" in text
    assert text.count("<tr><td>") == 6


@pytest.mark.long
def test_a_page_that_cannot_be_written_leaves_none_of_an_earlier_judgement(
    project: Project, result: GateResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = project.home / "reports" / "nightly" / "latest.html"
    write_report(project, result)

    def full(_: Path) -> None:
        raise OSError("no space left on the device")

    monkeypatch.setattr(writing, "replaced", full)
    found = report(project, result)
    assert found.page is None
    assert not latest.exists()
    assert "no space left" in found.warnings[0]
