"""Entries that are added to an evals.yaml, whose other lines stay as they are."""

import pytest
import yaml

from eval_dagster.config.yaml_document import with_entries
from eval_dagster.errors import UsageError

TEXT = """\
# The evals of our team.
models:
  small: {backend: scripted}  # quick

evals:
    # sums come first
    sums: {task: arithmetic}
    words:
        task: gsm8k
        limit: 3

    # the last comment of evals

# Suites run at night.
suites:
  nightly: {evals: [sums], models: [small]}
"""


def test_entries_are_added_at_the_end_of_their_section() -> None:
    text = with_entries(
        TEXT, {"evals": {"new": {"task": "lm_eval:x", "num_fewshot": 5}}, "suites": {"s": {"evals": ["new"], "models": ["small"]}}}
    )
    assert [line for line in text.splitlines() if line in TEXT.splitlines()] == TEXT.splitlines()
    read = yaml.safe_load(text)
    assert list(read["evals"]) == ["sums", "words", "new"]
    assert read["evals"]["new"] == {"task": "lm_eval:x", "num_fewshot": 5}
    assert read["suites"]["s"] == {"evals": ["new"], "models": ["small"]}
    assert text.index("new:") < text.index("# Suites run at night.")


def test_sections_that_are_not_there_or_empty_are_added_in_their_order() -> None:
    text = with_entries("models: {}\nsuites:\n", {"evals": {"a": {"task": "x"}}, "suites": {"s": {"evals": ["a"]}}})
    assert yaml.safe_load(text) == {"models": {}, "evals": {"a": {"task": "x"}}, "suites": {"s": {"evals": ["a"]}}}
    both = with_entries("models: {}\nevals:\n  b: {task: y}", {"evals": {"a": {"task": "x"}}, "suites": {"s": {"evals": ["a"]}}})
    assert yaml.safe_load(both)["evals"] == {"b": {"task": "y"}, "a": {"task": "x"}}
    assert list(yaml.safe_load(both)) == ["models", "evals", "suites"]


def test_names_and_texts_that_yaml_would_read_otherwise_are_quoted() -> None:
    text = with_entries("evals:\n  a: {task: x}\n", {"evals": {"on": {"task": "no: thing"}, "1": {"task": "#"}}})
    assert yaml.safe_load(text)["evals"] == {"a": {"task": "x"}, "on": {"task": "no: thing"}, "1": {"task": "#"}}


def test_a_section_in_braces_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the section 'evals' of evals\.yaml is in braces"):
        with_entries("evals: {a: {task: x}}\n", {"evals": {"b": {"task": "y"}}})
