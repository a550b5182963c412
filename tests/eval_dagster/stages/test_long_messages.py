"""What a failure quotes is cut before it reaches attempts, pages and notices."""

from collections.abc import Callable
from pathlib import Path

import pytest
from running_stages import CONFIG, run_all

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.records import read_attempts
from eval_dagster.project import Project
from eval_dagster.stages.partition import error_warning

TASK = """
    from eval_dagster.task_defs.arithmetic import Arithmetic

    class Loud(Arithmetic):
        SUBJECTS = ("addition",)

        def _get_instruction_text(self, item):
            raise ValueError("x" * {length})
"""


@pytest.mark.long
@pytest.mark.parametrize(("length", "is_cut"), [(1_000, False), (1_000_000, True)])
def test_a_message_of_a_megabyte_is_cut(
    open_project: Callable[..., Project], write: Callable[[str, str], Path], length: int, is_cut: bool
) -> None:
    write("loud.py", TASK.format(length=length))
    project = open_project(CONFIG + '      loud: {task: "loud.py:Loud", limit: 2}\n')
    _, (failure,) = run_all(project, [("loud", "scripted")])
    assert "the task raised ValueError: xxx" in failure.message
    assert (len(failure.message) < 10_100) is True
    assert failure.message.endswith("characters]") is is_cut
    (attempt,) = read_attempts(project.lake)
    assert attempt.message == failure.message
    publish(project.lake)
    assert read_rows(project.lake, "select message from attempts") == [{"message": failure.message}]
    if is_cut:
        total = int(failure.message.rpartition("[")[2].partition(" ")[0].replace(",", ""))
        assert total > length, "it says how long it was"


ANSWERS = """
    def answer(request):
        number = len(request.prompt) + sum(map(ord, request.prompt))
        raise [ValueError, KeyError, TypeError, OSError, RuntimeError][number % 5](f"failed {number} " + "y" * 1000)
"""


def test_errors_of_several_kinds_are_counted_by_kind_and_cut(
    open_project: Callable[..., Project], write: Callable[[str, str], Path]
) -> None:
    write("failing.py", ANSWERS)
    project = open_project("""
    models:
      scripted: {backend: scripted, function: "failing.py:answer"}
    evals:
      sums: {task: arithmetic, limit: 20}
    """)
    run_all(project, [("sums", "scripted")])
    scores = project.lake.require("scores", "sample_scores", "sums", "scripted")
    line = error_warning("sums", "scripted", scores) or ""
    assert line.startswith("sums|scripted: all 60 samples have an error and no score: ")
    shown = line.partition("no score: ")[2].split("; ")
    counts = [int(part.partition(" × ")[0]) for part in shown if " × " in part]
    assert counts == sorted(counts, reverse=True)
    assert len(counts) == 3, "the most frequent kinds"
    assert shown[-1] == "and 2 other kinds"
    assert max(map(len, shown)) < 420
