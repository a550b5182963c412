"""The scores of one metric at two points, sample by sample, as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Booleans: TypeAlias = NDArray[np.bool_]
Integers: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True)
class PairedScores:
    """Two tables with the columns of `Materialization.scores_of`, each with one row a sample.

    The columns that it returns have one value for each of `samples`.
    """

    a: pa.Table
    b: pa.Table
    samples: pa.Array
    """The ids of the samples of either table: those of `a` in its order, then the others; or sorted."""
    places: pa.Array | None = None
    """The place of each sample in both tables, if they have the same samples in the same order."""

    @classmethod
    def of(cls, a: pa.Table, b: pa.Table, *, is_sorted: bool = False) -> "PairedScores":
        """The pairs of two tables."""
        is_alike = a["sample_id"].equals(b["sample_id"])
        found = a["sample_id"].chunks if is_alike else [*a["sample_id"].chunks, *b["sample_id"].chunks]
        samples = pc.unique(pa.chunked_array(found, pa.string()))
        order = pc.sort_indices(samples) if is_sorted else pa.array(np.arange(len(samples)))
        # Two results of one dataset have the same samples in the same order, which need no search.
        return cls(a, b, samples.take(order) if is_sorted else samples, order if is_alike and len(samples) == len(a) else None)

    def __len__(self) -> int:
        return len(self.samples)

    def column(self, name: str, *, of_a: bool) -> pa.ChunkedArray:
        """A column of one table; null for a sample that is not in it."""
        return (self.a if of_a else self.b)[name].take(self._places[of_a])

    def has(self, *, of_a: bool) -> Booleans:
        """Whether a sample is in a table."""
        return np.asarray(pc.is_valid(self._places[of_a]))

    def values(self, *, of_a: bool) -> Floats:
        """The values of one table; NaN if there is none."""
        return np.asarray(self.column("value", of_a=of_a).to_numpy(), dtype=float)

    def marks(self, name: str, *, of_a: bool) -> Booleans:
        """A column of one table that is true or false; false for a sample that is not in it."""
        return np.asarray(pc.fill_null(self.column(name, of_a=of_a), False))

    def labels(self, name: str) -> Integers:
        """A column of texts that is the same in both tables, as numbers of equal texts."""
        return numbers_of_texts(self.either(name))

    def among(self, samples: pa.Array) -> Booleans:
        """Whether a sample is one of some samples."""
        return np.asarray(pc.is_in(self.samples, value_set=samples))

    def changed(self) -> Booleans:
        """Whether a sample has another value or another item in each table, or is in one of them only."""
        found: Booleans = self.has(of_a=True) != self.has(of_a=False)
        for name in ("value", "item"):
            of_a, of_b = self.column(name, of_a=True), self.column(name, of_a=False)
            differ = pc.fill_null(pc.not_equal(of_a, of_b), False)
            found |= np.asarray(pc.or_(differ, pc.not_equal(pc.is_null(of_a), pc.is_null(of_b))))
        return found

    def either(self, name: str) -> pa.ChunkedArray:
        """A column of `a`, or of `b` for a sample that is not in `a`."""
        return pc.if_else(pa.array(self.has(of_a=True)), self.column(name, of_a=True), self.column(name, of_a=False))

    def at(self, places: Sequence[int] | Integers) -> "PairedScores":
        """Some of the samples."""
        chosen = pa.array(places, pa.int64())
        return PairedScores(self.a, self.b, self.samples.take(chosen), None if self.places is None else self.places.take(chosen))

    @cached_property
    def _places(self) -> Mapping[bool, pa.Array]:
        """The place of each sample in table `a` (true) and in table `b` (false)."""
        if self.places is not None:
            return {True: self.places, False: self.places}
        sides = {True: self.a, False: self.b}
        return {of_a: pc.index_in(self.samples, value_set=table["sample_id"].combine_chunks()) for of_a, table in sides.items()}


def numbers_of_texts(column: pa.Array | pa.ChunkedArray) -> Integers:
    """Texts as numbers of equal texts."""
    found = pc.dictionary_encode(column, null_encoding="encode")
    encoded = found.unify_dictionaries().combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    return np.asarray(encoded.indices, dtype=np.intp)


def answers_cut_off(responses: pa.Table) -> pa.Array:
    """The samples with a text that ended at the limit of tokens."""
    reasons = responses["finish_reason"]
    rows = pc.list_parent_indices(reasons).filter(pc.is_in(pc.list_flatten(reasons), value_set=pa.array(["length", "reasoning"])))
    return _ids(responses, rows)


def answers_blank(responses: pa.Table) -> pa.Array:
    """The samples with a text that is empty or white space, after the task's own processing if it has any."""
    own = responses["text_post_processed"]
    is_own = pc.fill_null(pc.greater(pc.list_value_length(own), 0), False)
    found: list[pa.Array] = []
    for name, mask in (("text_post_processed", is_own), ("text", pc.invert(is_own))):
        chosen = responses.filter(mask)
        texts = pc.list_flatten(chosen[name])
        rows = pc.list_parent_indices(chosen[name]).filter(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0))
        found.append(_ids(chosen, rows))
    return pa.concat_arrays(found)


def _ids(table: pa.Table, rows: pa.ChunkedArray) -> pa.Array:
    return table["sample_id"].take(pc.unique(rows)).combine_chunks()
