from eval_dagster.texts.figures import did_you_mean


def test_the_closest_is_suggested_whatever_its_case() -> None:
    assert did_you_mean("helaswag", ["mmlu", "hellaswag"]) == "; did you mean 'hellaswag'?"
    assert did_you_mean("MMLU", ["mmlu", "hellaswag"]) == "; did you mean 'mmlu'?"


def test_nothing_close_gives_nothing() -> None:
    assert did_you_mean("zebra", ["mmlu"]) == ""
    assert did_you_mean("zebra", []) == ""
