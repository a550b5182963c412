"""The standing of each metric of a suite: its baseline, the anchor of its drift, and the state for which it is still red.

Standings follow from the suite's judgements and acceptances, which are read from the newest to the oldest. A metric passes by its own
verdict. If it is red, or is not judged for a night, it keeps the state in which it passed. A red state found on many samples does not end
with a judgement of a failed evaluation, of too many errors, or of fewer samples.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

from croniter import croniter

from eval_dagster.config.schema import SuiteConfig
from eval_dagster.config.values import LAST_PASSED, PREVIOUS
from eval_dagster.errors import LakeError
from eval_dagster.gate.looks import is_part, read_plans
from eval_dagster.gate.records import minute
from eval_dagster.gate.results import is_for, read_acceptances, read_judgement
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import FileInfo, time_of
from eval_dagster.records.judgements import GAPS, SOUND, Acceptance, NightPlan, PlanKey, Regression, Verdict
from eval_dagster.results.materializations import (
    Materialization,
    MaterializationName,
    history,
    parse_time,
    previous_materialization,
)

LONGEST = 15.0
"""Longest time since the last test that counts, in days."""
_MONTH = 30.0
"""Days."""
_DAY_S = 86_400.0
_NOT_WORSE = (*SOUND, Verdict.NOT_COMPARABLE, Verdict.ACCEPTED_GAP)
"""The verdicts of results that were compared on few samples and are not worse."""
_UNJUDGED = (*GAPS, Verdict.ACCEPTED_GAP)
Key = tuple[str, str]
"""Eval and model."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The model and the time to compare results with."""

    text: str
    """The text in evals.yaml."""
    model: str | None = None
    """Null: the model of the result."""
    until: datetime | None = None
    previous: bool = False
    last_passed: bool = False

    @classmethod
    def parse(cls, text: str, models: Sequence[str]) -> "Baseline":
        """Read `last_passed`, `previous`, a day or a time, the name of one of the models, or `name@` one of these.

        Raises:
            UsageError: The text has another form.
        """
        if text in (LAST_PASSED, PREVIOUS):
            return cls(text=text, previous=text == PREVIOUS, last_passed=text == LAST_PASSED)
        if text in models or "@" in text:
            name = MaterializationName.parse(text, models)
            return cls(text=text, model=name.model, until=name.until, previous=name.previous)
        return cls(text=text, until=parse_time(text, what=text))

    def is_current(self, model: str) -> bool:
        """Whether the baseline is this model's current result, which would be compared with itself."""
        return self.model == model and self.until is None and not self.previous

    def find(self, lake: Lake, eval_name: str, model: str) -> Materialization | None:
        """The point to compare a result of this model with. For `last_passed`, which depends on judgements, use standings.

        Returns None for `previous` without an earlier state.

        Raises:
            LakeError: The baseline that the suite names does not exist, or is damaged.
        """
        if self.previous and self.model is None:
            points = history(lake, eval_name, model)
            return previous_materialization([point for point in points if point is points[-1] or not is_part(point)])
        if self.until is not None and self.until.astimezone(UTC).date() > datetime.now(UTC).date():
            raise LakeError(f"the baseline {self.text!r} lies in the future, so every result would be compared with itself")
        name = MaterializationName(model=self.model or model, until=self.until, previous=self.previous)
        found = name.find(lake, eval_name)
        if found is not None:
            return found
        when = f" of {minute(self.until)} or before" if self.until is not None else " before its last change" if self.previous else ""
        raise LakeError(f"the baseline {self.text!r}: {name.model} has no result of {eval_name}{when}")


def level_of(alpha: float, *, tested_at: datetime | None, now: datetime, cron: str | None, timezone: str) -> float:
    """The two-sided level of significance of a judgement that tests something new.

    A result turns red in one direction only, so a two-sided level l costs l / 2. The share grows with the time since the last judgement
    that tested something: from one interval of the schedule (one day at most) to `LONGEST`. So the shares of 30 days sum to `alpha`,
    however often models change, and a suite that seldom changes is judged at `alpha`.

    Args:
        alpha: Share of unchanged suites that may turn red in 30 days.
        tested_at: Time of the last judgement that tested something; None if that is longer ago than `LONGEST`.
        now: Time of this judgement.
        cron: Schedule of the suite.
        timezone: Time zone of the schedule.
    """
    shortest = 1.0
    if cron:  # the days between its next two times
        times = croniter(cron, now.astimezone(ZoneInfo(timezone)))
        first, second = (times.get_next(datetime).astimezone(UTC) for _ in range(2))
        shortest = min(1.0, float((second - first).total_seconds()) / _DAY_S)
    days = LONGEST if tested_at is None else (now - tested_at).total_seconds() / _DAY_S
    return 2 * alpha * min(max(days, shortest), LONGEST) / _MONTH


