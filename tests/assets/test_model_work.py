"""What Dagster shows of a model's work: its log, its progress, and what each partition's answers took."""

import logging
import shutil
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from eval_dagster.assets.resources import library_log
from eval_dagster.assets.runs.in_process_runs import run_evaluation
from eval_dagster.gate.run_summary import RunSummary
from eval_dagster.models.scripted import ScriptedResponder
from eval_dagster.models.transformers.generation import engine as generation
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.models.transformers.scoring import engine as scoring
from eval_dagster.progress import reporting as progress
from eval_dagster.progress.reporting import LogReporter
from eval_dagster.project import Project
from eval_dagster.records import ModelResponse, Request

CONFIG = """
    models:
      tiny: {{backend: transformers, source: {{folder: {folder}}}, device: cpu, batch_size: 4, generation: {{max_tokens: 6}}}}
      plain: {{backend: scripted, default: " 7"}}
    evals:
      sums: {{task: arithmetic, num_fewshot: 2, limit: 2}}
      capitals: {{task: capitals, num_fewshot: 1, limit: 2}}
      twins: {{task: capitals, num_fewshot: 1, limit: 2}}
"""


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG).format(folder=tiny_model))
    return Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")


def logged(summary: RunSummary) -> list[tuple[int, str]]:
    """Level and text of what a command's first run wrote into its log."""
    with dg.DagsterInstance.get() as instance:
        return [(entry.level, entry.user_message) for entry in instance.all_logs(summary.run_ids[0]) if not entry.is_dagster_event]


def outputs_metadata(summary: RunSummary) -> dict[str, dict[str, Any]]:
    """Partition -> metadata of `model_outputs` of a command's first run."""
    with dg.DagsterInstance.get() as instance:
        events = [entry.dagster_event for entry in instance.all_logs(summary.run_ids[0]) if entry.dagster_event]
    made = [event.step_materialization_data.materialization for event in events if event.is_step_materialization]
    return {
        str(each.partition): {name: value.value for name, value in each.metadata.items()}
        for each in made
        if each.asset_key == dg.AssetKey("model_outputs")
    }


@pytest.mark.long
def test_the_engines_way_and_its_reason_reach_the_run_and_each_partition(project: Project) -> None:
    summary = run_evaluation(project, ["sums", "capitals"], ["tiny"])
    assert not summary.failures
    infos = [text for level, text in logged(summary) if level == logging.INFO]
    assert any("scores by path 'tree'" in text for text in infos), infos
    for step in ("load tiny: ", "read the weights of tiny: ", "check how tiny can be scored: "):
        assert any(text.startswith(step) for text in infos), infos
    for work in ("score capitals tiny: ", "generate sums tiny: "):
        progress_lines = [text for text in infos if text.startswith(work)]
        assert progress_lines, infos
        assert "tokens/s" in progress_lines[-1]
    found = outputs_metadata(summary)
    assert {name: value["scoring_path"] for name, value in found.items()} == {"sums|tiny": "tree", "capitals|tiny": "tree"}
    assert all(value["scoring_reason"] and value["generation_path"] == "rows" for value in found.values())
    assert all("packed" in value["scoring_layers"] or "as they are" in value["scoring_layers"] for value in found.values())


@pytest.mark.long
def test_what_went_another_way_is_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in (scoring, generation):
        monkeypatch.setattr(engine, "constant_length", lambda config: 24)
    summary = run_evaluation(project, ["sums", "capitals"], ["tiny"])
    assert not summary.failures
    for found in outputs_metadata(summary).values():
        assert (found["scoring_path"], found["generation_path"]) == ("tree", "rows")
        assert "; inputs of more than 24 tokens by plain rows" in found["scoring_reason"]
        assert found["scoring_elsewhere"].endswith(" inputs or texts went another way")
        assert found["generation_elsewhere"].endswith(" inputs or texts went another way")


@pytest.mark.long
def test_what_the_call_took_is_that_of_all_its_evals_and_what_was_asked_is_each_evals_own(project: Project) -> None:
    summary = run_evaluation(project, ["sums", "capitals"], ["tiny"])
    found = outputs_metadata(summary)
    shared = [{name: value for name, value in each.items() if name.startswith("run_")} for each in found.values()]
    assert shared[0] == shared[1]
    run = shared[0]
    requests = {name: each["requests"] for name, each in found.items()}
    assert run["run_requests"] == sum(requests.values()) == sum(each["requests_computed"] for each in found.values())
    assert run["run_tokens_asked"] == sum(each["tokens_asked"] for each in found.values())
    assert run["run_reuse_factor"] > 2, "the questions of an eval share their examples"
    assert run["run_tokens_computed"] < run["run_tokens_asked"]
    assert run["run_tokens_per_s"] == pytest.approx(run["run_tokens_computed"] / run["run_seconds"], rel=0.01)
    assert run["run_peak_memory_mib"] >= 0
    own = project.lake.require("responses", "", "sums", "tiny")
    assert own.info.counts["tokens_asked"] == own.info.counts["prompt_tokens"], "one text a prompt"
    assert "resident" in own.info.notes["peak_memory_measured"]


