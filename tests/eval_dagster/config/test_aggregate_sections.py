"""The section `aggregates` of a suite: its mistakes are reported with their places, and those that only tasks tell before a run."""

from pathlib import Path

import pytest

from eval_dagster.config.loading import load_config
from eval_dagster.errors import ConfigError, UsageError
from eval_dagster.project import Project
from eval_dagster.stages.suite_aggregates import require_sensible_aggregates

CONFIG = """\
models:
  m: {{backend: scripted, default: " 7"}}
evals:
  capitals: {{task: capitals}}
  sums: {{task: arithmetic}}
  other: {{task: arithmetic}}
  words: {{task: wikitext}}
  letters: {{task: wikitext}}
  gone: {{task: "gone.py:Gone"}}
suites:
  s:
    evals: {evals}
    models: [m]
    aggregates:
      one: {aggregate}
"""


def written(folder: Path, aggregate: str, evals: str = "[capitals, sums]") -> Path:
    path = folder / "evals.yaml"
    path.write_text(CONFIG.format(aggregate=aggregate, evals=evals))
    return path


def test_an_aggregate_is_of_all_evals_of_its_suite_unless_it_names_some(tmp_path: Path) -> None:
    project = Project.open(config_path=written(tmp_path, "{}"), home=tmp_path / "home")
    assert project.lake.configured is not None
    (found,) = project.lake.configured.aggregates
    assert (found.suite, found.name, found.of, found.evals, found.weights) == ("s", "one", "mean", ("capitals", "sums"), (1.0, 1.0))
    project = Project.open(config_path=written(tmp_path, "{of: weighted, evals: [sums], weights: {sums: 3}}"), home=tmp_path / "home")
    assert project.lake.configured is not None
    (found,) = project.lake.configured.aggregates
    assert (found.evals, found.weights, found.models) == (("sums",), (3.0,), ("m",))


@pytest.mark.parametrize(
    ("aggregate", "place", "told"),
    [
        ("{evals: [captals]}", "evals[0]", "found 'captals'; expected an eval of the suite (capitals, sums); did you mean 'capitals'?"),
        ("{evals: [other]}", "evals[0]", "found 'other'; expected an eval of the suite (capitals, sums)"),
        ("{evals: [sums, sums]}", "evals[1]", "found 'sums' a second time, after evals[0]; expected each name once"),
        ("{evals: []}", "evals", "expected a list of texts, at least one"),
        ("{of: weighted}", "weights", "found no weight of capitals, sums; expected a number above 0 for each eval of the aggregate"),
        ("{of: weighted, weights: {sums: 1}}", "weights", "found no weight of capitals; expected a number above 0 for each eval"),
        ("{of: weighted, evals: [sums], weights: {sums: 0}}", "weights.sums", "found 0; expected a number above 0"),
        ("{of: weighted, evals: [sums], weights: {sums: -1}}", "weights.sums", "found -1; expected a number above 0"),
        (
            "{of: weighted, evals: [sums], weights: {sums: 1, smus: 1}}",
            "weights.smus",
            "expected an eval of the aggregate (sums); did you mean 'sums'?",
        ),
        ("{of: median, weights: {capitals: 1, sums: 2}}", "weights", "found weights without `of: weighted`; expected both or neither"),
        ("{of: mode}", "of", "found 'mode'; expected 'mean', 'median' or 'weighted'"),
        ("{normalized: true}", "normalized", "found an unknown key; expected one of of, evals, weights, normalised, metric"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, aggregate: str, place: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, aggregate))
    message = str(caught.value)
    assert f"suites.s.aggregates.one.{place}: " in message
    assert told in message
    assert len(message.splitlines()) == 1


def test_a_wrong_name_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, "{}")
    path.write_text(path.read_text().replace("one: {}", "a/b: {}"))
    with pytest.raises(ConfigError, match="found the name 'a/b'"):
        load_config(path)


@pytest.mark.parametrize(
    ("aggregate", "evals", "told"),
    [
        ("{normalised: true}", "[capitals, sums]", "the score by chance of the eval sums is not known, since its metric exact_number does"),
        ("{metric: exact_nmber}", "[sums]", "found 'exact_nmber', which the eval sums does not have; expected one of exact_number"),
        (
            "{}",
            "[capitals, words]",
            "the evals are in different directions: capitals has accuracy from 0 to 1 (higher is better), words has",
        ),
        ("{}", "[words, gone, capitals]", "the evals are in different directions"),
    ],
)
def test_what_can_have_no_value_is_told_before_a_run(tmp_path: Path, aggregate: str, evals: str, told: str) -> None:
    project = Project.open(config_path=written(tmp_path, aggregate, evals), home=tmp_path / "home")
    with pytest.raises(UsageError) as caught:
        require_sensible_aggregates(project, "s")
    assert "suites.s.aggregates.one" in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("aggregate", "evals"),
    [("{}", "[capitals, sums]"), ("{normalised: true}", "[capitals]"), ("{}", "[words, letters]"), ("{}", "[gone, sums]")],
)
def test_what_can_have_a_value_is_accepted(tmp_path: Path, aggregate: str, evals: str) -> None:
    require_sensible_aggregates(Project.open(config_path=written(tmp_path, aggregate, evals), home=tmp_path / "home"), "s")
