"""A lake at a URL holds what a folder holds, also where its store is slow and unreliable."""

import textwrap
from datetime import UTC, date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from servers.object_store import ObjectStore, unreliable

from eval_dagster import retention
from eval_dagster.config.values import LAKE_VARIABLE
from eval_dagster.errors import LakeUnreachableError, UsageError
from eval_dagster.lake.catalog.archives import night_lake
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.remote import store as store_module
from eval_dagster.lake.remote.mirror import Mirror
from eval_dagster.lake.remote.store import Store
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.retention import Keep, Policy, plan, prune
from eval_dagster.stages.partition import STAGES, StageResult

CONFIG = """
    models:
      sevens: {backend: scripted, default: " 7"}
      eights: {backend: scripted, default: " 8", answers: {"capital of Algeria": " Algiers"}}
    evals:
      sums: {task: arithmetic, num_fewshot: 1, limit: 4}
      capitals: {task: capitals, limit: 3}
"""
PARTITIONS = [(name, model) for model in ("sevens", "eights") for name in ("sums", "capitals")]
OWN = {"materialized_at", "finished_at", "run_id", "dagster_run_id", "mlflow_run_id", "scores_file"} | {
    *("latency_s", "model_seconds", "worker", "worker_s", "gpu_s")
}
"""Columns that differ between two runs of the same."""


def _evaluate(folder: Path, home: str, url: str | None, monkeypatch: pytest.MonkeyPatch) -> Project:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG) + (f"lake: {url}\n" if url else ""))
    monkeypatch.delenv(LAKE_VARIABLE, raising=False)
    project = Project.open(config_path=folder / "evals.yaml", home=folder / home)
    outcomes = list(evaluate(project, PARTITIONS, stages=set(STAGES), run_id=home, reporter=SilentReporter()))
    assert all(isinstance(outcome, StageResult) for outcome in outcomes), outcomes
    return project


