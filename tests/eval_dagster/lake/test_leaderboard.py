"""The leaderboard ranks what can be compared, names what differs, and shows what evals.yaml has."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.cli.leaderboard import print_leaderboard
from eval_dagster.cli.main import main
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.pipeline import Outcome, evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult

TASK = """
    from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Sizes(BaseTask[str]):
        NAME = "Sizes"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [{metric}]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {{"test": [{{"n": n, "size": "small" if n < 5 else "large"}} for n in {numbers}]}}

        def _get_instruction_text(self, item):
            return f"{question} {{item['n']}}?"

        def _get_possible_completions(self, item):
            return [" small", " large"]

        def _get_ground_truth(self, item):
            return f" {{item['size']}}"
"""
CONFIG = """
    models:
      plain: {{backend: scripted, function: "answers.py:small"}}
      chat: {{backend: scripted, function: "answers.py:large", prompt_format: llama3}}
      {third}: {{backend: scripted, function: "answers.py:small"}}
    evals:
      {eval_name}: {{task: "sizes.py:Sizes", limit: {limit}}}
    suites:
      one: {{evals: [{eval_name}], models: [plain]}}
"""
ANSWERS = """
    def small(request):
        return [-1.0, -2.0]

    def large(request):
        return [-2.0, -1.0]
"""
Board = list[tuple[str, int | None, str | None, int]]


class Place:
    """A folder whose files are written anew for each evaluation."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "answers.py").write_text(textwrap.dedent(ANSWERS))

    def project(self, *, eval_name: str = "sizes", third: str = "third", limit: int = 8) -> Project:
        path = self._folder / "evals.yaml"
        path.write_text(textwrap.dedent(CONFIG.format(eval_name=eval_name, third=third, limit=limit)))
        return Project.open(tasks={}, config_path=path, home=self._folder / "home")

    def evaluate(self, *models: str, limit: int = 8, question: str = "How large is", **changed: Any) -> None:
        outcomes = self.outcomes(*models, limit=limit, question=question, **changed)
        assert all(isinstance(each, StageResult) for each in outcomes), outcomes

    def outcomes(self, *models: str, limit: int = 8, question: str = "How large is", **changed: Any) -> list[Outcome]:
        settings = {"metric": "AccuracyLoglikelihood", "numbers": list(range(10))} | changed
        (self._folder / "sizes.py").write_text(textwrap.dedent(TASK.format(question=question, **settings)))
        partitions = [("sizes", model) for model in models]
        return list(evaluate(self.project(limit=limit), partitions, stages=set(STAGES), run_id="x", reporter=SilentReporter()))

    def board(self, relation: str = "leaderboard") -> Board:
        rows = read_rows(self.project().lake, f"select * from {relation}")
        return [(row["model"], row["rank"], row["differs"], row["n"]) for row in rows]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("leaderboard"))
    place.evaluate("plain", "chat", "third")
    return place


@pytest.fixture
def place(evaluated: Place) -> Place:
    """Where all three models have the same, whatever another test did with the third."""
    evaluated.evaluate("third")
    return evaluated


@pytest.mark.long
def test_chat_templates_do_not_keep_models_from_being_ranked(place: Place) -> None:
    assert place.board() == [("plain", 1, None, 8), ("third", 1, None, 8), ("chat", 3, None, 8)]
    prompts = read_rows(place.project().lake, "select distinct prompt_version from prompts")
    assert len(prompts) == 2, "though their prompts differ"


@pytest.mark.long
@pytest.mark.parametrize(
    ("changed", "differs", "n"),
    [
        ({"limit": 3}, "samples", 3),
        ({"limit": 10}, "samples", 10),
        ({"question": "Which size has"}, "prompts", 8),
        ({"numbers": [*range(7), 99]}, "samples, dataset version", 8),
        ({"metric": "AccuracyNormLoglikelihood"}, "metric", 8),
    ],
)
def test_what_cannot_be_compared_has_no_rank_and_says_why(place: Place, changed: dict[str, Any], differs: str, n: int) -> None:
    place.evaluate("third", **changed)
    assert place.board() == [("plain", 1, None, 8), ("chat", 2, None, 8), ("third", None, differs, n)]


@pytest.mark.long
def test_the_results_of_most_models_are_ranked(place: Place) -> None:
    """A change of the prompts reaches model after model: those of before keep their ranks until most are of after."""
    place.evaluate("third", question="Which size has")
    place.evaluate("chat", question="Which size has")
    assert place.board() == [("third", 1, None, 8), ("chat", 2, None, 8), ("plain", None, "prompts", 8)]
    place.evaluate("chat")


Run = Callable[..., str]


@pytest.fixture
def cli(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, status: int = 0, **config: str) -> str:
        project = place.project(**config)  # type: ignore[arg-type]
        monkeypatch.setenv("EVAL_DAGSTER_HOME", str(project.home))
        monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(project.config_path))
        monkeypatch.setattr("eval_dagster.cli.main._leave", sys.exit)
        monkeypatch.setattr(sys, "argv", ["eval-dagster", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        assert int(stop.value.code or 0) == status, printed.err
        return printed.out + printed.err

    return run


@pytest.mark.long
def test_a_model_or_an_eval_that_is_no_longer_configured_is_shown_on_request(cli: Run) -> None:
    assert "third" in cli("leaderboard")
    for arguments in (["leaderboard"], ["sql", "leaderboard"]):
        renamed = cli(*arguments, third="other")
        assert "third" not in renamed, "with no evaluation since evals.yaml was changed"
        assert "plain" in renamed
    everything = cli("leaderboard", "--all", third="other")
    assert "third" in everything
    assert "not in evals.yaml" in everything
    assert "sizes" not in cli("leaderboard", eval_name="renamed")
    assert "sizes" in cli("leaderboard", "--all", eval_name="renamed")


def test_a_part_of_the_leaderboard(cli: Run) -> None:
    assert "chat" not in cli("leaderboard", "--suite", "one")
    assert "plain" in cli("leaderboard", "--suite", "one")
    of_chat = cli("leaderboard", "--eval", "sizes", "--model", "chat")
    assert "plain" not in of_chat
    assert "3" in of_chat, "its rank is among all models"
    assert "did you mean 'sizes'" in cli("leaderboard", "--eval", "size", status=2)
    assert "without --suite" in cli("leaderboard", "--all", "--model", "chat", status=2)


@pytest.mark.long
def test_a_result_that_a_newer_run_did_not_replace_is_marked(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    def marks() -> dict[str, str | None]:
        return {row["model"]: row["newer_attempt"] for row in read_rows(place.project().lake, "select * from leaderboard")}

    place.evaluate("chat")
    assert marks() == {"plain": None, "chat": None, "third": None}
    assert any(isinstance(each, StageFailure) for each in place.outcomes("third", question="How {item['lost']} is"))
    assert marks() == {"plain": None, "chat": None, "third": "failed at rendered_prompts"}
    print_leaderboard(place.project().lake)
    printed = capsys.readouterr().out
    assert "last run" in printed
    assert "failed at rendered_prompts" in printed
    assert "older than the last run" in printed
    place.evaluate("third")
    assert marks() == {"plain": None, "chat": None, "third": None}
    print_leaderboard(place.project().lake)
    assert "last run" not in capsys.readouterr().out
