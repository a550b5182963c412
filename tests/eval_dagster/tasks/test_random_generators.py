"""The random generators of a task: their seeds, and when they are made."""

from random import Random

import pytest

from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask


class Drawing(BaseTask[str]):
    NAME, DATASET_PATH, SAMPLE_SPLIT, FEWSHOT_SPLIT = "Drawing", "own", "test", "train"
    RESPONSE_TYPE, SUBJECTS = ResponseType.COMPLETION, ("all",)

    def _get_instruction_text(self, item: Row) -> str:
        return str(self.rnd.random())


class OwnSeed(Drawing):
    def __init__(self, num_fewshot: int | None = None) -> None:
        super().__init__(num_fewshot)
        self.rnd = Random(1)
        self.examples_rnd = Random(2)


class OfClass(Drawing):
    rnd = Random(42)  # type: ignore[assignment]


def test_a_seed_gives_the_generator_that_python_makes_of_it() -> None:
    task = Drawing()
    task.seed_random("0/a", 5)
    assert (task.rnd.random(), task.examples_rnd.random()) == (Random("0/a").random(), Random(5).random())
    task.seed_random("0/a", 5)
    assert task.rnd.random() == Random("0/a").random(), "from the beginning"


def test_a_generator_is_made_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr("eval_dagster.tasks.base.Random", type("Counted", (Random,), {"__init__": lambda _, seed: made.append(seed)}))
    task = Drawing()
    task.seed_random("a", "b")
    with task.comparing():
        pass
    assert made == []
    _ = task.rnd
    assert made == ["a"]


@pytest.mark.parametrize("kind", [Drawing, OwnSeed, OfClass])
def test_rows_are_compared_with_a_constant_seed_and_the_old_generator_goes_on(kind: type[Drawing]) -> None:
    task = kind()
    task.seed_random("row", "set")
    first, second, expected = task.rnd.random(), 0.0, Random("row")
    with task.comparing():
        compared = task._get_instruction_text({})
    second = task.rnd.random()
    assert [first, second] == [expected.random(), expected.random()]
    assert compared == str(Random(0).random())


def test_a_task_may_set_its_own_generators() -> None:
    task = OwnSeed()
    assert (task.rnd.random(), task.examples_rnd.random()) == (Random(1).random(), Random(2).random())
