"""The evidence for verdicts: a card for each comparison, the samples that changed, and the pages of the samples of red results."""

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote, urlencode

from markupsafe import Markup

from eval_dagster.errors import LakeError
from eval_dagster.gate.records import GateResult, minute
from eval_dagster.gate.wording import (
    Tone,
    Unjudged,
    aggregate_remarks,
    asked_again,
    cause_text,
    compared_states,
    proof_text,
    title,
    unjudged,
)
from eval_dagster.lake.files import Lake
from eval_dagster.pages.report.histories import Curve, History
from eval_dagster.pages.report.plots import curve_svg, history_svg
from eval_dagster.pages.samples.places import PAGE
from eval_dagster.pages.samples.writing import write_page
from eval_dagster.records.aggregate_judgements import AggregateRegression
from eval_dagster.records.judgements import ChangedSample, Look, Regression, Verdict
from eval_dagster.results.materializations import Materialization, history, materialization_at
from eval_dagster.texts.figures import interval, number
from eval_dagster.texts.visible_text import visible

MOST_SHOWN = 10
"""Most samples that are shown for each eval, model and metric."""
_MOST_CHARACTERS = 6_000
"""Most characters of a text. A longer prompt loses its beginning, since the question is at its end; a longer answer loses its end."""
_PROMPT_END = 280
_ANSWER_SHOWN = 600
_ORDER = (Verdict.REGRESSED, Verdict.ERRORS, Verdict.IMPROVED, Verdict.NO_CHANGE_SEEN, Verdict.NOT_WORSE)
"""Other verdicts follow."""
_COLOURS = {Verdict.REGRESSED: "--bad", Verdict.ERRORS: "--bad", Verdict.IMPROVED: "--good"}
"""The colours of differences; others have that of lines."""
_UNDRAWN = (Verdict.NO_CHANGE_SEEN, Verdict.NOT_WORSE)


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
    flips: list[tuple[bool | None, ChangedSample]] = []
    for change in changes:
        is_worse = None
        if change.value is not None and change.baseline_value is not None:
            is_worse = (change.value < change.baseline_value) == (row.higher_is_better is not False)
        flips.append((is_worse, change))
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
        shown=[
            Flip(
                sample=change,
                is_worse=is_worse,
                prompt=_folded(change.prompt, _PROMPT_END, is_end=True),
                gold=[visible(gold) for gold in change.gold],
                now=_folded(change.answer, _ANSWER_SHOWN),
                baseline=_folded(change.baseline_answer, _ANSWER_SHOWN),
            )
            for is_worse, change in flips[:MOST_SHOWN]
        ],
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


MARKS = {Tone.BAD: "✗", Tone.WARNING: "!", Tone.GOOD: "✓", Tone.UNKNOWN: "?"}
ORDER = (Verdict.REGRESSED, Verdict.ERRORS, Verdict.IMPROVED, Verdict.NO_CHANGE_SEEN, Verdict.NOT_WORSE)
UNJUDGED = (Verdict.NOT_EVALUATED, Verdict.NOT_COMPARABLE, Verdict.ACCEPTED_GAP, Verdict.FIRST_RESULT)
ResultMetric = tuple[str, str, str | None]
"""Eval, model and metric."""


@dataclass(frozen=True, kw_only=True)
class Pill:
    """A verdict as a label. Its words and its mark show the verdict, not only its colour."""

    text: str
    mark: str
    tone: str


PILLS = {
    Verdict.REGRESSED: Pill(text="regressed", mark="▼", tone="bad"),
    Verdict.ERRORS: Pill(text="errors", mark="✗", tone="bad"),
    Verdict.IMPROVED: Pill(text="improved", mark="▲", tone="good"),
    Verdict.NOT_WORSE: Pill(text="not worse (proven)", mark="✓", tone="good"),
    Verdict.NO_CHANGE_SEEN: Pill(text="no change seen", mark="=", tone="unknown"),
    Verdict.FIRST_RESULT: Pill(text="first result", mark="•", tone="unknown"),
    Verdict.ACCEPTED_GAP: Pill(text="accepted gap", mark="–", tone="warning"),
    Verdict.NOT_COMPARABLE: Pill(text="not comparable", mark="?", tone="bad"),
    Verdict.NOT_EVALUATED: Pill(text="not evaluated", mark="?", tone="bad"),
}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A value with its interval on a line. Places are from 0 to 100."""

    low: float | None
    """Place of the interval's lower end; null without an interval."""
    width: float | None
    """Length of the interval."""
    value: float | None
    zero: float | None
    """Place of 0; null if it is not marked."""
    colour: str
    """The variable of the style sheet."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The range of bars that are shown together."""

    low: float
    high: float

    def bar(self, value: float | None, low: float | None, high: float | None, *, zero: bool = False, colour: str = "--line") -> Bar:
        """The bar of a value and its interval, on a scale of differences (`zero`) with the place of 0."""
        place, start, end = self._place(value), self._place(low), self._place(high)
        width = None if start is None or end is None else round(end - start, 2)
        return Bar(low=start, width=width, value=place, zero=self._place(0.0) if zero else None, colour=colour)

    def _place(self, value: float | None) -> float | None:
        if value is None:
            return None
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(99 * min(max(share, 0.0), 1.0), 2)