def night_level(settings: SuiteConfig, standings: "Standings", baseline: Baseline, now: datetime) -> float:
    """The two-sided level of significance of a suite's judgement now."""
    if not baseline.last_passed:
        return settings.gate.alpha
    tested_at = standings.tested(now)[0]
    return level_of(settings.gate.alpha, tested_at=tested_at, now=now, cron=settings.cron, timezone=settings.timezone)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The state of a metric of an eval and a model, from earlier judgements of a suite. All times are times of materialization."""

    baseline_at: datetime | None = None
    """The newest state that passed or was accepted. Otherwise the baseline of the oldest judgement, if any."""
    anchor_at: datetime | None = None
    """The anchor of its drift."""
    judged_at: datetime | None = None
    """The newest state that was compared with its baseline, or accepted."""
    judged: Regression | None = None
    """The row of that state, if it did not pass."""
    red: Regression | None = None
    """The row of the first state that regressed since the last one that passed. Null if the last state passed."""
    is_own: bool = False
    """Whether a judgement names the metric."""
    is_known: bool = False
    """Whether a result was red. Then an earlier state that was never judged is not a baseline."""
    files: frozenset[Path] = frozenset()
    """The judgements behind this standing."""


@dataclass(frozen=True)
class _Judgement:
    """A stored judgement."""

    path: Path
    info: FileInfo
    rows: Sequence[Regression]

    @cached_property
    def _by_key(self) -> Mapping[Key, Sequence[Regression]]:
        found: dict[Key, list[Regression]] = defaultdict(list)
        for row in self.rows:
            found[row.eval, row.model].append(row)
        return dict(found)

    def rows_of(self, key: Key) -> Sequence[Regression]:
        """The rows of an eval and a model."""
        return self._by_key.get(key, ())

    def of(self, key: Key, metric: str) -> list[Regression]:
        """The row of a metric, or else the row of all metrics of an eval and a model."""
        of_key = self.rows_of(key)
        return [row for row in of_key if row.metric == metric] or [row for row in of_key if row.metric is None]


class Standings:
    """The standings of all metrics of a suite. Judgements are read as far back as they matter. Damaged ones are left out."""

    def __init__(self, lake: Lake, suite: str) -> None:
        self._lake = lake
        self._suite = suite
        self._read: list[_Judgement] = []
        self._unread: Iterator[Path] | None = None

    @cached_property
    def acceptances(self) -> list[Acceptance]:
        """All acceptances of the suite, the oldest first."""
        return read_acceptances(self._lake, self._suite)

    @cached_property
    def night_plans(self) -> dict[PlanKey, NightPlan]:
        """The plans of nights that may stop early."""
        return read_plans(self._lake, self._suite)

    def judgements(self) -> Iterator[_Judgement]:
        """All judgements, the newest first."""
        place = 0
        while True:
            while place >= len(self._read):
                if self._unread is None:
                    self._unread = iter(reversed(self._lake.files(self._lake.folder("regressions", self._suite))))
                path = next(self._unread, None)
                if path is None:
                    return
                with suppress(LakeError):
                    self._read.append(_Judgement(path, *read_judgement(path)))
            yield self._read[place]
            place += 1

    def tested(self, now: datetime) -> tuple[datetime | None, frozenset[Path]]:
        """The time of the last judgement that tested a new result, with its file. Null if it is too long ago to matter."""
        for judgement in self.judgements():
            if judgement.info.counts["level"] > 0:
                return time_of(judgement.path), frozenset({judgement.path})
            if time_of(judgement.path) < now - timedelta(days=LONGEST):
                break
        return None, frozenset()

    def metrics(self, key: Key) -> dict[str, bool]:
        """The metrics by which an eval and a model were judged, and whether the leaderboard showed them then.

        They come from the newest judgement that compared some, and from newer ones.
        """
        found: dict[str, bool] = {}
        for judgement in self.judgements():
            of_key = judgement.rows_of(key)
            for row in of_key:
                if row.metric:
                    found.setdefault(row.metric, bool(row.is_headline))
            if any(row.difference is not None or row.is_passed for row in of_key):
                break
        return found

    def accepted_since(self, key: Key, metric: str) -> datetime | None:
        """The state that a person accepted after the last judgement that names a metric, if any."""
        named = (each.path for each in self.judgements() if any(row.metric == metric for row in each.rows_of(key)))
        last = next(named, None)
        accepted = None if last is None else self._accepted(key, metric, last)
        return None if accepted is None else accepted.materialized_at

    def passed(self, key: Key, metric: str) -> Iterator[datetime]:
        """The states in which a metric passed, or that were accepted, the newest first."""
        accepted = [each.materialized_at for each in self._acceptances(key, metric) if each.materialized_at is not None]
        found = [row.materialized_at for each in self.judgements() for row in each.of(key, metric) if _passes(row)]
        yield from sorted({*accepted, *(time for time in found if time is not None)}, reverse=True)

    def judged_since(self, key: Key, metric: str, since: datetime) -> dict[datetime, tuple[list[bool], list[bool]]]:
        """For each state that was judged since a time, and each of its judgements: whether it passed, and whether it was red."""
        found: dict[datetime, tuple[list[bool], list[bool]]] = defaultdict(lambda: ([], []))
        for judgement in takewhile(lambda each: time_of(each.path) >= since, self.judgements()):
            for row in judgement.of(key, metric):
                if row.materialized_at is not None:
                    passes, reds = found[row.materialized_at]
                    passes.append(_passes(row))
                    reds.append(row.is_red)
        return dict(found)

    def is_accepted(self, key: Key, metric: str, time: datetime) -> bool:
        """Whether a person accepted the state of this time."""
        return any(each.materialized_at == time for each in self._acceptances(key, metric))

    def of(self, key: Key, metric: str) -> Standing:
        """The standing of a metric of an eval and a model."""
        search = _Search(metric)
        for judgement in self.judgements():
            acceptance = self._accepted(key, metric, judgement.path)
            if acceptance is not None:
                search.end(acceptance.materialized_at, None)
                break
            search.look(judgement.path, judgement.of(key, metric))
            if search.is_done:
                break
        if not search.is_done and (accepted := self._accepted(key, metric, None)) is not None:
            search.end(accepted.materialized_at, None)
        return search.found()

    def _acceptances(self, key: Key, metric: str | None) -> list[Acceptance]:
        """The accepted states of a metric, including acceptances of all metrics."""
        same = (each for each in self.acceptances if (each.eval, each.model) == key and each.metric in (None, metric))
        return [each for each in same if each.materialized_at is not None]

    def _accepted(self, key: Key, metric: str | None, path: Path | None) -> Acceptance | None:
        """The newest acceptance of a metric's state, if it is newer than a judgement."""
        found = self._acceptances(key, metric)
        return found[-1] if found and (path is None or found[-1].accepted_at >= time_of(path)) else None

    def with_accepted_gaps(self, rows: Sequence[Regression]) -> list[Regression]:
        """The rows of a new judgement, with the verdict of accepted gaps set.

        An acceptance counts for gaps with its verdict, reason, eval, model and metric, until one of them was judged after it. A gap with
        another verdict or reason names the acceptance.
        """
        keys = {(row.eval, row.model) for row in rows if row.is_gap}
        accepted = self._open_gaps([each for each in self.acceptances if each.is_gap and (each.eval, each.model) in keys])
        found: list[Regression] = []
        for row in rows:
            same = [each for each in accepted if _overlap(each, row)] if row.is_gap else []
            for each in reversed(same):
                if (each.metric, each.verdict) == (row.metric, row.verdict) and is_for(each, row.reason):
                    reason = f"{_accepted_by(each)}: {each.why} ({row.verdict.value}: {row.reason})"
                    found.append(replace(row, verdict=Verdict.ACCEPTED_GAP, reason=reason))
                    break
            else:
                if same:
                    other = f"{_accepted_by(same[-1])} ({same[-1].verdict.value}: {same[-1].reason})"
                    row = replace(row, reason=f"{row.reason}; another gap was {other}")
                found.append(row)
        return found

    def _open_gaps(self, accepted: Sequence[Acceptance]) -> list[Acceptance]:
        """The acceptances whose gaps have not been judged since, the oldest first."""
        pending, closed = list(accepted), []
        for judgement in self.judgements() if accepted else ():
            for each in list(pending):
                same = [row for row in judgement.rows_of((each.eval, each.model)) if _overlap(each, row)]
                if each.accepted_at >= time_of(judgement.path):
                    pending.remove(each)
                elif any(row.verdict not in _UNJUDGED for row in same):
                    pending.remove(each)
                    closed.append(each)
                elif any(row.verdict is Verdict.ACCEPTED_GAP for row in same) and not any(
                    _overlap(each, other) and other.accepted_at > each.accepted_at for other in accepted
                ):
                    pending.remove(each)  # it was open then
            if not pending:
                break
        return [each for each in accepted if each not in closed]


