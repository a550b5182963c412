"""What Dagster plots of an eval's metrics."""

from eval_dagster.assets.materializations import _score_metadata


def test_the_plotted_score_is_that_of_the_samples() -> None:
    shared = {"subject": None, "stderr": None, "n": 4, "n_errors": 0, "is_headline": False}
    rows = [
        {**shared, "metric": "accuracy", "aggregation": "micro", "value": 0.75},
        {**shared, "metric": "accuracy", "aggregation": "macro", "value": 0.5},
        {**shared, "metric": "bleu", "aggregation": "corpus", "value": 20.0},
        {**shared, "metric": "accuracy", "aggregation": "micro", "value": 1.0, "subject": "s"},
    ]
    expected = {"score": "accuracy 0.750 (n=4); bleu 20.000 (n=4)", "score_accuracy": 0.75, "score_bleu": 20.0}
    assert _score_metadata(rows) == expected


def test_the_plotted_score_is_the_macro_one_where_that_is_the_headline() -> None:
    shared = {"subject": None, "stderr": None, "n": 4, "n_errors": 0, "is_headline": False}
    rows = [
        {**shared, "metric": "chrf", "aggregation": "corpus", "value": 40.0},
        {**shared, "metric": "chrf", "aggregation": "macro", "value": 45.0, "is_headline": True},
        {**shared, "metric": "bleu", "aggregation": "corpus", "value": 20.0},
        {**shared, "metric": "bleu", "aggregation": "macro", "value": 30.0},
    ]
    expected = {"score": "chrf 45.000 (n=4); bleu 20.000 (n=4)", "score_chrf": 45.0, "score_bleu": 20.0}
    assert _score_metadata(rows) == expected
