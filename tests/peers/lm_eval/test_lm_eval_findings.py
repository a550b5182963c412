"""Evals of a hundred drawn tasks of lm-eval on invented rows: what the checks of rows and prompts find is true of these rows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.records import Finding, Status
from eval_dagster.stages.findings import stored_findings
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.prompts import materialize_prompts
from eval_dagster.stages.snapshot import materialize_snapshot
from tests.peers.lm_eval.comparison import invent, written_rows
from tests.peers.lm_eval.drawn_names import drawn_names
from tests.peers.lm_eval.ours import project_of

TRUE = {"nug": {"gold_position"}, "truthfulqa_mc2": {"gold_position"}}
"""What is found and true, by task: of the invented rows of the first, and of the published rows of the second as well."""


def findings_of(name: str, folder: Path) -> Iterator[Finding]:
    """What the checks find in a task without and with examples. Raises `LookupError` where no invented rows fit."""
    config, rows, with_examples = invent(name)
    written_rows(folder, config, rows)
    final = config.get("num_fewshot")
    counts = dict.fromkeys([0] if final == 0 or not with_examples else [0, min(final or 2, 3)])
    project = project_of(folder, {f"shots-{count}": {"task": f"lm_eval:{name}", "num_fewshot": count} for count in counts}, {})
    for eval_name in project.config.evals:
        materialize_snapshot(project, eval_name, "test")
        partition = Partition(project=project, eval_name=eval_name, model="plain", run_id="test")
        yield from stored_findings(materialize_prompts(partition).file) or ()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_drawn_tasks_are_marked_rightly(tmp_path: Path) -> None:
    looked: dict[str, list[Finding]] = {}
    skipped: list[str] = []
    for name in drawn_names():
        (tmp_path / name).mkdir()
        try:
            looked[name] = list(findings_of(name, tmp_path / name))
        except (TaskDefinitionError, LookupError) as error:
            skipped.append(str(error))
        if len(looked) == 100:
            break
    assert len(looked) == 100, skipped
    found = {name: {str(each.check) for each in findings if each.status is Status.FOUND} for name, findings in looked.items()}
    assert {name: checks for name, checks in found.items() if checks - TRUE.get(name, set())} == {}
    assert all(each.status is not Status.NOT_CHECKED or each.seen for findings in looked.values() for each in findings)