def _passes(row: Regression) -> bool:
    """Whether later results are compared with a state. In earlier judgements, one metric kept all others from passing."""
    return row.is_passed or (row.verdict in SOUND and not (row.is_refuted or row.n_not_asked or row.held_by))


def _overlap(one: Acceptance, other: Acceptance | Regression) -> bool:
    """Whether two records share eval, model and metric. A record without a metric covers all."""
    return (one.eval, one.model) == (other.eval, other.model) and (None in (one.metric, other.metric) or one.metric == other.metric)


def _accepted_by(acceptance: Acceptance) -> str:
    return f"accepted by {acceptance.accepted_by} on {minute(acceptance.accepted_at)}"


class _Search:
    """Goes back through the rows of a metric until a state passed or was accepted."""

    def __init__(self, metric: str) -> None:
        self.is_done = False
        self._metric = metric
        self._standing = Standing()
        self._is_ended_in_part = False
        self._is_refuted = False
        self._files: dict[str, Path] = {}

    def look(self, path: Path, rows: Sequence[Regression]) -> None:
        """Take the rows of the next older judgement."""
        if any(row.metric for row in rows):
            self._standing = replace(self._standing, is_own=True)
        passed = next((row for row in rows if _passes(row)), None)
        if passed is not None:
            self.end(passed.materialized_at, passed.anchor_materialized_at)
            self._files["passed"] = path
            return
        for row in rows:
            self._look_at_stopped(path, row)

    def found(self) -> Standing:
        """The standing that follows from the judgements read so far."""
        return replace(self._standing, files=frozenset(self._files.values()))

    def end(self, good_at: datetime | None, anchor_at: datetime | None) -> None:
        """Stop at a state that passed or was accepted."""
        self.is_done = True
        self._standing = replace(
            self._standing, baseline_at=good_at, anchor_at=anchor_at or good_at, judged_at=self._standing.judged_at or good_at
        )

    def _look_at_stopped(self, path: Path, row: Regression) -> None:
        """Take a row that did not pass."""
        # If no state passed, the oldest judgement names the last good state. The baseline of a suite can be another model.
        is_of_own_model = row.baseline is not None and row.baseline.rpartition("@")[0] == row.model
        if row.baseline_materialized_at is not None and is_of_own_model:
            anchor_at = row.anchor_materialized_at or self._standing.anchor_at or row.baseline_materialized_at
            self._standing = replace(self._standing, baseline_at=row.baseline_materialized_at, anchor_at=anchor_at)
            self._files["baseline"] = path
        if row.is_red:
            self._standing = replace(self._standing, is_known=True)
            self._files.setdefault("known", path)
        if self._standing.judged_at is None and row.difference is not None and row.verdict is not Verdict.ERRORS:
            self._standing = replace(self._standing, judged_at=row.materialized_at, judged=row)
            self._files["judged"] = path
        if row.metric is None:
            return
        # The first red state. A state of few samples ends only a red state of few samples. A state can be red before it is refuted, if
        # fresh answers were not available at first.
        self._is_refuted |= row.is_refuted
        newer = self._standing.red
        if row.verdict is Verdict.REGRESSED and not self._is_refuted and not (self._is_ended_in_part and row.is_partial):
            if newer is None or newer.is_partial or not row.is_partial:
                self._standing = replace(self._standing, red=row)
                self._files["red"] = path
        elif row.is_partial and row.p_value is not None and row.verdict in _NOT_WORSE:
            self._is_ended_in_part = True
