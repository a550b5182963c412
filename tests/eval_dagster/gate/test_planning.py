"""What a suite can see by its own history, and the limits that a budget allows."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from flipping_nights import FlippingNights
from judged_project import Nights

from eval_dagster.cli import plan_samples as plan_table
from eval_dagster.cli.plan_samples import Budget, _notes, parse_budget, print_samples
from eval_dagster.errors import UsageError
from eval_dagster.gate.planning import Asked, Planned, cheapest_asked, limits_within, plan_samples
from eval_dagster.lake.catalog.publishing import publish

MANY = tuple(range(200))


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def planned(nights: Nights, fall: float = 0.02) -> dict[str, Planned]:
    project = nights.project()
    publish(project.lake)
    return {row.eval: row for row in plan_samples(project, "nightly", fall)[0]}


@pytest.mark.long
def test_flips_are_those_between_states(nights: Nights) -> None:
    nights.evaluate(numbers=MANY, wrong=range(10))
    alone = planned(nights)["left"]
    assert "one state so far" in str(alone.reason)
    assert (alone.samples, alone.most, alone.flips) == (200, 200, None)
    nights.evaluate(numbers=MANY, wrong=range(4, 14))
    nights.evaluate(numbers=MANY, wrong=range(4, 14))  # the same state
    nights.evaluate(numbers=MANY, wrong=range(4, 18))
    rows = planned(nights)
    left = rows["left"]
    assert (left.pairs, left.flips, left.margin) == (2, (8 + 4) / 400, 0.03)
    assert left.to_see is not None
    assert left.to_see > 200
    assert left.to_prove is not None
    assert left.proves is not None
    assert (left.to_prove > 200) == (left.proves < 0.8)
    assert planned(nights, fall=0.2)["left"].to_see < left.to_see
    assert "one state so far" in str(rows["right"].reason), "the other eval has not changed"


@pytest.mark.long
def test_the_table_says_what_is_not_planned(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    nights.evaluate(evals=["left"], numbers=MANY, wrong=range(10))
    nights.evaluate(evals=["left"], numbers=MANY, wrong=range(3, 12))
    publish(nights.project().lake)
    print_samples(nights.project(), "nightly", 2, Budget(amount=0.001, unit="cost", text="0.001usd"))
    printed = capsys.readouterr()
    assert "not planned: right on one: it has no result yet" in printed.err
    assert "no limits for 0.001usd: the cost of a sample is known of no eval" in printed.err
    assert "to see 2" in printed.out


@pytest.mark.long
def test_limits_use_the_budget_for_the_smallest_fall() -> None:
    shared = {"model": "m", "metric": "accuracy", "samples": 500, "width": 1.0, "seconds": 0.1}
    rows = [
        Planned(eval="quiet", flips=0.01, **shared),
        Planned(eval="loud", flips=0.1, **shared),
        Planned(eval="free", flips=0.1, **(shared | {"seconds": None})),
        Planned(eval="unknown", **shared),
    ]
    found = limits_within(rows, level=0.003, budget=600, unit="seconds")
    assert found is not None
    fall, limits = found
    assert list(limits) == ["quiet", "loud"]
    assert limits["quiet"].samples < limits["loud"].samples
    assert 0.95 * 600 < 0.1 * sum(asked.samples for asked in limits.values()) <= 600
    more = limits_within(rows, level=0.003, budget=6000, unit="seconds")
    assert more is not None
    assert more[0] < fall
    few = Planned(eval="few", flips=0.1, most=180, **shared)
    beside = limits_within([*rows, few], level=0.003, budget=600, unit="seconds")
    assert beside is not None
    assert beside[1]["few"] == Asked(samples=180, texts=1)
    assert 0.95 * 600 < 0.1 * sum(asked.samples for asked in beside[1].values()) <= 600
    assert limits_within(rows, level=0.003, budget=0.1, unit="seconds") is None
    assert limits_within(rows, level=0.003, budget=600, unit="cost") is None


NOISY = Planned(
    eval="noisy",
    model="m",
    metric="accuracy",
    is_share=True,
    value=0.7,
    width=1.0,
    flips=0.2,
    chance=0.2,
    samples=300,
    pairs=1,
    seconds=1.0,
    part_of_prompt=0.8,
)
"""A fifth of its answers flips, by the draws alone. Four fifths of the time go into prompts."""
LEVEL = 0.003


def price(row: Planned, asked: Asked) -> float:
    return asked.samples * row.most_price(asked.texts, "seconds")


def test_texts_are_proposed_where_they_are_cheaper() -> None:
    found = cheapest(NOISY, 0.03)
    assert found.texts > 1
    assert price(NOISY, found) < 0.8 * (NOISY.samples_for(0.03, LEVEL) or 0)
    others = [NOISY.samples_for(0.03, LEVEL, texts) for texts in range(2, 33)]
    assert price(NOISY, found) == min(price(NOISY, Asked(samples=n or 0, texts=texts)) for texts, n in enumerate(others, 2))
    dear = replace(NOISY, part_of_prompt=0.0)
    assert cheapest(dear, 0.03).texts == 1, "a sample is never worse than a text at the same price"
    assert cheapest(replace(NOISY, chance=0.01), 0.03).texts == 1, "texts do not help against changes that last"
    assert cheapest(replace(NOISY, chance=None), 0.03).texts == 1, "it cannot tell"
    assert cheapest(replace(NOISY, chance=None, part_of_prompt=None), 0.03).texts == 1


def test_texts_take_the_place_of_samples_that_are_not_there() -> None:
    whole = replace(NOISY, most=700, part_of_prompt=None)
    single = whole.samples_for(0.03, LEVEL)
    assert single is not None
    assert single > 700
    found = cheapest(whole, 0.03)
    assert (found.samples <= 700, found.texts > 1) == (True, True)
    assert cheapest(replace(whole, most=10_000), 0.03) == Asked(samples=single, texts=1), "without prices, nothing is cheaper"
    assert cheapest(replace(whole, most=20), 0.03) == Asked(samples=single, texts=1), "no number of texts is enough"
    found_within = limits_within([replace(whole, part_of_prompt=0.8)], level=LEVEL, budget=700, unit="seconds")
    assert found_within is not None
    assert found_within[1]["noisy"].texts > 1


def test_pure_noise_and_saturated_evals_are_named() -> None:
    def said(**fields: object) -> list[str]:
        return list(_notes(replace(NOISY, **fields)))

    assert said() == ["pure noise"]
    assert said(chance=0.1) == []
    assert said(chance=None) == []
    assert said(value=0.99, chance=None, flips=0.01) == ["at the ceiling"]
    assert said(chance=0.0, flips=0.0, deviation=None) == [], "nothing varies"
    assert said(chance=0.1, pooled=3.0) == ["pool of 3"]


def test_the_table_and_the_limits_name_the_texts(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = replace(NOISY, most=700)
    planned = replace(row, to_see=row.samples_for(0.03, LEVEL), cheapest=cheapest(row, 0.03))
    monkeypatch.setattr(plan_table, "plan_samples", lambda *_: ([planned], LEVEL))
    print_samples(nights.project(), "nightly", 3, Budget(amount=2000, unit="seconds", text="2000s"))
    printed = " ".join(capsys.readouterr().out.split())
    assert planned.cheapest is not None
    assert f"{planned.cheapest.samples} × {planned.cheapest.texts} texts" in printed
    assert "'cheapest' sees the same fall with more texts" in printed
    assert re.search(r"noisy: \{(limit: \d+, )?num_samples: \d+\}", printed)


def cheapest(row: Planned, fall: float) -> Asked:
    found = cheapest_asked([row], fall, LEVEL, "seconds")
    assert found is not None
    return found


@pytest.mark.long
def test_the_draws_of_several_texts_are_the_chance(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 200 samples, 100 are right in half of their texts; later ten others are wrong for good."""
    draw = "import random; number = -1 if number < 100 and random.random() < 0.5 else number; night = {night}"
    nights.evaluate(numbers=MANY, evals=["left"], texts=4, raising=draw.format(night=1))
    nights.evaluate(numbers=MANY, evals=["left"], texts=4, raising=draw.format(night=2))
    project = nights.project(texts=4)
    publish(project.lake)
    left = {row.eval: row for row in plan_samples(project, "nightly", 0.02)[0]}["left"]
    assert left.texts == 4
    assert left.chance == pytest.approx(0.5 * 2 * 0.25, abs=0.04)
    assert left.is_noise
    print_samples(project, "nightly", 2, None)
    assert "pure noise" in " ".join(capsys.readouterr().out.split())
    nights.evaluate(numbers=MANY, evals=["left"], texts=4, raising=draw.format(night=3), wrong=range(150, 200))
    publish(project.lake)
    left = {row.eval: row for row in plan_samples(project, "nightly", 0.02)[0]}["left"]
    assert not left.is_noise, "a quarter of the samples changed for good"
    assert left.lasting == pytest.approx(0.25 / 2, abs=0.07), "in one of two pairs"


