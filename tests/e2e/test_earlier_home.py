"""A home that an earlier state of the code made: no answer is asked for again, and every result is the same."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from few import few

from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult

HOME = Path(__file__).with_name("earlier_home")
"""Of three evals and a scripted model, before the modules of the package were moved to the packages that they are in."""
EVALS = ("sums", "capitals", "capitals-in-words")
IDENTITIES = {
    "prompts": ("sample_id", "source_id", "request_id", "prompt_version", "prompt", "choices", "messages", "fewshot_ids"),
    "responses": ("sample_id", "request_id", "model_version", "text", "choice_logprobs"),
    "scores": ("sample_id", "source_id", "cluster", "metric", "value"),
    "metrics": ("metric", "aggregation", "subject", "value", "stderr", "n", "samples_version", "questions_version"),
}
"""Columns that name what was asked, of what, and what came of it."""
OF_TIES = {("scores", "capitals"), ("metrics", "capitals")}
"""Results that changed since: of a model that finds choices equally good."""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    shutil.copytree(HOME, tmp_path / "project")
    return Project.open(config_path=tmp_path / "project" / "evals.yaml", home=tmp_path / "project" / "home")


@pytest.mark.long
def test_every_identity_and_result_is_the_same(project: Project) -> None:
    before, contents = _identities(project.lake), _contents(project.lake)
    partitions = [(name, "guesser") for name in EVALS]
    results = list(evaluate(project, partitions, stages=set(STAGES), run_id="today", reporter=SilentReporter()))
    assert not [each for each in results if isinstance(each, StageFailure)]
    outputs = [each.file.info.counts for each in results if isinstance(each, StageResult) and each.stage == "model_outputs"]
    assert [each["requests_computed"] for each in outputs] == [0, 0, 0], "every answer is in the cache"
    assert sum(each["requests_cached"] for each in outputs) == 24
    after = _identities(project.lake)
    assert {key for key in before if after[key] != before[key]} == OF_TIES
    assert _contents(project.lake) == contents
    changed = {row for row in after["scores", "capitals"] if row not in before["scores", "capitals"]}
    tied = {row["sample_id"]: row for row in _rows(project.lake, "scores", "capitals") if '"tie"' in (row["explanation"] or "")}
    assert changed
    assert {row[0] for row in changed} <= tied.keys(), "a tie counts a part of 1, where the first choice counted"


def _identities(lake: Lake) -> Mapping[tuple[str, str], list[tuple[object, ...]]]:
    """What the identifying columns of each current file hold."""
    return {
        (table, name): sorted((tuple(row[column] for column in columns) for row in _rows(lake, table, name)), key=repr)
        for table, columns in IDENTITIES.items()
        for name in EVALS
    }


def _rows(lake: Lake, table: str, name: str) -> Iterator[Mapping[str, Any]]:
    return read_rows(lake.require(table, table, name, "guesser").path)


def _contents(lake: Lake) -> Mapping[str, str]:
    """The versions of the contents of all samples."""
    return {name: lake.require("samples", "dataset_snapshot", name).info.version for name in EVALS}


@few("table", ["samples", "prompts", "responses", "scores", "metrics"], kept=1)
def test_a_damaged_file_is_made_again_without_a_request(project: Project, table: str, caplog: pytest.LogCaptureFixture) -> None:
    before = _identities(project.lake)
    damaged = sorted((project.lake.root / table / "eval=sums").rglob("*.parquet"))[-1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 3] ^= 1
    damaged.write_bytes(content)
    results = list(evaluate(project, [("sums", "guesser")], stages=set(STAGES), run_id="today", reporter=SilentReporter()))
    assert not [each for each in results if isinstance(each, StageFailure)]
    assert any(damaged.name in message and "This run writes a new file" in message for message in caplog.messages)
    assert _identities(project.lake) == before
