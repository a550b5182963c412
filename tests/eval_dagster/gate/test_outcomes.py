"""The outcome of a suite of which a part, or all, was not judged; and the gaps that a person accepted."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from few import few
from judged_project import Nights, row

from eval_dagster.errors import UsageError
from eval_dagster.gate.records import GateResult, Outcome
from eval_dagster.gate.results import accept, current_result, is_for, write_result
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.format.parquet_files import read_info, read_table, write_parquet
from eval_dagster.records.judgements import Acceptance, Verdict

SAME, FIRST, ACCEPTED = Verdict.NO_CHANGE_SEEN, Verdict.FIRST_RESULT, Verdict.ACCEPTED_GAP
NOT_EVALUATED, NOT_COMPARABLE = Verdict.NOT_EVALUATED, Verdict.NOT_COMPARABLE
BROKEN = {"function": "elsewhere"}


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def verdicts(result: GateResult) -> list[Verdict]:
    return [each.verdict for each in result.regressions]


def break_left(nights: Nights) -> None:
    (nights.folder / "left.py").write_text("raise OSError('no such library')")


@pytest.mark.long
def test_a_suite_of_which_a_part_was_not_evaluated_is_incomplete(nights: Nights) -> None:
    nights.night(models=["one", "two"])
    broken = nights.night(models=["one", "two"], **BROKEN)
    assert verdicts(broken) == [NOT_EVALUATED, SAME] * 2
    assert (broken.outcome, broken.is_green, broken.is_failed) == (Outcome.INCOMPLETE, False, True)
    assert [each.model for each in broken.missing] == ["one"] * 2
    assert not nights.judge(models="[one, two]", baseline="last_passed", gate="severity: warn").is_failed
    assert nights.night(models=["one", "two"]).outcome is Outcome.PASSED


@pytest.mark.long
@few("require, is_green", [("all", False), ("0.5", True), ("0.51", False), ("[right]", False), ("1.0", False)], kept=2)
def test_what_a_suite_requires(nights: Nights, require: str, *, is_green: bool) -> None:
    nights.night(models=["one", "two"])
    result = nights.night(models=["one", "two"], gate=f"require: {require}", **BROKEN)
    assert result.is_green is is_green
    assert len(result.gaps) == 2


@pytest.mark.long
def test_named_evals_are_required_alone(nights: Nights) -> None:
    nights.night()
    nights.evaluate(evals=["right"])
    break_left(nights)
    for require, outcome in (("[right]", Outcome.PASSED), ("[left]", Outcome.INCOMPLETE)):
        result = nights.judge(baseline="last_passed", gate=f"require: {require}")
        assert verdicts(result) == [NOT_COMPARABLE, SAME], "the file of `left` is broken now"
        assert result.outcome is outcome


@pytest.mark.long
def test_a_suite_that_has_judged_nothing_does_not_pass_whatever_it_requires(nights: Nights) -> None:
    nights.night()
    result = nights.night(gate="require: 0.001", **BROKEN)
    assert result.outcome is Outcome.INCOMPLETE
    assert nights.judge(models="[two]", baseline="two").outcome is Outcome.INCOMPLETE, "it would be compared with itself"


@pytest.mark.long
def test_what_is_red_stays_red_beside_what_was_not_judged(nights: Nights) -> None:
    nights.night()
    nights.night(wrong=range(12))
    assert nights.night(**BROKEN).outcome is Outcome.REGRESSED


@pytest.mark.long
def test_an_accepted_gap_says_so_and_is_green_until_it_is_judged_again(nights: Nights) -> None:
    lake = nights.project().lake
    nights.night(models=["one", "two"])
    nights.night(models=["one", "two"], **BROKEN)
    with pytest.raises(UsageError, match=r"name what was not judged \(left on one, right on one\)"):
        accept(lake, "nightly", evals=[], models=[], by="me", why="because")
    accepted = accept(lake, "nightly", evals=[], models=["one"], by="me", why="its server moves")
    assert [(each.eval, each.verdict, each.materialized_at) for each in accepted] == [
        ("left", NOT_EVALUATED, None),
        ("right", NOT_EVALUATED, None),
    ]
    with pytest.raises(UsageError, match="there is nothing to accept"):
        accept(lake, "nightly", evals=[], models=["one"], by="me", why="once more")
    for _ in range(2):
        again = nights.night(models=["one", "two"], **BROKEN)
        assert verdicts(again) == [ACCEPTED, SAME] * 2
        assert again.outcome is Outcome.PASSED
    gap = row(again, metric=None)
    assert str(gap.reason).startswith("accepted by me on ")
    assert ": its server moves (not evaluated: failed at model_outputs on " in str(gap.reason)
    assert not gap.is_passed
    assert nights.night(models=["one", "two"]).outcome is Outcome.PASSED
    assert nights.night(models=["one", "two"], **BROKEN).outcome is Outcome.INCOMPLETE, "the gap was closed"


@pytest.mark.long
def test_green_results_beside_an_accepted_gap_keep_their_anchor(nights: Nights) -> None:
    nights.night()
    nights.evaluate(evals=["right"])
    break_left(nights)
    write_result(nights.project().lake, nights.judge(baseline="last_passed"))
    (accepted,) = accept(nights.project().lake, "nightly", evals=[], models=["one"], by="me", why="because")
    assert accepted.eval == "left"
    with pytest.raises(UsageError, match="there is nothing to accept"):
        accept(nights.project().lake, "nightly", evals=[], models=["one"], by="me", why="once more")


@pytest.mark.long
def test_a_suite_of_accepted_gaps_alone_has_judged_nothing(nights: Nights) -> None:
    nights.night()
    nights.night(**BROKEN)
    accept(nights.project().lake, "nightly", evals=[], models=["one"], by="me", why="because")
    result = nights.night(**BROKEN)
    assert verdicts(result) == [ACCEPTED] * 2
    assert result.outcome is Outcome.INCOMPLETE


@pytest.mark.long
def test_an_acceptance_counts_for_its_kind_of_gap(nights: Nights) -> None:
    """One sample can never be tested: an acceptance of that does not hide a failure."""
    nights.night(numbers=[1])
    single = nights.night(numbers=[1], wrong=[1])
    assert verdicts(single) == [NOT_COMPARABLE, SAME]
    (accepted,) = accept(nights.project().lake, "nightly", evals=["left"], models=[], by="me", why="one question is all there is")
    assert (accepted.metric, accepted.materialized_at) == ("exact_match", row(single).materialized_at)
    assert verdicts(nights.night(numbers=[1])) == [ACCEPTED, SAME]
    assert row(nights.night(**BROKEN), metric=None).verdict is NOT_EVALUATED


def test_a_gap_of_a_suite_with_a_named_baseline_can_be_accepted(nights: Nights) -> None:
    nights.evaluate()
    result = nights.judge(baseline="2020-01-31")
    assert verdicts(result) == [NOT_COMPARABLE] * 2
    lake = nights.project().lake
    write_result(lake, result)
    assert len(accept(lake, "nightly", evals=["left"], models=[], by="me", why="because", gaps_alone=True)) == 1
    assert verdicts(nights.judge(baseline="2020-01-31")) == [ACCEPTED, NOT_COMPARABLE]


@pytest.mark.long
def test_the_same_scores_as_in_a_night_that_could_not_be_judged_are_no_better(nights: Nights) -> None:
    nights.night(numbers=[1])
    for _ in range(2):
        assert row(nights.night(numbers=[1], wrong=[1])).verdict is NOT_COMPARABLE
    assert row(nights.night(numbers=[1])).verdict is SAME, "these are the scores of the baseline"


@pytest.mark.long
def test_a_new_metric_scores_the_answers_of_the_baseline_and_one_that_is_gone_is_a_gap(nights: Nights) -> None:
    nights.night()
    result = nights.night(metric="Renamed")
    assert row(result, metric="renamed").verdict is SAME
    assert (row(result).verdict, result.outcome) == (NOT_COMPARABLE, Outcome.INCOMPLETE)
    assert "the result has no exact_match any more" in (row(result).reason or "")
    accept(nights.project().lake, "nightly", evals=["left"], models=[], by="me", why="it has a better name")
    assert verdicts(nights.night(metric="Renamed")) == [SAME, SAME]


@pytest.mark.long
def test_the_outcome_is_kept_and_queried(nights: Nights) -> None:
    lake = nights.project().lake
    nights.night()
    written = nights.night(gate="require: [right]", **BROKEN)
    assert current_result(lake, "nightly") == written
    publish(lake)
    rows = read_rows(lake, "select outcome, verdict, count(*) as n from regressions_history group by all order by all")
    assert [tuple(each.values()) for each in rows] == [("first results", "first result", 2), ("incomplete", "not evaluated", 2)]


@pytest.mark.long
def test_judgements_of_earlier_versions_are_read_as_what_they_mean_now(nights: Nights) -> None:
    """They have no outcome, and one verdict for all that was not compared."""
    lake = nights.project().lake
    for files in ({}, BROKEN, {}):
        nights.night(**files)
    for path in (lake.root / "regressions").rglob("*.parquet"):
        table, info = read_table(path), read_info(path)
        earlier = {"first result": "not comparable", "not evaluated": "not comparable"}
        old = pa.array([earlier.get(each, each) for each in table["verdict"].to_pylist()])
        path.unlink()
        table = table.drop_columns(["outcome"]).set_column(table.schema.names.index("verdict"), "verdict", old)
        write_parquet(path, table, info)
    publish(lake)
    rows = read_rows(lake, "select distinct judged_at, outcome, verdict from regressions_history order by judged_at")
    assert [(each["outcome"], each["verdict"]) for each in rows] == [
        ("first results", "first result"),
        ("incomplete", "not evaluated"),
        ("passed", "no change seen"),
    ]


REASON = "failed at model_outputs on 2026-11-25 02:00: the model one: its weights /models/one/w-00001.safetensors are missing; copy 3 files"


@pytest.mark.parametrize(
    ("reason", "is_accepted"),
    [
        (
            REASON.replace("2026-11-25 02:00", "2026-11-26 02:04").replace("w-00001", "w-00002").replace("3 files", "5 files; try again"),
            True,
        ),
        (REASON.replace("/models/one/", "/mnt/disk7/other/"), True),
        ("failed at dataset_snapshot on 2026-11-26 02:00: the task file left.py cannot be imported: SyntaxError", False),
        (REASON.replace("are missing", "are damaged"), False),
        (REASON.replace("model_outputs", "sample_scores"), False),
        (None, False),
    ],
)
def test_an_acceptance_is_for_a_reason_whatever_its_numbers_times_and_paths(reason: str | None, *, is_accepted: bool) -> None:
    given: dict[str, Any] = {"suite": "nightly", "eval": "left", "model": "one", "materialized_at": None, "verdict": NOT_EVALUATED}
    acceptance = Acceptance(**given, reason=REASON, accepted_at=datetime.now(UTC), accepted_by="me", why="its disk comes")
    assert is_for(acceptance, reason) is is_accepted
    assert is_for(replace(acceptance, reason=None), reason), "those of earlier releases count for every reason"


@pytest.mark.long
def test_a_gap_for_another_reason_is_red_again_and_names_what_was_accepted(nights: Nights) -> None:
    lake, other = nights.project().lake, {"answer": 'item["gone"]'}
    nights.night()
    nights.night(**BROKEN)
    accept(lake, "nightly", evals=["left"], models=[], by="me", why="its server moves")
    assert verdicts(nights.night(**BROKEN)) == [ACCEPTED, NOT_EVALUATED]
    result = nights.night(**other)
    assert verdicts(result) == [NOT_EVALUATED, SAME]
    assert result.outcome is Outcome.INCOMPLETE
    said = str(row(result, metric=None).reason)
    assert "failed at rendered_prompts" in said
    assert "; another gap was accepted by me on " in said
    assert " (not evaluated: failed at model_outputs on " in said
    (accepted,) = accept(lake, "nightly", evals=["left"], models=[], by="you", why="the file is being written")
    assert accepted.reason == said
    assert verdicts(nights.night(**other)) == [ACCEPTED, SAME]
    assert verdicts(nights.night(**BROKEN)) == [ACCEPTED, NOT_EVALUATED], "that gap of the left eval was not judged since"
    nights.night()
    for files in (other, BROKEN):
        assert row(nights.night(**files), metric=None).verdict is NOT_EVALUATED, "both gaps were closed"
