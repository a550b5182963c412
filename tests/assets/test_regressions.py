"""The asset `regressions` and its checks, on a suite of scripted models whose answers change."""

import os
import textwrap
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dagster as dg
import pytest
from kept_folders import KeptFolder
from scripted_calculator import write_calculator

from eval_dagster.addresses import noted
from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.notifications import tell
from eval_dagster.assets.regressions import judged_before
from eval_dagster.assets.runs.in_process_runs import run_evaluation
from eval_dagster.config.schema import PublicUrlConfig
from eval_dagster.gate.confirmation import judge_and_confirm
from eval_dagster.gate.records import GateResult, Outcome
from eval_dagster.gate.results import accept, current_result, write_result
from eval_dagster.gate.run_summary import RunSummary
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import Lake, LakeFile
from eval_dagster.lake.records import read_attempts
from eval_dagster.pages.report.writing import Report
from eval_dagster.project import Project
from eval_dagster.records.judgements import Verdict

CONFIG = """
    models:
      calculator: {backend: scripted, function: "calculator.py:answer"}
      sevens: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, limit: 20}
      capitals: {task: capitals, limit: 2}
    suites:
      strict: {evals: [sums, capitals], models: [calculator, sevens]}
      lenient: {evals: [sums], models: [calculator], gate: {severity: warn}}
"""
REGRESSIONS = dg.AssetKey("regressions")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    return _new(tmp_path)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A project of which each suite was evaluated once, without a mistake."""

    project: Project
    strict: RunSummary
    lenient: RunSummary


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[KeptFolder, RunSummary, RunSummary]:
    folder = tmp_path_factory.mktemp("judged") / "project"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(folder / "home" / "dagster"))
        nights = [_night(_new(folder), suite) for suite in ("strict", "lenient")]
    return KeptFolder(folder), *nights


@pytest.fixture
def judged(evaluated: tuple[KeptFolder, RunSummary, RunSummary], monkeypatch: pytest.MonkeyPatch) -> Judged:
    kept, strict, lenient = evaluated
    monkeypatch.setenv("DAGSTER_HOME", str(kept.folder / "home" / "dagster"))
    return Judged(project=_open(kept.restore()), strict=strict, lenient=lenient)


def _new(folder: Path) -> Project:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    write_calculator(folder)
    return _open(folder)


def _open(folder: Path) -> Project:
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def _night(project: Project, suite: str, *, error: str = "0") -> RunSummary:
    write_calculator(project.folder, error=error)
    evals, models = project.select(suite=suite)
    return run_evaluation(_open(project.folder), evals, models, suite=suite)


def _see_public_links(project: Project, judged: GateResult, page: Path) -> None:
    """With addresses for everybody, a notice has links."""
    urls = {name: f"https://evals.example/{name}" for name in ("dagster", "mlflow", "pages")}
    public = replace(project, config=project.config.model_copy(update={"public_url": PublicUrlConfig(**urls)}))
    public = public.sharing_locks("postgresql://nobody@127.0.0.1/none")  # opens the tracker with these addresses
    with open_instance(project.home) as instance:
        report = Report(page=page, mlflow_link="https://evals.example/mlflow/#/experiments/1/runs/r", warnings=[])
        tell(instance, replace(public, locks=project.locks), judged, [], report)
    [notice] = read_rows(project.lake, "select body from notices order by attempted_at desc limit 1")
    night = f"https://evals.example/pages/night?suite=strict&at={quote(judged.judged_at.isoformat(), safe='')}"
    links = [
        f"Results: {night}",
        f"Run in Dagster: https://evals.example/dagster/runs/{judged.run_id}",
        f"Report in MLflow: {report.mlflow_link}",
    ]
    assert "\n".join(links) in notice["body"]


def _checks(project: Project, run_id: str) -> dict[str, Any]:
    """The evaluations of checks in a run, by name."""
    with open_instance(project.home) as instance:
        entries = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
        found = [entry.dagster_event.asset_check_evaluation_data for entry in entries if entry.dagster_event]
    return {evaluation.check_name: evaluation for evaluation in found}


def _materialized(project: Project, run_id: str) -> Any:
    """The metadata of the asset as a run made it."""
    with open_instance(project.home) as instance:
        [entry] = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
        assert entry.dagster_event is not None
        return entry.dagster_event.step_materialization_data.materialization.metadata


def _status(project: Project, run_id: str) -> dg.DagsterRunStatus:
    with open_instance(project.home) as instance:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        return run.status


@pytest.mark.long
def test_a_suite_that_got_worse_fails_its_check_and_its_run(judged: Judged) -> None:
    project, first = judged.project, judged.strict
    assert first.gate is not None
    assert not first.failures
    assert {row.verdict for row in first.gate.regressions} == {Verdict.FIRST_RESULT}
    assert not first.gate.is_failed
    assert _status(project, first.run_ids[-1]) is dg.DagsterRunStatus.SUCCESS

    with noted(project.home, {"mlflow": "http://127.0.0.1:5017", "pages": "http://127.0.0.1:4017"}, os.getpid()):
        second = _night(project, "strict", error="right % 3 == 0")
    assert second.gate is not None
    assert second.gate.is_failed
    assert not second.failures, "the gate did its work"
    [worse] = second.gate.with_verdict(Verdict.REGRESSED)
    assert (worse.eval, worse.model, worse.cause) == ("sums", "calculator", "model")
    gate_run = second.run_ids[-1]
    assert _status(project, gate_run) is dg.DagsterRunStatus.FAILURE
    checks = _checks(project, gate_run)
    assert list(checks) == ["nothing_regressed_in_strict"], "a suite's gate runs the check of that suite alone"
    evaluation = checks["nothing_regressed_in_strict"]
    assert not evaluation.passed
    assert evaluation.blocking
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR
    assert "sums" in evaluation.description
    assert "calculator" in evaluation.description
    [row] = evaluation.metadata["regressed"].records
    assert (row.data["eval"], row.data["model"], row.data["cause"]) == ("sums", "calculator", "model")
    assert row.data["difference"] < -0.2
    assert evaluation.metadata["n_regressed"].value == 1
    metadata = _materialized(project, gate_run)
    assert metadata["history sums|calculator"].value.startswith("![score history](data:image/svg+xml;base64,")
    assert "sums" in Path(str(metadata["report_strict"].value)).read_text("utf-8")
    assert str(second.report) == metadata["report_strict"].value
    assert str(metadata["report_strict_in_mlflow"].value).startswith("http://127.0.0.1:5017/#/experiments/")
    assert str(metadata["night_strict"].value).startswith("http://127.0.0.1:4017/night?suite=strict&at=20")
    [notice] = read_rows(project.lake, "select body from notices")
    assert f"\nReport: the file {second.report} on " in notice["body"]
    assert "http" not in notice["body"], "who reads it elsewhere cannot reach what runs here"
    _see_public_links(project, second.gate, Path(str(second.report)))

    third = _night(project, "strict")
    assert third.gate is not None
    assert not third.gate.with_verdict(Verdict.REGRESSED)
    assert sum(each.requests_computed or 0 for each in read_attempts(project.lake) if each.run_id in third.run_ids) == 0
    assert _status(project, third.run_ids[-1]) is dg.DagsterRunStatus.SUCCESS
    assert _checks(project, third.run_ids[-1])["nothing_regressed_in_strict"].passed


@pytest.mark.long
def test_a_lenient_suite_is_told_and_not_failed(project: Project) -> None:
    _night(project, "lenient")
    second = _night(project, "lenient", error="right % 3 == 0")
    assert second.gate is not None
    assert second.gate.with_verdict(Verdict.REGRESSED)
    assert not second.gate.is_failed
    evaluation = _checks(project, second.run_ids[-1])["nothing_regressed_in_lenient"]
    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.WARN
    assert _status(project, second.run_ids[-1]) is dg.DagsterRunStatus.SUCCESS


@pytest.mark.long
def test_an_evaluation_is_judged_and_told_once_though_its_gate_is_started_twice(judged: Judged) -> None:
    """As by two daemons. A person who executes the gate's run again has it judged again."""
    project, first = judged.project, judged.lenient
    judgements = project.lake.root / "regressions" / "suite=lenient"
    [before] = judgements.glob("*.parquet")
    with open_instance(project.home) as instance:
        gate = instance.get_run_by_id(first.run_ids[-1])
        assert gate is not None
        job = build_definitions(project).resolve_job_def(gate.job_name)
        again = job.execute_in_process(instance=instance, tags=gate.tags)
        assert again.success
        assert list(judgements.glob("*.parquet")) == [before]
        assert "notices" not in again.asset_materializations_for_node("regressions")[0].metadata
        asked = {**gate.tags, "dagster/parent_run_id": gate.run_id, "dagster/root_run_id": gate.run_id}
        copy = instance.create_run_for_job(job, tags=asked, parent_run_id=gate.run_id, root_run_id=gate.run_id)
        assert judged_before(instance, project, copy) is None


