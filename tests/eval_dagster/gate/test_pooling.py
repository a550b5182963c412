"""Proofs against the mean of several earlier states, of a scripted model whose answers flip from night to night."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from textwrap import dedent

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.stats
from flipping_nights import SAMPLES, FlippingNights
from judged_project import CONFIG, row

from eval_dagster.gate.judgement import judge
from eval_dagster.gate.results import current_result, write_result
from eval_dagster.gate.wording import evidence, proof_text
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import LOG_CONTENT, table_of
from eval_dagster.lake.format.parquet_files import read_info
from eval_dagster.pages.report.summaries import markdown
from eval_dagster.pages.report.writing import report
from eval_dagster.records.judgements import SOUND, Regression, Verdict
from eval_dagster.results.materializations import history


@pytest.fixture
def nights(tmp_path: Path) -> FlippingNights:
    return FlippingNights(tmp_path)


def times(rows: Sequence[Regression]) -> tuple[datetime | None, ...]:
    return tuple(each.materialized_at for each in rows)


@pytest.mark.long
def test_quiet_states_are_the_baseline_of_a_proof_together(nights: FlippingNights) -> None:
    rows = [nights.night() for _ in range(8)]
    assert [len(each.pooled_baseline) for each in rows] == [0, 0, 2, 3, 4, 5, 6, 7]
    proven = []
    for _ in range(4):
        nights.ask()
        found, alone = (nights.judge(f"pool: {most}", is_kept=False) for most in (8, 1))
        proven.append((found.is_proven, alone.is_proven))
        assert found.pooled_baseline == times(rows)
        assert found.pooled_anchor == (), "it is among them"
        assert (found.baseline_materialized_at, found.p_value) == (alone.baseline_materialized_at, alone.p_value), "red has one baseline"
    assert proven == [(True, False)] * 4
    lake = nights.nights.project().lake
    scores = [point.scores_of("exact_match")["value"].to_numpy() for point in history(lake, "left", "one")]
    differences = scores[-1] - np.mean(scores[:8], axis=0)
    rise = differences.mean() + 0.03
    z = rise / np.sqrt((differences.var(ddof=1) + rise) / SAMPLES)
    assert found.margin_p_value == pytest.approx(scipy.stats.t.sf(z, SAMPLES - 1))
    nights.ask(wrong=range(200, 209))
    fallen = nights.judge()
    assert len(fallen.pooled_baseline) == 8
    assert (fallen.verdict, fallen.is_proven) == (Verdict.NO_CHANGE_SEEN, False), "3 points are gone"
    publish(lake)
    (stored,) = read_rows(lake, "select pooled_baseline, pooled_anchor from regressions where eval = 'left'")
    assert (tuple(stored["pooled_baseline"]), stored["pooled_anchor"]) == (times(rows), [])


@pytest.mark.long
def test_the_policy_says_how_many_states(nights: FlippingNights) -> None:
    rows = [nights.night() for _ in range(4)]
    nights.ask()
    assert nights.judge("pool: 1", is_kept=False).pooled_baseline == ()
    two = nights.judge("pool: 2", is_kept=False)
    assert (two.pooled_baseline, two.pooled_anchor) == (times(rows[2:]), times(rows[:2])), "a drift is not averaged away"


@pytest.mark.long
def test_a_changed_prompt_ends_the_pool(nights: FlippingNights) -> None:
    rows = [nights.night(question=question) for question in ("Say", "Say", "Please say", "Say", "Say")]
    last = nights.night()
    assert last.pooled_baseline == times(rows[3:]), "the first two states are asked the same, and another one lies between"
    assert last.pooled_anchor == times(rows[:2])
    assert nights.night(version=2).pooled_baseline == times([*rows[3:], last]), "the result itself may be of another version"
    assert nights.night(version=2).pooled_baseline == (), "and is alone then"


@pytest.mark.long
def test_a_red_state_is_not_pooled(nights: FlippingNights) -> None:
    rows = [nights.night() for _ in range(2)]
    red = nights.night(wrong=range(100, 160))
    assert red.verdict is Verdict.REGRESSED
    rows += [nights.night() for _ in range(2)]
    assert rows[-1].verdict in SOUND
    assert nights.night().pooled_baseline == times(rows)


@pytest.mark.long
def test_a_state_that_was_not_judged_or_is_red_elsewhere_is_not_pooled(nights: FlippingNights, monkeypatch: pytest.MonkeyPatch) -> None:
    weekly = "  weekly: {{evals: [left, right], models: [one]}}\n"
    monkeypatch.setattr("judged_project.CONFIG", f"{dedent(CONFIG).rstrip()}\n{weekly}")
    rows = [nights.night() for _ in range(3)]
    nights.ask()
    rows.append(nights.night())
    assert nights.night().pooled_baseline == times(rows), "nobody judged the fourth"
    project = nights.nights.project()
    result = judge(project, "weekly", run_id="gate")
    found = [replace(each, verdict=Verdict.REGRESSED, materialized_at=rows[1].materialized_at) for each in result.regressions]
    write_result(project.lake, replace(result, regressions=found))
    nights.ask()
    assert rows[1].materialized_at not in nights.judge().pooled_baseline


@pytest.mark.long
def test_states_of_another_scorer_or_an_import_are_not_pooled(nights: FlippingNights) -> None:
    rows = [nights.night() for _ in range(3)]
    nights.ask()
    assert nights.judge(is_kept=False).pooled_baseline == times(rows)
    lake = nights.nights.project().lake
    path = history(lake, "left", "one")[1].metrics.path
    info = read_info(path)
    table = pq.read_table(path, partitioning=None)
    path.unlink()
    lake.add(path, table_of("metrics", table.to_pylist()), replace(info, inputs=info.inputs | {LOG_CONTENT: "0"}))
    assert nights.judge(is_kept=False).pooled_baseline == times([rows[0], rows[2]])
    nights.ask(answer='str(item["answer"])')
    assert nights.judge(is_kept=False).pooled_baseline == (), "the baseline was scored again"


def test_every_place_says_which_states_were_pooled(nights: FlippingNights) -> None:
    nights.night()
    nights.night()
    nights.ask()
    project = nights.nights.project(baseline="last_passed", gate="require: [left], pool: 8")
    result = judge(project, "nightly", run_id="gate")
    found = row(result)
    first, second = (f"{time:%Y-%m-%d %H:%M} UTC" for time in found.pooled_baseline)
    words = f" against the mean of 2 states ({first} to {second})"
    assert proof_text(found).endswith(words)
    assert words in evidence(found)
    assert words in markdown(result)
    write_result(project.lake, result)
    read = current_result(project.lake, "nightly")
    assert read is not None
    assert row(read) == found
    page = report(project, result).page
    assert page is not None
    assert words in page.read_text("utf-8")
