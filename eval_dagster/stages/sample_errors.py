"""A line about the samples of an eval that have an error instead of a score."""

from collections.abc import Sequence

from eval_dagster.lake.files import LakeFile, read_rows
from eval_dagster.stages.results import partition_key

_MOST_KINDS = 3
_MOST_CHARACTERS = 400
"""Most characters of an error, since an exception may quote a whole text. The relation `errors` has all of it."""


def error_warning(eval_name: str, model: str, scores: LakeFile) -> str | None:
    """How many samples have no score under some metric, and why; None where all have one.

    Errors of one class are counted together, and the first one is shown with its cure. A sample with errors of several classes counts once
    in the total.
    """
    failed = int(scores.info.counts["errors"])
    if not failed:
        return None
    rows = [row for row in read_rows(scores.path, ["sample_id", "error"]) if row["error"] is not None]
    samples: dict[str, set[str]] = {}
    first: dict[str, str] = {}
    for row in rows:
        kind = row["error"].partition(":")[0]
        samples.setdefault(kind, set()).add(row["sample_id"])
        first.setdefault(kind, _short(row["error"]))
    total = int(scores.info.counts["samples"])
    which = f"all {total} samples have" if failed == total else f"{failed} of {total} samples {'has' if failed == 1 else 'have'}"
    return f"{partition_key(eval_name, model)}: {which} an error and no score: {_reasons(samples, first)}"


def _reasons(samples: dict[str, set[str]], first: dict[str, str]) -> str:
    """The errors by class, the most frequent first."""
    kinds: Sequence[str] = sorted(samples, key=lambda kind: -len(samples[kind]))
    if len(kinds) == 1:
        return first[kinds[0]]
    shown = [f"{len(samples[kind])} × {first[kind]}" for kind in kinds[:_MOST_KINDS]]
    left = len(kinds) - len(shown)
    return "; ".join([*shown, *([f"and {left} other kind{'' if left == 1 else 's'}"] if left else [])])


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}…"
