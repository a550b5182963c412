"""What a suite can see by its own history, and the limits that a budget allows."""

from pathlib import Path

import pytest
from judged_project import Nights

from eval_dagster.cli.plan_samples import Budget, parse_budget, print_samples
from eval_dagster.errors import UsageError
from eval_dagster.gate.planning import Planned, limits_within, plan_samples
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
    assert limits["quiet"] < limits["loud"]
    assert 0.95 * 600 < 0.1 * sum(limits.values()) <= 600
    more = limits_within(rows, level=0.003, budget=6000, unit="seconds")
    assert more is not None
    assert more[0] < fall
    few = Planned(eval="few", flips=0.1, most=180, **shared)
    beside = limits_within([*rows, few], level=0.003, budget=600, unit="seconds")
    assert beside is not None
    assert beside[1]["few"] == 180
    assert 0.95 * 600 < 0.1 * sum(beside[1].values()) <= 600
    assert limits_within(rows, level=0.003, budget=0.1, unit="seconds") is None
    assert limits_within(rows, level=0.003, budget=600, unit="cost") is None


@pytest.mark.parametrize(
    ("text", "amount", "unit"), [("20min", 1200, "seconds"), ("1.5 h", 5400, "seconds"), ("90s", 90, "seconds"), ("5usd", 5, "cost")]
)
def test_budgets(text: str, amount: float, unit: str) -> None:
    assert parse_budget(text) == Budget(amount=amount, unit=unit, text=text)


@pytest.mark.parametrize("text", ["5", "min", "0usd", "20 days", "-1h"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--budget: found .*; expected an amount above 0 with its unit: 90s, 20min, 1.5h or 5usd"):
        parse_budget(text)
