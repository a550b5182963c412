"""Turns rows of a dataset into samples, which are named by their content and can be stored as JSON in UTF-8.

It also checks the values that a task returns about a row: prompts, settings, gold answers and contexts.
"""

import base64
import io
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Self

from pydantic import BaseModel

from eval_dagster.errors import DataError, RowError, SampleError
from eval_dagster.records import GenerationSettings, Message, MetricContext, Row, Sample, TaskSample
from eval_dagster.tasks.base import subject_name
from eval_dagster.texts.visible_text import is_storable, storable
from eval_dagster.versions.hashes import stable_hash
from eval_dagster.versions.seen_ids import SeenIds

_PNG = "png;base64"
_BYTES = "bytes;base64"
_HALVES = "text;json"
"""Keys in a row's JSON for values that neither JSON nor UTF-8 can hold: images, bytes, and texts with lone surrogates."""
_UNREADABLE = "unreadable;reason"
"""The only key of a row that could not be read or stored; its value is the reason."""
_TAKEN = re.compile(f"({'|'.join(map(re.escape, (_PNG, _BYTES, _HALVES, _UNREADABLE)))})(;key)*")
_ESCAPE = ";key"
"""Ends a key of a row that would be read as one of those above, or as an escaped one."""
_DEEPEST = 100
"""Most levels of nested lists and mappings."""
_MOST_BITS = 13_000
"""Most bits of a whole number, because Python writes at most 4,300 digits."""


class WrittenRow(Row):
    """A row of a file of texts. Its id comes from the texts, whatever types their columns have."""

    written: Row
    """The fields as each would be read alone."""


def build_samples(rows_by_split: Mapping[str, Iterable[Row]], subject: Any, id_field: str | None = None) -> list[Sample]:
    """Name the rows of one subject, split after split. Arguments and errors are as in `samples_of`."""
    return list(samples_of(((split, row) for split, rows in rows_by_split.items() for row in rows), subject, id_field))


def samples_of(rows: Iterable[tuple[str, Row]], subject: Any, id_field: str | None = None) -> Iterator[Sample]:
    """Name the rows of one subject, which come one after the other, each with its split.

    Repeated rows are numbered in the given order. The evaluated split comes first, so that its ids do not depend on a few-shot split. Dates
    and times become ISO 8601 text, decimals text, infinite numbers and NaN null. If a row could not be read, is nested deeper than 100
    levels or holds a number of thousands of digits, a row with the reason replaces it. The reason is the error of its sample.

    Args:
        rows: The rows with their splits, as `DatasetReader.rows` yields them.
        subject: Their subject; its name is added to every row that has no field `subject`.
        id_field: The field of a row that is its own name. Null, an empty text and a missing field do not count.

    Raises:
        DataError: A row holds a value that cannot be stored as JSON, such as an object of the task's own class.
    """
    name = subject_name(subject)
    known, counts = SeenIds(), Counter[str]()
    for split, row in rows:
        index = counts[split]
        counts[split] += 1
        place = f"row {index} of split {split!r} (subject {name!r})"
        try:
            content = _stored(row, place)
            content_id = stable_hash(_stored(row.written, place) if isinstance(row, WrittenRow) else content)
        except RowError as error:
            content = dict(unreadable(str(error)))
            content_id = stable_hash(content)
        sample_id = stable_hash([name, content_id])
        times = known.times(sample_id)
        content.setdefault("subject", name)
        own = None if id_field is None else content.get(id_field)
        yield Sample(
            sample_id=f"{sample_id}-{times}" if times > 1 else sample_id,
            content_id=content_id,
            subject=name,
            split=split,
            row_index=index,
            row=content,
            sample_name=None if own in (None, "") else own if isinstance(own, str) else json.dumps(own, ensure_ascii=False),
        )


class UnreadableRow(Row):
    """The replacement of a row that could not be read. A row that was read may have the same key."""


def unreadable(reason: str) -> UnreadableRow:
    """The replacement of a row that could not be read, with the reason."""
    return UnreadableRow({_UNREADABLE: reason})


def unreadable_reason(row: Row) -> str | None:
    """The reason why a row could not be read; None if it was."""
    return str(row[_UNREADABLE]) if _UNREADABLE in row else None


def is_whole(value: Any) -> bool:
    """Whether a row, or a value in a row, could be read and holds no lone surrogate."""
    if isinstance(value, dict):
        return not {_HALVES, _UNREADABLE} & value.keys() and all(map(is_whole, value.values()))
    return all(map(is_whole, value)) if isinstance(value, list) else True


