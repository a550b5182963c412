"""A table with the values that were used last, such as the worlds of episodes."""

from eval_dagster.peers.workers.recent import Recent


def test_the_value_that_was_not_used_for_longest_goes() -> None:
    values: Recent[int] = Recent(3)
    for number in range(3):
        values.put(str(number), number)
    assert values.get("0") == 0
    values.put("3", 3)
    assert [values.get(key) for key in "0123"] == [0, None, 2, 3]
    assert (values.pop("2"), values.pop("2")) == (2, None)
    values.put("4", 4)
    assert [values.get(key) for key in "034"] == [0, 3, 4]
