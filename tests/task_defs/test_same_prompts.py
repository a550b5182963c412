"""Which tasks ask what lm-eval's tasks ask: the table in the documentation, held on the invented rows of the fixtures."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for a run of this file by its path
from rendered_tasks import rows_of

from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.project import Project
from eval_dagster.prompts.formatters import formatter_for
from eval_dagster.prompts.rendering import Rendering, render_sample
from eval_dagster.records import Request
from eval_dagster.task_files.registries import registered
from eval_dagster.tasks.benchmark import DatasetSplit, adapter_task
from eval_dagster.tasks.samples import build_samples

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/migrate-from-lm-eval.md"
PROJECT = Project.bare()
PLAIN = formatter_for("plain", ScriptedHandle("example"))


def pairs() -> list[tuple[str, str, str]]:
    """The rows of the table: our task, that of lm-eval, and what is the same."""
    found = re.findall(r"^\| `(\w+)` \| `lm_eval:([\w-]+)` \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [(ours, theirs, same.strip()) for ours, theirs, same in found]


def native_requests(name: str) -> list[Request]:
    """What our task asks without examples."""
    task_class = PROJECT.named_task(name)
    samples = build_samples(rows_of(PROJECT, name), task_class.SUBJECTS[0])
    asked = [sample for sample in samples if sample.split == task_class.SAMPLE_SPLIT]
    rendering = Rendering(task=task_class(num_fewshot=0), formatter=PLAIN).knowing(asked)
    return [prompt.request for sample in asked for prompt in render_sample(rendering, sample, None)]


def lm_eval_requests(theirs: str, ours: str) -> list[Request]:
    """What lm-eval's task asks about the same rows."""
    split_rows = rows_of(PROJECT, ours)
    sample_split = PROJECT.named_task(ours).SAMPLE_SPLIT
    task_class = adapter_task(registered("lm_eval").benchmark(theirs, ROOT))

    def open_split(split: DatasetSplit) -> list[dict[str, object]]:
        return split_rows.get(split.split) or split_rows[sample_split]

    rows = task_class.BENCHMARK.read(task_class.SUBJECTS[0], open_split, fewshot=False)
    samples = build_samples({"evaluated": rows.evaluated}, task_class.SUBJECTS[0])
    task = task_class(num_fewshot=0)
    rendering = Rendering(task=task, formatter=PLAIN)
    task.prepare(samples, rendering.settings)
    return [prompt.request for sample in samples for prompt in render_sample(rendering, sample, None)]


def same(ours: Sequence[Request], theirs: Sequence[Request]) -> str:
    """What is the same, in the words of the table."""
    if sorted(each.request_id for each in ours) == sorted(each.request_id for each in theirs):
        return "all"
    if sorted((each.prompt, each.choices or ()) for each in ours) == sorted((each.prompt, each.choices or ()) for each in theirs):
        return "prompts"
    if sorted({each.prompt.strip() for each in ours}) == sorted({each.prompt.strip() for each in theirs}):
        return "prompts but for white space or choices"
    return "no"


def test_the_table_has_rows() -> None:
    assert len(pairs()) > 20
    assert sum(what == "all" for *_, what in pairs()) > 5


@pytest.mark.parametrize(("ours", "theirs", "what"), pairs())
def test_the_table_is_right(ours: str, theirs: str, what: str) -> None:
    assert same(native_requests(ours), lm_eval_requests(theirs, ours)) == what
