"""The standing of each result of a suite: its baseline, the anchor of its drift, and the state that it is still red for.

Standings follow from the suite's judgements and acceptances, which are read from the newest to the oldest. A judgement of a failed
evaluation, of too many errors or of few samples does not end a red state that was found on more samples.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from eval_dagster.errors import LakeError
from eval_dagster.gate.acceptances import read_acceptances
from eval_dagster.gate.levels import LONGEST
from eval_dagster.gate.records import GAPS, Acceptance, Regression, minute
from eval_dagster.gate.results import read_judgement
from eval_dagster.lake.files import FileInfo, Lake, time_of
from eval_dagster.statistics.verdicts import Verdict

_NOT_WORSE = (Verdict.NO_CHANGE_SEEN, Verdict.IMPROVED, Verdict.NOT_COMPARABLE, Verdict.ACCEPTED_GAP)
"""The verdicts of results that were compared on few samples and are not worse."""
_UNJUDGED = (*GAPS, Verdict.ACCEPTED_GAP)

Key = tuple[str, str]
"""Eval and model."""
Gap = tuple[str, str, str | None, Verdict]
"""Eval, model, metric and verdict of a gap."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What earlier judgements of a suite say about an eval and a model. All times are times of materialization."""

    baseline_at: datetime | None = None
    """The newest state that passed or was accepted. If there is none: the baseline of the oldest judgement; null without one."""
    anchors: Mapping[str, datetime] = field(default_factory=dict)
    """The anchor of the drift of each metric; the baseline for other metrics."""
    judged_at: datetime | None = None
    """The newest state that was compared with its baseline, or accepted."""
    judged: Mapping[str, Regression] = field(default_factory=dict)
    """The rows of that state by metric, if it did not pass."""
    red: Mapping[str, Regression] = field(default_factory=dict)
    """The red rows by metric: those of the first state that regressed since the last one that passed. Empty if the last state passed."""

    is_known: bool = False
    """Whether a result was red. Then an earlier state that was never judged is no baseline."""

    def anchor_at(self, metric: str) -> datetime | None:
        """The anchor of the drift of a metric."""
        return self.anchors.get(metric, self.baseline_at)


@dataclass(frozen=True, kw_only=True)
class Standings:
    """The standings of all results of a suite."""

    by_result: Mapping[Key, Standing] = field(default_factory=dict)
    tested_at: datetime | None = None
    """Time of the last judgement that tested a new result; null if that is longer ago than matters."""
    files: frozenset[Path] = frozenset()
    """The judgements that all this follows from."""


def read_standings(lake: Lake, suite: str, keys: Collection[Key], *, now: datetime) -> Standings:
    """Read the standings of a suite. Damaged files are left out, as in the catalog."""
    states = [each for each in read_acceptances(lake, suite) if each.materialized_at is not None]
    acceptances = {(each.eval, each.model): each for each in states}  # of several the newest
    searches = {key: _Search(acceptances.get(key)) for key in keys}
    tested_at, tested_in = None, set[Path]()
    for path, info, rows in _judgements(lake, suite):
        judged_at = time_of(path)
        if tested_at is None and info.counts["level"] > 0:
            tested_at, tested_in = judged_at, {path}
        for key, search in searches.items():
            if not search.is_done:
                search.look(path, [row for row in rows if (row.eval, row.model) == key])
        is_timed = tested_at is not None or judged_at < now - timedelta(days=LONGEST)
        if is_timed and all(search.is_done for search in searches.values()):
            break
    return Standings(
        by_result={key: search.found() for key, search in searches.items()},
        tested_at=tested_at,
        files=frozenset(tested_in.union(*(search.files() for search in searches.values()))),
    )


def accepted_gaps(lake: Lake, suite: str, rows: Sequence[Regression]) -> list[Regression]:
    """The rows of a new judgement, where a gap that a person accepted has that verdict.

    An acceptance counts for gaps of its verdict, its eval, its model and its metric, until one of them was judged after it.
    """
    accepted = {_gap(each, each.verdict): each for each in read_acceptances(lake, suite) if each.is_gap}  # of several the newest
    open_gaps = {gap: accepted[gap] for row in rows if (gap := _gap(row, row.verdict)) in accepted}
    known: set[Gap] = set()
    for path, _, of_one in _judgements(lake, suite) if open_gaps else ():
        for gap, acceptance in list(open_gaps.items()):
            if gap in known or acceptance.accepted_at >= time_of(path):
                known.add(gap)
                continue
            same = [row for row in of_one if (row.eval, row.model) == gap[:2] and gap[2] in (None, row.metric)]
            if any(row.verdict not in _UNJUDGED for row in same):
                del open_gaps[gap]
            elif any(row.verdict is Verdict.ACCEPTED_GAP for row in same):  # it was open then
                known.add(gap)
        if known >= open_gaps.keys():
            break
    return [
        replace(row, verdict=Verdict.ACCEPTED_GAP, reason=_accepted(row, open_gaps[gap]))
        if (gap := _gap(row, row.verdict)) in open_gaps
        else row
        for row in rows
    ]


