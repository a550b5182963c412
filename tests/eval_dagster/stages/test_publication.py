"""How often a run publishes the catalog, and that nothing that ended is left out of it."""

import time
from collections.abc import Callable, Generator
from itertools import pairwise

import pytest

from eval_dagster import pipeline
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES

MODELS = [f"model-{place}" for place in range(6)]
CONFIG = (
    "models:\n"
    + "".join(f"  {name}: {{backend: scripted, default: '7'}}\n" for name in MODELS)
    + "evals: {sums: {task: arithmetic, limit: 2}}"
)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[Lake]:
    """The publications of runs so far, each of which takes a second."""
    found: list[Lake] = []

    def slow(lake: Lake) -> list[str]:
        found.append(lake)
        time.sleep(1)
        return publish(lake)

    monkeypatch.setattr(pipeline, "publish", slow)
    return found


def _evaluated(project: Project) -> list[str]:
    """The models of which the catalog has a result."""
    return [row["model"] for row in read_rows(project.lake, "select model from leaderboard where value is not null order by model")]


@pytest.mark.long
def test_publications_take_little_of_a_short_run(open_project: Callable[..., Project], published: list[Lake]) -> None:
    project = open_project(CONFIG)
    list(evaluate(project, [("sums", name) for name in MODELS], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert len(published) == 2, "after the first model and at the end"
    assert _evaluated(project) == MODELS


@pytest.mark.long
def test_the_catalog_of_a_run_that_takes_its_time_follows_each_model(
    open_project: Callable[..., Project], published: list[Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = open_project(CONFIG)
    monkeypatch.setattr(pipeline._Publishing, "_MOST", 1.0)
    outcomes = evaluate(project, [("sums", name) for name in MODELS], stages=set(STAGES), run_id="test", reporter=SilentReporter())
    models = [outcome.model for outcome in outcomes if outcome.model is not None]
    assert sum(one != other for one, other in pairwise(models)) + 1 == len(published) == len(MODELS)


def test_what_ended_before_an_interruption_is_in_the_catalog(open_project: Callable[..., Project], published: list[Lake]) -> None:
    project = open_project(CONFIG)
    outcomes = evaluate(project, [("sums", name) for name in MODELS], stages=set(STAGES), run_id="test", reporter=SilentReporter())
    next(outcome for outcome in outcomes if outcome.model == MODELS[3])
    assert len(published) == 1
    assert isinstance(outcomes, Generator)
    outcomes.close()
    assert len(published) == 2
    assert _evaluated(project) == MODELS[:3]
