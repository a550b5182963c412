"""What Dagster's pages call fresh and stale, after each way of running."""

import json
import textwrap
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.jobs import chosen
from eval_dagster.assets.runs.in_process_runs import run_evaluation
from eval_dagster.project import Project
from eval_dagster.versions.hashes import code_version

STAGES = ["dataset_snapshot", "rendered_prompts", "model_outputs", "sample_scores", "task_metrics"]
CONFIG = """
    models:
      a: {backend: scripted, default: " 7"}
      b: {backend: scripted, default: " 8"}
    evals:
      sums: {task: "sums.py:Sums"}
      capitals: {task: capitals, limit: 1}
    suites:
      nightly: {evals: [sums, capitals], models: [a, b]}
"""
TASK = '''
    """Sums."""

    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask


    class Sums(BaseTask):
        """Sums."""

        NAME = "Sums"
        DATASET_PATH = "./rows"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = (ExactMatch,)
        SUBJECTS = ("default",)

        def _get_instruction_text(self, item):
            return item["question"]

        def _get_ground_truth(self, item):
            return item["answer"]
'''
Stale = dict[tuple[str, str | None], list[tuple[str, str, str]]]
"""Category, reason and dependency of each cause, by asset and partition."""


def _write_rows(folder: Path, *answers: str) -> None:
    rows = [{"question": f"Question {place}: 3 + 4 =", "answer": answer} for place, answer in enumerate(answers)]
    (folder / "rows").mkdir(exist_ok=True)
    (folder / "rows" / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    (tmp_path / "sums.py").write_text(textwrap.dedent(TASK))
    _write_rows(tmp_path, "7", "8")
    return _open(tmp_path)


def _open(folder: Path) -> Project:
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def _stale(project: Project) -> Stale:
    """What is stale of all that was made, as Dagster's pages find out."""
    found: Stale = {}
    with open_instance(project.home) as instance:
        graph = build_definitions(project).resolve_asset_graph()
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        for asset in sorted(graph.get_all_asset_keys()):
            partitions = graph.get(asset).partitions_def
            for partition in partitions.get_partition_keys() if partitions else [None]:
                status = resolver.get_status(asset, partition)
                assert status is not StaleStatus.MISSING, (asset, partition)
                if status is StaleStatus.STALE:
                    found[asset.to_user_string(), partition] = [
                        (
                            cause.category.value,
                            cause.reason,
                            cause.dependency_asset_key.to_user_string() if cause.dependency_asset_key else "",
                        )
                        for cause in resolver.get_stale_causes(asset, partition)
                    ]
    return found


def _materialize(project: Project, *assets: str, partition: str | None = None, job: str | None = None, choice: Any = None) -> None:
    """What the page of an asset, or of a job, starts, or a schedule."""
    with open_instance(project.home) as instance:
        definitions = build_definitions(_open(project.folder))
        found = definitions.resolve_job_def(job) if job else definitions.resolve_implicit_global_asset_job_def()
        selection = [dg.AssetKey(asset) for asset in assets] or None
        assert found.execute_in_process(instance=instance, asset_selection=selection, partition_key=partition, run_config=choice).success


def _everything(project: Project) -> None:
    run_evaluation(project, ["sums", "capitals"], ["a", "b"], suite="nightly")


def test_what_a_command_made_is_fresh_and_stays_so(project: Project) -> None:
    _everything(project)
    assert _stale(project) == {}
    _everything(project)
    assert _stale(project) == {}, "nothing was recomputed"


def test_what_the_pages_of_assets_and_jobs_made_is_fresh(project: Project) -> None:
    _everything(project)
    for partition in ("sums|a", "capitals|b"):
        _materialize(project, *STAGES[1:], partition=partition)
    assert _stale(project) == {}
    _materialize(project, "dataset_snapshot", partition="sums")
    _materialize(project, "model_outputs", partition="sums|a")
    assert _stale(project) == {}, "made again of the same"
    _materialize(project, job="suite_nightly")
    _materialize(project, job="evaluate_all")
    _materialize(project, job="suite_nightly", choice=chosen(models=["a"]))
    assert _stale(project) == {}


def test_other_data_make_stale_what_is_made_of_them(project: Project) -> None:
    _everything(project)
    _write_rows(project.folder, "7", "9")
    _materialize(project, "dataset_snapshot", partition="sums")
    cause = [("DATA", "has a new dependency data version", "dataset_snapshot")]
    assert _stale(project) == {("rendered_prompts", f"sums|{model}"): cause for model in "ab"}
    _materialize(project, "rendered_prompts", partition="sums|a")
    cause_of_outputs = [("DATA", "has a new dependency data version", "rendered_prompts")]
    assert _stale(project) == {("rendered_prompts", "sums|b"): cause, ("model_outputs", "sums|a"): cause_of_outputs}
    _write_rows(project.folder, "7", "8")
    _everything(project)
    assert _stale(project) == {}


@pytest.mark.long
def test_another_limit_makes_stale_what_is_made_of_fewer_samples(project: Project) -> None:
    _everything(project)
    (project.folder / "evals.yaml").write_text(textwrap.dedent(CONFIG).replace("limit: 1", "limit: 2"))
    _materialize(project, "rendered_prompts", partition="capitals|a")
    stale = _stale(project)
    assert ("model_outputs", "capitals|a") in stale
    assert {eval_name for _, partition in stale if partition for eval_name in [partition.split("|")[0]]} == {"capitals"}
    _everything(_open(project.folder))
    assert _stale(project) == {}


@pytest.mark.long
def test_other_code_of_a_stage_makes_that_stage_stale_and_no_other(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    _everything(project)
    changed = {"eval_dagster.stages.scores"}
    monkeypatch.setattr(
        "eval_dagster.assets.provenance.code_version", lambda code: code_version(code) + ("+" if code.__name__ in changed else "")
    )
    stale = _stale(project)
    assert {asset for asset, _ in stale} == {"sample_scores"}
    assert {tuple(cause) for causes in stale.values() for cause in causes} == {("CODE", "has a new code version", "")}