@pytest.mark.long
@pytest.mark.parametrize("job_name", [None, "gate_lenient"])
def test_a_person_has_a_suite_judged_by_its_partition(project: Project, job_name: str | None) -> None:
    """On the page of the asset, or on the page of the gate's job, which offers the partitions of all suites."""
    _night(project, "strict")
    _night(project, "strict", error="right % 3 == 0")
    with open_instance(project.home) as instance:
        definitions = build_definitions(project)
        job = definitions.resolve_job_def(job_name) if job_name else definitions.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(
            instance=instance, asset_selection=None if job_name else [REGRESSIONS], partition_key="strict", raise_on_error=False
        )
        latest = instance.get_latest_materialization_event(REGRESSIONS)
        assert instance.get_materialized_partitions(REGRESSIONS) == {"strict"}
    # A gate's job has the check of its own suite alone, which is not to be failed.
    assert result.success == (job_name is not None)
    checks = {name: evaluation.passed for name, evaluation in _checks(project, result.run_id).items()}
    own = {} if job_name else {"nothing_regressed_in_strict": False}
    assert checks == {"nothing_regressed_in_lenient": False, **own}
    assert latest is not None
    materialization = latest.asset_materialization
    assert materialization is not None
    assert materialization.metadata["dagster/row_count"].value == 4
    assert materialization.metadata["n_regressed"].value == 1
    assert "strict: " in str(materialization.metadata["summary"].value)
    assert {row.data["suite"] for row in materialization.metadata["all_results"].records} == {"strict"}
    rows = read_rows(project.lake, "select suite, verdict, count(*) as n from regressions group by all order by all")
    assert [(row["suite"], row["n"]) for row in rows if row["verdict"] == "regressed"] == [("strict", 1)]


