"""Pruning a home of several nights."""

import os
import shutil
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import duckdb
import pytest
from commands import run_command

from eval_dagster import retention
from eval_dagster.errors import LakeError, UsageError
from eval_dagster.gate.judgement import judge
from eval_dagster.gate.results import read_judgement, write_result
from eval_dagster.lake import files
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import catalog_path, trial_lake
from eval_dagster.lake.format import parquet_files
from eval_dagster.lake.format.parquet_files import time_of
from eval_dagster.lake.tables.schemas import SUITE_TABLES
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.results.comparison import changed_samples, compare_points
from eval_dagster.results.materializations import history
from eval_dagster.retention import Keep, Policy, Prunable, Pruning, Reason, plan, prune
from eval_dagster.stages.partition import STAGES, StageResult

TASK = """
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Words(BaseTask[str]):
        NAME = "Words"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {{"test": [{{"n": n, "answer": f"word {{n}}"}} for n in range({rows})]}}

        def _get_instruction_text(self, item):
            return f"{question} {{item['n']}}"

        def _get_ground_truth(self, item):
            return item["answer"]
"""
ANSWERS = """
    def answer(request):
        number = int(request.prompt.split()[-1])
        return "wrong" if number in {wrong!r} else f"word {{number}}"
"""
CONFIG = """
    models:
      one: {{backend: scripted, function: "answers.py:answer"}}
      {two}: {{backend: scripted, default: "word 3"}}
    evals:
      words: {{task: "words.py:Words"}}
    suites:
      {suite}: {{evals: [words], models: [one, {two}], baseline: "{baseline}"}}
"""
NIGHTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (200, {"wrong": [0]}),
    (150, {"wrong": [1]}),
    (120, {"wrong": [2]}),
    (100, {"wrong": [2], "question": "Write"}),
    (60, {"wrong": [2], "question": "Write", "rows": 12}),
    (10, {"wrong": [5, 6], "question": "Write", "rows": 12}),
    (2, {"wrong": [7], "question": "Write", "rows": 12}),
)
"""How many days ago, and what was different then."""
NO_CATALOGS = Keep(count=0)
DAYS_90 = Keep(age=timedelta(days=90))


class Home:
    """A folder with evals.yaml and a home, which can be put back to what it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.now = datetime.now(UTC)

    def project(self, *, baseline: str = "previous", two: str = "two", suite: str = "nightly") -> Project:
        path, text = self.folder / "evals.yaml", textwrap.dedent(CONFIG.format(baseline=baseline, two=two, suite=suite))
        if not path.exists() or path.read_text() != text:  # another thread may be reading it
            path.write_text(text)
        return Project.open(tasks={}, config_path=path, home=self.home)

    def evaluate(self, *, wrong: Sequence[int], question: str = "Say", rows: int = 10) -> list[StageResult]:
        (self.folder / "words.py").write_text(textwrap.dedent(TASK.format(question=question, rows=rows)))
        (self.folder / "answers.py").write_text(textwrap.dedent(ANSWERS.format(wrong=wrong)))
        partitions = [("words", "one"), ("words", "two")]
        outcomes = list(evaluate(self.project(), partitions, stages=set(STAGES), run_id="night", reporter=SilentReporter()))
        assert all(isinstance(outcome, StageResult) for outcome in outcomes), outcomes
        return [outcome for outcome in outcomes if isinstance(outcome, StageResult)]

    def evaluate_again(self) -> list[StageResult]:
        return self.evaluate(**NIGHTS[-1][1])

    def night(self, ago: int, settings: dict[str, Any]) -> None:
        """Evaluate, judge and report, with the catalog of a past day as it would be."""
        self.evaluate(**settings)
        result = judge(self.project(), "nightly", run_id="gate")
        write_result(self.project().lake, result)
        publish(self.project().lake)
        report = self.home / "reports" / "nightly" / f"{ago:03}.html"
        samples = report.with_suffix("") / "sums" / "one" / "samples.html"
        samples.parent.mkdir(parents=True, exist_ok=True)
        samples.write_text("the samples of a red result")
        then = (self.now - timedelta(days=ago)).timestamp()
        for path in (report, report.with_name("latest.html")):
            path.write_text("a page")
            os.utime(path, (then, then))
        os.utime(catalog_path(self.project().lake), (then, then))

    def put_back(self) -> None:
        """Make all as it was when it was copied, but for MLflow's database, which is open."""
        for name in ("lake", "catalogs", "reports"):
            shutil.rmtree(self.home / name)
        kept = self.folder.with_name("kept")
        shutil.copytree(kept, self.folder, dirs_exist_ok=True, ignore=lambda *_: ["mlflow.db", "evals.duckdb"])
        catalog_path(self.project().lake).unlink()
        shutil.copy2(kept / "home" / "evals.duckdb", self.home)

    def files(self) -> set[Path]:
        folders = [self.home / name for name in ("lake", "catalogs", "reports")]
        return {path.relative_to(self.home) for folder in folders for path in folder.rglob("*") if path.is_file()}

    def count(self, table: str, partition: str = "") -> int:
        return sum(path.is_relative_to(Path("lake") / table) and partition in str(path) for path in self.files())

    def ages(self) -> list[int]:
        """Days since each materialization of the first model's metrics that is there."""
        files_of = sorted((self.home / "lake/metrics/eval=words/model=one").iterdir())
        return [round((self.now - time_of(path)) / timedelta(days=1)) for path in files_of]


