"""Compares the inputs of two results of an eval sample by sample: rows, the choice of samples, and prompts."""

import os
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import columns_of, iter_batches, read_rows, read_table
from eval_dagster.versions.hashes import ListHash, canonical_json

InputCause = Literal["data", "samples", "prompt"]
"""`data`: the content of a row differs. `samples`: other rows were evaluated. `prompt`: prompt,
gold answer or variants of a common sample differ."""

_BATCH = 10_000
"""Ids that are texts of Python at once."""
_DEFAULT = "default"
"""The variant that is the task's own prompt."""
_ASKED = ("request_id", "gold", "gold_index", "context")
"""Columns of `prompts`: the request, the gold answer, and the context of the metrics."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The samples of a result, with their rows and prompts."""

    lake: Lake
    eval_name: str
    model: str
    versions: Mapping[str, str]
    """The versions of the inputs, as in `FileInfo.inputs`."""
    scores: Path

    @cached_property
    def sources(self) -> dict[str, str]:
        """The id of each sample's dataset row, by sample id, without variants. Raises `LakeError` if the scores were deleted."""
        rows = read_rows(self.scores, ["sample_id", "source_id", "variant"])
        return {row["sample_id"]: row["source_id"] for row in rows if row.get("variant") in (None, _DEFAULT)}

    @cached_property
    def asked(self) -> dict[tuple[str, str | None], list[Any]]:
        """The columns `_ASKED` of each question in each variant. Empty if the prompts were deleted."""
        rows = self._rows("prompts", self.model, self.versions["rendered_prompts"], ("sample_id", "variant", *_ASKED))
        return {(row["sample_id"], row.get("variant")): [row[name] for name in _ASKED] for row in rows}

    @cached_property
    def places(self) -> dict[str, tuple[Any, ...]]:
        """The place of each row in the dataset, by source id. Empty if the snapshot was deleted."""
        rows = self._rows("samples", None, self.versions["dataset_snapshot"], ("sample_id", "subject", "split", "row_index"))
        return {row["sample_id"]: (row["subject"], row["split"], row["row_index"]) for row in rows}

    def _rows(self, table: str, model: str | None, version: str, columns: Iterable[str]) -> list[dict[str, Any]]:
        try:
            file = self.lake.of_version(table, version, self.eval_name, model)
            return [] if file is None else read_rows(file.path, list(columns))
        except LakeError:
            return []


def asked_versions(prompts: Path) -> tuple[str, str]:
    """Two hashes of a file of prompts: one of its samples, and one of their questions before a model's template is applied.

    Results with equal hashes can be ranked. The white space before a choice does not count, because it depends on the template. Settings of
    generation do not count, because some belong to the model.
    """
    names = ("sample_id", "messages", "choices", "gold", "gold_index", "context")
    ids = read_table(prompts, ["sample_id"])["sample_id"]
    samples, questions, codec = ListHash(), ListHash(), pa.Codec("lz4_raw")
    is_default, sizes, ends = bytearray(), array("q"), array("q", [0])
    # The hashes have the order of the ids. A million questions would fill the memory, so they are on the disk meanwhile.
    with TemporaryFile(dir=prompts.parent, prefix=".questions-", suffix=".tmp") as file:
        for batch in iter_batches(prompts, [*names, "variant"]):
            columns = columns_of(batch)
            is_default += bytes(variant in (None, _DEFAULT) for variant in columns.get("variant", [None] * len(batch)))
            for name in ("choices", "gold"):
                columns[name] = [texts and [text.lstrip() for text in texts] for texts in columns[name]]
            for row in zip(*(columns[name] for name in names), strict=True):
                content = canonical_json(row).encode("utf-8", "surrogatepass")
                sizes.append(len(content))
                ends.append(ends[-1] + file.write(codec.compress(content, asbytes=True)))
        file.flush()
        order = pc.sort_indices(ids)
        for place in order.to_numpy():
            content = os.pread(file.fileno(), ends[place + 1] - ends[place], ends[place])
            questions.add_json(codec.decompress(content, sizes[place], asbytes=True))
    own = ids.filter(pa.array(np.frombuffer(is_default, np.bool_)))
    for part in own.take(pc.sort_indices(own)).chunks:
        for start in range(0, len(part), _BATCH):
            samples.add_json(canonical_json(part[start : start + _BATCH].to_pylist())[1:-1].encode("utf-8", "surrogatepass"))
    return samples.value(), questions.value()


def changed_inputs(now: Inputs, before: Inputs) -> tuple[InputCause, ...]:
    """The differences between the inputs of two results. Empty if the versions of their prompts are equal.

    The content of its row names a sample. If the two results have different samples at one place of the dataset, the row was changed. All
    other samples in only one result are due to the choice of samples, for example by a limit.

    Raises:
        LakeError: The scores of one result were deleted.
    """
    if now.versions["rendered_prompts"] == before.versions["rendered_prompts"]:
        return ()
    added = {now.sources[sample] for sample in now.sources.keys() - before.sources.keys()}
    removed = {before.sources[sample] for sample in before.sources.keys() - now.sources.keys()}
    replaced = _replaced(now, before, added, removed)
    causes: list[InputCause] = []
    if replaced is None or replaced:
        causes.append("data")
    if replaced is not None and len(added) + len(removed) > 2 * replaced:
        causes.append("samples")
    if _asked_differs(now.asked, before.asked):
        causes.append("prompt")
    return tuple(causes)


def _replaced(now: Inputs, before: Inputs, added: set[str], removed: set[str]) -> int | None:
    """The number of rows with changed content. None if unknown."""
    if now.versions["dataset_snapshot"] == before.versions["dataset_snapshot"] or not (added and removed):
        return 0
    if not now.places or not before.places:
        return None
    return len(_places(now, added) & _places(before, removed))


def _places(inputs: Inputs, sources: set[str]) -> set[tuple[Any, ...]]:
    return {inputs.places[source] for source in sources if source in inputs.places}


def _asked_differs(now: Mapping[tuple[str, str | None], Any], before: Mapping[tuple[str, str | None], Any]) -> bool:
    """Whether a common sample was asked differently, or in other variants. True if the prompts were deleted."""
    if not now or not before or {variant for _, variant in now} != {variant for _, variant in before}:
        return True
    return any(now[sample] != before[sample] for sample in now.keys() & before.keys())
