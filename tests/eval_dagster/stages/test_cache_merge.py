"""A response cache whose small files cannot be merged costs no answer, and is not passed over in silence."""

from collections.abc import Callable

import pytest
from running_stages import run_all

from eval_dagster.errors import ModelError
from eval_dagster.lake.answers import responses
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.project import Project

PARTITIONS = [("capitals", "scripted"), ("arithmetic", "scripted")]


@pytest.fixture
def damaged(open_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose cache is due to be merged, which its lock file does not allow."""
    monkeypatch.setattr(responses, "_MERGE_ABOVE", -1)
    project = open_project()
    version = project.handle("scripted").version()
    with project.lake.lock(f"merge-{version}"):
        pass
    (lock,) = project.home.rglob(f"*merge-{version}*")
    lock.unlink()
    lock.mkdir()
    return project


@pytest.mark.long
def test_the_evals_succeed_with_a_warning_and_a_count(damaged: Project) -> None:
    results, failures = run_all(damaged, PARTITIONS)
    assert not failures
    for name, _ in PARTITIONS:
        outputs = results["model_outputs", name]
        (warning,) = outputs.warnings
        assert "could not be merged (IsADirectoryError" in warning
        assert "no answer is lost" in warning
        assert outputs.file.info.counts["run_cache_merge_failures"] == 1
    again, failures = run_all(damaged, PARTITIONS)
    assert not failures
    assert all(result.cached for result in again.values())
    assert not any(again["model_outputs", name].warnings for name, _ in PARTITIONS)


def test_an_eval_that_fails_names_both_reasons(damaged: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_handle: ScriptedHandle) -> None:
        raise ModelError("no memory for the weights")

    monkeypatch.setattr(ScriptedHandle, "load", fail)
    _, failures = run_all(damaged, PARTITIONS)
    assert [failure.eval_name for failure in failures] == ["capitals", "arithmetic"]
    for failure in failures:
        assert failure.message.startswith("no memory for the weights; the small files of the response cache")


@pytest.mark.long
def test_without_a_problem_nothing_is_counted(open_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "_MERGE_ABOVE", 0)
    results, _ = run_all(open_project(), PARTITIONS)
    outputs = results["model_outputs", "capitals"]
    assert not outputs.warnings
    assert "run_cache_merge_failures" not in outputs.file.info.counts
