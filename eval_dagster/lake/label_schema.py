"""Columns of the labels that people give to answers."""

import pyarrow as pa

HUMAN_LABELS = pa.schema(
    [
        pa.field("eval", pa.string()),
        pa.field("model", pa.string()),
        pa.field("materialized_at", pa.timestamp("us", tz="UTC")),
        pa.field("sample_id", pa.string()),
        pa.field("answer", pa.string()),
        pa.field("label", pa.string()),
        pa.field("comment", pa.string()),
        pa.field("labelled_by", pa.string()),
        pa.field("labelled_at", pa.timestamp("us", tz="UTC")),
        pa.field("sample_name", pa.string()),
    ]
)