@pytest.mark.long
def test_a_partition_that_was_cached_shows_nothing_computed_and_what_it_took_when_it_was_made(project: Project) -> None:
    first = run_evaluation(project, ["capitals"], ["tiny"])
    made = outputs_metadata(first)["capitals|tiny"]
    assert outputs_metadata(run_evaluation(project, ["capitals"], ["tiny"])) == {}, "Dagster shows it already"
    shutil.rmtree(project.home / "dagster")
    again = outputs_metadata(run_evaluation(project, ["capitals"], ["tiny"]))["capitals|tiny"]
    assert again["cached"] is True
    assert {again[name] for name in ("requests_computed", "tokens_asked", "model_seconds")} == {0}
    assert not [name for name in again if name.startswith("run_")]
    assert again["made_by_run"] == first.run_ids[0]
    assert again["when_made"]["run_tokens_computed"] == made["run_tokens_computed"] > 0
    assert again["when_made"]["scoring_path"] == "tree"


@pytest.mark.long
def test_an_eval_whose_answers_another_one_has_asked_for_took_nothing(project: Project) -> None:
    run_evaluation(project, ["capitals"], ["tiny"])
    twin = outputs_metadata(run_evaluation(project, ["twins"], ["tiny"]))["twins|tiny"]
    assert (twin["cached"], twin["requests_computed"], twin["tokens_asked"]) == (False, 0, 0)
    assert twin["requests_cached"] == twin["requests"] > 0
    assert not [name for name in twin if name.startswith("run_")]


@pytest.mark.long
def test_a_model_that_counts_no_tokens_has_seconds_and_memory(project: Project) -> None:
    found = outputs_metadata(run_evaluation(project, ["capitals"], ["plain"]))["capitals|plain"]
    assert {name for name in found if name.startswith("run_")} == {"run_requests", "run_seconds", "run_peak_memory_mib"}


@pytest.mark.long
def test_a_warning_of_the_engine_is_a_warning_of_the_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    respond = LoadedModel.respond

    def scarce(self: LoadedModel, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        forward, fails = self._scorer._tree._network.forward, iter([True])

        def once(*arguments: Any, **named: Any) -> Any:
            if next(fails, False):
                raise MemoryError("(simulated)")
            return forward(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(self._scorer._tree._network, "forward", once)
            yield from respond(self, requests)

    monkeypatch.setattr(LoadedModel, "respond", scarce)
    summary = run_evaluation(project, ["capitals"], ["tiny"])
    assert not summary.failures
    warnings = [text for level, text in logged(summary) if level == logging.WARNING]
    assert [text for text in warnings if text.startswith("out of memory with ")], warnings
    assert outputs_metadata(summary)["capitals|tiny"]["errors"] == 0


@pytest.mark.long
def test_a_long_silence_of_the_model_is_no_silence_of_the_log(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    respond = ScriptedResponder.respond

    def slow(self: ScriptedResponder, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        time.sleep(1.5)
        yield from respond(self, requests)

    monkeypatch.setattr(ScriptedResponder, "respond", slow)
    monkeypatch.setattr(progress.LogReporter.__init__, "__defaults__", (0.2,))
    assert LogReporter(print)._every_s == 0.2
    summary = run_evaluation(project, ["capitals"], ["plain"])
    assert not summary.failures
    lines = [text for _, text in logged(summary) if text.startswith("score capitals plain: 0/")]
    assert 3 <= len(lines) <= 8, lines


def test_what_others_log_stays_out_and_the_level_is_put_back(caplog: pytest.LogCaptureFixture) -> None:
    library, target = logging.getLogger("eval_dagster"), logging.getLogger("somewhere")
    target.setLevel(logging.DEBUG)
    level = library.level
    with library_log(target):
        logging.getLogger("eval_dagster.models.transformers.scoring.engine").info("scores by path %r", "tree")
        logging.getLogger("eval_dagster.models.transformers.scoring.engine").debug("a detail")
        logging.getLogger("other").warning("not ours")
    logging.getLogger("eval_dagster").error("after the step")
    assert [record.getMessage() for record in caplog.records if record.name == "somewhere"] == ["scores by path 'tree'"]
    assert library.level == level
