"""The registry of the guide, as a reader installs it."""

import tomllib
from pathlib import Path

import pytest
from documents import DOCS, block_of, blocks

from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, Partition, StageFailure
from eval_dagster.task_files import registries

PAGE = DOCS / "how-to" / "other-packages.md"


def test_its_benchmarks_are_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wordplay.py").write_text(block_of(PAGE, "wordplay.py"))
    package = tomllib.loads(next(block.text for block in blocks(PAGE) if block.language == "toml"))
    information = tmp_path / "wordplay-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: wordplay\nVersion: 1\n")
    ((name, value),) = package["project"]["entry-points"][registries.GROUP].items()
    (information / "entry_points.txt").write_text(f"[{registries.GROUP}]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registries.registered.cache_clear()
    (tmp_path / "evals.yaml").write_text(next(block.text for block in blocks(PAGE) if block.language == "yaml"))
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    partitions = [("short", "tac"), ("long", "tac")]
    outcomes = list(evaluate(project, partitions, stages=set(STAGES), run_id="guide", reporter=SilentReporter()))
    assert not [each for each in outcomes if isinstance(each, StageFailure)]
    current = Partition(project=project, eval_name="short", model="tac", run_id="guide").current("task_metrics")
    assert current is not None
    assert {row["metric"]: row["value"] for row in read_rows(current.path)} == {"right": 0.5, "longest": 3.0}
    registries.registered.cache_clear()
