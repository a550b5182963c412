"""Samples become metrics: clusters, subjects, corpora, several texts of a prompt, and what the tables show of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from running_stages import run_all

from eval_dagster.errors import DataError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.metrics.base import BaseMetric, CompletionMetric, CorpusMetric, MetricResult, RepeatedMetric
from eval_dagster.project import Project
from eval_dagster.records import Completion, RepeatedScore, Score
from eval_dagster.stages import aggregation
from eval_dagster.stages.score_columns import scores_in
from eval_dagster.stages.scores import score_response
from eval_dagster.statistics.estimates import estimate_mean
from eval_dagster.tasks.base import BaseTask


class Right(CompletionMetric):
    NAME = "right"
    IS_PROPORTION = True

    def calculate(self, response: Completion) -> float:
        return float(response.completion_text in response.ground_truths)


class Length(CompletionMetric):
    NAME = "length"

    def calculate(self, response: Completion) -> list[MetricResult]:
        text = response.completion_text
        words = MetricResult(metric_name="words", value=len(text.split()), higher_is_better=True)
        return [MetricResult(metric_name="length", value=len(text), higher_is_better=True), words]


class ErrorRate(CorpusMetric[Completion]):
    """Wrong characters of all characters."""

    NAME = "error_rate"
    HIGHER_IS_BETTER = False
    STATISTICS = ("wrong", "all")

    def calculate(self, response: Completion) -> dict[str, float]:
        pairs = list(zip(response.completion_text, response.ground_truths[0], strict=False))
        return {"all": len(response.ground_truths[0]), "wrong": sum(a != b for a, b in pairs)}

    @classmethod
    def aggregate(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(sums[..., 0] / sums[..., 1])


class AnyRight(RepeatedMetric):
    NAME = "any_right"

    def calculate_all(self, responses: Sequence[Completion]) -> float:
        return max(Right().calculate(response) for response in responses)


class Contrary(CompletionMetric):
    NAME = "contrary"

    def calculate(self, response: Completion) -> MetricResult:
        return MetricResult(metric_name="contrary", value=0.5, higher_is_better=False)


class Wrongly(ErrorRate):
    NAME = "wrongly"
    STATISTICS = ("wrong", "all", "more")


class Overlap(CompletionMetric):
    NAME = "overlap"
    BOUNDS = (0.0, 1.0)

    def calculate(self, response: Completion) -> float:
        return len(response.completion_text) / len(response.ground_truths[0])


class Twice(Overlap):
    NAME = "twice"

    def calculate(self, response: Completion) -> float:
        return 2.0 * len(response.completion_text)


class Task(BaseTask[str]):
    NAME = "Task"
    METRICS = (Right, Length, ErrorRate)


class Overlaps(Task):
    METRICS = (Overlap, Twice, Length)


def _texts(*texts: str) -> list[Completion]:
    return [Completion(completion_text=text, ground_truths=("abcd",)) for text in texts]


def metric_rows(task: type[BaseTask[Any]], scores: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return aggregation.metric_rows(task, scores_in(scores))


def _scores(metric: str, samples: str, values: Sequence[float | None], subjects: str = "", clusters: str = "") -> list[dict[str, Any]]:
    """Scores of samples that bear one letter each, as do their subjects and clusters."""
    return [
        {"sample_id": sample, "source_id": sample, "cluster": cluster, "subject": subject, "metric": metric, "value": value}
        for sample, value, subject, cluster in zip(samples, values, subjects or "x" * len(samples), clusters or samples, strict=True)
    ]


def _found(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str | None], Mapping[str, Any]]:
    found = {(row["metric"], row["aggregation"], row["subject"]): row for row in rows}
    assert len(found) == len(rows)
    return found


# ---- one sample


def test_several_texts_of_a_prompt_are_averaged_summed_or_seen_at_once() -> None:
    scores = score_response([Right, ErrorRate, AnyRight], _texts("abcd", "abxx", "xxxx", "abcd"), None)
    assert scores == [
        RepeatedScore(metric="right", value=0.5, text_values=(1.0, 0.0, 0.0, 1.0)),
        Score(metric="error_rate/all", value=16.0),
        Score(metric="error_rate/wrong", value=6.0),
        Score(metric="any_right", value=1.0),
    ]


def test_a_result_of_the_other_direction_says_what_to_set() -> None:
    [good, bad] = score_response([Right, Contrary], _texts("abcd"), None)
    assert good.value == 1.0
    assert bad.value is None
    assert bad.error is not None
    for part in ("'contrary'", "higher_is_better=False", "set HIGHER_IS_BETTER = False in the class Contrary"):
        assert part in bad.error


def test_a_corpus_metric_gives_all_its_statistics() -> None:
    [score] = score_response([Wrongly], _texts("abcd"), None)
    assert score.metric == "wrongly"
    assert score.error is not None
    assert "expected its STATISTICS: ['wrongly/wrong', 'wrongly/all', 'wrongly/more']" in score.error


def test_a_value_outside_of_the_bounds_that_its_class_declares_is_an_error() -> None:
    found = score_response([Overlap, Twice], _texts("ab"), None)
    assert [score.value for score in found] == [0.5, 4.0], "what a class inherits need not be its own"
    [score] = score_response([Overlap], _texts("abcdef"), None)
    assert score.value is None
    assert score.error is not None
    assert "gave 1.5 for 'overlap', and its bounds are 0 and 1; correct the BOUNDS of the class Overlap, or the value" in score.error


# ---- many samples


def test_scores_with_bounds_have_an_interval_even_if_all_are_0() -> None:
    letters = "abcdefghijklmnopqrst"
    rows = _found(metric_rows(Overlaps, _scores("overlap", letters, [0.0] * 20, subjects="m" * 10 + "n" * 10)))
    assert len(rows) == 4
    for row in rows.values():
        assert (row["value"], row["ci_low"]) == (0.0, 0.0)
        assert 0.05 < row["ci_high"] < 0.4
    assert rows["overlap", "macro", None]["ci_high"] == pytest.approx(rows["overlap", "micro", None]["ci_high"], rel=0.3)


def test_an_interval_of_scores_with_bounds_stays_within_them() -> None:
    [row] = metric_rows(Overlaps, _scores("overlap", "abcdefghij", [1.0] * 7 + [0.9, 0.0, 0.7]))
    assert 0 < row["ci_low"] < row["value"] < row["ci_high"] <= 1


def test_bounds_that_values_do_not_keep_are_no_bounds() -> None:
    [row] = metric_rows(Overlaps, _scores("twice", "abcde", [1.0, 2.0, 3.0, 4.0, 8.0]))
    assert row["ci_high"] > row["value"] > 1
    [equal] = metric_rows(Overlaps, _scores("twice", "abcde", [2.0] * 5))
    assert (equal["ci_low"], equal["ci_high"]) == (None, None)


def test_scores_of_0_and_1_are_a_proportion_whatever_the_metric_says() -> None:
    values = [1.0, 0.0, 1.0, 1.0]
    [row] = metric_rows(Overlaps, _scores("length", "abcd", values))
    expected = estimate_mean(values, proportion=True)
    assert (row["ci_low"], row["ci_high"]) == (expected.ci_low, expected.ci_high)
    [equal] = metric_rows(Overlaps, _scores("length", "abcd", [1.0] * 4))
    assert (equal["ci_low"], equal["ci_high"]) == (None, None), "a length of 1 each time, maybe"


def test_a_corpus_of_few_samples_has_no_error_bar() -> None:
    for count, has_one in ((2, False), (4, False), (5, True)):
        scores = _corpus_scores("m" * count, "12345"[:count], [1.0, 2.0, 4.0, 0.0, 3.0][:count], [10.0] * count)
        [row] = metric_rows(Task, scores)
        assert row["value"] is not None
        assert [row[name] is not None for name in ("stderr", "ci_low", "ci_high")] == [has_one] * 3


def test_samples_of_a_cluster_are_not_independent() -> None:
    values = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    [row] = metric_rows(Task, _scores("right", "abcdef", values, clusters="112233"))
    assert (row["value"], row["n"], row["n_clusters"]) == (0.5, 6, 3)
    assert row["stderr"] == pytest.approx(math.sqrt(3) / 6), "as by hand in the tests of the statistics"
    assert (row["aggregation"], row["subject"], row["is_headline"]) == ("micro", None, True)


def test_subjects_have_rows_of_their_own_and_count_alike_in_a_macro_row() -> None:
    values = [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, None]
    rows = metric_rows(Task, _scores("right", "abcdefg", values, subjects="mmmmnnn"))
    assert [(row["aggregation"], row["subject"]) for row in rows] == [("micro", None), ("macro", None), ("micro", "m"), ("micro", "n")]
    micro, macro, m, n = rows
    assert micro["value"] == pytest.approx(4 / 6)
    # Groups 3/4 with 0.1875 / 3 and 1/2 with 0.25 / 1 as variances of their means.
    assert macro["value"] == pytest.approx(0.625)
    assert macro["stderr"] == pytest.approx(math.sqrt(0.1875 / 3 + 0.25) / 2)
    assert (macro["n"], macro["n_errors"], macro["n_clusters"]) == (6, 1, 6)
    assert (m["value"], n["value"], n["n_errors"]) == (0.75, 0.5, 1)
    assert [row["is_headline"] for row in rows] == [True, False, False, False]


def test_subjects_that_share_clusters_are_not_independent() -> None:
    values = [1.0, 0.0, 1.0, 1.0]
    rows = _found(metric_rows(Task, _scores("right", "abcdefgh", values * 2, subjects="mmmmnnnn", clusters="12341234")))
    once = estimate_mean(values, proportion=True).stderr
    assert rows["right", "macro", None]["stderr"] == pytest.approx(once)
    assert rows["right", "micro", None]["stderr"] == pytest.approx(once)
    assert rows["right", "macro", None]["n_clusters"] == rows["right", "micro", None]["n_clusters"] == 4
    apart = _found(metric_rows(Task, _scores("right", "abcdefgh", values * 2, subjects="mmmmnnnn")))
    assert apart["right", "macro", None]["stderr"] == pytest.approx(once / math.sqrt(2) if once else None)


def test_subjects_that_share_clusters_and_are_all_right_are_as_sure_as_the_clusters() -> None:
    rows = _found(metric_rows(Task, _scores("right", "abcdefgh", [1.0] * 8, subjects="mmmmnnnn", clusters="12341234")))
    micro, macro = rows["right", "micro", None], rows["right", "macro", None]
    assert (macro["ci_low"], macro["ci_high"]) == (pytest.approx(micro["ci_low"]), 1.0)


def test_a_corpus_metric_has_a_row_of_all_samples_and_a_macro_one() -> None:
    scores = [
        *_scores("error_rate/wrong", "abcfgh", [1.0, 2.0, 3.0, 0.0, 2.0, 1.0], subjects="mmnmmm"),
        *_scores("error_rate/all", "abcfgh", [10.0, 30.0, 10.0, 10.0, 10.0, 10.0], subjects="mmnmmm"),
        *_scores("error_rate", "d", [None], subjects="n"),
        *_scores("error_rate/wrong", "e", [None], subjects="n"),
        *_scores("error_rate/all", "e", [5.0], subjects="n"),
    ]
    rows = _found(metric_rows(Task, scores))
    assert set(rows) == {("error_rate", "macro", None), *(("error_rate", "corpus", subject) for subject in (None, "m", "n"))}
    macro = rows["error_rate", "macro", None]
    assert (macro["value"], macro["n"], macro["n_errors"]) == (pytest.approx((6 / 70 + 0.3) / 2), 6, 2)
    assert macro["stderr"] is None, "one sample of a subject does not tell how it varies"
    overall = rows["error_rate", "corpus", None]
    assert (overall["value"], overall["n"], overall["n_errors"]) == (pytest.approx(9 / 80), 6, 2)
    assert (overall["higher_is_better"], overall["is_headline"]) == (False, False)
    assert overall["stderr"] is not None
    assert (rows["error_rate", "corpus", "m"]["value"], rows["error_rate", "corpus", "n"]["value"]) == (6 / 70, 0.3)
    assert (rows["error_rate", "corpus", "n"]["n"], rows["error_rate", "corpus", "n"]["n_errors"]) == (1, 2)


def test_a_corpus_metric_can_be_the_headline() -> None:
    class Corpus(Task):
        METRICS = (ErrorRate, Right)

    [row] = metric_rows(Corpus, _scores("error_rate", "ab", [None, None]))
    assert (row["metric"], row["is_headline"], row["value"], row["n_errors"]) == ("error_rate", True, None, 2)


def _corpus_scores(subjects: str, clusters: str, wrong: Sequence[float], everything: Sequence[float]) -> list[dict[str, Any]]:
    samples = "abcdefghijklmnopqrstuvwxyz"[: len(wrong)]
    return [
        *_scores("error_rate/wrong", samples, wrong, subjects, clusters),
        *_scores("error_rate/all", samples, everything, subjects, clusters),
    ]


def test_long_subjects_of_a_corpus_do_not_dominate_its_macro_row() -> None:
    wrong = [1.0, 2.0, 1.0, 0.0, 1.0, 900.0, 800.0, 950.0, 850.0, 875.0]
    scores = _corpus_scores("mmmmmnnnnn", "0123456789", wrong, [10.0] * 5 + [1000.0] * 5)
    rows = _found(metric_rows(Task, scores))
    m, n, macro = rows["error_rate", "corpus", "m"], rows["error_rate", "corpus", "n"], rows["error_rate", "macro", None]
    assert (m["value"], n["value"], macro["value"]) == (pytest.approx(0.1), pytest.approx(0.875), pytest.approx(0.4875))
    assert rows["error_rate", "corpus", None]["value"] == pytest.approx(4380 / 5050)
    assert macro["stderr"] == pytest.approx(math.hypot(m["stderr"], n["stderr"]) / 2, rel=0.1), "the subjects are drawn apart"
    assert macro["ci_low"] < macro["value"] < macro["ci_high"]


def test_subjects_of_a_corpus_that_share_clusters_are_drawn_together() -> None:
    wrong = [1.0, 2.0, 3.0, 0.0, 5.0, 4.0]
    rows = _found(metric_rows(Task, _corpus_scores("mmmmmmnnnnnn", "123456" * 2, wrong * 2, [10.0] * 12)))
    m, macro = rows["error_rate", "corpus", "m"], rows["error_rate", "macro", None]
    parts = ("value", "stderr", "ci_low", "ci_high", "n_clusters")
    assert [macro[part] for part in parts] == [pytest.approx(m[part]) for part in parts], "the second subject says the same again"
    assert macro["n"] == 12


@pytest.mark.parametrize("aggregation", ["micro", "macro"])
@pytest.mark.parametrize(("metrics", "other"), [((Right, ErrorRate), "micro"), ((ErrorRate, Right), "corpus")])
def test_a_task_says_which_overall_row_is_the_headline(aggregation: str, metrics: tuple[type[BaseMetric[Any]], ...], other: str) -> None:
    task = type("Changed", (Task,), {"HEADLINE_AGGREGATION": aggregation, "METRICS": metrics})
    scores = [
        *_scores("right", "abcd", [1.0, 0.0, 1.0, 1.0], "mmnn"),
        *_corpus_scores("mmnn", "1234", [1.0, 2.0, 3.0, 4.0], [10.0] * 4),
    ]
    [shown] = [row for row in metric_rows(task, scores) if row["is_headline"]]
    assert (shown["metric"], shown["aggregation"]) == (metrics[0].NAME, "macro" if aggregation == "macro" else other)
    [only] = [row for row in metric_rows(task, [{**row, "subject": "m"} for row in scores]) if row["is_headline"]]
    assert only["aggregation"] == other, "one subject has no mean of subjects"


def test_an_aggregate_that_fails_is_named() -> None:
    class Failing(ErrorRate):
        NAME = "failing"

        @classmethod
        def aggregate(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
            raise ZeroDivisionError("half of nothing")

    class Corpus(Task):
        METRICS = (Failing,)

    scores = [*_scores("failing/wrong", "ab", [1.0, 1.0]), *_scores("failing/all", "ab", [1.0, 1.0])]
    with pytest.raises(DataError, match="the metric failing could not aggregate its statistics: ZeroDivisionError: half of nothing"):
        metric_rows(Corpus, scores)


def test_a_sample_that_failed_lacks_each_of_the_values_and_no_value_counts_as_another() -> None:
    scores = [*_scores("length", "abc", [8.0, 6.0, None]), *_scores("length/words", "ab", [2.0, 1.0]), *_scores("length/odd", "a", [1.0])]
    rows = _found(metric_rows(Task, scores))
    summary = {name: (row["value"], row["n"], row["n_errors"]) for (name, _, _), row in rows.items()}
    assert summary == {"length": (7.0, 2, 1), "length/words": (1.5, 2, 1), "length/odd": (1.0, 1, 1)}


# ---- from the rows of a dataset to the tables

TASK = """
    from dataclasses import replace

    from test_aggregation import AnyRight, Contrary, ErrorRate, Right

    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Reading(BaseTask[str]):
        NAME = "Reading"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        SUBJECTS = ["north", "south"]
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [Right, ErrorRate]
        CLUSTER_FIELD = "passage"

        def _load_dataset(self, subject):
            numbers = range(6) if subject == "north" else range(6, 8)
            return {"test": [{"n": n, "passage": n // 2 if n < 6 else ("" if n % 2 else None)} for n in numbers]}

        def _get_instruction_text(self, item):
            return f"Say {item['n']}."

        def _get_ground_truth(self, item):
            return f"word {item['n']}"

    class Twice(Reading):
        CLUSTER_FIELD = None

        def _create_samples(self, item, index, subject):
            (once,) = super()._create_samples(item, index, subject)
            return [once, replace(once, max_tokens=7)]

    class Misspelt(Reading):
        CLUSTER_FIELD = "pasage"

    class Thrice(Reading):
        NUM_SAMPLES = 3
        METRICS = [AnyRight, Right, ErrorRate, Contrary]
"""
CONFIG = """
    models:
      good: {{backend: scripted, function: "good.py:answer", generation: {{temperature: 0.5}}}}
      bad: {{backend: scripted, function: "bad.py:answer", generation: {{temperature: 0.5}}}}
    evals:
      reading: {{task: "reading.py:{name}"}}
"""
ANSWERS = """
    import re

    def answer(request):
        number = int(re.search(r"Say (\\d)", request.prompt)[1])
        if number == 5:
            raise RuntimeError("five is too many")
        return f"word {number}" if number %s else "word x"
"""


@pytest.fixture
def run(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Callable[[str], Project]:
    def run_it(name: str = "Reading") -> Project:
        write("reading.py", TASK)
        write("good.py", ANSWERS % "!= 4")
        write("bad.py", ANSWERS % "in (2, 6)")
        project = open_project(CONFIG.format(name=name))
        _, failures = run_all(project, [("reading", "good"), ("reading", "bad")])
        assert failures == []
        return project

    return run_it


@pytest.mark.long
def test_a_field_of_the_rows_says_what_belongs_together(run: Callable[..., Project]) -> None:
    project = run()
    scores = read_rows(project.lake, "select cluster, sample_id, source_id from scores where model = 'good' and metric = 'right'")
    clusters = [row["cluster"] for row in scores]
    assert [cluster for cluster in clusters if len(cluster) == 1] == ["0", "0", "1", "1", "2", "2"]
    assert [row["cluster"] == row["source_id"] for row in scores[-2:]] == [True, True], "a row without a passage stands alone"
    metrics = read_rows(
        project.lake,
        "select aggregation, value, n, n_errors, n_clusters from metrics where model = 'good' and metric = 'right' and subject is null",
    )
    assert sorted(row["aggregation"] for row in metrics) == ["macro", "micro"]
    micro = next(row for row in metrics if row["aggregation"] == "micro")
    assert (micro["n"], micro["n_errors"], micro["n_clusters"]) == (7, 1, 5)
    macro = next(row for row in metrics if row["aggregation"] == "macro")
    assert (micro["value"], macro["value"]) == (pytest.approx(6 / 7), pytest.approx((4 / 5 + 1) / 2))


@pytest.mark.long
def test_what_is_asked_about_one_row_belongs_together(run: Callable[..., Project]) -> None:
    project = run("Twice")
    assert read_rows(project.lake, "select distinct cluster = source_id as same from scores") == [{"same": True}]
    [row] = read_rows(project.lake, "select n, n_clusters from metrics where model = 'good' and is_headline")
    assert (row["n"], row["n_clusters"]) == (14, 7)


@pytest.mark.long
def test_a_misspelt_field_fails_with_the_fields_there_are(open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> None:
    write("reading.py", TASK)
    write("good.py", ANSWERS % "< 9")
    write("bad.py", ANSWERS % "< 0")
    _, [failure] = run_all(open_project(CONFIG.format(name="Misspelt")), [("reading", "good")])
    assert failure.stage == "sample_scores"
    assert "no row has the field 'pasage'" in failure.message
    assert "n, passage" in failure.message


@pytest.mark.long
def test_several_texts_reach_the_metrics_that_want_them(run: Callable[..., Project]) -> None:
    rows = read_rows(run("Thrice").lake, "select * from metrics where model = 'bad' and subject is null and aggregation != 'macro'")
    found = {row["metric"]: row for row in rows}
    assert set(found) == {"any_right", "right", "error_rate", "contrary"}
    assert found["any_right"]["value"] == found["right"]["value"] == pytest.approx(2 / 7)
    assert (found["error_rate"]["aggregation"], found["error_rate"]["value"]) == ("corpus", pytest.approx(5 / (7 * 6)))
    assert (found["contrary"]["value"], found["contrary"]["n_errors"]) == (None, 8)


@pytest.mark.long
def test_the_tables_show_each_headline_once(run: Callable[..., Project]) -> None:
    project = run()
    board = read_rows(project.lake, "select model, metric, value, rank from leaderboard")
    assert [(row["model"], row["metric"], row["rank"]) for row in board] == [("good", "right", 1), ("bad", "right", 2)]
    assert board[0]["value"] == pytest.approx(6 / 7)
    history = read_rows(project.lake, "select model, materialization, value from score_history")
    assert sorted((row["model"], row["materialization"]) for row in history) == [("bad", 1), ("good", 1)]
    assert read_rows(project.lake, "select count(*) as n from scores_history") == read_rows(
        project.lake, "select count(*) as n from scores"
    )


@pytest.mark.long
def test_two_models_are_compared_by_clusters_and_by_what_is_a_mean(run: Callable[..., Project]) -> None:
    project = run()
    [row] = read_rows(project.lake, "select * from paired_difference('good', 'bad')")
    # good - bad of passages (0, 1), (2, 3), (4), and of the two rows alone: 1 1 | 0 1 | 0 | 0 | 1.
    differences, clusters = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0], [0, 0, 1, 1, 2, 3, 4]
    expected = estimate_mean(differences, proportion=False, clusters=clusters)
    assert (row["metric"], row["n_common"], row["a_better"], row["b_better"]) == ("right", 7, 4, 0)
    assert (row["difference"], row["stderr"]) == (pytest.approx(expected.value), pytest.approx(expected.stderr))
    shown = read_rows(project.lake, "select metric, better_model from disagreements")
    assert shown == [{"metric": "right", "better_model": "good"}] * 4, "statistics of a corpus are no scores of a sample"


@pytest.mark.long
def test_mlflow_has_one_score_for_every_run_and_the_subjects_in_a_table(
    run: Callable[..., Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = run()
    [row] = read_rows(project.lake, "select * from metrics where model = 'good' and is_headline")
    client = project.tracker._client
    tracked = client.get_run(row["mlflow_run_id"])
    figures = tracked.data.metrics
    columns = {"score": "value", "stderr": "stderr", "n": "n"} | {f"score.{part}": part for part in ("ci_low", "ci_high", "n_errors")}
    for name, column in columns.items():
        assert figures[name] == pytest.approx(row[column]), "the headline, under the same names whatever the eval measures"
    assert (figures["right"], figures["right_macro"]) == (pytest.approx(6 / 7), pytest.approx(0.9))
    assert figures["error_rate"] == pytest.approx(1 / 42)
    assert figures["error_rate_macro"] == pytest.approx((1 / 30 + 0) / 2)
    assert not [name for name in figures if "subject" in name or name.startswith("error_rate/wrong")]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", client.tracking_uri)
    table = client.load_table(tracked.info.experiment_id, "metrics.json", run_ids=[row["mlflow_run_id"]])
    [south] = table[(table["metric"] == "right") & (table["subject"] == "south")].to_dict("records")
    assert south["value"] == 1.0
    assert south["n"] > 0
    assert len(table) == read_rows(project.lake, "select count(*) as n from metrics where model = 'good'")[0]["n"]


class Parts(CompletionMetric):
    NAME = "parts"


class Declared(Parts):
    HEADLINE = "b"


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_headline_of_several_values_is_declared_and_not_that_of_the_first_sample(order: str) -> None:
    values = [score for part in order for score in _scores(f"parts/{part}", "xy", [1.0, 0.0])]
    assert [row["metric"] for row in metric_rows(_task(Declared), values) if row["is_headline"]] == ["parts/b"]
    assert not any(row["is_headline"] for row in metric_rows(_task(Parts), values)), "none is guessed"
    errors = metric_rows(_task(Declared), _scores("parts", "xy", [None, None]))
    assert [(row["metric"], row["is_headline"], row["n_errors"]) for row in errors] == [("parts/b", True, 2)]


def test_bounds_and_direction_stand_beside_each_value() -> None:
    [row] = metric_rows(Task, _scores("right", "xy", [1.0, 0.0]))
    assert (row["bound_low"], row["bound_high"], row["higher_is_better"]) == (0.0, 1.0, True)


def _task(metric: type[BaseMetric[Any]]) -> type[BaseTask[Any]]:
    class OfOne(Task):
        METRICS = (metric,)

    return OfOne
