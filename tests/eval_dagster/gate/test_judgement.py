"""A suite night by night: verdicts, baselines, causes, and results that cannot be compared."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from few import few
from judged_project import Nights, now, row
from scipy.stats import t as student

from eval_dagster.errors import ConfigError
from eval_dagster.gate.records import NO_EARLIER_RESULT, NO_RESULT, Outcome
from eval_dagster.gate.results import current_result, write_result
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.models import scripted
from eval_dagster.records.judgements import Verdict
from eval_dagster.results.comparison import causes
from eval_dagster.results.materializations import history


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


@pytest.mark.long
def test_a_night_that_got_worse_is_found_and_one_as_before_is_green_again(nights: Nights) -> None:
    nights.evaluate(wrong=(1,))
    first = nights.judge()
    assert [(each.verdict, each.metric) for each in first.regressions] == [(Verdict.FIRST_RESULT, "exact_match")] * 2
    assert first.outcome is Outcome.FIRST
    assert row(first).reason == NO_EARLIER_RESULT
    assert not first.is_failed

    nights.evaluate(wrong=range(1, 11))
    second = nights.judge()
    worse = row(second)
    assert (worse.verdict, worse.cause, worse.reason) == (Verdict.REGRESSED, "model", None)
    assert (worse.value, worse.baseline_value, worse.n_common, worse.test) == (30 / 40, 39 / 40, 40, "exact McNemar")
    assert worse.difference == pytest.approx(-9 / 40)
    assert worse.p_value == pytest.approx(2 / 2**9)
    assert worse.p_adjusted == pytest.approx(4 / 2**9), "of two comparisons"
    assert worse.baseline_materialized_at is not None
    assert worse.baseline == f"one@{worse.baseline_materialized_at:%Y-%m-%dT%H:%M:%S}"
    assert row(second, "right").verdict is Verdict.NO_CHANGE_SEEN
    assert second.is_failed
    assert second.outcome is Outcome.REGRESSED
    assert {(each.eval, each.answer, each.baseline_answer, each.gold) for each in second.changes} == {
        ("left", "wrong", f"word {number}", (f"word {number}",)) for number in range(2, 11)
    }

    results, failures = nights.evaluate(wrong=(1,))
    assert not failures
    assert sum(each.file.info.counts["requests_computed"] for each in results if each.stage == "model_outputs") == 0
    third = nights.judge()
    assert row(third).verdict is Verdict.IMPROVED
    assert third.outcome is Outcome.PASSED
    assert not third.is_failed


@pytest.mark.long
def test_severity_smallest_difference_and_metrics_are_the_suites(nights: Nights) -> None:
    nights.evaluate()
    nights.evaluate(wrong=range(10))
    assert not nights.judge(gate="severity: warn").is_failed
    assert row(nights.judge(gate="smallest_difference: 0.3")).verdict is Verdict.NO_CHANGE_SEEN
    assert row(nights.judge(gate="alpha: 0.001")).verdict is Verdict.NO_CHANGE_SEEN
    everything = nights.judge(gate="metrics: all")
    assert [each.metric for each in everything.regressions] == ["exact_match", "words"] * 2
    assert row(everything).p_adjusted == pytest.approx(4 * 2 / 2**10)


@pytest.mark.long
def test_changed_prompts_rows_and_metrics_are_named(nights: Nights) -> None:
    nights.evaluate()
    nights.evaluate(question="Tell")
    assert row(nights.judge()).cause == "prompt"
    nights.evaluate(question="Tell", numbers=[*range(39), 77])
    result = nights.judge()
    changed = row(result)
    assert (changed.cause, changed.n_common, changed.n_only_value, changed.n_only_baseline) == ("data", 39, 1, 1)
    changes = [(each.prompt, each.value, each.baseline_value) for each in result.changes]
    assert changes == [("Tell 77\n", 1.0, None), ("Tell 39\n", None, 1.0)]


@pytest.mark.long
@few(
    "later, cause",
    [
        ({"numbers": range(40)}, "samples"),
        ({"numbers": [0, 1, 77, 3]}, "data"),
        ({"numbers": range(40), "question": "Tell"}, "samples, prompt"),
        ({"numbers": [3, 2, 1, 0]}, ""),
        ({"numbers": range(2)}, "samples"),
        ({"numbers": [0, 1, 77, *range(3, 40)]}, "data, samples"),
        ({"question": "Tell"}, "prompt"),
        ({"answer": "'another gold answer'"}, "prompt"),
    ],
    kept=4,
)
def test_another_choice_of_samples_is_told_from_changed_rows_and_prompts(nights: Nights, later: dict[str, Any], cause: str) -> None:
    nights.evaluate(numbers=range(4), evals=["left"])
    nights.evaluate(**{"numbers": range(4), **later}, evals=["left"])
    project = nights.project()
    current = history(project.lake, "left", "one")
    assert ", ".join(causes(current[-1], current[0], "exact_match")) == cause
    publish(project.lake)
    changed = read_rows(project.lake, "select changed from score_history order by materialization")
    assert ", ".join(changed[-1]["changed"]) == cause


@pytest.mark.long
def test_a_trial_or_a_night_of_errors_between_two_nights_hides_no_regression(nights: Nights) -> None:
    nights.evaluate()
    nights.evaluate(numbers=range(5))
    nights.evaluate(raising="raise OSError('no memory')")
    nights.evaluate(wrong=range(20))
    found = row(nights.judge())
    assert (found.verdict, found.n_common, found.baseline_value) == (Verdict.REGRESSED, 40, 1.0)
    nights.evaluate(wrong=range(20), numbers=range(5))
    assert row(nights.judge()).n_common == 5, "a trial itself is compared with whatever is the newest"


@pytest.mark.long
def test_what_has_no_better_baseline_is_compared_with_a_trial(nights: Nights) -> None:
    nights.evaluate(numbers=range(5))
    nights.evaluate()
    assert row(nights.judge()).n_common == 5


@pytest.mark.long
def test_another_engine_under_the_same_model_is_told_from_another_model(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.evaluate()
    monkeypatch.setattr(scripted, "ENGINE_VERSION", -1)
    nights.evaluate()
    assert row(nights.judge()).cause == "engine"
    publish(nights.project().lake)
    changed = "select changed from score_history where eval = 'left' order by materialization"
    assert [each["changed"] for each in read_rows(nights.project().lake, changed)] == [[], ["engine"]]
    nights.evaluate(wrong=[1])
    assert row(nights.judge()).cause == "model"


def test_a_changed_metric_is_the_cause_where_nothing_else_ever_changed(nights: Nights) -> None:
    nights.evaluate()
    nights.evaluate(words="0.0")
    result = nights.judge(gate="metrics: all")
    words = row(result, metric="words")
    assert (words.verdict, words.cause) == (Verdict.NO_CHANGE_SEEN, "metric"), "by the changed metric, nothing fell"
    assert words.marks == ("metric: 1.000 → 0.000, model: 0.000 → 0.000",)
    assert (row(result).verdict, row(result).cause) == (Verdict.NO_CHANGE_SEEN, "")


@pytest.mark.long
def test_every_form_of_a_baseline(nights: Nights) -> None:
    nights.evaluate(wrong=(), wrong_of_two=range(20), models=["one", "two"])
    between = now().isoformat().replace("+00:00", "Z")
    nights.evaluate(wrong=range(10), wrong_of_two=range(20), models=["one", "two"])
    of_models = nights.judge(models="[one, two]", baseline="two")
    assert [each.model for each in of_models.regressions] == ["one", "one"], "two is not compared with itself"
    assert (row(of_models).value, row(of_models).baseline_value, row(of_models).verdict) == (30 / 40, 20 / 40, Verdict.IMPROVED)
    assert row(nights.judge(baseline=between)).baseline_value == 1.0
    assert row(nights.judge(baseline=f"one@{between}", models="[two]"), model="two").difference == -0.5
    assert row(nights.judge(baseline=f"{now():%Y-%m-%d}")).difference == 0, "the state of a day is its last"
    assert row(nights.judge(baseline="2020-01-31")).reason == (
        "the baseline '2020-01-31': one has no result of left of 2020-01-31 23:59 UTC or before"
    )
    with pytest.raises(ConfigError, match=r"found .2999-01-31., which lies in the future"):
        nights.judge(baseline="2999-01-31")
    assert row(nights.judge(baseline="one@previous", models="[two]"), model="two").baseline_value == 1.0


@pytest.mark.long
def test_a_model_that_fails_is_not_evaluated_and_takes_no_other_down(nights: Nights) -> None:
    nights.evaluate(models=["one", "two"])
    nights.evaluate(wrong=range(10), wrong_of_two=range(10), models=["one", "two"])
    began = now()
    assert nights.evaluate(wrong_of_two=range(10), function="elsewhere", models=["one", "two"])[1]
    for since in (None, began):
        result = nights.judge(models="[one, two]", since=since)
        failed = row(result, metric=None)
        assert failed.verdict is Verdict.NOT_EVALUATED
        assert failed.reason is not None
        assert failed.reason.startswith("failed at ")
        assert "the file defines no function 'answer'" in failed.reason
        assert failed.materialized_at is not None, "of the older result"
        assert row(result, model="two").verdict is Verdict.REGRESSED
        assert result.is_failed


@pytest.mark.long
def test_every_evaluation_is_written_down_with_how_it_ended(nights: Nights) -> None:
    nights.evaluate(models=["one", "two"])
    nights.evaluate(models=["one", "two"], function="elsewhere")
    nights.evaluate(models=["two"], numbers=[])
    lake = nights.project().lake
    publish(lake)
    columns = "eval, model, status, stage, requests_computed, requests_cached, cached"
    rows = read_rows(lake, f"select {columns} from attempts order by finished_at, eval")
    assert [tuple(row.values()) for row in rows] == [
        ("left", "one", "ok", "task_metrics", 40, 0, False),
        ("right", "one", "ok", "task_metrics", 40, 0, False),
        ("left", "two", "ok", "task_metrics", 40, 0, False),
        ("right", "two", "ok", "task_metrics", 40, 0, False),
        ("left", "one", "failed", "model_outputs", None, None, False),
        ("right", "one", "failed", "model_outputs", None, None, False),
        ("left", "two", "ok", "task_metrics", 0, 40, True),
        ("right", "two", "ok", "task_metrics", 0, 40, True),
        ("left", "two", "failed", "dataset_snapshot", None, None, False),
        ("right", "two", "ok", "task_metrics", 0, 40, True),
    ]
    (message,) = {row["message"] for row in read_rows(lake, "select message from attempts where stage = 'dataset_snapshot'")}
    assert "is empty" in message
    assert (row(nights.judge(models="[two]"), model="two", metric=None).reason or "").startswith("failed at dataset_snapshot")


@pytest.mark.long
def test_what_was_not_evaluated_in_this_run_does_not_pass_for_it(nights: Nights) -> None:
    nights.evaluate()
    nights.evaluate(wrong=range(10))
    began = now()
    assert nights.evaluate(wrong=range(10), evals=["left"])[0][-1].cached, "a cached result counts as evaluated"
    result = nights.judge(since=began)
    assert row(result).verdict is Verdict.REGRESSED
    assert row(result, "right", metric=None).verdict is Verdict.NOT_EVALUATED
    assert (row(result, "right", metric=None).reason or "").startswith("was not evaluated in this run")


ODD_CALLS_FAIL = """global calls
        calls = globals().get("calls", 0) + 1
        if number < {upto} and calls % 2:
            return "wrong"
