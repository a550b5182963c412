"""What runs while a stage makes its rows is code that its version covers: found by watching, not by reading."""

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from running_stages import run_all

from eval_dagster.lake.tables.rows import prompt_row
from eval_dagster.project import Project
from eval_dagster.prompts.formatters import formatter_for
from eval_dagster.stages import metrics, prompts, scores
from eval_dagster.stages.score_columns import read_scores
from eval_dagster.task_defs import TASKS
from eval_dagster.versions.references import CodeClosure, Definition, References

EVALS = ("arithmetic", "capitals", "capitals_completion")
CONFIG = """
    models:
      scripted: {backend: scripted, function: "answer.py:answer"}
    evals:
""" + "".join(f"      {name}: {{task: {name}, num_fewshot: 2, limit: 3}}\n" for name in EVALS)

INPUTS = {
    "eval_dagster.project",
    "eval_dagster.stages.partition",
    "eval_dagster.lake.format.parquet_files",
    "eval_dagster.lake.files",
    "eval_dagster.lake.format.damage",
    "eval_dagster.tasks.benchmark",
}
"""Modules that find the inputs of a stage. The versions of the inputs are part of its fingerprint."""

WATCHING = {"eval_dagster.progress.memory", "eval_dagster.control_groups"}
"""Modules that end a stage, and change none of its rows."""

MAKERS = {"rendered_prompts": (prompts, "render_eval"), "sample_scores": (scores, "_score_rows"), "task_metrics": (metrics, "metric_rows")}
OTHERS = {"rendered_prompts": [prompt_row], "task_metrics": [read_scores]}


def watched(make: Callable[..., Any], seen: set[tuple[str, str]]) -> Callable[..., list[Any]]:
    def note(frame: FrameType, event: str, _argument: object) -> None:
        name = str(frame.f_globals.get("__name__"))
        if event == "call" and name.partition(".")[0] in ("eval_dagster", "task_defs"):
            seen.add((name, frame.f_code.co_qualname))

    def run(*arguments: Any, **named: Any) -> list[Any]:
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            return list(make(*arguments, **named))
        finally:
            sys.setprofile(before)

    return run


def covered(project: Project, stage: str, make: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    formatter = formatter_for("plain", project.handle("scripted"))
    roots = [make, *OTHERS.get(stage, []), *(TASKS[name] for name in EVALS), type(formatter)]
    for target in CodeClosure(References(), roots).numbers:
        for definition in [target] if isinstance(target, Definition) else target.statements:
            yield from ((definition.module.name, name) for name in definition.names)


def test_all_code_that_makes_rows_is_covered(open_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> None:
    project = open_project(CONFIG)
    seen: dict[str, set[tuple[str, str]]] = {stage: set() for stage in MAKERS}
    makers = {stage: getattr(module, name) for stage, (module, name) in MAKERS.items()}
    for stage, (module, name) in MAKERS.items():
        monkeypatch.setattr(module, name, watched(makers[stage], seen[stage]))
        monkeypatch.setattr(module, "code_version", lambda *_: "not of what stands in for it")
    _, failures = run_all(project, [(name, "scripted") for name in EVALS])
    assert not failures
    for stage, calls in seen.items():
        known = set(covered(project, stage, makers[stage]))
        assert len(calls) > 30
        written = {(module, name.partition(".")[0]) for module, name in calls if module not in INPUTS | WATCHING}
        # Methods that the standard library makes for a dataclass: of its fields, which count with its class.
        missed = {(module, name) for module, name in written - known if name != "__create_fn__"}
        assert missed == set(), stage
