"""Compares the inputs of two results of an eval sample by sample: rows, the choice of samples, and prompts."""

import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import columns_of, iter_batches, iter_tables, read_table
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
_PLACE = ("subject", "split", "row_index")
"""Columns of `samples`: the place of a row in the dataset."""
_BETWEEN = "\0"
"""Separates the parts of a key."""


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
    def sources(self) -> pa.Table:
        """The columns `sample_id` and `source_id` of its samples without variants. Raises `LakeError` if the scores were deleted."""
        found = pa.concat_tables(iter_tables(self.scores, ["sample_id", "source_id", "variant"]))
        if "variant" in found.column_names:
            found = found.filter(pc.is_in(found["variant"], value_set=pa.array([None, _DEFAULT], pa.string())))
        return found.select(["sample_id", "source_id"])

    @cached_property
    def asked(self) -> pa.Table | None:
        """`sample_id`, `variant` and the columns `_ASKED` of each question in each variant. None if the prompts were deleted."""
        return self._table("prompts", self.model, self.versions["rendered_prompts"], ("sample_id", "variant", *_ASKED))

    @cached_property
    def places(self) -> pa.Table | None:
        """The place of each row in the dataset, with the column `sample_id`. None if the snapshot was deleted."""
        return self._table("samples", None, self.versions["dataset_snapshot"], ("sample_id", *_PLACE))

    def _table(self, table: str, model: str | None, version: str, columns: Sequence[str]) -> pa.Table | None:
        try:
            file = self.lake.of_version(table, version, self.eval_name, model)
            found = None if file is None else pa.concat_tables(iter_tables(file.path, columns))
        except LakeError:
            return None
        return found if found is not None and len(found) else None


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
    added, removed = _only(now.sources, before.sources), _only(before.sources, now.sources)
    replaced = _replaced(now, before, added, removed)
    causes: list[InputCause] = []
    if replaced is None or replaced:
        causes.append("data")
    if replaced is not None and len(added) + len(removed) > 2 * replaced:
        causes.append("samples")
    if _asked_differs(now.asked, before.asked):
        causes.append("prompt")
    return tuple(causes)


def _only(of: pa.Table, other: pa.Table) -> pa.Array:
    """The ids of the rows whose samples are in one table of `Inputs.sources` and not in the other."""
    is_other = pc.is_in(of["sample_id"], value_set=other["sample_id"].combine_chunks())
    return pc.unique(of["source_id"].filter(pc.invert(is_other)))


def _replaced(now: Inputs, before: Inputs, added: pa.Array, removed: pa.Array) -> int | None:
    """The number of rows with changed content. None if unknown."""
    if now.versions["dataset_snapshot"] == before.versions["dataset_snapshot"] or not (len(added) and len(removed)):
        return 0
    if now.places is None or before.places is None:
        return None
    return int(pc.sum(pc.is_in(_places(now.places, added), value_set=_places(before.places, removed))).as_py() or 0)


def _places(places: pa.Table, sources: pa.Array) -> pa.Array:
    chosen = places.filter(pc.is_in(places["sample_id"], value_set=sources))
    parts = [chosen[name].cast(pa.string()) for name in _PLACE]
    return pc.unique(pc.binary_join_element_wise(*parts, _BETWEEN))


def _asked_differs(now: pa.Table | None, before: pa.Table | None) -> bool:
    """Whether a common sample was asked differently, or in other variants. True if the prompts were deleted."""
    if now is None or before is None:
        return True
    variants, variants_before = _variants(now), _variants(before)
    if set(pc.unique(variants).to_pylist()) != set(pc.unique(variants_before).to_pylist()):
        return True
    keys = pc.binary_join_element_wise(now["sample_id"], variants.fill_null(""), _BETWEEN)
    keys_before = pc.binary_join_element_wise(before["sample_id"], variants_before.fill_null(""), _BETWEEN)
    places = pc.index_in(keys, value_set=keys_before.combine_chunks())
    common = pc.is_valid(places)
    now, before = now.filter(common), before.take(places.filter(common))
    return any(_differ(now[name], before[name]) for name in _ASKED)


def _variants(asked: pa.Table) -> pa.ChunkedArray:
    return asked["variant"] if "variant" in asked.column_names else pa.chunked_array([pa.nulls(len(asked), pa.string())])


def _differ(a: pa.ChunkedArray, b: pa.ChunkedArray) -> bool:
    """Whether two columns differ in a row: texts, or lists of texts or numbers."""
    return not a.combine_chunks().equals(b.cast(a.type).combine_chunks())
