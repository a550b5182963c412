"""A stage that takes more memory than it may have ends with a message."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running_stages import CONFIG, run_all

from eval_dagster import control_groups
from eval_dagster.errors import ConfigError, MemoryLimitError
from eval_dagster.progress import memory
from eval_dagster.progress.memory import memory_limited, watched
from eval_dagster.project import Project

BOTH = [("capitals", "scripted"), ("arithmetic", "scripted")]
CURE = "What was answered is stored, and the next run goes on from there."


def limited(size: str) -> str:
    return f"\n    memory: {size}{CONFIG}"


def test_each_eval_that_takes_too_much_fails_with_its_stage_and_row(open_project: Callable[[str], Project]) -> None:
    results, failures = run_all(open_project(limited("1MiB")), BOTH)
    assert (results, [each.stage for each in failures]) == ({}, ["dataset_snapshot"] * 2)
    for each in failures:
        assert each.message.startswith(f"dataset_snapshot {each.eval_name} took ")
        assert " of memory at row 1; `memory` in evals.yaml allows 1 MiB. " in each.message
        assert CURE in each.message


@pytest.mark.long
def test_a_limit_that_is_not_reached_changes_nothing(open_project: Callable[[str], Project]) -> None:
    results, failures = run_all(open_project(limited("64GiB")), BOTH)
    assert failures == []
    assert len(results) == 10


@pytest.mark.long
@pytest.mark.parametrize("stage", ["rendered_prompts", "model_outputs", "sample_scores"])
def test_a_stage_that_takes_too_much_leaves_the_results_before_it(
    stage: str, open_project: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One eval takes too much in one stage. Without the limit, the next run makes what is left."""
    taken, now = memory.memory_of, [""]

    def naming(rows: Iterable[Any], work: str) -> Iterator[Any]:
        now[0] = work
        return watched(rows, work)

    for module in ("eval_dagster.progress.reporting", "eval_dagster.stages.outputs", "eval_dagster.stages.snapshot"):
        monkeypatch.setattr(f"{module}.watched", naming)
    monkeypatch.setattr(memory, "_EVERY_S", 0.0)
    monkeypatch.setattr(memory, "memory_of", lambda process: 2**40 if now[0].startswith(f"{stage} capitals") else taken(process))
    project = open_project(limited("64GiB"))
    results, failures = run_all(project, BOTH)
    # The model is asked for both evals at once.
    assert [each.eval_name for each in failures] == (["capitals", "arithmetic"] if stage == "model_outputs" else ["capitals"])
    assert {each.stage for each in failures} == {stage}
    assert f"{stage} capitals|scripted took 1024.0 GiB" in failures[0].message
    monkeypatch.undo()
    again, failures = run_all(project, BOTH)
    assert (len(again), failures) == (10, [])
    assert {each for each in again if again[each].cached} == set(results)


@pytest.mark.parametrize(("used", "is_full"), [(948, False), (952, True)])
def test_the_memory_of_a_container_is_never_full(used: int, is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").write_text("0::/pod\n")
    (tmp_path / "pod").mkdir()
    for name, text in (
        ("memory.max", "1000000"),
        ("memory.current", f"{used + 20}500"),
        ("memory.stat", "inactive_file 500\nactive_file 20000"),
    ):
        (tmp_path / "pod" / name).write_text(f"{text}\n")
    monkeypatch.setattr(control_groups, "_GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "_OWN_GROUPS", tmp_path / "own")
    rows = watched(range(300), "work")
    with memory_limited(None):
        if is_full:
            with pytest.raises(MemoryLimitError, match=r"at row 1 of work, 1 MiB of the 1 MiB of memory of this container were taken"):
                list(rows)
        else:
            assert list(rows) == list(range(300))
    assert list(watched(range(3), "work")) == [0, 1, 2], "outside of the block there is no limit"


@pytest.mark.parametrize("text", ["2", "2GB", "0GiB", "-1GiB", "lots", "[1]"])
def test_another_size_is_an_error_that_shows_the_form(text: str, open_project: Callable[[str], Project]) -> None:
    with pytest.raises(ConfigError, match=r"memory: found .*; expected a size such as '2GiB' or '800MiB'"):
        open_project(limited(text))
