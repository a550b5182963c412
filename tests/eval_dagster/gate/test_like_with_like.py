"""What a night is compared with: per metric, whatever its order and name, and though files are lost, rows come and go, and errors creep."""

from pathlib import Path

import pytest
from remembered_worlds import Accuracy, Marked, Renamed, World, remembered_worlds

from eval_dagster.gate.records import GateResult, Outcome
from eval_dagster.gate.wording import verdict_line
from eval_dagster.records.judgements import Regression, Verdict

TABLES = ("metrics", "scores", "responses", "prompts", "samples", "regressions")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = remembered_worlds(tmp_path, monkeypatch)(0)
    made.right = set(range(45))
    return made


def of(result: GateResult, metric: str = "accuracy") -> Regression:
    (found,) = [row for row in result.regressions if row.metric == metric]
    return found


def test_another_order_of_the_metrics_for_a_night_hides_no_fall(world: World) -> None:
    world.night()
    world.is_first = False
    assert world.night().outcome is Outcome.PASSED
    world.right = set(range(12))
    swapped = world.night()
    assert [(row.metric, row.verdict) for row in swapped.regressions] == [
        ("length", Verdict.NO_CHANGE_SEEN),
        ("accuracy", Verdict.REGRESSED),
    ]
    world.is_first = True
    assert (of(world.night()).verdict, of(world.night()).baseline_value) == (Verdict.REGRESSED, 0.9)


def test_a_metric_passes_although_another_one_is_red(world: World) -> None:
    world.night()
    world.is_first = False
    world.right = set(range(12))
    red = world.night()
    assert (of(red, "length").is_passed, of(red).is_passed) == (True, False)
    again = world.night()
    assert of(again, "length").baseline_materialized_at == of(red, "length").materialized_at
    assert of(again).baseline_materialized_at == of(red).baseline_materialized_at


def test_a_metric_that_is_removed_is_a_gap_until_a_person_accepts_it(world: World) -> None:
    world.night()
    world.is_gone = True
    for _ in range(2):
        result = world.night()
        assert (of(result).verdict, of(result, "length").verdict) == (Verdict.NOT_COMPARABLE, Verdict.NO_CHANGE_SEEN)
        assert result.outcome is Outcome.INCOMPLETE
        assert "the result has no accuracy any more" in verdict_line(result)
    world.accept()
    assert [row.metric for row in world.night().regressions] == ["length"]


def test_a_metric_with_another_name_is_compared_on_the_answers_of_the_baseline(world: World) -> None:
    world.night()
    world.form, world.right = Renamed, set(range(12))
    result = world.night()
    assert (of(result, "share_right").verdict, of(result, "share_right").baseline_value) == (Verdict.REGRESSED, 0.9)


def test_a_metric_that_refuses_older_answers_is_not_comparable(world: World) -> None:
    world.night()
    world.form, world.has_mark = Marked, True
    found = of(world.night())
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert (
        found.reason
        == "accuracy has changed, and gives no value for 50 of the 50 answers of the baseline (ValueError: the answer has no mark)"
    )


@pytest.mark.parametrize("is_damaged", [True, False], ids=["damaged", "deleted"])
@pytest.mark.parametrize("table", TABLES)
def test_a_lost_file_of_the_baseline_hides_no_fall(world: World, table: str, *, is_damaged: bool) -> None:
    world.night()
    world.right = set(range(44))
    world.night()
    (*_, newest) = (path for path in sorted(world.lake.kept) if path.parts[3] == table)
    if is_damaged:
        world.lake.kept[newest].is_damaged = True
    else:
        del world.lake.kept[newest]
    world.right = set(range(12))
    found = of(world.night())
    assert found.verdict is Verdict.REGRESSED
    assert found.baseline_value == (0.9 if table == "regressions" else 0.88)
    assert ("its answers were scored again" in (found.reason or "")) is (table in ("metrics", "scores"))


def test_where_all_of_a_baseline_is_lost_an_older_one_that_passed_takes_its_place(world: World) -> None:
    world.night()
    world.right = set(range(44))
    passed = world.night()
    for path in [path for path in world.lake.kept if path.parts[3] in ("metrics", "scores", "responses")]:
        world.lake.kept[path].is_damaged = path.name[:22] >= f"{of(passed).materialized_at:%Y%m%dT%H%M%S%f}"
    found = of(world.night())
    assert (found.verdict, found.baseline_value) == (Verdict.NO_CHANGE_SEEN, 0.9)
    assert (found.reason or "").startswith("compared with the state of ")
    world.right = set(range(12))
    assert of(world.night()).verdict is Verdict.REGRESSED


def test_where_nothing_can_be_read_the_suite_is_incomplete(world: World) -> None:
    world.night()
    for path in [path for path in world.lake.kept if path.parts[3] in ("metrics", "scores", "responses")]:
        del world.lake.kept[path]
    world.right = set(range(12))
    result = world.night()
    assert (of(result).verdict, result.outcome) == (Verdict.NOT_COMPARABLE, Outcome.INCOMPLETE)
    assert "no result that passed can be read" in (of(result).reason or "")


def test_new_ids_of_all_samples_are_not_green(world: World) -> None:
    world.night()
    world.ids_change()
    world.right = set()
    assert world.night().outcome is Outcome.INCOMPLETE


@pytest.mark.parametrize(("replaced", "outcome"), [(22, Outcome.PASSED), (28, Outcome.INCOMPLETE)])
def test_rows_that_came_and_went_are_counted_beside_the_verdict(world: World, replaced: int, outcome: Outcome) -> None:
    world.night()
    world.questions = [*range(replaced, 50), *range(100, 100 + replaced)]
    result = world.night()
    found = of(result)
    assert (result.outcome, found.n_new, found.n_gone) == (outcome, replaced, replaced)
    assert found.marks == (f"samples: {replaced} came and {replaced} went",)
    assert f"{replaced} came and {replaced} went" in verdict_line(result) or outcome is Outcome.INCOMPLETE


def test_errors_that_creep_are_counted_against_the_anchor(world: World) -> None:
    verdicts = []
    for night in range(4):
        world.errors = set(range(2 * night))
        verdicts.append(of(world.night()).verdict)
    assert verdicts == [Verdict.FIRST_RESULT, Verdict.NO_CHANGE_SEEN, Verdict.ERRORS, Verdict.ERRORS]


def test_an_unchanged_model_stays_green_whatever_its_metric_is_called(world: World) -> None:
    world.night()
    for change in (World.another_order, lambda world: setattr(world, "form", Accuracy), World.another_order):
        change(world)
        result = world.night()
        assert (result.outcome, of(result).difference) == (Outcome.PASSED, 0)