def _gap(of: Regression | Acceptance, verdict: Verdict) -> Gap:
    return of.eval, of.model, of.metric, verdict


def _accepted(row: Regression, acceptance: Acceptance) -> str:
    """The reason of an accepted gap."""
    by = f"accepted by {acceptance.accepted_by} on {minute(acceptance.accepted_at)}: {acceptance.why}"
    return f"{by} ({row.verdict.value}: {row.reason})"


class _Search:
    """Goes back through the judgements of an eval and a model until one passed, or a state was accepted."""

    def __init__(self, acceptance: Acceptance | None) -> None:
        self.is_done = False
        self._acceptance = acceptance
        self._standing = Standing()
        self._red_files: dict[str, Path] = {}
        self._open: set[str] | None = None
        self._ended_in_part: set[str] = set()
        self._refuted: set[str] = set()
        self._files: dict[str, Path] = {}

    def look(self, path: Path, rows: Sequence[Regression]) -> None:
        """Take the rows of the next older judgement."""
        if self._acceptance is not None and self._acceptance.accepted_at >= time_of(path):
            self._end(self._acceptance.materialized_at, {})
        elif rows and rows[0].is_passed:  # all rows of an eval and a model have the same
            self._end(rows[0].materialized_at, _anchors(rows))
            self._files["passed"] = path
        elif rows:
            self._look_at_stopped(path, rows)

    def found(self) -> Standing:
        """The standing that follows from the judgements read so far."""
        if not self.is_done and self._acceptance is not None:
            self._end(self._acceptance.materialized_at, {})
        return self._standing

    def files(self) -> set[Path]:
        """The files of the judgements that the standing follows from."""
        return {*self._files.values(), *self._red_files.values()}

    def _end(self, good_at: datetime | None, anchors: Mapping[str, datetime]) -> None:
        """Stop at a state that passed or was accepted."""
        self.is_done = True
        self._standing = replace(self._standing, baseline_at=good_at, anchors=anchors, judged_at=self._standing.judged_at or good_at)

    def _look_at_stopped(self, path: Path, rows: Sequence[Regression]) -> None:
        """Take the rows of a judgement that did not pass."""
        # If no state passed, the oldest judgement names the last good state.
        if baseline := next((row.baseline_materialized_at for row in rows if _is_of_own_model(row)), None):
            self._standing = replace(self._standing, baseline_at=baseline, anchors={**self._standing.anchors, **_anchors(rows)})
            self._files["baseline"] = path
        if any(row.is_red for row in rows):
            self._standing = replace(self._standing, is_known=True)
            self._files.setdefault("known", path)
        if self._standing.judged_at is None and any(row.difference is not None and row.verdict is not Verdict.ERRORS for row in rows):
            self._standing = replace(
                self._standing, judged_at=rows[0].materialized_at, judged={row.metric: row for row in rows if row.metric}
            )
            self._files["judged"] = path
        self._look_for_red(path, rows)

    def _look_for_red(self, path: Path, rows: Sequence[Regression]) -> None:
        """Collect the red rows by metric, back to the first red state. A state of few samples ends only a red state of few samples.

        A state can be red before it is refuted, where fresh answers could not be had at first.
        """
        self._refuted |= {row.metric for row in rows if row.metric and row.is_refuted}
        red = {row.metric: row for row in rows if row.metric and row.verdict is Verdict.REGRESSED and row.metric not in self._refuted}
        if red:
            unended = red.keys() | {row.metric for row in rows if row.metric and row.verdict is Verdict.ERRORS}
            self._open = unended if self._open is None else self._open & unended
        for metric, row in red.items():
            is_ended = metric in self._ended_in_part and row.is_partial
            newer = self._standing.red.get(metric)
            if metric in (self._open or ()) and not is_ended and (newer is None or newer.is_partial or not row.is_partial):
                self._standing = replace(self._standing, red={**self._standing.red, metric: row})
                self._red_files[metric] = path
        tested = [row for row in rows if row.metric and row.is_partial and row.p_value is not None]
        self._ended_in_part |= {row.metric for row in tested if row.metric and row.verdict in _NOT_WORSE}


def _anchors(rows: Sequence[Regression]) -> dict[str, datetime]:
    return {row.metric: row.anchor_materialized_at for row in rows if row.metric and row.anchor_materialized_at}


def _is_of_own_model(row: Regression) -> bool:
    """Whether it was compared with a state of its own model. The baseline of a suite can be another model."""
    return row.baseline is not None and row.baseline.rpartition("@")[0] == row.model


def _judgements(lake: Lake, suite: str) -> Iterator[tuple[Path, FileInfo, Sequence[Regression]]]:
    """Each judgement with its rows, the newest first."""
    for path in reversed(lake.files(lake.folder("regressions", suite))):
        with suppress(LakeError):
            found = read_judgement(path)
            yield path, *found
