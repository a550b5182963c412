"""A snapshot reads the rows that are evaluated, up to the limit, and all from which examples are drawn."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.project import Project
from eval_dagster.stages.snapshot import materialize_snapshot, plan_snapshot

TASK = """
    from eval_dagster import BaseTask, ExactMatch, ResponseType

    class Quiz(BaseTask):
        NAME = "Quiz"
        DATASET_PATH = "./rows"
        SAMPLE_SPLIT = "test"
        FEWSHOT_SPLIT = {fewshot!r}
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch]
        SUBJECTS = {subjects}
        SUBJECT_FIELD = {field!r}

        def _get_instruction_text(self, item):
            return item["q"]

        def _get_ground_truth(self, item):
            return "x"
"""


@pytest.mark.parametrize(
    ("fewshot", "field", "expected"),
    [
        (None, None, {"test": ["q0", "q1"]}),
        ("train", None, {"test": ["q0", "q1"], "train": [f"q{n}" for n in range(6)]}),
        ("test", None, {"test": [f"q{n}" for n in range(6)]}),
        (None, "half", {"test": ["q0", "q2", "q1", "q3"]}),
    ],
)
def test_a_snapshot_holds_rows_up_to_the_limit(
    tmp_path: Path,
    open_project: Callable[..., Project],
    write: Callable[[str, str], Path],
    fewshot: str | None,
    field: str | None,
    expected: dict[str, list[str]],
) -> None:
    """And all from which examples are drawn."""
    (tmp_path / "rows").mkdir()
    for split in ("test", "train"):
        (tmp_path / f"rows/{split}.jsonl").write_text("".join(f'{{"q": "q{n}", "half": "{"ab"[n % 2]}"}}\n' for n in range(6)))
    write("quiz.py", TASK.format(fewshot=fewshot, field=field, subjects=["a", "b"] if field else ["default"]))
    shots = int(fewshot is not None)
    text = f"evals: {{quiz: {{task: 'quiz.py:Quiz', limit: 2, num_fewshot: {shots}}}}}\nmodels: {{m: {{backend: scripted}}}}"
    project = open_project(text)
    result = materialize_snapshot(project, "quiz", "run")
    rows = read_rows(result.file.path)
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["split"], []).append(json.loads(row["row"])["q"])
    assert found == expected
    assert materialize_snapshot(project, "quiz", "run").cached
    more = open_project(text.replace("limit: 2", "limit: 3"))
    assert (plan_snapshot(more, "quiz").fresh is None) == (fewshot != "test")
