"""The changed samples of a page. Those that got worse come first; of many, only some are shown."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from eval_dagster.gate.records import GateResult
from eval_dagster.records.judgements import ChangedSample, Regression, Verdict
from eval_dagster.texts.visible_text import visible

MOST_SHOWN = 10
"""Most samples that are shown for each eval, model and metric."""
_MOST_CHARACTERS = 6_000
"""Most characters of a text. A longer prompt loses its beginning, since the question is at its end; a longer answer loses its end."""
_PROMPT_END = 280
_ANSWER_SHOWN = 600
_ORDER = (Verdict.REGRESSED, Verdict.ERRORS, Verdict.IMPROVED, Verdict.NO_CHANGE_SEEN)
"""Other verdicts follow."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text of which the page shows a part and folds the rest."""

    shown: str
    """The end of a prompt, the beginning of an answer."""
    full: str | None
    """The whole text, or its longest allowed part; null if `shown` is the whole text."""
    left_out: int
    """Characters that are not in `full`."""


@dataclass(frozen=True, kw_only=True)
class Flip:
    """A sample that result and baseline score differently, or that only one of them has a value for."""

    sample: ChangedSample
    is_worse: bool | None
    """Null if one of them has no value: then nothing flipped."""
    prompt: Text | None
    gold: Sequence[str]
    now: Text | None
    baseline: Text | None


@dataclass(frozen=True, kw_only=True)
class Flips:
    """The samples of an eval, a model and a metric that flipped, and those with a value in one of the two alone."""

    eval: str
    model: str
    metric: str
    verdict: Verdict
    worse: int
    better: int
    gone: int
    """Samples with a value in the baseline alone."""
    new: int
    """Samples with a value in the result alone."""
    unvalued: int
    """Changed samples without a value in either: the metric has one value for all samples together."""
    shown: Sequence[Flip]

    @property
    def total(self) -> int:
        """All samples that flipped: they have a value in both, and not the same."""
        return self.worse + self.better

    @property
    def all(self) -> int:
        """All changed samples."""
        return self.total + self.gone + self.new + self.unvalued

    @property
    def beside(self) -> str:
        """The changed samples that did not flip, in words; empty if there are none."""
        counts = (
            (self.gone, "with a score in the baseline alone"),
            (self.new, "with a score now alone"),
            (self.unvalued, "changed without a score of their own"),
        )
        return ", ".join(f"{count} {what}" for count, what in counts if count)


def flips_of(result: GateResult) -> list[Flips]:
    """The changed samples by eval, model and metric; regressed ones first."""
    rows = {(row.eval, row.model, row.metric): row for row in result.regressions}
    grouped: dict[tuple[str, str, str], list[ChangedSample]] = {}
    for change in result.changes:
        grouped.setdefault((change.eval, change.model, change.metric), []).append(change)
    found = [_flips(rows[key], changes) for key, changes in grouped.items() if key in rows]
    return sorted(found, key=lambda flips: _ORDER.index(flips.verdict) if flips.verdict in _ORDER else len(_ORDER))


def _flips(row: Regression, changes: Sequence[ChangedSample]) -> Flips:
    flips = [(_is_worse(change, higher_is_better=row.higher_is_better is not False), change) for change in changes]
    flips.sort(key=lambda flip: (True, False, None).index(flip[0]))
    counts = Counter(is_worse for is_worse, _ in flips)
    return Flips(
        eval=row.eval,
        model=row.model,
        metric=row.metric or "",
        verdict=row.verdict,
        worse=counts[True],
        better=counts[False],
        gone=sum(change.value is None and change.baseline_value is not None for change in changes),
        new=sum(change.value is not None and change.baseline_value is None for change in changes),
        unvalued=sum(change.value is None and change.baseline_value is None for change in changes),
        shown=[_flip(change, is_worse) for is_worse, change in flips[:MOST_SHOWN]],
    )


def _is_worse(change: ChangedSample, *, higher_is_better: bool) -> bool | None:
    if change.value is None or change.baseline_value is None:
        return None
    return (change.value < change.baseline_value) == higher_is_better


def _flip(change: ChangedSample, is_worse: bool | None) -> Flip:
    return Flip(
        sample=change,
        is_worse=is_worse,
        prompt=_folded(change.prompt, _PROMPT_END, is_end=True),
        gold=[visible(gold) for gold in change.gold],
        now=_folded(change.answer, _ANSWER_SHOWN),
        baseline=_folded(change.baseline_answer, _ANSWER_SHOWN),
    )


def _folded(text: str | None, shown: int, *, is_end: bool = False) -> Text | None:
    """A text of which the first characters are shown, or the last."""
    if text is None:
        return None
    text = visible(text)
    if len(text) <= shown:
        return Text(shown=text, full=None, left_out=0)
    part, full = (f"…{text[-shown:]}", text[-_MOST_CHARACTERS:]) if is_end else (f"{text[:shown]}…", text[:_MOST_CHARACTERS])
    return Text(shown=part, full=full, left_out=max(0, len(text) - _MOST_CHARACTERS))
