"""Findings about an eval reach its warnings, the relations and the leaderboard, and cost no answer."""

from collections.abc import Callable
from pathlib import Path

import pytest
from running_stages import run_all

from eval_dagster.cli.leaderboard import print_leaderboard, score_table, standings
from eval_dagster.errors import QueryError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.metrics.base import CompletionMetric
from eval_dagster.project import Project
from eval_dagster.stages import findings as stored
from eval_dagster.stages.score_columns import scores_in

TASK = """
    from eval_dagster import AccuracyLoglikelihood, BaseTask, ResponseType

    TEAMS = ("billing", "network", "hardware", "access")

    class Tickets(BaseTask[str]):
        NAME = "Tickets"
        DATASET_PATH = "./tickets"
        SAMPLE_SPLIT = "test"
        FEWSHOT_SPLIT = "train"
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood]
        SUBJECT_FIELD = "product"
        SUBJECTS = ("phone", "desk")

        def _get_instruction_text(self, item):
            return f"Ticket: {item['text']}\\nTeam:"

        def _get_possible_completions(self, item):
            return [f" {team}" for team in TEAMS]

        def _get_ground_truth(self, item):
            return f" {item['team']}"

    class Leaking(Tickets):
        ID_FIELD = "text"
        SUBJECT_FIELD = "team"
        SUBJECTS = TEAMS
"""
MODEL = """
    from pathlib import Path

    TEAMS = ("billing", "network", "hardware", "access")

    def repeats(request):
        with Path(__file__).with_name("asked.log").open("a") as log:
            log.write(request.request_id + "\\n")
        last = request.prompt.rpartition("Team: ")[2].partition("\\n")[0]
        return [0.0 if team == last else -1.0 - place for place, team in enumerate(TEAMS)]
"""
CONFIG = """
    models:
      repeats: {backend: scripted, function: "model.py:repeats"}
    evals:
      sound: {task: "tickets.py:Tickets", num_fewshot: 3}
      leaking: {task: "tickets.py:Leaking", num_fewshot: 3}
"""
PAIRS = [("sound", "repeats"), ("leaking", "repeats")]


@pytest.fixture
def project(tmp_path: Path, write: Callable[[str, str], Path]) -> Project:
    write("tickets.py", TASK)
    write("model.py", MODEL)
    (tmp_path / "tickets").mkdir()
    teams = ("billing", "network", "hardware", "access")
    for split, start in (("test", 0), ("train", 100)):
        rows = [f"ticket {number},{teams[number % 4]},{('phone', 'desk')[number // 4 % 2]}" for number in range(start, start + 40)]
        (tmp_path / "tickets" / f"{split}.csv").write_text("\n".join(["text,team,product", *rows]))
    return Project.open(config_path=write("evals.yaml", CONFIG), home=tmp_path / "home")


@pytest.mark.long
def test_a_benchmark_that_leaks_its_class_is_marked_wherever_it_is_shown(
    project: Project, asked: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    results, failures = run_all(project, PAIRS)
    assert failures == []
    board = {row["eval"]: row for row in read_rows(project.lake, "select * from leaderboard")}
    assert board["leaking"]["value"] == 1.0, "a model that repeats the last answer of the examples"
    assert board["sound"]["value"] < 0.6
    # A model that repeats an answer gives one to each subject of the sound eval, too.
    assert {name: row["findings"] for name, row in board.items()} == {"leaking": ["examples_tell_gold"], "sound": ["position_bias"]}
    [warning] = results["rendered_prompts", "leaking"].warnings
    assert warning.startswith("eval leaking: examples_tell_gold: all examples of 4 of 4 subjects have one answer, which is the gold answer")
    assert "(sample ticket 0, for instance)" in warning
    assert not results["rendered_prompts", "sound"].warnings
    [row] = read_rows(project.lake, "select * from eval_findings where status = 'found' and eval = 'leaking'")
    assert (row["eval"], row["check_name"], row["n"], row["n_of"]) == ("leaking", "examples_tell_gold", 40, 40)
    assert read_rows(project.lake, "select 1 from prompts where sample_id = $id", {"id": row["sample_id"]})
    assert row["sample_name"] == "ticket 0"
    assert row["effect"]
    assert row["advice"]
    print_leaderboard(project.lake)
    printed = capsys.readouterr().out
    assert "⚠ Signs that a score measures something else: " in printed
    assert "findings ┃" in printed
    assert not printed.strip().endswith("--trial")
    assert len(asked()) == 80


@pytest.mark.long
def test_a_second_run_says_it_again_and_makes_nothing(project: Project, asked: Callable[[], list[str]]) -> None:
    run_all(project, PAIRS)
    asked()
    results, failures = run_all(project, PAIRS)
    assert failures == []
    assert all(each.cached for each in results.values())
    assert len(results["rendered_prompts", "leaking"].warnings) == 1
    assert asked() == []


@pytest.mark.long
def test_results_from_before_the_checks_say_that_nobody_looked(
    project: Project, asked: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(stored, "LINT_VERSION", 0)
        earlier.setattr("eval_dagster.stages.metrics.findings_column", lambda *_: None)
        run_all(project, PAIRS)
    rows = standings(project.lake)
    assert [row.findings for row in rows] == [None, None]
    columns, cells = score_table(rows)
    assert columns[-1] == "findings"
    assert {row[-1] for row in cells} == {"not checked"}
    asked()
    results, failures = run_all(project, PAIRS)
    assert failures == []
    assert {stage for (stage, _), each in results.items() if not each.cached} == {"rendered_prompts", "task_metrics"}
    assert asked() == [], "no answer is asked for again"
    assert sorted(row["findings"] for row in read_rows(project.lake, "select * from leaderboard")) == [
        ["examples_tell_gold"],
        ["position_bias"],
    ]


@pytest.mark.parametrize(
    ("value", "bounds", "is_found"),
    [(0.5, None, True), (0.5, (0.0, 1.0), False), (1.5, None, False)],
    ids=["undeclared", "declared", "wide"],
)
def test_an_interval_that_leaves_the_values_is_a_finding(value: float, bounds: tuple[float, float] | None, is_found: bool) -> None:
    class Own(CompletionMetric):
        NAME = "own"
        BOUNDS = bounds

    scores = scores_in([{"metric": "own", "value": each} for each in (0.0, value)])
    row = {"metric": "own", "is_headline": True, "ci_low": -0.015, "ci_high": 0.215}
    finding = stored.bounds_finding([row], scores, [Own])
    assert (finding is not None) == is_found
    seen = "no_bounds: all 2 values of own lie between 0 and 1, and its class declares no BOUNDS; the interval, -0.015 to 0.215, "
    assert finding is None or str(finding).startswith(seen)
    assert stored.bounds_finding([{**row, "ci_low": 0.0}], scores, [Own]) is None


@pytest.mark.long
def test_the_findings_of_trials_are_asked_for_as_such(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(QueryError, match=r"run` first$"):
        read_rows(project.lake, "select 1")
    trial = project.trial(10)
    run_all(trial, PAIRS[1:])
    print_leaderboard(trial.lake)
    assert "sql eval_findings --trial" in capsys.readouterr().out
    with pytest.raises(QueryError, match=r"there is nothing to query yet: .*; there are trials, which --trial shows"):
        read_rows(project.lake, "select 1")
