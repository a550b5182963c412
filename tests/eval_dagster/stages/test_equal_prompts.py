"""Prompts are rendered once for all models that get the same ones."""

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest

from eval_dagster.errors import RowError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages import prompts
from eval_dagster.stages.partition import STAGES, StageFailure

CONFIG = """
    models:
      one: {backend: scripted, default: " 7"}
      other: {backend: scripted, default: " 8"}
      chatting: {backend: scripted, default: " 7", prompt_format: llama3}
    evals:
      capitals: {task: capitals, num_fewshot: 1, limit: 5}
"""
MODELS = ("one", "other", "chatting")


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models for which prompts were rendered."""
    found: list[str] = []
    made = prompts._made
    monkeypatch.setattr(prompts, "_made", lambda partition, how: (found.append(partition.model), made(partition, how))[1])
    return found


def _evaluate(project: Project, *models: str, stages: Sequence[str] = ("rendered_prompts",)) -> None:
    for model in models:
        found = list(evaluate(project, [("capitals", model)], stages=set(stages), run_id="test", reporter=SilentReporter()))
        assert not [each for each in found if isinstance(each, StageFailure)]


def _table(project: Project, model: str) -> list[dict[str, object]]:
    rows = read_rows(project.lake, f"select * from prompts where model = '{model}' order by all")
    assert len(rows) == 30
    return [{name: value for name, value in row.items() if name not in ("model", "materialized_at", "run_id")} for row in rows]


def test_equal_prompts_are_rendered_once(open_project: Callable[..., Project], rendered: list[str]) -> None:
    project = open_project(CONFIG)
    _evaluate(project, *MODELS)
    assert rendered == ["one", "chatting"], "a format of another model makes other prompts"
    assert _table(project, "other") == _table(project, "one") != _table(project, "chatting")
    one, other = (project.lake.current("prompts", "capitals", model) for model in MODELS[:2])
    assert one is not None
    assert other is not None
    assert one.path != other.path
    assert (other.info.version, other.info.counts, other.info.notes) == (one.info.version, one.info.counts, one.info.notes)
    _evaluate(project, "other", stages=("model_outputs", "sample_scores"))
    scores = project.lake.current("scores", "capitals", "other")
    assert scores is not None
    assert (scores.info.counts["samples"], scores.info.counts["errors"]) == (30, 0)


def test_copied_prompts_are_those_that_would_be_rendered(
    open_project: Callable[..., Project], rendered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _evaluate(open_project(CONFIG), *MODELS)
    copied = _table(open_project(CONFIG), "other")
    monkeypatch.setattr(prompts, "_of_another_model", lambda *_: None)
    alone = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "alone")
    _evaluate(alone, "other")
    assert rendered == ["one", "chatting", "other"]
    assert _table(alone, "other") == copied


def test_a_changed_eval_is_rendered_once_more(open_project: Callable[..., Project], rendered: list[str]) -> None:
    _evaluate(open_project(CONFIG), "one", "other")
    changed = open_project(CONFIG.replace("num_fewshot: 1", "num_fewshot: 2"))
    _evaluate(changed, "other", "one")
    assert rendered == ["one", "other"], "the prompts of before are not those of the eval as it is now"
    assert {row["num_fewshot"] for row in _table(changed, "one") + _table(changed, "other")} == {2}


def test_prompts_that_may_succeed_at_another_time_are_rendered_for_each_model(
    open_project: Callable[..., Project], rendered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first_fails = chain([RowError("the disk was busy")], repeat(DEFAULT))
    monkeypatch.setattr(prompts, "render_sample", Mock(wraps=prompts.render_sample, side_effect=first_fails))
    project = open_project(CONFIG)
    _evaluate(project, "one")
    one = project.lake.current("prompts", "capitals", "one")
    assert one is not None
    assert one.info.counts["errors"] == one.info.counts["retryable_errors"] == 1
    _evaluate(project, "other")
    assert rendered == ["one", "other"]
    other = project.lake.current("prompts", "capitals", "other")
    assert other is not None
    assert not other.info.counts["errors"]
    _evaluate(project, "one")
    assert rendered == ["one", "other"], "the error is mended by the prompts of the other model"
    assert _table(project, "one") == _table(project, "other")


@pytest.mark.parametrize("part", ["rows", "footer"])
def test_a_damaged_file_of_another_model_is_no_source(open_project: Callable[..., Project], rendered: list[str], part: str) -> None:
    project = open_project(CONFIG)
    _evaluate(project, "one")
    file = project.lake.current(STAGES["rendered_prompts"], "capitals", "one")
    assert file is not None
    content = bytearray(file.path.read_bytes())
    place = 200 if part == "rows" else len(content) - 12
    content[place : place + 8] = bytes(byte ^ 0xFF for byte in content[place : place + 8])
    file.path.write_bytes(content)
    _evaluate(open_project(CONFIG), "other")
    assert rendered == ["one", "other"]
    assert len(_table(open_project(CONFIG), "other")) == 30
    _evaluate(open_project(CONFIG.replace("chatting:", "third:").replace(", prompt_format: llama3", "")), "third")
    assert rendered == (["one", "other"] if part == "footer" else ["one", "other", "third"]), "rows are looked at when they are copied"