"""


@pytest.mark.long
def test_what_several_texts_of_a_prompt_differ_by_is_no_change(nights: Nights) -> None:
    nights.evaluate(texts=2, raising=ODD_CALLS_FAIL.format(upto=40))
    nights.evaluate(texts=2, raising=ODD_CALLS_FAIL.format(upto=40), wrong=range(4))
    found = row(nights.judge(texts=2))
    # Each of 40 samples has one text right and one wrong, a variance of 1/2: sqrt(2 / 2 * 40 * 1/2) / 40, less those that are all wrong.
    assert found.noise_floor == pytest.approx(student.ppf(0.975, 3 * 36) * (36 / 2) ** 0.5 / 40)
    assert found.difference == pytest.approx(-2 / 40)
    assert found.verdict is Verdict.NO_CHANGE_SEEN
    assert row(nights.judge(texts=2), "right").noise_floor is None, "one text a prompt, always answered from the cache"


@pytest.mark.long
def test_runs_of_the_same_versions_tell_the_noise_where_there_is_one_text(nights: Nights) -> None:
    nights.evaluate(wrong=range(30))
    drawn = """Path = __import__("pathlib").Path
        mark = Path(__file__).with_name("second")
        if number == 39 and mark.exists():
            return "wrong"
"""
    nights.evaluate(raising=drawn)
    (nights.folder / "second").touch()
    shutil.rmtree(nights.home / "lake" / "response_cache")
    for path in (nights.home / "lake" / "responses").rglob("*.parquet"):
        path.unlink()
    nights.evaluate(raising=drawn)
    found = row(nights.judge())
    # One of 40 samples was right and then wrong: a variance of 1/2, estimated with one degree of freedom, 1 + 2 of them for the quantile.
    assert found.noise_floor == pytest.approx(student.ppf(0.975, 3) / 40)
    assert found.verdict is Verdict.IMPROVED


@pytest.mark.long
def test_no_result_one_sample_and_only_errors_have_a_reason(nights: Nights) -> None:
    never = nights.judge()
    assert {(each.verdict, each.reason) for each in never.regressions} == {(Verdict.NOT_EVALUATED, NO_RESULT)}
    assert (never.outcome, never.is_failed) == (Outcome.INCOMPLETE, True)
    nights.evaluate(numbers=[1])
    nights.evaluate(numbers=[1], wrong=[1])
    single = row(nights.judge())
    assert (single.verdict, single.difference, single.reason) == (
        Verdict.NOT_COMPARABLE,
        -1,
        "the 1 common samples are one independent group; expected at least two",
    )
    nights.evaluate(numbers=[2, 3], raising='raise ValueError("no answer")')
    errors = row(nights.judge())
    assert (errors.verdict, errors.n_common) == (Verdict.ERRORS, 0)
    assert (errors.reason or "").startswith("2 of 2 samples are errors")


@pytest.mark.long
def test_all_equal_and_all_flipped(nights: Nights) -> None:
    nights.evaluate(numbers=range(8))
    nights.evaluate(numbers=range(8), wrong=[100])
    equal = row(nights.judge())
    assert (equal.verdict, equal.difference, equal.p_value, equal.cause) == (Verdict.NO_CHANGE_SEEN, 0, 1, "model")
    nights.evaluate(numbers=range(8), wrong=range(8))
    flipped = row(nights.judge())
    assert (flipped.verdict, flipped.difference) == (Verdict.REGRESSED, -1)
    assert flipped.p_value == pytest.approx(2 / 2**8)


@pytest.mark.long
def test_damaged_and_removed_files_spoil_their_own_comparison_alone(nights: Nights) -> None:
    nights.evaluate()
    nights.evaluate(wrong=[1])
    nights.evaluate(wrong=range(10))
    lake = nights.project().lake
    first, second, third = history(lake, "left", "one")
    (lake.root / second.metric_rows[0]["scores_file"]).unlink()
    gone = row(nights.judge())
    assert (gone.verdict, gone.baseline, gone.baseline_value) == (Verdict.REGRESSED, second.name(), 39 / 40)
    assert "its answers were scored again" in (gone.reason or "")
    assert row(nights.judge(), "right").verdict is Verdict.NO_CHANGE_SEEN
    second.metrics.path.write_bytes(b"PAR1")
    assert row(nights.judge()).baseline == first.name()
    assert row(nights.judge()).verdict is Verdict.REGRESSED
    third.metrics.path.write_bytes(b"PAR1")
    assert "is damaged" in (row(nights.judge(), metric=None).reason or "")
    assert row(nights.judge(), "right").verdict is Verdict.NO_CHANGE_SEEN


@pytest.mark.long
def test_deleted_scores_are_made_again_and_compared(nights: Nights) -> None:
    """As the message on a damaged file advises: delete it, and run again."""
    nights.night()
    lake = nights.project().lake
    (only,) = history(lake, "left", "one")
    named = lake.root / only.metric_rows[0]["scores_file"]
    named.unlink()
    assert row(nights.night()).verdict is Verdict.NO_CHANGE_SEEN
    assert history(lake, "left", "one")[-1].metric_rows[0]["scores_file"] != only.metric_rows[0]["scores_file"]
    assert publish(lake) == []
    assert read_rows(lake, "select count(*) as n from scores where eval = 'left' and metric = 'exact_match'") == [{"n": 40}]
    each = "select count(*) as n from scores_history where eval = 'left' and metric = 'exact_match' group by materialized_at"
    assert read_rows(lake, each) == [{"n": 40}, {"n": 40}]


@pytest.mark.long
def test_judgements_are_kept_and_queried(nights: Nights) -> None:
    lake = nights.project().lake
    assert publish(lake) == []
    assert current_result(lake, "nightly") is None
    for relation in ("regressions", "regressions_history", "sample_changes", "attempts"):
        assert read_rows(lake, f"select * from {relation}") == []
    columns = {each["column_name"] for each in read_rows(lake, "describe regressions")}
    assert {"suite", "eval", "model", "metric", "verdict", "reason", "judged_at"} <= columns

    nights.evaluate()
    before = nights.judge()
    write_result(lake, before)
    assert current_result(lake, "nightly") == before
    nights.evaluate(wrong=range(10))
    after = nights.judge()
    write_result(lake, after)
    assert current_result(lake, "nightly") == after
    publish(lake)
    of_left = "select verdict, cause from regressions where eval = 'left'"
    assert read_rows(lake, of_left) == [{"verdict": "regressed", "cause": "model"}]
    assert len(read_rows(lake, "select * from regressions_history")) == 4
    assert len(read_rows(lake, "select * from sample_changes")) == 10
    assert {row["sample_name"] for row in read_rows(lake, "select sample_name from sample_changes")} == set(map(str, range(10)))

    (newest,) = [file.path for file in lake.history("regressions", "nightly")][1:]
    newest.write_bytes(b"PAR1")
    (message,) = publish(lake)
    assert str(newest) in message
    assert read_rows(lake, "select * from regressions") == [], "an older judgement must not pass for the current one"
    assert len(read_rows(lake, "select * from regressions_history")) == 2
    assert read_rows(lake, "select path from damaged_files") == [{"path": str(newest)}]
