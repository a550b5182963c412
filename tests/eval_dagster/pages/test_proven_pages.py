"""The page of two models says that one is not worse, where a fall of the margin is refuted."""

from pathlib import Path

import pytest
from html_reading import Page
from view_home import Home

from eval_dagster.statistics.noninferiority import exact_p_value
from eval_dagster.texts.figures import p_equals


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def compared(home: Home, ours: list[float | None], theirs: list[float | None], *, higher_is_better: bool | None = True) -> str:
    for model, values in (("mine", ours), ("other", theirs)):
        errors = [{"error": "no answer"} if value is None else {} for value in values]
        home.write({"exact_match": values}, model=model, higher_is_better=higher_is_better, of_scores=errors)
    return Page(home.get("/compare?eval=trivia&a=mine&b=other")).text()


def test_a_proof_is_shown_with_its_margin(home: Home) -> None:
    text = compared(home, [1.0] * 299 + [0.0], [1.0] * 300)
    assert "✓ mine is not worse (proven) than other" in text
    assert f"proven not worse by 0.03: p {p_equals(exact_p_value(300, 0, 1, 0.03))}" in text
    assert "Not worse (proven) refutes, at 5 %, a fall of 0.030 or more." in text
    assert "no difference seen" not in text


def test_what_is_not_proven_is_not_called_so(home: Home) -> None:
    text = compared(home, [1.0] * 285 + [0.0] * 10 + [1.0] * 5, [1.0] * 295 + [0.0] * 5)
    assert "= no difference seen" in text
    assert "may be worse by 0.03" in text


@pytest.mark.parametrize(("errors", "is_proven"), [(0, True), (12, False)])
def test_errors_count_as_falls(home: Home, errors: int, is_proven: bool) -> None:
    text = compared(home, [None] * errors + [1.0] * (300 - errors), [1.0] * 300)
    assert ("not worse (proven) than" in text) is is_proven
    assert ("no difference seen" in text) is not is_proven


def test_few_samples_prove_nothing(home: Home) -> None:
    text = compared(home, [1.0] * 40, [1.0] * 40)
    assert "= no difference seen" in text
    assert "Not worse is not proven: it cannot be proven with 40 samples; it takes 100 if nothing flips" in text


def test_without_a_direction_nothing_is_proven(home: Home) -> None:
    text = compared(home, [1.0] * 300, [1.0] * 300, higher_is_better=None)
    assert "= no difference seen" in text
    assert "worse" not in text.lower().replace("mine is worse", "")
