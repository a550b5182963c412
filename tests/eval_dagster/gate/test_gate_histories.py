"""Random histories of a suite: a true fall of 20 points is never green without a mark, and nothing improved that did not rise.

A history is a few nights. In each, some of these change: what the model knows, the metric's scale, direction, name or order, what it can
read, the rows, their ids, their number, which samples are errors, and a file of the lake. What is true is known from the model itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from remembered_worlds import World, remembered_worlds
from scipy.stats import binomtest

from eval_dagster.errors import UsageError
from eval_dagster.records.judgements import Regression, Verdict

FALL = 0.2
LEVEL = 2 * 0.5 / 30 / 4
"""Level of a judgement of the suite for one of at most four comparisons: two metrics with baseline and anchor."""
SHORT, LONG = 200, 10_000


@dataclass(frozen=True)
class Truth:
    """What is true of a state: the questions that were evaluated, and the answers that a model knows."""

    questions: frozenset[int]
    right: frozenset[int]

    @property
    def share(self) -> float:
        return len(self.questions & self.right) / len(self.questions)

    def share_of(self, later: "Truth") -> float:
        """The share of its questions that a later model answers right."""
        return len(self.questions & later.right) / len(self.questions)

    def is_plainly_above(self, later: "Truth") -> bool:
        """Whether a later model answers a fifth less of its questions right, and more than chance explains at the level of a night."""
        down, up = len(self.questions & (self.right - later.right)), len(self.questions & (later.right - self.right))
        is_large = self.share_of(later) <= self.share - FALL
        return is_large and bool(binomtest(down, down + up).pvalue <= LEVEL)

    def rose(self, later: "Truth", *, common: bool) -> bool:
        questions = self.questions & later.questions if common else self.questions
        return len(questions & later.right) > len(questions & self.right)


WEIGHTS: dict[Callable[[World], None], float] = {
    World.falls: 3,
    World.rises: 1,
    World.another_metric: 2,
    World.another_order: 1,
    World.metric_goes: 0.5,
    World.answers_get_a_mark: 0.5,
    World.rows_are_appended: 0.5,
    World.rows_are_replaced: 0.7,
    World.limit: 0.4,
    World.ids_change: 0.3,
    World.samples_fail: 0.6,
    World.more_samples_fail: 0.6,
    World.file_is_lost: 1.5,
}
OF_ACCURACY = ("accuracy", "share_right")


def _is_marked(row: Regression) -> bool:
    """Whether a row says that more than the model's answers differs: samples went, files could not be read, a person accepted a gap."""
    reason = row.reason or ""
    return any("went" in mark for mark in row.marks) or "cannot be read" in reason or row.verdict is Verdict.ACCEPTED_GAP


def _history(world: World) -> tuple[list[str], int]:
    """Live through a history. Returns what is wrong with it, and the number of falls that it has."""
    states: dict[Any, Truth] = {}
    passed: Truth | None = None
    wrong: list[str] = []
    falls = 0
    names = list(WEIGHTS)
    for night in range(world.random.randint(3, 6)):
        chosen = world.random.choices(names, list(WEIGHTS.values()), k=world.random.choice((0, 1, 1, 2, 3)) if night else 0)
        # Half of the answers better and more than half worse would be a fall that no test can tell from chance.
        for change in dict.fromkeys(each for each in chosen if each is not World.rises or World.falls not in chosen):
            world.log.append(f"{night} {change.__name__}")
            change(world)
        world.questions = list(world.questions)
        now = Truth(questions=frozenset(world.questions) - world.errors, right=frozenset(world.right))
        result = world.night()
        states |= {row.materialized_at: now for row in result.regressions if row.materialized_at}
        seen = "; ".join(
            f"{row.metric} {row.verdict.value} {row.baseline_value} {row.value} {row.marks} {row.reason}" for row in result.regressions
        )
        world.log.append(f"  {result.outcome.value}: {seen}")
        rows = [row for row in result.regressions if row.metric in OF_ACCURACY or row.metric is None]
        has_fallen = passed is not None and passed.is_plainly_above(now)
        falls += has_fallen
        if result.is_green and has_fallen and not any(map(_is_marked, rows)):
            wrong.append(
                f"night {night}: green, and of the baseline's questions {passed.share_of(now):.2f} are right, not {passed.share:.2f}"
            )
        for row in rows:
            before = states.get(row.baseline_materialized_at)
            if row.verdict is Verdict.IMPROVED and before is not None and not before.rose(now, common=_is_marked(row)):
                wrong.append(f"night {night}: improved, and nothing rose")
        if result.is_green and any(row.is_passed for row in rows):
            passed = now
        elif not result.is_green and world.random.random() < 0.3:
            try:
                world.accept()
                # A person can accept that accuracy is judged no more. Then a fall of it is no fault of the gate.
                is_judged = any(row.metric in OF_ACCURACY and "any more" not in (row.reason or "") for row in rows)
                passed = now if is_judged else None
                world.log.append("  accepted")
            except UsageError as error:
                world.log.append(f"  not accepted: {error}")
    return wrong, falls


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], World]:
    return remembered_worlds(tmp_path, monkeypatch)


def _check(worlds: Callable[[int], World], seeds: Sequence[int]) -> None:
    falls = 0
    for seed in seeds:
        world = worlds(seed)
        wrong, fallen = _history(world)
        falls += fallen
        assert not wrong, f"history {seed}: {wrong}\n" + "\n".join(world.log)
    assert falls > len(seeds) / 4, "the histories have too few falls to tell anything"


@pytest.mark.long
def test_no_fall_is_green_without_a_mark_and_nothing_improves_that_did_not_rise(worlds: Callable[[int], World]) -> None:
    _check(worlds, range(SHORT))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_same_of_ten_thousand_histories(worlds: Callable[[int], World]) -> None:
    _check(worlds, range(SHORT, LONG))
