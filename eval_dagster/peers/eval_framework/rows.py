"""The rows of a snapshot as a task in eval-framework's way sees them."""

import json
from collections import defaultdict
from collections.abc import Iterable
from random import Random
from typing import Any

from eval_dagster.records import Row, Sample
from eval_dagster.tasks.samples import TaskRow, is_whole
from eval_dagster.versions.hashes import stable_hash

STATE_SPLIT = "random_state"
"""The split of one row with the state of the generator after the rows were read."""


class PlainRow(TaskRow):
    """A row whose nulls are None, without the field `subject` that every row of the lake has."""

    def __init__(self, sample: Sample) -> None:
        super().__init__(sample)
        own = {key: value for key, value in sample.row.items() if key != "subject"}
        if stable_hash(own) == sample.content_id:
            self.pop("subject", None)

    def __getitem__(self, key: str) -> Any:
        """Return a field's value."""
        return dict.__getitem__(self, key)


def split_rows(samples: Iterable[Sample]) -> dict[str, list[Row]]:
    """The readable rows of one subject by split, in their order."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.row_index):
        if is_whole(sample.row):
            rows[sample.split].append(PlainRow(sample))
    return dict(rows)


def state_row(generator: Random) -> Row:
    """The state of a generator as a row."""
    return {"state": json.dumps(generator.getstate())}


def restored(row: Row) -> Random:
    """The generator of a row of `state_row`."""
    version, numbers, gauss = json.loads(row["state"])
    generator = Random()  # noqa: S311
    generator.setstate((version, tuple(numbers), gauss))
    return generator
