"""The sensor that evaluates the checkpoints of a training run as they grow."""

import shutil
import time
from pathlib import Path

import dagster as dg
import pytest
from training_runs import opened, pieces, saved, settle

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.project import Project


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    (tmp_path / "runs").mkdir()
    return tmp_path


def _tick(project: Project) -> tuple[list[dg.RunRequest], str]:
    """The requests of the sensor as the daemon would get them, with the definitions that were loaded before the run began."""
    definitions = build_definitions(project)
    sensor = definitions.resolve_sensor_def("new_checkpoints")
    with open_instance(project.home) as instance, dg.build_sensor_context(instance, definitions=definitions) as context:
        data = sensor.evaluate_tick(context)
        known: set[str] = set()
        for run in instance.get_runs():
            known.add(run.tags.get("dagster/run_key", ""))
    return [request for request in data.run_requests or [] if request.run_key not in known], str(data.skip_message)


def _evaluate(project: Project, requests: list[dg.RunRequest]) -> None:
    definitions = build_definitions(project)
    with open_instance(project.home) as instance:
        for request in requests:
            job = definitions.resolve_job_def(str(request.job_name))
            tags = {**request.tags, "dagster/run_key": str(request.run_key)}
            assert job.execute_in_process(instance=instance, run_config=request.run_config, tags=tags).success


def _models(requests: list[dg.RunRequest]) -> list[str]:
    return [request.tags["eval_dagster/model"] for request in requests]


@pytest.mark.long
def test_each_checkpoint_is_evaluated_once_when_it_is_complete_the_newest_first(folder: Path, tiny_model: Path) -> None:
    """The definitions are those of a code location that was loaded before the training run began."""
    project = opened(folder)
    assert _tick(project) == ([], "every complete checkpoint was evaluated or is about to be")
    names = sorted((path.name for path in tiny_model.iterdir()), key=lambda name: name.endswith(".safetensors"))
    for is_whole in pieces(tiny_model, folder / "runs" / "checkpoint-100", names):
        requests, said = _tick(project)
        assert bool(requests) == is_whole, said
    assert _models(requests) == ["run-step-0000100"]
    saved(tiny_model, folder / "runs" / "checkpoint-200")
    saved(tiny_model, folder / "runs" / "checkpoint-300")
    settle(folder / "runs" / "checkpoint-300")
    requests, _ = _tick(project)
    assert _models(requests) == ["run-step-0000300", "run-step-0000200", "run-step-0000100"]
    _evaluate(project, requests[:1])
    assert _models(_tick(project)[0]) == ["run-step-0000200", "run-step-0000100"]
    shutil.rmtree(folder / "runs" / "checkpoint-200")
    requests, said = _tick(project)
    assert _models(requests) == ["run-step-0000100"], said
    _evaluate(project, requests)
    assert _tick(project) == ([], "every complete checkpoint was evaluated or is about to be")
    with open_instance(project.home) as instance:
        assert instance.get_materialized_partitions(dg.AssetKey("task_metrics")) == {"sums|run-step-0000100", "sums|run-step-0000300"}
        assert set(instance.get_dynamic_partitions("models")) >= {"run-step-0000100", "run-step-0000300"}


@pytest.mark.long
def test_a_checkpoint_that_is_deleted_before_its_run_is_not_evaluated_and_fails_nothing(folder: Path, tiny_model: Path) -> None:
    project = opened(folder)
    saved(tiny_model, folder / "runs" / "checkpoint-100")
    requests, _ = _tick(project)
    shutil.rmtree(folder / "runs" / "checkpoint-100")
    _evaluate(project, requests)
    with open_instance(project.home) as instance:
        assert instance.get_materialized_partitions(dg.AssetKey("task_metrics")) == set()
        said = [
            str(record.asset_observation.description)
            for asset in ("rendered_prompts", "model_outputs")
            for record in instance.fetch_observations(dg.AssetKey(asset), limit=10).records
            if record.asset_observation
        ]
    assert any("not evaluated" in each and "the checkpoint was deleted" in each for each in said), said
    assert _tick(project)[0] == []


@pytest.mark.parametrize(
    ("reason", "is_tried_again"), [("The process of this run was killed. The answers are kept.", True), ("The weights are damaged", False)]
)
def test_a_run_that_was_killed_is_tried_again_and_no_other(folder: Path, tiny_model: Path, reason: str, is_tried_again: bool) -> None:
    project = opened(folder)
    saved(tiny_model, folder / "runs" / "checkpoint-100")
    [request], _ = _tick(project)
    with open_instance(project.home) as instance:
        run = instance.add_run(
            dg.DagsterRun(job_name=str(request.job_name), tags={**request.tags, "dagster/run_key": str(request.run_key)}, run_config={})
        )
        assert _tick(project)[0] == [], "it is under way"
        instance.report_run_failed(run, reason)
    assert bool(_tick(project)[0]) == is_tried_again


@pytest.mark.long
def test_other_weights_of_the_same_step_are_evaluated_too(folder: Path, tiny_model: Path) -> None:
    project = opened(folder)
    saved(tiny_model, folder / "runs" / "checkpoint-100")
    requests, _ = _tick(project)
    _evaluate(project, requests)
    assert _tick(project)[0] == []
    shutil.rmtree(folder / "runs" / "checkpoint-100")
    shutil.copytree(tiny_model, folder / "runs" / "checkpoint-100", copy_function=shutil.copyfile)
    weights = folder / "runs" / "checkpoint-100" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    requests, said = _tick(project)
    assert requests == []
    assert "a file changed" in said
    time.sleep(3.5)
    again, said = _tick(project)
    assert _models(again) == ["run-step-0000100"], said
    _evaluate(project, again)
    assert _tick(project)[0] == []
