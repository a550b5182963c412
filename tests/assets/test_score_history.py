"""The picture of a score's history, where Dagster shows the metrics of a partition."""

import base64
import textwrap
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import dagster as dg
import pytest

from eval_dagster.assets.runs.in_process_runs import run_evaluation
from eval_dagster.pages.report import histories
from eval_dagster.project import Project

CONFIG = """
    models:
      sevens: {{backend: scripted, default: " {answer}"}}
    evals:
      sums: {{task: arithmetic, limit: 4}}
"""


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Evaluate a model that says this to every sum; gives the metadata of its metrics."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))

    def run(answer: str) -> dict[str, Any]:
        (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG).format(answer=answer))
        project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
        summary = run_evaluation(project, ["sums"], ["sevens"])
        assert not summary.failures
        with dg.DagsterInstance.get() as instance:
            event = instance.get_latest_materialization_event(dg.AssetKey("task_metrics"))
        assert event is not None
        assert event.asset_materialization is not None
        return dict(event.asset_materialization.metadata)

    return run


@pytest.mark.long
def test_the_history_is_shown_once_there_is_one(evaluate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "score_history" not in evaluate("7")
    shown = evaluate("8")["score_history"]
    assert isinstance(shown, dg.MarkdownMetadataValue)
    text = str(shown.value)
    assert len(text) < 20_000
    picture = ElementTree.fromstring(base64.b64decode(text.partition("base64,")[2].rstrip(")")))
    assert (picture.get("width"), picture.get("height")) == ("570", "300")
    assert evaluate("8")["score_history"].value == text

    def refuse(*_: Any, **__: Any) -> bytes:
        raise MemoryError("no room for a picture")

    monkeypatch.setattr(histories, "history_svg", refuse)
    assert "score_history" not in evaluate("9"), "a picture that cannot be drawn costs no result"