@pytest.mark.long
def test_pooled_states_prove_with_fewer_samples(tmp_path: Path) -> None:
    flipping = FlippingNights(tmp_path)
    for _ in range(4):
        flipping.night(gate="pool: 4")

    def left(pool: int) -> Planned:
        project = replace(flipping.nights.project(baseline="last_passed", gate=f"pool: {pool}"))
        publish(project.lake)
        return {row.eval: row for row in plan_samples(project, "nightly", 0.02)[0]}["left"]

    alone, pooled = left(1), left(4)
    assert (alone.pooled, pooled.pooled) == (1.0, 4.0)
    assert pooled.chance == pytest.approx(alone.flips)
    assert alone.to_prove is not None
    assert pooled.to_prove is not None
    assert pooled.to_prove < 0.85 * alone.to_prove
    assert pooled.proves is not None
    assert alone.proves is not None
    assert pooled.proves > alone.proves


@pytest.mark.parametrize(
    ("text", "amount", "unit"), [("20min", 1200, "seconds"), ("1.5 h", 5400, "seconds"), ("90s", 90, "seconds"), ("5usd", 5, "cost")]
)
def test_budgets(text: str, amount: float, unit: str) -> None:
    assert parse_budget(text) == Budget(amount=amount, unit=unit, text=text)


@pytest.mark.parametrize("text", ["5", "min", "0usd", "20 days", "-1h"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--budget: found .*; expected an amount above 0 with its unit: 90s, 20min, 1.5h or 5usd"):
        parse_budget(text)