class Clock(datetime):
    """A clock that was set back."""

    back = timedelta(0)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) - cls.back


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home after all nights; its catalogs name absolute paths, so it stays where it is."""
    home = Home(tmp_path_factory.mktemp("nights") / "project")
    home.folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "datetime", Clock)
        patch.setattr(parquet_files, "utc_now", lambda: Clock.now(UTC))
        for ago, settings in NIGHTS:
            patch.setattr(Clock, "back", timedelta(days=ago))
            home.night(ago, settings)
    shutil.copytree(home.folder, home.folder.with_name("kept"))
    return home


@pytest.fixture
def home(nights: Home) -> Home:
    """The home as it was after the last night."""
    nights.put_back()
    return nights


def readable(catalog: Path) -> Iterator[tuple[str, int]]:
    """The rows of every relation of a catalog."""
    with duckdb.connect(str(catalog), read_only=True) as connection:
        for schema, name in connection.execute("select table_schema, table_name from information_schema.tables").fetchall():
            yield name, len(connection.execute(f'select * from "{schema}"."{name}"').fetchall())


def check(home: Home, leaderboard: object) -> None:
    """A home after pruning is whole."""
    project = home.project()
    assert publish(project.lake) == []
    assert read_rows(project.lake, "select * exclude (rank) from leaderboard") == leaderboard
    assert dict(readable(catalog_path(project.lake)))["scores_history"] > 0
    for catalog in (home.home / "catalogs").glob("*.duckdb"):
        assert dict(readable(catalog))["scores_history"] > 0
    for model in ("one", "two"):
        points = history(project.lake, "words", model)
        for point in points:
            (compared,) = compare_points(points[-1], point, project.task("words").METRICS)
            for change in changed_samples(points[-1], point, compared.metric):
                assert change.prompt is not None
                assert change.answer is not None or change.baseline_answer is not None
            assert point.scores
            assert point.prompts.keys() == point.responses.keys()
    assert [read_judgement(file.path)[1] for file in project.lake.history("regressions", "nightly")]
    assert judge(project, "nightly", run_id="gate").regressions


def leaderboard_of(home: Home) -> list[dict[str, Any]]:
    return read_rows(home.project().lake, "select * exclude (rank) from leaderboard")


@pytest.mark.long
def test_looking_deletes_nothing(home: Home) -> None:
    before, catalog = home.files(), catalog_path(home.project().lake).stat().st_ino
    found = plan(home.project(), Policy(keep=Keep(count=1), catalogs=NO_CATALOGS, removed=True))
    assert {each.what for each in found.files} >= {"metrics", "scores", "responses", "prompts", "samples", "reports", "catalogs"}
    assert home.files() == before
    assert catalog_path(home.project().lake).stat().st_ino == catalog


@pytest.mark.long
def test_what_was_current_within_the_age_stays(home: Home) -> None:
    """The state of 90 days ago is that of 100 days ago; and that was judged against the one of 120 days ago."""
    leaderboard = leaderboard_of(home)
    found = prune(home.project(), Policy(keep=DAYS_90, catalogs=NO_CATALOGS))
    assert home.ages() == [120, 100, 60, 10, 2]
    assert (home.count("scores", "model=one"), home.count("responses", "model=one")) == (5, 5)
    assert home.count("prompts", "model=one") == 3
    assert home.count("samples") == 2
    kept = ["002", "010", "060", "100"]
    expected = [*kept, *(f"{each}.html" for each in kept), "latest.html"]
    assert sorted(path.name for path in (home.home / "reports/nightly").iterdir()) == sorted(expected)
    assert home.count("regressions") == home.count("sample_changes") == 4
    assert {each.what for each in found.files} == {
        *("catalogs", "metrics", *(name for name in SUITE_TABLES if name != "aggregate_regressions"), "scores", "responses", "samples"),
        *("response cache", "reports"),
    }
    check(home, leaderboard)


@pytest.mark.long
def test_the_newest_of_each_partition_stay(home: Home) -> None:
    leaderboard = leaderboard_of(home)
    prune(home.project(), Policy(keep=Keep(count=3), catalogs=NO_CATALOGS))
    assert home.ages() == [100, 60, 10, 2], "three, and the one that the judgement of the oldest of them names"
    check(home, leaderboard)
    prune(home.project(), Policy(keep=Keep(count=1), catalogs=NO_CATALOGS))
    assert home.count("regressions") == 1
    # The current one, and what it is compared with.
    assert home.count("metrics", "model=one") == home.count("scores", "model=one") == home.count("responses", "model=one") == 2
    check(home, leaderboard)


@pytest.mark.long
def test_a_rerun_asks_no_model(home: Home) -> None:
    prune(home.project(), Policy(keep=Keep(count=1), catalogs=NO_CATALOGS, removed=True))
    assert all(result.cached for result in home.evaluate_again())
    shutil.rmtree(home.home / "lake" / "responses")
    again = [result for result in home.evaluate_again() if result.stage == "model_outputs"]
    assert [result.file.info.counts["requests_computed"] for result in again] == [0, 0]


@pytest.mark.long
def test_answers_stay_while_a_result_that_stays_was_made_with_them(home: Home) -> None:
    prune(home.project(), Policy(keep=DAYS_90, catalogs=NO_CATALOGS))
    computed = [result.file.info.counts["requests_computed"] for result in home.evaluate(**NIGHTS[3][1]) if result.stage == "model_outputs"]
    assert computed == [0, 0]
    computed = [result.file.info.counts["requests_computed"] for result in home.evaluate(**NIGHTS[0][1]) if result.stage == "model_outputs"]
    assert computed == [10, 0]


@pytest.mark.long
def test_without_a_models_version_no_answer_is_deleted(home: Home) -> None:
    before = home.count("response_cache")
    (home.folder / "answers.py").write_text("def other(request): ...")
    found = prune(home.project(), Policy(keep=Keep(count=1), catalogs=NO_CATALOGS))
    assert home.count("response_cache") == before
    assert "the version of the model one cannot be told" in found.notes[0]


@pytest.mark.long
def test_a_catalog_that_is_kept_answers_as_before(home: Home) -> None:
    catalogs = sorted((home.home / "catalogs").glob("*.duckdb"))
    last, answers = dict(readable(catalog_path(home.project().lake))), dict(readable(catalogs[-1]))
    policy = Policy(keep=Keep(count=1), catalogs=Keep(count=2))
    planned = plan(home.project(), policy)
    found = prune(home.project(), policy)
    assert found.files == planned.files
    older, newer = sorted((home.home / "catalogs").glob("*.duckdb"))
    assert (older, dict(readable(older))) == (catalogs[-1], answers)
    assert dict(readable(newer)) == last, "the last state of a past day has become a catalog"
    assert {each.what for each in found.kept[Reason.CATALOG]} >= {"scores", "regressions"}
    assert home.count("scores", "model=one") == len(NIGHTS)
    assert home.count("metrics", "model=one") == 2


@pytest.mark.long
def test_a_catalog_that_cannot_be_read_stops_it(home: Home) -> None:
    (home.home / "catalogs" / "mine.duckdb").write_text("nothing")
    before = home.files()
    with pytest.raises(LakeError, match=r"mine.duckdb cannot be read .*so the files of the lake that it needs are unknown"):
        prune(home.project(), Policy(keep=Keep(count=1), catalogs=NO_CATALOGS))
    assert home.files() == before


@pytest.mark.long
def test_baselines_of_suites_stay(home: Home) -> None:
    day = (home.now - timedelta(days=149)).date()
    pinned = home.project(baseline=str(day))
    prune(pinned, Policy(keep=Keep(count=1), catalogs=NO_CATALOGS))
    result = judge(home.project(baseline=str(day)), "nightly", run_id="gate")
    (row,) = [row for row in result.regressions if row.model == "one"]
    assert row.baseline_materialized_at is not None
    assert round((home.now - row.baseline_materialized_at) / timedelta(days=1)) == 150
    assert "wrong" in [change.baseline_answer for change in result.changes if change.model == "one"]


@pytest.mark.long
def test_what_evals_yaml_no_longer_has_goes_if_told_so(home: Home) -> None:
    renamed = home.project(two="three", suite="weekly")
    prune(renamed, Policy(keep=Keep(count=1), catalogs=NO_CATALOGS))
    assert home.count("regressions", "suite=nightly") == 1
    assert home.count("metrics", "model=two") == 2
    prune(home.project(two="three", suite="weekly"), Policy(keep=Keep(count=1), catalogs=NO_CATALOGS, removed=True))
    assert not [path for path in home.files() if "two" in str(path) or ("nightly" in str(path))]
    assert [path.parent.name for path in (home.home / "pages").rglob("samples.html")] == ["one"]
    lake = home.project().lake
    assert [row["model"] for row in read_rows(lake, "select model from leaderboard")] == ["one"]
    assert read_rows(lake, "select * from damaged_files") == []


@pytest.mark.long
def test_whoever_is_at_work_is_spared(home: Home) -> None:
    """Files of the last day, those that were current until then, and what is being written."""
    settings = {**NIGHTS[-1][1], "wrong": [8]}
    home.evaluate(**settings)
    writing = home.home / "lake/scores/eval=words/model=one/.writing.parquet.tmp"
    writing.write_text("half")
    prune(home.project(), Policy(keep=Keep(count=1), catalogs=NO_CATALOGS, removed=True))
    assert home.ages() == [10, 2, 0]
    assert writing.exists()


@pytest.mark.long
def test_every_file_that_stays_has_a_reason(home: Home) -> None:
    """The evaluation of today, the current one, the newest, what is compared with; and nothing is counted twice."""
    home.evaluate(**{**NIGHTS[-1][1], "wrong": [8]})
    home.evaluate(**{**NIGHTS[-1][1], "wrong": [9]})
    found = plan(home.project(), Policy(keep=Keep(count=1), catalogs=NO_CATALOGS))
    metrics = {
        reason: [each for each in files if each.what == "metrics" and "model=one" in str(each.path)] for reason, files in found.kept.items()
    }
    ages = {reason: [round((home.now - each.time) / timedelta(days=1)) for each in files] for reason, files in metrics.items() if files}
    assert ages == {Reason.CURRENT: [0], Reason.LAST_DAY: [2, 0], Reason.COMPARED: [10]}
    listed = [each for files in (found.files, *found.kept.values()) for each in files if each.what != "pages"]
    paths = [each.path.relative_to(home.home) for each in listed]
    others = [path for path in home.files() if not path.is_relative_to("lake/attempts") and not path.is_relative_to("lake/packs")]
    assert sorted(paths) == sorted({Path(*path.parts[:3]) if path.parts[0] == "reports" else path for path in others})


@pytest.mark.long
def test_the_command_names_what_is_always_spared(tmp_path: Path) -> None:
    """A user who evaluates twice and prunes at once sees why nothing can go."""
    home = Home(tmp_path)
    (tmp_path / "words.py").write_text(textwrap.dedent(TASK.format(question="Say", rows=1)))
    (tmp_path / "answers.py").write_text(textwrap.dedent(ANSWERS.format(wrong=[])))
    environment = {**os.environ, "EVAL_DAGSTER_CONFIG": str(home.project().config_path), "EVAL_DAGSTER_HOME": str(home.home)}

    def gc() -> str:
        return run_command("gc", "--keep", "1", "--removed", environment=environment).stdout

    empty = gc()
    assert "nothing has been evaluated here yet" in empty
    assert "score_history" not in empty, "this query has nothing to read"
    home.evaluate(wrong=[1])
    home.evaluate(wrong=[2])
    said = gc()
    assert "There is nothing to delete." in said
    spared = next(line for line in said.splitlines() if "always spared: written or current in the last 24 hours" in line)
    assert spared.split("│")[1].strip() == "4", "of the first evaluation of one model: responses, scores, metrics, cached answers"
    assert "current results and judgements" in said


@pytest.mark.long
def test_it_runs_beside_evaluations(home: Home) -> None:
    with ThreadPoolExecutor(1) as pool:
        pruned = pool.submit(lambda: [prune(home.project(), Policy(keep=Keep(count=1), catalogs=NO_CATALOGS)) for _ in range(10)])
        for wrong in ([1, 2], [1, 2, 3], [3]):
            home.evaluate(**{**NIGHTS[-1][1], "wrong": wrong})
        pruned.result()
    check(home, leaderboard_of(home))


@pytest.mark.long
@pytest.mark.parametrize(("catalogs", "least"), [(0, 40), (1, 20)])
def test_one_that_is_killed_leaves_a_lake_that_is_whole(home: Home, monkeypatch: pytest.MonkeyPatch, catalogs: int, least: int) -> None:
    leaderboard = leaderboard_of(home)
    policy = Policy(keep=Keep(count=2), catalogs=Keep(count=catalogs))
    files_of: list[Prunable] = list(plan(home.project(), policy).files)
    assert len(files_of) > least
    delete = retention._delete
    for deleted in range(0, len(files_of), 13):
        home.put_back()
        left = iter(range(deleted))

        def killed(lake: Any, each: Prunable, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            delete(lake, each)

        monkeypatch.setattr(retention, "_delete", killed)
        with pytest.raises(KeyboardInterrupt):
            prune(home.project(), policy)
        assert dict(readable(catalog_path(home.project().lake)))["leaderboard"] == 2
        check(home, leaderboard)
    monkeypatch.setattr(retention, "_delete", delete)
    rest: Pruning = prune(home.project(), policy)
    assert rest.files
    assert plan(home.project(), policy).files == []
    check(home, leaderboard)


@pytest.mark.parametrize(("text", "keep"), [("90d", DAYS_90), (" 10 ", Keep(count=10)), ("1d", Keep(age=timedelta(days=1)))])
def test_what_is_kept_is_read(text: str, keep: Keep) -> None:
    assert Keep.parse(text, what="--keep") == keep


@pytest.mark.parametrize("text", ["", "0", "0d", "-1", "ten", "10 days", "1.5d", "٣"])
def test_what_is_no_age_and_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"found --keep .*; expected an age in days \(90d\) or how many"):
        Keep.parse(text, what="--keep")


def test_an_empty_home_has_nothing_to_delete(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "words.py").write_text(textwrap.dedent(TASK.format(question="Say", rows=1)))
    (tmp_path / "answers.py").write_text(textwrap.dedent(ANSWERS.format(wrong=[])))
    assert prune(home.project(), Policy(keep=DAYS_90, catalogs=DAYS_90)).files == []


@pytest.mark.long
def test_the_command_says_what_it_would_delete_and_deletes_if_told_so(home: Home) -> None:
    environment = {**os.environ, "EVAL_DAGSTER_CONFIG": str(home.project().config_path), "EVAL_DAGSTER_HOME": str(home.home)}

    def gc(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_command("gc", *arguments, environment=environment)

    before = home.files()
    said = gc("--keep", "90d")
    assert said.returncode == 0, said.stderr
    assert home.files() == before
    assert "Could be deleted" in said.stdout
    assert "of model versions that nothing uses; would have to be computed again" in said.stdout
    assert "named by kept catalogs of past days" in said.stdout
    assert "Nothing was deleted. It would be: " in said.stdout
    assert "gc --keep 90d --yes  delete them" in said.stdout
    done = gc("--keep", "90d", "--catalogs", "0", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"Deleted: {len(before - home.files())} files, " in done.stdout
    assert "There is nothing to delete." in gc("--keep", "90d", "--catalogs", "0").stdout
    wrong = gc("--keep", "ninety")
    assert wrong.returncode == 2
    assert "found --keep 'ninety'; expected an age in days (90d)" in wrong.stderr


@pytest.mark.long
def test_catalogs_are_counted_by_days_with_results(home: Home) -> None:
    """Most old days have no catalog: the newest three of those that have one can be years old."""
    folder = home.home / "catalogs"
    some = next(folder.iterdir()).read_bytes()
    shutil.rmtree(folder)
    folder.mkdir()
    for ago in (200, 150, 120):
        (folder / f"{(home.now - timedelta(days=ago)).date()}.duckdb").write_bytes(some)

    def going(count: int) -> list[Path]:
        found = plan(home.project(), Policy(keep=DAYS_90, catalogs=Keep(count=count)))
        return [each.path for each in found.files if each.what == "catalogs"]

    assert going(3) == sorted(folder.iterdir())
    assert going(5) == sorted(folder.iterdir())[:2]
    assert going(7) == []


@pytest.mark.long
def test_trials_go_as_a_whole_once_none_of_an_eval_is_young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    home.evaluate(wrong=[])
    trial = home.project().trial(3)

    def try_it(ago: timedelta) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(files, "datetime", Clock)
            patch.setattr(parquet_files, "utc_now", lambda: Clock.now(UTC))
            patch.setattr(Clock, "back", ago)
            list(evaluate(trial, [("words", "one")], stages=set(STAGES), run_id="trial", reporter=SilentReporter()))

    def going(keep: Keep) -> list[Path]:
        found = plan(home.project(), Policy(keep=keep, catalogs=NO_CATALOGS))
        return [each.path for each in found.files if each.what == retention.TRIALS]

    try_it(timedelta(days=100))
    paths = [path for path in trial.lake.root.rglob("*.parquet") if "attempts" not in path.parts]
    assert len(paths) == 5
    assert sorted(going(DAYS_90)) == sorted(going(Keep(count=10))) == sorted(paths)
    assert going(Keep(age=timedelta(days=101))) == []
    answers = home.count("response_cache")
    prune(home.project(), Policy(keep=DAYS_90, catalogs=NO_CATALOGS))
    assert not [path for path in paths if path.exists()]
    assert read_rows(trial_lake(home.project().lake), "select * from leaderboard") == []
    assert home.count("response_cache") == answers
    assert len(read_rows(home.project().lake, "select * from leaderboard")) == 2
    try_it(timedelta(hours=2))
    assert going(DAYS_90) == going(Keep(count=1)) == []
