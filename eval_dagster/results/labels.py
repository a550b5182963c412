"""People's labels of answers: a random part of a result as a CSV file to fill in, and the filled file as rows of the lake."""

import csv
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from eval_dagster.config.values import NAME
from eval_dagster.errors import LakeError, UsageError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import append, records_of
from eval_dagster.lake.tables.events import HumanLabel
from eval_dagster.lake.tables.rows import fields_in
from eval_dagster.results.materializations import Materialization, MaterializationName, history, materialization_at
from eval_dagster.results.samples import answer_text
from eval_dagster.stores.whole_files import replaced
from eval_dagster.texts.visible_text import spreadsheet_text

TABLE = "human_labels"
COLUMNS = ("eval", "model", "materialized_at", "sample_id", "sample_name", "subject", "prompt", "gold", "answer", "label", "comment")
"""Columns of the file. People fill in `label` and `comment`. A file to import needs only the columns `_NEEDED`."""
_NEEDED = ("eval", "model", "materialized_at", "sample_id", "label")
_MOST_LABEL, _MOST_COMMENT = 200, 10_000
_LARGEST_CELL = 2**27
"""Maximum characters of a cell. The limit of Python's reader, 131,072, is too small for a long prompt."""

_Key: TypeAlias = tuple[str, str, datetime, str, str]
"""Eval, model, time of the result, sample, and the person who labelled."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The outcome of an import."""

    new: Sequence[HumanLabel]
    known: int
    """Labels equal to the same person's last label of the same answer. They are not written again."""
    empty: int
    """Rows without a label."""


def export_labels(lake: Lake, eval_name: str, name: MaterializationName, file: Path, *, count: int, seed: int) -> int:
    """Write a random part of a result to a CSV file, with an empty column for the label. Returns the number of samples.

    For one result, the same seed chooses the same samples. Cells are visible texts that a spreadsheet does not evaluate.

    Raises:
        UsageError: The result does not exist, or the file exists and could hold labels.
        LakeError: The result's prompts, responses or scores were deleted, or are damaged.
    """
    if file.exists():
        raise UsageError(f"--to {file} exists, and could hold labels; name another file, or delete it")
    point = name.find(lake, eval_name)
    if point is None:
        raise UsageError(f"there is no result of {eval_name} on {name.model} then; `eval-dagster sql metrics_history` lists all results")
    answers = {sample: text for sample in point.responses if (text := _answer(point, sample)) is not None}
    chosen = random.Random(seed).sample(sorted(answers), min(count, len(answers)))  # noqa: S311 - no secret
    rows = {row["sample_id"]: row for row in point.scores}
    with replaced(file) as temporary, temporary.open("w", encoding="utf-8-sig", newline="") as opened:
        writer = csv.writer(opened, quoting=csv.QUOTE_ALL)
        writer.writerow(COLUMNS)
        for sample in chosen:
            asked, score = point.prompts.get(sample), rows.get(sample)
            of_sample = [score.get("sample_name") or "", score["subject"] or ""] if score else ["", ""]
            texts = [*of_sample, *([asked["prompt"] or "", " | ".join(asked["gold"] or ())] if asked else ["", ""]), answers[sample]]
            key = [eval_name, point.model, point.materialized_at.astimezone(UTC).isoformat(), sample]
            writer.writerow([*key, *map(spreadsheet_text, texts), "", ""])
    return len(chosen)


def import_labels(lake: Lake, file: Path, *, by: str) -> Imported:
    """Add the labels of a filled CSV file to the lake: all or none. Rows without a label are left out.

    Answers come from the lake, not from the file, because spreadsheets change files. Nothing is overwritten: a person's newest label for an
    answer counts.

    Raises:
        UsageError: The file cannot be read, or a row is wrong. The message names its line.
    """
    if not by.strip():
        raise UsageError("found an empty --by; expected the name of the person who labelled")
    # Rows of earlier releases lack the column `sample_name`.
    stored = (HumanLabel(**{"sample_name": None, **fields_in(row, HumanLabel)}) for row in records_of(lake, TABLE))
    known = {_key(label): (label.label, label.comment) for label in sorted(stored, key=lambda label: label.labelled_at)}
    now, points = datetime.now(UTC), _Points(lake)
    new: list[HumanLabel] = []
    seen: dict[_Key, int] = {}
    n_known = n_empty = 0
    for line, row in _rows(file):
        where = f"{file}:{line}"
        if not row["label"].strip():
            n_empty += 1
            continue
        label = _label(row, points, where, by=by.strip(), now=now)
        key = _key(label)
        if key in seen:
            raise UsageError(f"{where}: found the sample {label.sample_id!r} again, which line {seen[key]} has; expected each one once")
        seen[key] = line
        if known.get(key) == (label.label, label.comment):
            n_known += 1
        else:
            new.append(label)
    if new:
        append(lake, TABLE, [asdict(label) for label in new], "label")
    return Imported(new=new, known=n_known, empty=n_empty)