def _stored(row: Row, place: str) -> Row:
    return {
        str(key) if isinstance(row, UnreadableRow) else _stored_key(key): _plain(value, f"field {key!r} of {place}")
        for key, value in row.items()
    }


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise RowError(f"{where} holds lists or mappings more than {_DEEPEST} levels deep; make it flatter, or leave the row out")
    if isinstance(value, str):
        return value if is_storable(value) else {_HALVES: json.dumps(value)}
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise RowError(f"{where} holds a whole number of {value.bit_length()} bits; expected at most {_MOST_BITS}, or text")
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(item, where, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_stored_key(key): _plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    images = sys.modules.get("PIL.Image")  # not imported here, since few datasets have images
    if images is not None and isinstance(value, images.Image):
        return {_PNG: base64.b64encode(png_of(value)).decode()}
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    raise DataError(
        f"{where} holds a {type(value).__name__}; expected text, numbers, dates, lists and mappings (the forms of JSON), images or bytes"
    )


def _stored_key(key: object) -> str:
    """A key of a row in its JSON. The keys of `_opened` are escaped, so that a row can have them."""
    name = storable(str(key))
    return name + _ESCAPE if ";" in name and _TAKEN.fullmatch(name) else name


def _own_key(key: str) -> str:
    """The row's own key for a key of its JSON."""
    return key.removesuffix(_ESCAPE) if ";" in key and _TAKEN.fullmatch(key) else key


def png_of(image: Any) -> bytes:
    """An image of PIL as a PNG file, without its metadata."""
    file = io.BytesIO()
    image = image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16") else image.convert("RGB")
    image.save(file, "PNG", pnginfo=None)
    return file.getvalue()


class NullFieldError(KeyError):
    """A hook read a null. It is a `KeyError`, so that a hook that handles a missing field handles a null, too."""


class MissingFieldError(KeyError):
    """A hook read a field that its row lacks. The message names the row and its fields."""


class TaskRow(Row):
    """A row as a task's hooks see it. Images are images again. Reading a null is an error, because a missing field is a null in Parquet.

    `get` and iteration return the null.
    """

    def __init__(self, sample: Sample) -> None:
        super().__init__({_own_key(key): _opened(value) for key, value in sample.row.items()})
        self.sample_id = sample.sample_id
        self._sample = sample

    @property
    def place(self) -> str:
        """The place of the row, in words."""
        return place_of(self._sample)

    def __copy__(self) -> Self:
        """A row with the same values, in a tenth of the time that `copy` takes by itself."""
        copied = type(self).__new__(type(self))
        dict.update(copied, self)
        vars(copied).update(vars(self))
        return copied

    def __getitem__(self, key: str) -> Any:
        """Return a field's value.

        Raises:
            NullFieldError: It is null.
            MissingFieldError: The row lacks it.
        """
        value = super().__getitem__(key)
        if value is None:
            raise NullFieldError(f"{self.place} has no value for the field {key!r} (null)")
        return value

    def __missing__(self, key: str) -> Any:
        raise MissingFieldError(f"{self.place} lacks the field {key!r}; it has: {', '.join(self)}")


def _opened(value: Any) -> Any:
    if isinstance(value, list):
        return [_opened(item) for item in value]
    if isinstance(value, dict):
        if _PNG in value:
            from PIL import Image  # as above

            return Image.open(io.BytesIO(base64.b64decode(value[_PNG])))
        if _BYTES in value:
            return base64.b64decode(value[_BYTES])
        if _HALVES in value:
            return json.loads(value[_HALVES])
        return {_own_key(key): _opened(item) for key, item in value.items()}
    return value


def place_of(row: Sample | Row) -> str:
    """The place of a row, in words."""
    if isinstance(row, Sample):
        return f"row {row.row_index} of split {row.split!r} (subject {row.subject!r})"
    return getattr(row, "place", "an example of the task's own")


def row_name(row: Row) -> str:
    """The sample id of a row; for a row outside of datasets, the hash of its content."""
    return row.sample_id if isinstance(row, TaskRow) else stable_hash({key: str(value) for key, value in row.items()})


def check_prompt(made: Any, sample: Sample) -> None:
    """Check the texts of a prompt before they are used.

    Raises:
        DataError: One is not a text, as if a hook returned None.
    """
    where = f"{place_of(sample)}: the task"
    if not isinstance(made, TaskSample):
        raise DataError(f"{where} made {shown(made)} of the row; expected a TaskSample")
    messages: object = made.messages
    if not isinstance(messages, list | tuple) or (not messages and made.prompt is None):
        raise DataError(f"{where} made a prompt of the messages {shown(messages)}; expected a list of at least one Message")
    for message in messages:
        if not isinstance(message, Message) or not isinstance(message.content, str):
            found = message.content if isinstance(message, Message) else message
            raise DataError(f"{where} made a prompt with the message {shown(found)}; expected a Message with a text")
    for name, text in (("prompt", made.prompt), ("unconditioned query", made.unconditioned_query)):
        if text is not None and not isinstance(text, str):
            raise DataError(f"{where} gave the {name} {shown(text)}; expected a text")


def check_settings(settings: GenerationSettings, sample: Sample) -> None:
    """Check the settings of a text to generate, which tasks, rows and models give together.

    Raises:
        DataError: One is invalid, such as a negative number of tokens.
    """
    counts = {"max_tokens": settings.max_tokens, "num_samples": settings.num_samples, "top_k": settings.top_k}
    expected = {name: "a whole number of at least 1" for name, value in counts.items() if value is not None and not is_count(value)}
    if not all(isinstance(stop, str) and stop for stop in settings.stop_sequences):
        expected["stop_sequences"] = "texts that are not empty"
    if not _is_number(settings.temperature) or not 0 <= settings.temperature < math.inf:
        expected["temperature"] = "a number of at least 0"
    if settings.top_p is not None and (not _is_number(settings.top_p) or not 0 < settings.top_p <= 1):
        expected["top_p"] = "a number above 0 and of at most 1"
    for name, words in expected.items():
        raise DataError(f"{place_of(sample)}: the task gives {name} as {shown(getattr(settings, name))}; expected {words}")


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown(value: object) -> str:
    """A value in a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def gold_indices(truths: Sequence[str], choices: Sequence[str], sample: Sample) -> tuple[int, ...]:
    """Positions of the truths. Outer white space is ignored, since a task may write it only in the truth or only in the choice."""
    wanted = {truth.strip() for truth in truths}
    found = tuple(index for index, choice in enumerate(choices) if choice.strip() in wanted)
    missing = wanted - {choices[index].strip() for index in found}
    if missing or not found:
        raise DataError(f"{place_of(sample)}: the gold answer {sorted(missing) or list(truths)} is not among the choices {list(choices)}")
    return found


def given_gold(given: Sequence[int], choices: Sequence[str], sample: Sample) -> tuple[int, ...]:
    """Check the positions that a task gave."""
    if not given or not all(0 <= index < len(choices) for index in given):
        raise DataError(f"{place_of(sample)}: the gold indices are {list(given)}; expected positions of the {len(choices)} choices, from 0")
    return tuple(given)


def contexts_of(given: Any, sample: Sample) -> tuple[MetricContext, ...]:
    """The contexts that a task gives the metrics, as a tuple."""
    parts = [] if given is None else [given] if isinstance(given, Mapping | MetricContext) else given
    try:
        return tuple(MetricContext(**(part.model_dump() if isinstance(part, BaseModel) else part)) for part in parts)
    except TypeError as error:
        raise DataError(f"{place_of(sample)}: the task returned {given!r} as context; expected a mapping or a MetricContext") from error


def truths_of(given: Any, sample: Sample) -> tuple[str, ...]:
    """The correct answers that a task gave, as a tuple of texts."""
    if given is not None and not isinstance(given, str | list | tuple):
        raise DataError(
            f"{place_of(sample)}: the task returned {given!r} as ground truth; expected a text (such as {str(given)!r}), a list of texts "
            "or None"
        )
    return texts_of([] if given is None else [given] if isinstance(given, str) else given, "ground truth", sample)


def texts_of(values: Any, what: str, sample: Sample) -> tuple[str, ...]:
    """Check that a hook returned a list of texts. A list of choices needs at least one, and each needs more than white space.

    Raises:
        DataError: It returned something else.
        SampleError: The list of choices is empty, or one is null, empty or white space: rows of data have such gaps.
    """
    if not isinstance(values, list | tuple):
        raise DataError(f"{place_of(sample)}: the task returned {values!r} as {what}; expected a list of texts")
    if what == "choices" and not values:
        raise SampleError(f"{place_of(sample)}: there are no choices; expected one at least. Correct the row, or leave it out")
    for index, value in enumerate(values):
        if what == "choices" and (value is None or (isinstance(value, str) and not value.strip())):
            seen = "null" if value is None else f"{value!r}, white space alone" if value else "empty"
            raise SampleError(
                f"{place_of(sample)}: choice {index + 1} of {len(values)} is {seen}, whose score says nothing; expected a text. "
                "Correct the row, or leave the choice out"
            )
        if not isinstance(value, str):
            raise DataError(f"{place_of(sample)}: the task returned {value!r} among its {what}; expected a text that is not empty")
    return tuple(values)
