"""Falls of a served model are confirmed by fresh answers: nights on a server that answers at random."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from served_nights import ServedNights
from served_numbers import answers, chances, unlucky
from servers.stub import Stub, stub_server

from eval_dagster.gate import confirmation
from eval_dagster.gate.confirmation import confirm
from eval_dagster.gate.judgement import judge
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import accept, read_judgement, write_result
from eval_dagster.gate.wording import verdict_line
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo, new_name, write_parquet
from eval_dagster.project import Project
from eval_dagster.records.judgements import Regression, Verdict
from eval_dagster.retention import CACHE, Keep, Policy, plan


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with stub_server(tmp_path, answers=answers()) as running:
        yield running


@pytest.fixture
def nights(tmp_path: Path, stub: Stub) -> ServedNights:
    return ServedNights(tmp_path, stub)


def asked(stub: Stub) -> int:
    """Requests for texts so far."""
    return sum(stub.counts().received.values())


@pytest.mark.long
def test_a_night_that_is_worse_by_chance_is_not_red_and_no_baseline(nights: ServedNights, stub: Stub) -> None:
    each = chances()
    stub.change(chances=each, luck=unlucky(each, times=4))
    first = nights.night()
    assert first.is_first
    second = nights.night()
    [row] = second.regressions
    assert (row.verdict, row.confirmation, row.is_passed, row.against) == (Verdict.NO_CHANGE_SEEN, "refuted", False, None)
    assert not second.is_failed
    assert row.p_adjusted is not None
    assert row.p_adjusted <= second.level, "the test of the night alone is significant"
    assert (row.reason or "").startswith("not confirmed: ")
    assert "1 fall not confirmed by asking again: numbers on served" in verdict_line(second)
    assert asked(stub) == 600, "a fall that is just significant: all samples are asked again"
    lake = nights.project().lake
    publish(lake)
    [[counted]] = [list(found.values()) for found in read_rows(lake, "select count(*) from confirmations where fresh_value is not null")]
    assert counted == row.n_fresh == 200
    assert read_rows(lake, "select count(distinct sample_name) as names from confirmations") == [{"names": 200}]
    [stored] = read_rows(lake, "select avg(fresh_value) - avg(value + baseline_value) / 2 as half from confirmations")
    assert 2 * stored["half"] == pytest.approx(row.fresh_difference)

    unchanged = nights.night(is_new=False)
    [same] = unchanged.regressions
    assert (same.verdict, same.is_passed, same.reason) == (Verdict.NO_CHANGE_SEEN, False, row.reason)
    assert (same.confirmation, same.fresh_p_value) == ("refuted", row.fresh_p_value)
    assert asked(stub) == 600, "the same result is not asked again"

    third = nights.night()
    [last] = third.regressions
    assert last.baseline_materialized_at == row.baseline_materialized_at, "the unlucky night is no baseline"
    assert last.anchor_materialized_at == row.baseline_materialized_at
    assert (last.verdict, last.is_passed, last.confirmation) == (Verdict.NO_CHANGE_SEEN, True, None)


@pytest.mark.long
def test_a_night_that_is_worse_is_confirmed_and_stays_red(nights: ServedNights, stub: Stub) -> None:
    each = chances()
    stub.change(chances=each)
    nights.night()
    lost = {part: 0.0 if int(part.split()[-1]) % 7 == 0 else chance for part, chance in each.items()}
    stub.change(chances=lost)
    [row] = nights.night().regressions
    assert (row.verdict, row.confirmation, row.against) == (Verdict.REGRESSED, "confirmed", "baseline")
    assert row.fresh_difference is not None
    assert row.fresh_difference < -0.05
    assert "confirmed: " in (row.reason or "")
    before = asked(stub)
    [same] = nights.night(is_new=False).regressions
    assert (same.verdict, same.confirmation, same.fresh_p_value) == (Verdict.REGRESSED, "confirmed", row.fresh_p_value)
    assert asked(stub) == before
    [later] = nights.night().regressions
    assert (later.verdict, later.confirmation) == (Verdict.REGRESSED, None), "what stays red is not asked again"
    assert asked(stub) == before + 200
    accept(nights.project().lake, "nightly", evals=[], models=[], by="somebody", why="it is meant to")
    [accepted] = nights.night().regressions
    assert accepted.verdict in (Verdict.NO_CHANGE_SEEN, Verdict.NOT_WORSE)


@pytest.mark.long
def test_fresh_answers_are_no_answers_of_the_night_and_are_paid_for_once(nights: ServedNights, stub: Stub) -> None:
    each = chances()
    stub.change(chances=each, luck=unlucky(each))
    nights.night()
    project = nights.evaluate()
    judged = judge(project, "nightly", run_id="dry")
    [dry] = judged.regressions
    assert (dry.verdict, dry.confirmation) == (Verdict.REGRESSED, "unconfirmed")
    [off] = judge(nights.project(gate="confirm: false"), "nightly", run_id="dry").regressions
    assert (off.verdict, off.confirmation) == (Verdict.REGRESSED, None)
    assert asked(stub) == 400, "judging asks nothing"
    version = project.handle("served").version()
    folder = project.lake.root / "response_cache" / f"model_version={version}"
    files = {path: path.read_bytes() for path in folder.iterdir()}
    first, second = confirm(project, judged), confirm(nights.project(), judged)
    assert asked(stub) == 600, "the second time all answers are stored"
    assert first.regressions == second.regressions
    assert {path: path.read_bytes() for path in folder.iterdir()} == files
    _require_equal_drift(project, judged)
    _require_rows_of_their_own(project, judged)
    later = datetime.now(UTC) + timedelta(days=3)
    newest = Keep.parse("1", what="--keep")
    pruned = plan(project, Policy(keep=newest, catalogs=newest), now=later)
    unused = {each.path.parent for each in pruned.files if each.what == CACHE}
    assert len(unused) == 1, "the fresh answers, which no result uses"
    assert folder not in unused
    nights.evaluate(is_new=False)
    assert asked(stub) == 600


@pytest.mark.long
@pytest.mark.parametrize("is_worse", [False, True])
def test_a_night_that_could_not_be_confirmed_is_asked_about_again(nights: ServedNights, stub: Stub, is_worse: bool) -> None:
    each = chances()
    stub.change(chances=each, luck=unlucky(each, times=4))
    nights.night()
    if is_worse:
        stub.change(chances={part: 0.0 if int(part.split()[-1]) % 7 == 0 else chance for part, chance in each.items()})
    project = nights.evaluate()
    judged = judge(project, "nightly", run_id="gate")
    stub.change(model="another")  # answers 404
    result = confirm(project, judged)
    [row] = result.regressions
    assert (row.verdict, row.confirmation) == (Verdict.REGRESSED, "unconfirmed")
    assert re.match(r"could not be confirmed: (\d+) of \1 requests were left unanswered: Model 'served'", row.reason or "")
    assert ["could not be confirmed" in warning for warning in result.warnings] == [True]
    write_result(project.lake, result)
    still_down = nights.night(is_new=False)
    [same] = still_down.regressions
    assert (same.verdict, same.confirmation, same.fall_level) == (Verdict.REGRESSED, "unconfirmed", judged.level)
    assert (same.reason or "").count("could not be confirmed: ") == 1
    assert still_down.level == 0, "nothing is tested again"
    stub.change(model="stub")
    [later] = nights.night(is_new=False).regressions
    assert later.confirmation == ("confirmed" if is_worse else "refuted")
    assert later.verdict is (Verdict.REGRESSED if is_worse else Verdict.NO_CHANGE_SEEN)
    assert "could not be confirmed" not in (later.reason or "")
    [next_night] = nights.night().regressions
    assert next_night.verdict is later.verdict, "what is refuted keeps no later night red"
    assert next_night.is_passed is not is_worse


@pytest.mark.long
def test_metrics_of_all_samples_together_are_confirmed_too(nights: ServedNights, stub: Stub) -> None:
    each = chances()
    stub.change(chances=each)
    nights.night(gate="metrics: all", temperature=1.0)
    stub.change(chances={part: 0.0 if int(part.split()[-1]) % 7 == 0 else chance for part, chance in each.items()})
    result = nights.night(gate="metrics: all", temperature=1.0)
    rows = {row.metric: row for row in result.regressions}
    assert rows.keys() == {"exact_match", "share", "agreement"}
    assert {(row.verdict, row.confirmation, row.n_fresh) for row in rows.values()} == {(Verdict.REGRESSED, "confirmed", 200)}
    mean = rows["exact_match"]
    for of_all in (rows["share"], rows["agreement"]):
        assert of_all.fresh_difference == pytest.approx(mean.fresh_difference)
        assert of_all.fresh_stderr == pytest.approx(mean.fresh_stderr, rel=0.2)
    assert asked(stub) == 600, "one answer to each sample for all metrics"
    seeds = [request["body"]["seed"] for request in stub.requests()]
    assert len(set(seeds)) == 1, "where a server honours the seed, fresh answers share the random draws of the night"
    shown = {(sample.metric, sample.value is None, sample.has_fresh_score) for sample in result.fresh}
    assert shown == {("exact_match", False, True), ("share", True, True), ("agreement", True, True)}


def _require_equal_drift(project: Project, judged: GateResult) -> None:
    """A fall from the anchor is confirmed as the same fall from the baseline."""
    [row] = judged.regressions
    as_drift = {"anchor": row.baseline, "anchor_materialized_at": row.baseline_materialized_at, "anchor_value": row.baseline_value}
    as_drift |= {"drift": row.difference, "drift_p_value": row.p_value, "drift_p_adjusted": row.p_adjusted}
    drifted = replace(row, **as_drift, against="anchor", reason="drifted")
    plain, of_drift, of_both = (confirm(project, replace(judged, regressions=[one])) for one in (row, drifted, replace(row, **as_drift)))
    assert [one.regressions[0].confirmation for one in (plain, of_drift, of_both)] == ["refuted"] * 3
    assert len({(one.regressions[0].fresh_p_value, one.regressions[0].fresh_level) for one in (plain, of_drift, of_both)}) == 1
    found = [{sample.against for sample in one.fresh} for one in (plain, of_drift, of_both)]
    assert found == [{"baseline"}, {"anchor"}, {"baseline", "anchor"}]


def _require_rows_of_their_own(project: Project, judged: GateResult) -> None:
    """A metric or a fall that cannot be tested leaves the other ones of the eval as they are."""
    [row] = judged.regressions
    gone = {"baseline_materialized_at": datetime(2020, 1, 1, tzinfo=UTC)}
    broken = replace(row, metric="other", **gone)
    as_drift = {"anchor": row.baseline, "anchor_value": row.baseline_value, "anchor_materialized_at": datetime(2020, 1, 1, tzinfo=UTC)}
    half = replace(row, **as_drift, drift=row.difference, drift_p_value=row.p_value, drift_p_adjusted=row.p_adjusted)
    result = confirm(project, replace(judged, regressions=[broken, row, half]))
    assert [each.confirmation for each in result.regressions] == ["unconfirmed", "refuted", "unconfirmed"]
    for each in (result.regressions[0], result.regressions[2]):
        assert each.verdict is Verdict.REGRESSED
        assert "of 2020-01-01 00:00 UTC is damaged or no longer in the lake" in (each.reason or "")
    assert len(result.warnings) == 1


@pytest.mark.long
def test_another_baseline_gives_an_unchanged_result_no_new_draws(nights: ServedNights, stub: Stub) -> None:
    each = chances()
    stub.change(chances=each, luck=unlucky(each))
    nights.night(baseline="previous")
    [row] = nights.night(baseline="previous").regressions
    assert row.confirmation == "refuted"
    for folder in (nights.folder / "home" / "lake" / "response_cache").iterdir():
        if not folder.name.endswith(nights.project().handle("served").version()):
            shutil.rmtree(folder)  # as `gc` does
    stub.change(chances=dict.fromkeys(each, 0.0))
    [same] = nights.night(is_new=False, baseline="previous").regressions
    assert same == row
    assert asked(stub) == 600


@pytest.mark.long
def test_a_judgement_follows_one_that_was_written_meanwhile(nights: ServedNights, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.night()
    project, others = nights.project(), list[GateResult]()

    def slow(project: Project, result: GateResult) -> GateResult:
        if not others:
            others.append(judge(project, "nightly", run_id="another"))
            write_result(project.lake, others[0])
        return confirm(project, result)

    monkeypatch.setattr(confirmation, "confirm", slow)
    found = confirmation.judge_and_confirm(project, "nightly", run_id="slow")
    assert found.judged_at > others[0].judged_at


def test_a_judgement_without_these_columns_can_be_read(tmp_path: Path) -> None:
    row = Regression(suite="nightly", eval="numbers", model="served", metric="exact_match", verdict=Verdict.NO_CHANGE_SEEN)
    table = table_of("regressions", [asdict(row)])
    earlier = table.drop_columns(
        [name for name in table.column_names if name in ("confirmation", "fall_level", "n_fresh") or "fresh_" in name]
    )
    assert len(earlier.column_names) == len(table.column_names) - 7
    info = FileInfo(fingerprint="", version="", run_id="earlier", materialized_at=datetime.now(UTC).isoformat())
    path = Lake(tmp_path).folder("regressions", "nightly") / new_name("earlier")
    write_parquet(path, earlier, info)
    assert read_judgement(path)[1] == [row]
