"""The examples of the documentation, as a reader would try them."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from eval_dagster.cli.task_page import show_task
from eval_dagster.lake.files import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.results import STAGES, StageResult

DOCS = Path(__file__).resolve().parents[1] / "docs"
FILE = re.compile(r"Save this as `([^`]+)`[^`]*:\n\n```\w+\n(.*?)```", re.DOTALL)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes the files of a page into a folder, which becomes the current one."""

    def write(page: str) -> Path:
        for name, text in FILE.findall((DOCS / page).read_text()):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        for name in ("EVAL_DAGSTER_CONFIG", "EVAL_DAGSTER_HOME", "EVAL_DAGSTER_DATASETS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return write


def run() -> dict[str, StageResult]:
    """All stages of the folder's one eval and model, by stage."""
    outcomes = list(
        evaluate(Project.open(tasks={}), [("distances", "guesser")], stages=set(STAGES), run_id="test", reporter=SilentReporter())
    )
    results = [each for each in outcomes if isinstance(each, StageResult)]
    assert len(results) == len(outcomes), outcomes
    return {each.stage: each for each in results}


def values(results: dict[str, StageResult]) -> dict[str, float]:
    return {row["metric"]: round(row["value"], 3) for row in read_rows(results["task_metrics"].file.path) if row["subject"] is None}


def test_the_metric_of_the_page_scores_as_the_page_has_it(written: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = written("write-a-metric.md")
    show_task("distances", None, None)
    assert "checked the first 3 rows: the gold answer scores best, a wrong one worse" in " ".join(capsys.readouterr().out.split())
    page, first = (DOCS / "write-a-metric.md").read_text(), run()
    for name, value in values(first).items():
        assert re.search(rf"`{name}`( is)? {value:.3f}", page), f"{name} is {value:.3f}"
    assert len(values(first)) == 2
    (folder / "closeness.py").write_text((folder / "closeness.py").read_text().replace("<= 0.1)", "<= 0.01)"))
    second = run()
    assert values(second) == {**values(first), "within_10_percent": 0.333}
    cached = {stage: result.cached for stage, result in second.items()}
    assert cached["model_outputs"], cached
    assert not cached["sample_scores"], cached