@dataclass(frozen=True, kw_only=True)
class Card:
    """A comparison as a page shows it."""

    row: Regression
    title: str
    anchor: str
    verdict: Pill
    cause: str
    interval: str
    proof: str
    """Whether it is proven not to be worse, in words; empty if that was not tested."""
    bar: Bar
    left_out: str
    """The samples that only one of the two has, in words."""
    picture: Markup | None
    """The history of the score."""
    asked_again: str
    since: str | None
    """When the score last left its band."""
    flips: Flips | None
    flips_anchor: str
    samples: str | None
    """A link to the samples."""


@dataclass(frozen=True, kw_only=True)
class AggregateCard:
    """A judged aggregate as a page shows it."""

    row: AggregateRegression
    verdict: Pill
    interval: str
    bar: Bar | None
    """The difference. Null if it was not compared."""
    compared_with: str
    remarks: str
    picture: Markup | None
    """Its values in all judgements."""


def aggregate_cards(result: GateResult, pictures: Mapping[tuple[str, str], Markup] = MappingProxyType({})) -> list[AggregateCard]:
    """A card of each aggregate, red ones first, those that were not judged next. `pictures` are by aggregate and model."""
    ends: dict[str, float] = {}
    for row in result.aggregates:
        sizes = [abs(end) for end in (row.difference, row.ci_low, row.ci_high) if end is not None]
        ends[row.aggregate] = max([ends.get(row.aggregate, 0.0), *sizes])
    found: list[AggregateCard] = []
    for row in sorted(result.aggregates, key=lambda each: (not each.is_red, not each.is_gap)):
        end = ends[row.aggregate] or 1.0
        scale = Scale(low=-end, high=end)
        bar = scale.bar(row.difference, row.ci_low, row.ci_high, zero=True, colour=_COLOURS.get(row.verdict, "--line"))
        found.append(
            AggregateCard(
                row=row,
                verdict=PILLS[row.verdict],
                interval=interval(row.ci_low, row.ci_high, "+"),
                bar=None if row.difference is None else bar,
                compared_with=compared_states(row),
                remarks=aggregate_remarks(row),
                picture=pictures.get((row.aggregate, row.model)),
            )
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Results that were not judged for one reason, as a page shows them."""

    group: Unjudged
    verdict: Pill


def gaps_of(result: GateResult) -> list[Gap]:
    """The results that were not judged, gaps first."""
    rows = [row for verdict in UNJUDGED for row in result.with_verdict(verdict)]
    return [] if result.is_first else [Gap(group=each, verdict=PILLS[each.verdict]) for each in unjudged(rows)]


def all_compared(cards: Sequence[Card]) -> list[Card]:
    """The cards by verdict, and last the results that were compared although they are gaps."""
    return [card for verdicts in (*((verdict,) for verdict in ORDER), UNJUDGED) for card in cards if card.row.verdict in verdicts]


def cards(
    result: GateResult,
    *,
    histories: Sequence[History],
    flips: Sequence[Flips],
    sample_pages: Mapping[ResultMetric, str],
) -> list[Card]:
    """A card of each comparison.

    Args:
        result: The judgement.
        histories: Scores over time, drawn beside verdicts other than `no change seen` and `not worse (proven)`.
        flips: The samples that flipped.
        sample_pages: Links to the samples of results, by eval, model and metric.
    """
    flips_of = {(each.eval, each.model, each.metric): each for each in flips}
    history_of = {(each.eval, each.model, each.metric): each for each in histories}
    compared = [row for row in result.regressions if row.difference is not None or row.is_red]
    most: dict[str | None, float] = {}
    for row in compared:
        ends = [abs(end) for end in (row.difference, row.ci_low, row.ci_high) if end is not None]
        most[row.metric] = max([most.get(row.metric, 0.0), *ends])
    found: list[Card] = []
    for row in compared:
        key = (row.eval, row.model, row.metric or "")
        history = history_of.get(key)
        place = anchor("result", row)
        end = most[row.metric] or 1.0
        scale = Scale(low=-end, high=end)
        alone = [(row.n_only_value, "only now"), (row.n_only_baseline, "only in the baseline")]
        colour = _COLOURS.get(row.verdict, "--line")
        found.append(
            Card(
                row=row,
                title=title(row),
                anchor=place,
                verdict=PILLS[row.verdict],
                cause=cause_text(row.cause),
                interval=interval(row.ci_low, row.ci_high, "+"),
                proof=proof_text(row),
                bar=scale.bar(row.difference, row.ci_low, row.ci_high, zero=True, colour=colour),
                left_out=", ".join(f"{count:,} {where}" for count, where in alone if count),
                picture=None if history is None or row.verdict in _UNDRAWN else picture(history),
                asked_again=asked_again(row),
                since=change(history.changes[-1]) if history is not None and history.changes else None,
                flips=flips_of.get(key),
                flips_anchor=anchor("flips", row),
                samples=sample_pages.get((row.eval, row.model, row.metric)),
            )
        )
    return found


def picture(history: History) -> Markup:
    """The picture of a history for a page."""
    return Markup(history_svg(history.points, title=history.title, metric=history.metric))  # noqa: S704 - its texts are escaped


def curve_picture(curve: Curve) -> Markup:
    """The picture of a learning curve for a page."""
    return Markup(curve_svg(curve.points, title=curve.title, metric=curve.metric))  # noqa: S704 - as above


def change(look: Look) -> str:
    """When a score left its band, and what differed from the previous result."""
    causes = cause_text(look.cause)
    return f"{minute(look.materialized_at)}: {number(look.difference, '+')}" + (f" ({causes})" if causes else "")


def anchor(kind: str, of: Regression | History | Flips) -> str:
    """An id that is unique for a kind of entry, an eval, a model and a metric."""
    names = (of.eval, of.model, of.metric or "")
    return "-".join([kind, *(re.sub(r"\W", lambda found: f"_{ord(found[0]):x}_", name) for name in names)])


log = logging.getLogger(__name__)


def write_sample_pages(lake: Lake, result: GateResult, folder: Path) -> Mapping[ResultMetric, str]:
    """Write the page of each red result to `<folder>/<eval>/<model>/samples.html`.

    Where metrics of a result are compared with several others, each further one has its own page, `samples_2.html` and so on.
    A page that cannot be written is left out with a warning, since a report is valid without it.

    Returns:
        Links to the samples that became worse, or to the errors, relative to the folder beside `folder`; by eval, model and metric.
    """
    links: dict[ResultMetric, str] = {}
    written: dict[tuple[str, str], list[Materialization | None]] = {}
    for row in result.red:
        others = written.setdefault((row.eval, row.model), [])
        try:
            against = _compared(lake, row)
            number = others.index(against) if against in others else len(others)
            path = folder / row.eval / row.model / (f"{Path(PAGE).stem}_{number + 1}.html" if number else PAGE)
            if number == len(others):
                if row.materialized_at is None:
                    raise LakeError("there is no result")
                write_page(path, lake, row.eval, row.model, row.materialized_at, against=against)
                others.append(against)
        except Exception as error:  # the boundary between a report and its pages
            log.warning(f"no page of the samples of {row.eval}|{row.model}: {type(error).__name__}: {error}")
            continue
        view = {"show": "error"} if row.verdict is Verdict.ERRORS else {"show": "worse"} if against is not None else {}
        place = quote(str(path.relative_to(folder.parent)))
        fragment = urlencode(view | ({"metric": row.metric} if row.metric else {}))
        links[row.eval, row.model, row.metric] = f"{place}#{fragment}" if fragment else place
    return links


def _compared(lake: Lake, row: Regression) -> Materialization | None:
    """The state that the gate found the result worse than; None if it is no longer in the lake."""
    is_anchor = row.against == "anchor"
    name, when = (row.anchor, row.anchor_materialized_at) if is_anchor else (row.baseline, row.baseline_materialized_at)
    if name is None or when is None:
        return None
    with suppress(LakeError):
        return materialization_at(history(lake, row.eval, name.rpartition("@")[0]), when)
    return None
