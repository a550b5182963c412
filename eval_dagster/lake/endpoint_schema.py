"""Columns of the table `endpoint_states`."""

import pyarrow as pa

from eval_dagster.lake.fields import TEXTS

_ANSWERS = pa.list_(
    pa.struct(
        [
            pa.field("text", pa.string()),
            pa.field("is_cut", pa.bool_()),
            pa.field("tokens", TEXTS),
            pa.field("logprobs", pa.list_(pa.float64())),
        ]
    )
)

ENDPOINT_STATES = pa.schema(
    [
        pa.field("model", pa.string()),
        pa.field("base_url", pa.string()),
        pa.field("name", pa.string()),
        pa.field("endpoint", pa.string()),
        pa.field("run_id", pa.string()),
        pa.field("looked_at", pa.timestamp("us", tz="UTC")),
        pa.field("outcome", pa.string()),
        pa.field("message", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("epoch_began_at", pa.timestamp("us", tz="UTC")),
        pa.field("epoch_rose", pa.bool_()),
        pa.field("facts", pa.string()),
        pa.field("fingerprint", pa.string()),
        pa.field("n_calls", pa.int64()),
        pa.field("n_compared", pa.int64()),
        pa.field("n_different", pa.int64()),
        pa.field("n_failed", pa.int64()),
        pa.field("difference", pa.float64()),
        pa.field("noise", pa.float64()),
        pa.field("p_value", pa.float64()),
        pa.field("p_ties", pa.float64()),
        pa.field("cost", pa.float64()),
        pa.field(
            "answers",
            pa.list_(
                pa.struct(
                    [
                        pa.field("asked", pa.string()),
                        pa.field("is_canary", pa.bool_()),
                        pa.field("reference", _ANSWERS),
                        pa.field("answers", _ANSWERS),
                        pa.field("difference", pa.float64()),
                        pa.field("noise", pa.float64()),
                        pa.field("error", pa.string()),
                    ]
                )
            ),
        ),
    ]
)