class _Points:
    """The results named by rows, each read once, with the ids and names of their samples."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._found: dict[tuple[str, str, datetime], tuple[Materialization, Mapping[str, str | None]] | None] = {}

    def get(self, eval_name: str, model: str, materialized_at: datetime) -> tuple[Materialization, Mapping[str, str | None]] | None:
        key = (eval_name, model, materialized_at)
        if key not in self._found:
            are_names = NAME.fullmatch(eval_name) and NAME.fullmatch(model)  # they become folders
            point = materialization_at(history(self._lake, eval_name, model), materialized_at) if are_names else None
            self._found[key] = None if point is None else (point, {row["sample_id"]: row.get("sample_name") for row in point.scores})
        return self._found[key]


def _label(row: Mapping[str, str], points: _Points, where: str, *, by: str, now: datetime) -> HumanLabel:
    """A row as a label. Raises UsageError if it does not name a sample in the lake."""
    label, comment, sample = row["label"].strip(), (row.get("comment") or "").strip(), row["sample_id"]
    for name, text, most in (("label", label, _MOST_LABEL), ("comment", comment, _MOST_COMMENT)):
        if len(text) > most:
            raise UsageError(f"{where}: found a {name} of {len(text):,} characters; expected {most:,} at most")
    try:
        time = datetime.fromisoformat(row["materialized_at"])
    except ValueError as error:
        raise UsageError(
            f"{where}: found materialized_at {row['materialized_at']!r}; expected the time as `label export` wrote it"
        ) from error
    found = points.get(row["eval"], row["model"], time if time.tzinfo else time.replace(tzinfo=UTC))
    if found is None:
        raise UsageError(
            f"{where}: found a result that is not in the lake ({row['eval']!r} on {row['model']!r} of {row['materialized_at']!r}); "
            "expected the columns eval, model and materialized_at as `label export` wrote them"
        )
    point, samples = found
    if sample not in samples:
        raise UsageError(
            f"{where}: found the sample {sample!r}, which {point.name()} does not have; expected the ids as `label export` wrote them "
            "(a spreadsheet may have turned one into a number)"
        )
    answer = None
    with suppress(LakeError):
        answer = _answer(point, sample)
    return HumanLabel(
        eval=row["eval"],
        model=row["model"],
        materialized_at=point.materialized_at,
        sample_id=sample,
        sample_name=samples[sample],
        answer=answer,
        label=label,
        comment=comment or None,
        labelled_by=by,
        labelled_at=now,
    )


def _rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file, each with the line on which it ends. Raises UsageError if the file is not valid CSV."""
    before = csv.field_size_limit(_LARGEST_CELL)
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            # Spreadsheets in some countries write semicolons or tabs.
            separator = max(",;\t", key=opened.readline().count)
            opened.seek(0)
            reader = csv.DictReader(opened, dialect=csv.excel, delimiter=separator, strict=True)
            names = reader.fieldnames or []
            if missing := [name for name in _NEEDED if name not in names]:
                raise UsageError(
                    f"{file}:1: found the columns {', '.join(map(repr, names)) or 'none'}; {', '.join(missing)} are missing; expected "
                    "a file of `label export`"
                )
            for row in reader:
                if None in row or None in row.values():
                    raise UsageError(
                        f"{file}:{reader.line_num}: found a row of another length than the heading; expected {len(names)} cells"
                    )
                yield reader.line_num, row
    except FileNotFoundError as error:
        raise UsageError(f"{file}: there is no such file; `label export` writes one") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file}: it cannot be read as CSV in UTF-8 ({error}); save it as CSV in UTF-8") from error
    finally:
        csv.field_size_limit(before)


def _key(label: HumanLabel) -> _Key:
    return label.eval, label.model, label.materialized_at, label.sample_id, label.labelled_by


def _answer(point: Materialization, sample: str) -> str | None:
    return answer_text(point.responses.get(sample), point.prompts.get(sample))
