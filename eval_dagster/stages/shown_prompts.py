"""The prompts of an eval of which a person looks at a few."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.lake.format.parquet_files import read_columns, read_rows_at
from eval_dagster.lake.tables.rows import prompt_of
from eval_dagster.project import Project
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.prompts import plan_prompts, render_eval, rendering_of
from eval_dagster.tasks.variants import variant_id

_KEY = ("sample_id", "sample_name", "variant")
"""Columns that name a prompt."""


@dataclass(frozen=True, kw_only=True)
class ShownPrompts:
    """The prompts of an eval for a model, of which a few are shown."""

    ids: Sequence[str]
    names: Sequence[str | None]
    """The own names of the samples."""
    variants: Sequence[str | None]
    at: Callable[[Sequence[int]], list[RenderedPrompt]]
    """Gives the prompts at some places."""

    def called(self, name: str) -> list[int]:
        """The places of the prompts with an id or an own name."""
        return [place for place, names in enumerate(zip(self.ids, self.names, strict=True)) if name in names]

    def variants_of(self, place: int) -> list[int]:
        """The place of a prompt, and the places of its variants if it is the task's own."""
        ids = {variant: variant_id(self.ids[place], variant) for variant in set(self.variants) if variant}
        return [
            each
            for each, (sample_id, variant) in enumerate(zip(self.ids, self.variants, strict=True))
            if each == place or (variant and ids[variant] == sample_id)
        ]


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
        columns = {name: [getattr(prompt, name) for prompt in rendered] for name in _KEY}
        return _shown(columns, lambda places: [rendered[place] for place in places])
    path = stored.path

    def read(places: Sequence[int]) -> list[RenderedPrompt]:
        rows = read_rows_at(path, places)
        return [prompt_of(rows[place]) for place in places]

    return _shown(read_columns(path, _KEY), read)


def _shown(columns: Mapping[str, list[Any]], at: Callable[[Sequence[int]], list[RenderedPrompt]]) -> ShownPrompts:
    ids, names, variants = (columns[name] for name in _KEY)
    return ShownPrompts(ids=ids, names=names, variants=variants, at=at)
