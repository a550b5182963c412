"""The asset checks that say whether a result can be trusted, as Dagster stores and shows them."""

import textwrap
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from few import few
from kept_folders import KeptFolder

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.runs.in_process_runs import run_evaluation
from eval_dagster.project import Project

CONFIG = """
    models:
      good: {backend: scripted, function: "answers.py:good"}
      mute: {backend: scripted, function: "answers.py:mute"}
    evals:
      sums: {task: "sums.py:Sums"}
      few: {task: "sums.py:Sums", limit: 1}
    suites:
      nightly: {evals: [sums, few], models: [good, mute]}
"""
TASK = """
    from eval_dagster import BaseTask, ExactNumber, ResponseType

    class Sums(BaseTask[str]):
        NAME = "Sums"
        DATASET_PATH = "sums"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = (ExactNumber,)
        SUBJECTS = ("all",)

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(40)]}

        def _get_instruction_text(self, item):
            return f"What is {item['n']} + 4?"

        def _get_ground_truth(self, item):
            return str(item["n"] + 4)
"""
ANSWERS = """
    import re

    def good(request):
        number = int(re.search("is ([0-9]+)", request.prompt)[1])
        return f"It is {number + 4}." if number % 5 else "It is 1."

    def mute(request):
        number = int(re.search("is ([0-9]+)", request.prompt)[1])
        return good(request) if number % 3 else ""
"""
CHECKS = {"rendered_prompts": "prompts", "model_outputs": "outputs", "task_metrics": "scores"}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    folder = tmp_path_factory.mktemp("evaluated") / "project"
    folder.mkdir()
    for name, text in {"evals.yaml": CONFIG, "sums.py": TASK, "answers.py": ANSWERS}.items():
        (folder / name).write_text(textwrap.dedent(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(folder / "home" / "dagster"))
        _run(_opened(folder))
    return KeptFolder(folder)


@pytest.fixture
def project(evaluated: KeptFolder, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project after `_run`."""
    monkeypatch.setenv("DAGSTER_HOME", str(evaluated.folder / "home" / "dagster"))
    return _opened(evaluated.restore())


def _opened(folder: Path) -> Project:
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def _logged(instance: dg.DagsterInstance) -> list[dg.AssetCheckEvaluation]:
    """All evaluations, the newest first."""
    records = instance.event_log_storage.get_event_records(dg.EventRecordsFilter(dg.DagsterEventType.ASSET_CHECK_EVALUATION))
    events = [record.event_log_entry.dagster_event for record in records]
    found = [event.asset_check_evaluation_data for event in events if event]
    return [each for each in found if each.asset_key.path[-1] in CHECKS]  # a gate has a check of its own


def _evaluated(project: Project) -> dict[tuple[str, str | None], tuple[bool, str]]:
    """The newest evaluation of each check by asset and partition: whether it passed, and its description."""
    found: dict[tuple[str, str | None], tuple[bool, str]] = {}
    with open_instance(project.home) as instance:
        for each in reversed(_logged(instance)):
            found[each.asset_key.to_user_string(), each.partition] = (each.passed, each.description or "")
    return found


def _events(project: Project) -> int:
    with open_instance(project.home) as instance:
        return len(_logged(instance))


def _run(project: Project) -> None:
    run_evaluation(_opened(project.folder), ["sums", "few"], ["good", "mute"], suite="nightly")


@pytest.mark.long
def test_each_partition_says_whether_it_can_be_trusted_and_a_summary_says_it_of_all(project: Project) -> None:
    found = _evaluated(project)
    assert found["model_outputs", "sums|good"][0]
    passed, description = found["model_outputs", "sums|mute"]
    assert not passed
    assert "14 of 40" in description
    assert not found["model_outputs", None][0]
    assert found["model_outputs", None][1].startswith("2 of 4 results cannot be trusted: few|mute, sums|mute")
    with open_instance(project.home) as instance:
        # Without its materialization, Dagster's pages show an evaluation of no partition.
        targets = {
            (each.asset_key.to_user_string(), each.partition): each.target_materialization_data
            for each in reversed(_logged(instance))
            if each.partition
        }
        for (asset, partition), target in targets.items():
            newest = instance.fetch_materializations(dg.AssetRecordsFilter(dg.AssetKey(asset), asset_partitions=[partition]), limit=1)
            assert target is not None
            assert target.storage_id == newest.records[0].storage_id
    before = _events(project)
    _run(project)
    assert _events(project) == before, "nothing was made, so nothing is checked again"
    answers = project.folder / "answers.py"
    answers.write_text(answers.read_text().replace('else ""', "else good(request)"))
    _run(project)
    assert _evaluated(project)["model_outputs", "sums|mute"][0]
    assert _evaluated(project)["model_outputs", None] == (True, "4 results sound")


@pytest.mark.long
def test_what_nothing_could_be_checked_of_is_not_green(project: Project) -> None:
    """One sample tells nothing about its prompts' faults: Dagster shows no evaluation, and the summary counts it."""
    found = _evaluated(project)
    for asset in CHECKS:
        unknown = [key for key in ("few|good", "few|mute") if (asset, key) not in found]
        assert ("could not be checked" in found[asset, None][1]) == bool(unknown), asset


@pytest.mark.long
@few("policy", ["error", "warn"], kept=1)
def test_a_person_evaluates_a_check_again_and_the_policy_is_its_severity(project: Project, policy: str) -> None:
    with project.config_path.open("a") as file:
        file.write(f"\ndagster: {{untrusted: {policy}}}\n")
    definitions = build_definitions(_opened(project.folder))
    key = dg.AssetCheckKey(dg.AssetKey("model_outputs"), "sound_outputs")
    with open_instance(project.home) as instance:
        job: Any = dg.define_asset_job("again", selection=dg.AssetSelection.checks(key))
        again = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job])).resolve_job_def("again")
        run = again.execute_in_process(instance=instance, tags={"dagster/partition": "sums|mute"})
        [event] = [each.asset_check_evaluation_data for each in run.all_events if each.event_type_value == "ASSET_CHECK_EVALUATION"]
        assert (event.passed, event.partition, event.severity.value) == (False, "sums|mute", policy.upper())
        assert next(iter(event.metadata)) == "empty_answers", "the signs are first"
        assert str(event.metadata["empty_answers"].value).startswith("found: ")
        assert str(event.metadata["cut_off"].value) == "clean: 40 samples looked at"
        assert len([name for name in event.metadata if name.startswith("sample_")]) == 5
        assert run.success, "what cannot be trusted is no failure of the run"


@pytest.mark.long
def test_a_failed_run_of_some_partitions_leaves_the_summary_of_all(project: Project) -> None:
    """Dagster runs the checks of an asset after it, in the same run, and none after a failure."""
    before = _evaluated(project)["model_outputs", None]
    (project.folder / "answers.py").write_text("raise OSError('the file is broken')")
    definitions = build_definitions(_opened(project.folder))
    keys = [dg.AssetKey(asset) for asset in ("rendered_prompts", "model_outputs", "sample_scores", "task_metrics")]
    checks = dg.AssetSelection.checks_for_assets(*keys)
    job: Any = dg.define_asset_job("materialize", selection=dg.AssetSelection.assets(*keys) | checks)
    merged = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job]))
    with open_instance(project.home) as instance:
        resolved = merged.resolve_job_def("materialize")
        run = resolved.execute_in_process(instance=instance, partition_key="sums|good", raise_on_error=False)
        assert not run.success
        record = instance.event_log_storage.get_asset_check_execution_history(dg.AssetCheckKey(keys[1], "all_outputs_sound"), limit=1)[0]
    assert record.status.value == "FAILED", "as before, and not EXECUTION_FAILED"
    assert _evaluated(project)["model_outputs", None] == before