def test_a_check_alone_reads_what_was_judged(project: Project) -> None:
    name = "nothing_regressed_in_lenient"
    check = dg.AssetSelection.checks(dg.AssetCheckKey(REGRESSIONS, name))
    with open_instance(project.home) as instance:
        definitions = dg.Definitions.merge(build_definitions(project), dg.Definitions(jobs=[dg.define_asset_job("check_alone", check)]))
        run = definitions.resolve_job_def("check_alone").execute_in_process(instance=instance, raise_on_error=False)
    evaluation = _checks(project, run.run_id)[name]
    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.WARN, "as the suite says"
    assert "not judged yet" in evaluation.description


@pytest.mark.long
def test_an_evaluation_that_fails_makes_the_suite_incomplete_and_hides_no_regression(judged: Judged) -> None:
    project = judged.project
    (project.folder / "calculator.py").write_text("raise OSError('the weights are gone')")
    evals, models = project.select(suite="strict")
    broken = run_evaluation(_open(project.folder), evals, models, suite="strict")
    assert len(broken.failures) == 2
    assert broken.gate is not None
    assert broken.gate.outcome is Outcome.INCOMPLETE
    assert _status(project, broken.run_ids[-1]) is dg.DagsterRunStatus.FAILURE
    check = _checks(project, broken.run_ids[-1])["nothing_regressed_in_strict"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert check.description.startswith("Incomplete: 2 of 4 results not evaluated (")
    reasons = {(row.eval, row.model): row.reason for row in broken.gate.with_verdict(Verdict.NOT_EVALUATED)}
    assert "the weights are gone" in str(reasons["sums", "calculator"])
    assert "the weights are gone" in str(reasons["capitals", "calculator"])
    notices = read_rows(project.lake, "select kind, title, body from notices")
    assert [(notice["kind"], notice["title"]) for notice in notices] == [("incomplete", "strict: incomplete, 2 not evaluated")]
    assert "the weights are gone" in notices[0]["body"]


@pytest.mark.long
def test_a_part_of_a_suite_is_judged_with_what_was_evaluated_last(project: Project) -> None:
    _night(project, "strict")
    write_calculator(project.folder, error="right % 3 == 0")
    part = run_evaluation(_open(project.folder), ["sums"], ["calculator"], suite="strict")
    assert part.gate is not None
    assert [row.eval for row in part.gate.with_verdict(Verdict.REGRESSED)] == ["sums"]
    assert not any("not evaluated in this run" in str(row.reason) for row in part.gate.regressions)


@pytest.mark.long
def test_a_run_tells_what_it_found_itself_though_another_run_follows(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    _night(project, "lenient")

    def followed(lake: Lake, result: GateResult) -> LakeFile:
        kept = write_result(lake, result)
        write_result(lake, replace(result, run_id="another", judged_at=result.judged_at + timedelta(seconds=1), regressions=[]))
        return kept

    monkeypatch.setattr("eval_dagster.assets.regressions.write_result", followed)
    summary = _night(project, "lenient", error="True")
    assert summary.gate is not None
    assert (summary.gate.run_id, len(summary.gate.with_verdict(Verdict.REGRESSED))) == (summary.run_ids[-1], 1)


@pytest.mark.long
def test_a_judgement_that_cannot_be_made_known_is_a_failure(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Lake) -> list[str]:
        raise OSError("no space left on the device")

    monkeypatch.setattr("eval_dagster.assets.regressions.publish", refuse)
    summary = _night(project, "lenient")
    assert summary.gate is not None
    assert any("no space left" in failure for failure in summary.failures)


def _released(project: Project, folder: Path) -> tuple[bool, bool]:
    """Whether an asset downstream of the gates was materialized in a run of both, and whether the run succeeded."""
    released: list[str] = []

    @dg.asset(deps=[REGRESSIONS])
    def promoted() -> None:
        released.append("mine")

    with open_instance(project.home) as instance:
        merged = dg.Definitions.merge(build_definitions(_open(folder)), dg.Definitions(assets=[promoted]))
        job = merged.resolve_implicit_global_asset_job_def()
        selection = [REGRESSIONS, dg.AssetKey("promoted")]
        result = job.execute_in_process(instance=instance, asset_selection=selection, partition_key="strict", raise_on_error=False)
    return bool(released), result.success


@pytest.mark.long
def test_no_asset_downstream_is_released_by_a_suite_that_is_incomplete(project: Project, tmp_path: Path) -> None:
    text = textwrap.dedent(CONFIG).partition("  lenient")[0].replace("capitals, limit: 2", "'own.py:Own', limit: 2")
    (tmp_path / "evals.yaml").write_text(text)
    task = "from eval_dagster.task_defs.capitals import CapitalsChoice\n\nclass Own(CapitalsChoice):\n    NAME = 'Own'\n"
    (tmp_path / "own.py").write_text(task)
    first = _night(project, "strict")
    assert first.gate is not None
    assert first.gate.outcome is Outcome.FIRST
    assert _released(project, tmp_path) == (True, True), "first results"

    (tmp_path / "own.py").write_text("raise OSError('no such library')")
    second = _night(project, "strict")
    assert second.gate is not None
    assert [row.verdict for row in second.gate.regressions] == [Verdict.NO_CHANGE_SEEN] * 2 + [Verdict.NOT_EVALUATED] * 2
    assert _status(project, second.run_ids[-1]) is dg.DagsterRunStatus.FAILURE
    page = (tmp_path / "home" / "reports" / "strict" / "latest.html").read_text("utf-8")
    assert "✗ Incomplete: 2 of 4 results not evaluated (own on" not in page
    assert "✗ Incomplete: 2 of 4 results not evaluated (capitals on calculator, sevens: failed at dataset_snapshot on " in page
    assert 'id="leaderboard"' in page, "one broken file costs no report"
    assert _released(project, tmp_path) == (False, False)

    accept(project.lake, "strict", evals=["capitals"], models=[], by="me", why="the library comes next week")
    assert _released(project, tmp_path) == (True, True), "an accepted gap"


@pytest.mark.long
def test_every_suite_is_a_partition(project: Project) -> None:
    _night(project, "strict")
    worse = _night(project, "strict", error="right % 3 == 0")
    last = _night(project, "lenient", error="right % 3 == 0")
    for suite, run, n_rows in (("strict", worse, 4), ("lenient", last, 1)):
        metadata = _materialized(project, run.run_ids[-1])
        assert str(metadata["outcome"].value) == f"{suite}: regressed"
        assert {row.data["suite"] for row in metadata["all_results"].records} == {suite}
        assert metadata["dagster/row_count"].value == n_rows
        assert f"report_{suite}" in metadata
        assert list(_checks(project, run.run_ids[-1])) == [f"nothing_regressed_in_{suite}"]
    with open_instance(project.home) as instance:
        assert instance.get_materialized_partitions(REGRESSIONS) == {"strict", "lenient"}


@pytest.mark.long
def test_a_gate_that_fails_is_no_green_night_of_before(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is judged as incomplete, on the page, in the relation, and for the check; and its run fails. Other suites are judged."""
    project = judged.project

    def failing(project: Project, suite: str, **settings: Any) -> GateResult:
        if suite == "strict":
            raise ValueError("no such test")
        return judge_and_confirm(project, suite, **settings)

    monkeypatch.setattr("eval_dagster.assets.regressions.judge_and_confirm", failing)
    with open_instance(project.home) as instance:
        job = build_definitions(project).resolve_implicit_global_asset_job_def()
        ended = {
            suite: job.execute_in_process(instance=instance, asset_selection=[REGRESSIONS], partition_key=suite, raise_on_error=False)
            for suite in ("strict", "lenient")
        }
    assert [event.step_key for event in ended["strict"].all_events if event.is_step_failure] == ["regressions"]
    assert not [event for event in ended["lenient"].all_events if event.is_step_failure and event.step_key == "regressions"]
    strict, lenient = current_result(project.lake, "strict"), current_result(project.lake, "lenient")
    assert strict is not None
    assert lenient is not None
    assert (strict.outcome, {row.reason for row in strict.regressions}) == (
        Outcome.INCOMPLETE, {"the gate failed: ValueError: no such test"}
    )  # fmt: skip
    assert lenient.outcome is Outcome.PASSED
    page = (project.home / "reports" / "strict" / "latest.html").read_text("utf-8")
    assert "✗ Incomplete: 4 of 4 results not comparable (" in page
    rows = read_rows(project.lake, "select distinct suite, outcome from regressions order by all")
    assert [tuple(row.values()) for row in rows] == [("lenient", "passed"), ("strict", "incomplete")]
