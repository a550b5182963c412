"""The prompts of an eval of which a person looks at a few."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import NamedTuple

from eval_dagster.lake.format.parquet_files import read_rows_at, read_table
from eval_dagster.lake.tables.rows import prompt_of
from eval_dagster.project import Project
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.prompts import plan_prompts, render_eval, rendering_of


class PromptKey(NamedTuple):
    """What names a prompt."""

    sample_id: str
    sample_name: str | None
    variant: str | None


@dataclass(frozen=True, kw_only=True)
class ShownPrompts:
    """The prompts of an eval for a model, of which a few are shown."""

    keys: Sequence[PromptKey]
    at: Callable[[Sequence[int]], list[RenderedPrompt]]
    """Gives the prompts at some places."""


def shown_prompts(project: Project, eval_name: str, model: str, place: int | None, *, is_name: bool) -> ShownPrompts:
    """The stored prompts if they are current. Rendered ones otherwise, which are not stored.

    Only those up to `place` are rendered, if that is enough, which it is not if the number may also be the name of another sample.
    """
    partition, rendering = (
        Partition(project=project, eval_name=eval_name, model=model, run_id="show"),
        rendering_of(project, eval_name, model),
    )
    stored = plan_prompts(partition, rendering, partition.snapshot().info.version).fresh
    if stored is None:
        rendered = [] if place is None else list(render_eval(project, eval_name, rendering, most=place + 1))
        if place is None or place >= len(rendered) or (is_name and any(prompt.sample_name for prompt in rendered)):
            rendered = list(render_eval(project, eval_name, rendering))
        keys = [PromptKey(prompt.sample_id, prompt.sample_name, prompt.variant) for prompt in rendered]
        return ShownPrompts(keys=keys, at=lambda places: [rendered[place] for place in places])
    path = stored.path
    table = read_table(path, PromptKey._fields)
    columns = (table[name].to_pylist() if name in table.column_names else repeat(None) for name in PromptKey._fields)

    def read(places: Sequence[int]) -> list[RenderedPrompt]:
        rows = read_rows_at(path, places)
        return [prompt_of(rows[place]) for place in places]

    return ShownPrompts(keys=list(starmap(PromptKey, zip(*columns, strict=False))), at=read)
