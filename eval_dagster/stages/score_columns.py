"""The scores of an eval as columns: a million scores take 60 MB so, and more than a gigabyte as dictionaries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from eval_dagster.lake.format.parquet_files import iter_batches

Codes: TypeAlias = NDArray[np.int32]
Flags: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.intp]

NONE = -1
"""A code, position, number or time that there is not."""
_TEXTS = ("sample_id", "source_id", "cluster", "subject", "metric", "sample_name", "variant", "item", "error", "explanation")
_SCHEMA = pa.schema([*((name, pa.string()) for name in _TEXTS), ("value", pa.float64())])


@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """A column of texts that repeat: each distinct text once, and numbers in the place of the texts."""

    texts: pa.StringArray
    """The distinct texts, in the order in which they come first."""
    codes: Codes
    """Position in `texts` for each row; -1 for null."""

    @classmethod
    def of(cls, chunks: Sequence[pa.Array]) -> "Labels":
        """The labels of a column in parts."""
        encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode()
        if not encoded.num_chunks:
            return cls(texts=pa.array([], pa.string()), codes=np.empty(0, dtype=np.int32))
        # All parts have the dictionary of the whole column.
        codes = np.concatenate([numbers(chunk.indices, NONE).astype(np.int32, copy=False) for chunk in encoded.chunks])
        return cls(texts=encoded.chunk(0).dictionary, codes=codes)

    def shared(self, other: "Labels") -> "Labels":
        """The same labels. What is equal to others is held once: usually a row has one sample, and is a cluster of its own."""
        if not self.texts.equals(other.texts):
            return self
        return other if np.array_equal(self.codes, other.codes) else replace(self, texts=other.texts)

    def where(self, mask: Flags) -> "Labels":
        """The labels of some rows. The texts stay."""
        return replace(self, codes=self.codes[mask])

    def used(self) -> list[int]:
        """The codes of the rows without null, in the order in which they come first."""
        codes, first = np.unique(self.codes, return_index=True)
        return [int(code) for code in codes[np.argsort(first)] if code >= 0]

    def text(self, code: int) -> str:
        """The text of a code."""
        return str(self.texts[code].as_py())

    def is_text(self, text: str) -> Flags:
        """Whether each row has this text."""
        code = pc.index(self.texts, text).as_py()
        return self.codes == code if code >= 0 else np.zeros(len(self.codes), dtype=np.bool_)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Rows of `scores` of an eval and a model, as columns."""

    samples: Labels
    sources: Labels
    """The ids of the rows of the dataset."""
    clusters: Labels
    subjects: Labels
    metrics: Labels
    variants: Labels
    values: Floats
    """NaN without a value."""
    has_error: Flags
    is_tied: Flags
    """Whether several choices are equally good."""
    items: pa.ChunkedArray
    """The samples' parts of metrics of all samples together, as JSON."""
    sample_names: pa.ChunkedArray

    def __len__(self) -> int:
        return len(self.values)

    def where(self, mask: Flags) -> "Scores":
        """Some of the rows."""

        def kept(column: Any) -> Any:
            if isinstance(column, Labels):
                return column.where(mask)
            return column[mask] if isinstance(column, np.ndarray) else column.filter(pa.array(mask))

        return Scores(**{field.name: kept(getattr(self, field.name)) for field in fields(self)})

    @cached_property
    def bases(self) -> Mapping[str, Places]:
        """The rows of each metric, by its name without parts. The names have the order in which they come first."""
        names = [base_name(each) for each in self.metrics.texts.to_pylist()]
        distinct = list(dict.fromkeys(names))
        base_of = np.array([distinct.index(name) for name in names], dtype=np.int32)
        codes = base_of[self.metrics.codes] if len(self) else np.empty(0, dtype=np.int32)
        rows = {name: np.flatnonzero(codes == code) for code, name in enumerate(distinct)}
        return dict(sorted(((name, of_name) for name, of_name in rows.items() if len(of_name)), key=lambda each: int(each[1][0])))


def base_name(metric: str) -> str:
    """The name of a metric, without its part."""
    return metric.partition("/")[0]


def read_scores(path: Path) -> Scores:
    """Read a file of scores. Raises LakeError if it is damaged."""
    return _scores(lambda columns: iter_batches(path, columns))


def scores_in(rows: Sequence[Mapping[str, object]]) -> Scores:
    """The columns of rows of `scores`. A missing column is null."""
    table = pa.Table.from_pylist([{name: row.get(name) for name in _SCHEMA.names} for row in rows], schema=_SCHEMA)
    return _scores(lambda columns: iter(table.select(columns).to_batches()))


def _scores(read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]) -> Scores:
    """Columns of batches. They are read one after the other, since a column of texts takes more memory than its codes."""

    def whole(name: str) -> list[pa.Array]:
        return [column_in(batch, name, pa.string()) for batch in read([name])]

    values, failed, tied = [np.empty(0)], [np.empty(0, dtype=np.bool_)], [np.empty(0, dtype=np.bool_)]
    for batch in read(["metric", "value", "error", "explanation"]):  # with one that each file has
        values.append(numbers(column_in(batch, "value", pa.float64()), np.nan))
        failed.append(flags(column_in(batch, "error", pa.string()).is_valid()))
        tied.append(flags(pc.match_substring(column_in(batch, "explanation", pa.string()), '"tie"')))
    samples = Labels.of(whole("sample_id"))
    scores = Scores(
        samples=samples,
        sources=Labels.of(whole("source_id")).shared(samples),
        clusters=Labels.of(whole("cluster")).shared(samples),
        subjects=Labels.of(whole("subject")),
        metrics=Labels.of(whole("metric")),
        variants=Labels.of(whole("variant")),
        values=np.concatenate(values),
        has_error=np.concatenate(failed),
        is_tied=np.concatenate(tied),
        items=pa.chunked_array(whole("item"), pa.string()),
        sample_names=pa.chunked_array(whole("sample_name"), pa.string()),
    )
    pa.default_memory_pool().release_unused()  # the texts were there twice
    return scores


# ---- Arrow's columns as NumPy's


def column_in(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """A column of a batch; nulls if a file of an earlier release lacks it."""
    return batch.column(name) if name in batch.schema.names else pa.nulls(len(batch), kind)


def numbers(column: pa.Array, missing: float) -> NDArray[Any]:
    """A column of numbers or times; `missing` for null."""
    if not column.null_count:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray(pc.fill_null(column, pa.scalar(missing, column.type)).to_numpy(zero_copy_only=False))


def flags(column: pa.Array | pa.ChunkedArray) -> Flags:
    """A column of booleans; false for null."""
    filled = pc.fill_null(column, False)
    return np.asarray(filled.to_numpy() if isinstance(filled, pa.ChunkedArray) else filled.to_numpy(zero_copy_only=False), dtype=np.bool_)


def first_order(codes: NDArray[Any]) -> tuple[Places, Places]:
    """Number the codes of rows in the order in which they come first.

    Returns:
        The first row of each number, and the number of each row.
    """
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse.reshape(-1)]