def _relations(project: Project) -> dict[str, list[str]]:
    """The rows of every relation, in an order of their own, without what differs between two runs."""
    publish(project.lake)
    names = [row["table_name"] for row in read_rows(project.lake, "select table_name from information_schema.tables")]
    found = {}
    for name in sorted(name for name in names if not name.startswith("_")):
        rows = read_rows(project.lake, f'select * from "{name}"')
        found[name] = sorted(repr({column: value for column, value in row.items() if column not in OWN}) for row in rows)
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The relations of a lake that is a folder."""
    with pytest.MonkeyPatch.context() as patch:
        found = _relations(_evaluate(tmp_path_factory.mktemp("plain"), "home", None, patch))
    assert min(len(found[name]) for name in ("samples", "prompts", "responses", "scores", "metrics", "leaderboard", "attempts")) > 0
    return found


@pytest.mark.long
def test_a_lake_on_a_shared_disk(plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/shared disk/lake"
    with pytest.raises(UsageError, match="there is no such folder; create it, or mount the disk that it is on"):
        _evaluate(tmp_path, "here", url, monkeypatch)
    (tmp_path / "shared disk" / "lake").mkdir(parents=True)
    project = _evaluate(tmp_path, "here", url, monkeypatch)
    assert _relations(project) == plain
    objects = {path.relative_to(tmp_path / "shared disk" / "lake").as_posix() for path in (tmp_path / "shared disk").rglob("*.parquet")}
    copies = {path.relative_to(project.lake.root).as_posix() for path in project.lake.root.rglob("*.parquet")}
    assert objects == copies


@pytest.mark.long
def test_a_store_that_fails_and_is_slow(plain: Any, url: str, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with unreliable(store, tmp_path, share=0.08, delay_s=0.02, seed=7) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
        found = _relations(_evaluate(tmp_path, "here", f"{url}/", monkeypatch))
        assert proxy.counts()["faults"] > 5
    assert found == plain


@pytest.mark.long
def test_a_second_machine_computes_nothing_again(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _evaluate(tmp_path, "here", url, monkeypatch)
    second = _evaluate(tmp_path, "there", url, monkeypatch)
    publish(second.lake)
    first_rows = read_rows(second.lake, "select distinct model, request_id from responses")
    sent = read_rows(second.lake, "select run_id, sum(requests_computed)::int as sent from attempts group by run_id")
    assert {row["run_id"]: row["sent"] for row in sent} == {"here": len(first_rows), "there": 0}
    assert not list(second.lake.root.glob("response_cache/*/*.parquet")), "its answers were current, so that the cache was not needed"
    assert _relations(first) == _relations(second)


@pytest.mark.long
def test_a_machine_without_files_fetches_the_newest_alone(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    four = CONFIG
    for limit in (2, 3, 4):
        monkeypatch.setitem(globals(), "CONFIG", four.replace("limit: 4", f"limit: {limit}"))
        here = _evaluate(tmp_path, "here", url, monkeypatch)
    partitions = [sorted(paths) for table in TABLES if table != "attempts" for paths in here.lake.partitions(table)]
    there = _evaluate(tmp_path, "there", url, monkeypatch)
    assert max(map(len, partitions)) == 3
    fetched = {path for path in _files(there) if path.parts[0] != "attempts" and "-there-" not in path.name}
    newest = {paths[-1].relative_to(here.lake.root) for paths in partitions}
    assert {path for path in fetched if path not in newest and path.parts[0] != "metrics"} == set(), "the page of samples reads the metrics"
    assert newest <= fetched


@pytest.mark.long
def test_what_gc_deletes_is_deleted_for_all_machines(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = _evaluate(tmp_path, "here", url, monkeypatch)
    four = CONFIG
    for limit in (3, 2):
        monkeypatch.setitem(globals(), "CONFIG", four.replace("limit: 4", f"limit: {limit}"))
        there = _evaluate(tmp_path, "there", url, monkeypatch)
    here.lake.pull(everything=True)
    before = _files(here)
    deleted = prune(there, Policy(keep=Keep(count=1), catalogs=Keep(count=0)), now=datetime.now(UTC) + timedelta(days=10))
    assert {each.what for each in deleted.files} >= {"prompts", "responses", "scores", "metrics"}
    here.lake.pull(everything=True)
    assert _files(here) == _files(there) == before - {each.path.relative_to(there.lake.root) for each in deleted.files}
    assert _relations(here) == _relations(there)


@pytest.mark.long
def test_gc_on_a_machine_that_is_days_ahead_deletes_nothing(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(days=2)

    project = _evaluate(tmp_path, "here", url, monkeypatch)
    before = _files(project)
    for module in (store_module, retention):
        monkeypatch.setattr(module, "datetime", Clock)
    for act in (plan, prune):
        assert project.lake.mirror is not None
        project.lake.mirror.store.is_probed = False  # as in a process of its own
        with pytest.raises(UsageError, match=r"the clock of this machine is 17280\d s ahead of that of the server"):
            act(project, Policy(keep=Keep(count=1), catalogs=Keep(count=0)))
    assert _files(project) == before


@pytest.mark.long
def test_the_folder_of_a_night_goes_with_its_list(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = _evaluate(tmp_path, "here", url, monkeypatch)
    days = (date(2020, 1, 31), date(2020, 2, 1))
    names = [path.as_posix() for path in _files(project) if path.parts[0] in TABLES]
    for day in days:
        project.lake.add(project.lake.root / "nights" / f"{day}.parquet", pa.table({"file": names}))
        night = night_lake(project.lake, day)
        publish(night)
        assert len(read_rows(night, "select * from leaderboard")) == len(PARTITIONS)
    policy, later = Policy(keep=Keep(count=1), catalogs=Keep(count=1)), datetime.now(UTC) + timedelta(days=2)

    def going(now: datetime) -> list[Path]:
        return [each.path for each in plan(project, policy, now=now).files if each.what == "nights"]

    assert going(datetime.now(UTC)) == [], "it was queried in the last day"
    assert going(later) == [project.home / "nights" / str(days[0])]
    [deleted] = [each for each in prune(project, policy, now=later).files if each.what == "nights"]
    assert deleted.size > 10_000
    assert [path.name for path in (project.home / "nights").iterdir()] == [str(days[1])]
    assert going(later) == []


def _files(project: Project) -> set[Path]:
    root = project.lake.root
    folders = (*TABLES, "response_cache")
    return {path.relative_to(root) for folder in folders for path in (root / folder).rglob("[!.]*.parquet")}


def test_an_outage_ends_a_run_with_one_error(store: ObjectStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LAKE_VARIABLE, raising=False)
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG) + f"lake: {url}\n")
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    with unreliable(store, tmp_path) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
        project.lake.mirror = Mirror(project.lake.root, Store(url, patience_s=0.5))
        outcomes = evaluate(project, PARTITIONS, stages=set(STAGES), run_id="run", reporter=SilentReporter())
        assert isinstance(next(outcomes), StageResult)
        proxy.change(is_out=True)
        with pytest.raises(LakeUnreachableError, match="503 ServiceUnavailable"):
            next(outcomes)
