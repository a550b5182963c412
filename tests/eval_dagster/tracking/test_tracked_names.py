import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name

from eval_dagster.tracking.tracked_result import MOST_CHARACTERS, original_name, tracked_name, tracked_text

CHARACTERS = st.one_of(st.sampled_from("_axt@0123/. :e\n"), st.characters(exclude_categories=()))
"""Those that escapes are made of, and any others, lone surrogates among them."""


@given(st.text(CHARACTERS, max_size=40))
@example("_at@")
@example("_x5f_")
@example("./../.")
def test_mlflow_takes_every_name_and_the_original_can_be_read_back(name: str) -> None:
    encoded = tracked_name(name)
    _validate_metric_name(encoded)
    assert original_name(encoded) == name
    encoded.encode("utf-8")


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("exact_match", "exact_match"),
        ("accuracy/high school", "accuracy/high school"),
        ("größe", "größe"),
        ("pass@1", "pass_at_1"),
        ("pass_at_1", "pass_x5f_at_1"),
        ("a:b", "a_x3a_b"),
        ("", "_x_"),
        (".", "_x2e_"),
        ("../a//b/", "_x2e__x2e_/a/_x2f_b_x2f_"),
        ("\ud800", "_xd800_"),
    ],
)
def test_a_name_stays_as_plain_as_mlflow_allows(name: str, encoded: str) -> None:
    assert tracked_name(name) == encoded


@given(st.text(CHARACTERS, min_size=MOST_CHARACTERS, max_size=400), st.text(CHARACTERS, min_size=MOST_CHARACTERS, max_size=400))
@example("a" * 300, "a" * 301)
@example("/" * 300, "b/" * 200)
def test_a_name_that_is_too_long_is_cut_and_stays_different_from_others(name: str, other: str) -> None:
    encoded = tracked_name(name)
    _validate_metric_name(encoded)
    assert len(encoded) <= MOST_CHARACTERS
    assert (encoded == tracked_name(other)) == (name == other)


def test_a_text_loses_nothing_but_what_no_database_takes() -> None:
    assert tracked_text("größe\n\ud800\0") == "größe\n\\ud800\\x00"
