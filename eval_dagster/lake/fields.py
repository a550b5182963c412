"""Columns and types that several tables of the lake have."""

import pyarrow as pa

PARTITION = [pa.field("eval", pa.string()), pa.field("model", pa.string())]
TEXTS = pa.list_(pa.string())
