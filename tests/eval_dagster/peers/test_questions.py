"""What a process of another package sends."""

from eval_dagster.peers.processes.benchmark import failure_of, values_of
from eval_dagster.tasks.benchmark import ScoreError


def test_a_metric_without_a_value_says_whether_the_next_run_may_have_one() -> None:
    sent = {"em": 1.0, "rouge": {"$error": "ImportError: x", "$retryable": True}, "f1": {"$error": "ValueError: y"}, "item": {"a": 1}}
    assert values_of(sent) == {
        "em": 1.0,
        "rouge": ScoreError("ImportError: x", retryable=True),
        "f1": ScoreError("ValueError: y"),
        "item": {"a": 1},
    }


def test_a_worker_gives_the_error_of_a_row_in_the_place_of_its_questions() -> None:
    assert str(failure_of({"$error": "ValueError: broken"})) == "ValueError: broken"
    assert failure_of([]) is None
