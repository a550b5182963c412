"""Schemas are made of the fields of records."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypedDict

import pyarrow as pa
import pytest

from eval_dagster.lake.tables.columns import Int32
from eval_dagster.lake.tables.schemas import TABLES, schema_of


class _Colour(StrEnum):
    RED = "red"


class _Text(TypedDict):
    tokens: list[Int32]


@dataclass
class _Night:
    suite: str
    at: datetime | None


@dataclass
class _Row:
    colour: _Colour
    suite: Literal["a", "b"]
    n: int | None
    is_red: bool
    values: tuple[float, ...] | None
    texts: list[_Text]


def test_a_schema_has_the_fields_of_its_records_each_once_and_in_their_order() -> None:
    assert schema_of(_Night, _Row) == pa.schema(
        {
            "suite": pa.string(),
            "at": pa.timestamp("us", tz="UTC"),
            "colour": pa.string(),
            "n": pa.int64(),
            "is_red": pa.bool_(),
            "values": pa.list_(pa.float64()),
            "texts": pa.list_(pa.struct({"tokens": pa.list_(pa.int32())})),
        }
    )


def test_a_type_that_no_file_holds_is_named() -> None:
    with pytest.raises(TypeError, match="a column of type <class 'complex'> has no Arrow type"):
        schema_of(TypedDict("Wave", {"amplitude": complex}))


def test_columns_that_several_tables_share_have_one_type() -> None:
    for name in ("eval", "model", "metric", "subject", "sample_id", "sample_name", "suite", "run_id", "materialized_at", "judged_at"):
        types = {schema.field(name).type for schema in TABLES.values() if name in schema.names}
        assert len(types) == 1, name
