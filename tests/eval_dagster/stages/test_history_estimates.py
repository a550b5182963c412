"""Scores that are estimated from a part of the samples, by the answers of earlier models."""

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from no_mlflow import NoMlflow
from starlette.testclient import TestClient

from eval_dagster.assets.materializations import materialization
from eval_dagster.assets.names import Names
from eval_dagster.cli.gate import next_command
from eval_dagster.cli.leaderboard import standings
from eval_dagster.errors import LakeError
from eval_dagster.freshness import partition_states
from eval_dagster.gate.judgement import judge
from eval_dagster.gate.planning import Planned, plan_samples
from eval_dagster.gate.results import write_result
from eval_dagster.gate.wording import verdict_line
from eval_dagster.lake.catalog.catalog import CatalogReader, read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.parquet_files import read_rows as read_rows_of
from eval_dagster.lake.records import records_of
from eval_dagster.pages.server.application import application
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records.judgements import Verdict
from eval_dagster.results.comparison import compare_points
from eval_dagster.results.materializations import MaterializationName
from eval_dagster.stages.history import HistoryLooks
from eval_dagster.stages.looks import Looks, Stopping
from eval_dagster.stages.metrics import tracked_result
from eval_dagster.stages.partition import STAGES, Partition, StageFailure, StageResult

N = 400
TASK = """
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Numbers(BaseTask[str]):
        NAME = "Numbers"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch]
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {"test": [{"n": n, "answer": f"word {n}"} for n in range(400)]}

        def _get_instruction_text(self, item):
            return f"Say {item['n']}"

        def _get_ground_truth(self, item):
            return item["answer"]
"""
UNBOUNDED = (
    TASK.replace("METRICS = [ExactMatch]", "METRICS = [Length]")
    .replace(
        "    class Numbers",
        """    class Length(CompletionMetric):
        NAME = "length"
        HIGHER_IS_BETTER = True

        def calculate(self, response):
            return len(response.completion_text)

    class Numbers""",
    )
    .replace("    from eval_dagster.records", "    from eval_dagster.metrics.base import CompletionMetric\n    from eval_dagster.records")
)
FRAGILE = """    class Fragile(CompletionMetric):
        NAME = "fragile"
        HIGHER_IS_BETTER = True
        IS_PROPORTION = True

        def calculate(self, response):
            if response.completion_text == "broken":
                raise ValueError("it cannot be read")
            return float(response.completion_text != "wrong")

    class Numbers"""
MODEL = '''
    """Relatives: a number is hard for all of them, but for a few of its own."""

    from pathlib import Path

    from eval_dagster.versions.hashes import stable_hash

    def chance(*what):
        return int(stable_hash(list(what))[:8], 16) / 16**8

    def answer(request):
        number = int(request.prompt.split()[-1])
        with Path(__file__).with_suffix(".log").open("a") as log:
            log.write(f"{{number}}\\n")
        is_hard = chance("hard", number) < 0.4
        is_own = chance({name!r}, number) < {own}
        return "wrong" if is_hard != is_own else f"word {{number}}"
'''


class Family:
    """A home with a few relatives that answered all samples, and a new model."""

    def __init__(self, folder: Path, *, relatives: int = 4, own: float = 0.04) -> None:
        self.folder = folder
        self.relatives = [f"old{number}" for number in range(relatives)]
        self.write("task.py", TASK)
        for name in (*self.relatives, "new"):
            self.model(name, own)

    def model(self, name: str, own: float) -> None:
        self.write(f"{name}.py", MODEL.format(name=name, own=own))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(text))

    def project(self, estimate: str = "") -> Project:
        models = "".join(f'  {name}: {{backend: scripted, function: "{name}.py:answer"}}\n' for name in (*self.relatives, "new"))
        names = ", ".join((*self.relatives, "new"))
        suite = f"suites:\n  nightly: {{evals: [numbers], models: [{names}]}}\n"
        self.write("evals.yaml", f'models:\n{models}evals:\n  numbers: {{task: "task.py:Numbers"{estimate}}}\n{suite}')
        project = Project.open(tasks={}, config_path=self.folder / "evals.yaml", home=self.folder / "home")
        return replace(project, tracker=NoMlflow(home=self.folder / "home", tracking_uri=None, experiment="estimates"))

    def run(self, models: Sequence[str], estimate: str = "", stopping: Stopping | None = None) -> list[StageResult | StageFailure]:
        partitions = [("numbers", model) for model in models]
        with patch("eval_dagster.pipeline.publish"):
            project, reporter = self.project(estimate), SilentReporter()
            return list(evaluate(project, partitions, stages=set(STAGES), run_id="run", reporter=reporter, stopping=stopping))

    def rows(self, query: str) -> list[dict[str, Any]]:
        lake = self.project().lake
        publish(lake)
        return read_rows(lake, query)

    def asked(self, model: str = "new") -> list[int]:
        log = self.folder / f"{model}.log"
        return [int(line) for line in log.read_text().split()] if log.exists() else []


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a family whose relatives have answered all samples."""
    family = Family(tmp_path_factory.mktemp("family"))
    family.run(family.relatives)
    return family.folder


@pytest.fixture
def family(evaluated: Path, tmp_path: Path) -> Family:
    """A copy of it."""
    return Family(Path(shutil.copytree(evaluated, tmp_path / "family")))


ESTIMATE = ", estimate: {history: 100}"


def test_a_new_relative_is_estimated_from_a_part(family: Family) -> None:
    outcomes = family.run(["new"], ESTIMATE)
    assert not [each for each in outcomes if isinstance(each, StageFailure)], outcomes
    (shown,) = family.rows("select * from leaderboard where model = 'new'")
    assert len(family.asked()) == 100
    assert (shown["n"], shown["n_not_asked"], shown["estimate"]) == (100, 300, "history")
    assert shown["estimate_factor"] > 1.5
    note = "100 of 400 samples asked, the others predicted by 4 earlier results (old3, old2, old1, old0); the score of all is"
    assert shown["estimate_note"].startswith(note)
    asked = [f"word {number}" for number in family.asked()]
    (plain,) = family.rows("select avg(value) as mean from scores where model = 'new'")
    (standing,) = (each for each in standings(family.project().lake) if each.model == "new")
    assert standing.answers == f"estimated by history: 100 of 400 samples asked, each worth {shown['estimate_factor']:.2f}"
    assert standing.estimate_note == shown["estimate_note"]
    metrics = next(each for each in outcomes if isinstance(each, StageResult) and each.stage == "task_metrics")
    metadata = materialization(metrics, Names(), {}).metadata
    assert metadata["estimate"].value == shown["estimate_note"]
    assert metadata["estimate_factor"].value == pytest.approx(shown["estimate_factor"])
    partition = Partition(project=family.project(ESTIMATE), eval_name="numbers", model="new", run_id="run")
    tags = tracked_result(partition, partition.require("sample_scores"), read_rows_of(metrics.file.path), "key").tags
    assert (tags["estimate"], tags["estimate_factor"]) == (shown["estimate_note"], f"{shown['estimate_factor']:.2f}")
    looks = family.rows("select look, n_asked, len(sample_ids) as n from history_looks order by look")
    assert [tuple(each.values()) for each in looks] == [(1, 15, 15), (2, 35, 20), (3, 65, 30), (4, 100, 35)]

    family.run(["new"])  # without the setting
    assert len(family.asked()) == 400 == len(set(family.asked())), "nothing is asked twice"
    (full,) = family.rows("select value, stderr, n, n_not_asked, estimate, estimate_note from leaderboard where model = 'new'")
    assert (full["n"], full["n_not_asked"], full["estimate"], full["estimate_note"]) == (400, None, None, None)
    assert shown["ci_low"] < full["value"] < shown["ci_high"]
    assert shown["stderr"] > full["stderr"]
    assert abs(plain["mean"] - full["value"]) > abs(shown["value"] - full["value"]), "uncertain samples are asked more often"
    assert len(asked) == 100

    again = family.run(["new"], ESTIMATE)
    assert all(isinstance(each, StageResult) and each.cached for each in again), "all answers are better than an estimate"
    family.run(["new"], ", limit: 300, estimate: {history: 100}")
    (fewer,) = family.rows("select n, n_not_asked, estimate from leaderboard where model = 'new'")
    assert tuple(fewer.values()) == (300, None, None), "the cache has all answers"


@pytest.mark.long
def test_a_killed_run_goes_on_with_the_same_samples(family: Family) -> None:
    with patch.object(HistoryLooks, "part", _stopped_at(2)), pytest.raises(KeyboardInterrupt):
        family.run(["new"], ESTIMATE)
    before = family.asked()
    assert len(before) == 35
    chosen = "select look, sample_ids, models, chosen_at from history_looks where look <= 2 order by look"
    first = family.rows(chosen)
    family.model("old0", own=0.3)  # its next answers change the history
    family.run(["old0"])
    family.run(["new"], ESTIMATE)
    assert family.asked()[:35] == before
    assert len(family.asked()) == 100 == len(set(family.asked()))
    assert family.rows(chosen) == first
    assert len(family.rows("select distinct history_files from history_looks")) == 1, "the history of the first look counts to the end"

    raised = family.run(["new"], ", estimate: {history: 150}")
    assert not [each for each in raised if isinstance(each, StageFailure)]
    assert len(family.asked()) == 150 == len(set(family.asked())), "a higher number asks the rest of it"
    assert len(family.rows("select * from history_looks")) == 5


def _stopped_at(look: int) -> Any:
    whole = HistoryLooks.part

    def part(self: HistoryLooks, number: int) -> Sequence[str]:
        if number == look:
            raise KeyboardInterrupt
        return whole(self, number)

    return part


@pytest.mark.long
def test_too_little_history_is_an_even_draw_with_the_reason(tmp_path: Path) -> None:
    family = Family(tmp_path, relatives=2)
    family.run(family.relatives)
    family.run(["new"], ESTIMATE)
    (shown,) = family.rows("select * from leaderboard where model = 'new'")
    (plain,) = family.rows("select avg(value) as mean from scores where model = 'new'")
    assert (shown["estimate"], shown["estimate_factor"], shown["n"]) == ("plain", None, 100)
    assert shown["value"] == pytest.approx(plain["mean"])
    note = f"(on {look_time(family):%Y-%m-%d}: it needs at least 3 results, and the lake has 2 of other models"
    assert note in shown["estimate_note"], "the reason is the one of that day"
    (look,) = records_of(family.project().lake, "history_looks")
    assert look["chances"] == pytest.approx([0.25] * N)


def look_time(family: Family) -> datetime:
    (look,) = records_of(family.project().lake, "history_looks")
    return look["chosen_at"]


@pytest.mark.long
def test_errors_alone_give_no_estimate(family: Family) -> None:
    broken = TASK.replace(
        "    from eval_dagster.records", "    from eval_dagster.metrics.base import CompletionMetric\n    from eval_dagster.records"
    )
    broken = broken.replace("METRICS = [ExactMatch]", "METRICS = [Fragile]").replace("    class Numbers", FRAGILE)
    family.write("task.py", broken)
    family.run(family.relatives)
    family.write("new.py", 'def answer(request):\n    return "broken"\n')
    assert not [each for each in family.run(["new"], ESTIMATE) if isinstance(each, StageFailure)]
    (shown,) = family.rows("select * from metrics where model = 'new'")
    assert (shown["value"], shown["n_errors"], shown["estimate"], shown["estimate_factor"]) == (None, 100, "plain", None)
    assert shown["estimate_note"] == "100 of 400 samples asked, and none has a score, so that there is no estimate"


@pytest.mark.long
def test_other_questions_and_other_metrics_are_no_history(family: Family) -> None:
    family.write("task.py", TASK.replace("Say {item", "Please say {item"))
    family.run(["new"], ESTIMATE)
    (shown,) = family.rows("select * from leaderboard where model = 'new'")
    assert shown["estimate"] == "plain"
    assert "the lake has 0 of other models" in shown["estimate_note"]


@pytest.mark.long
def test_values_without_bounds_are_an_even_draw(family: Family) -> None:
    family.write("task.py", UNBOUNDED)
    family.run(family.relatives)
    family.run(["new"], ESTIMATE)
    (shown,) = family.rows("select * from leaderboard where model = 'new'")
    assert shown["estimate"] == "plain"
    assert "the values of length do not lie between 0 and 1" in shown["estimate_note"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (UNBOUNDED, "the values of length do not lie between 0 and 1"),
        (TASK.replace('["all"]', '["all"]\n        HEADLINE_AGGREGATION = "macro"'), "is not a mean of all samples"),
    ],
)
def test_samples_that_were_chosen_give_no_score_of_another_kind(family: Family, task: str, reason: str) -> None:
    family.run(["new"], ESTIMATE)
    family.write("task.py", task)
    (failure,) = (each for each in family.run(["new"], ESTIMATE) if isinstance(each, StageFailure))
    assert failure.stage == "task_metrics"
    assert reason in failure.message
    assert "remove `estimate` from the eval in evals.yaml, and run it" in failure.message
    assert not [each for each in family.run(["new"]) if isinstance(each, StageFailure)]
    assert len(family.asked()) == 400 == len(set(family.asked()))


@pytest.mark.long
def test_the_gate_does_not_judge_an_estimate(family: Family) -> None:
    family.run(["new"], ESTIMATE)
    result = judge(family.project(ESTIMATE), "nightly", run_id="gate")
    (row,) = (each for each in result.regressions if each.model == "new")
    assert row.verdict is Verdict.NOT_COMPARABLE
    assert row.reason is not None
    assert "is an estimate from a part of the samples, which the gate neither judges nor takes as a baseline" in row.reason
    assert (row.is_estimate, row.stopped, row.remarks) == (True, None, (row.reason,))
    assert "1 result is an estimate, 300 samples not asked" in verdict_line(result)
    assert "stopped early" not in verdict_line(result)
    command = next_command(result)
    assert command is not None
    assert command[0] == "run --eval numbers --model new"
    assert "once you have removed `estimate`" in command[1]
    stopped = replace(row, is_estimate=None, model="old0")  # as rows of earlier releases
    assert next_command(replace(result, regressions=[row, stopped])) == (
        "run --eval numbers --model old0",
        "asks the samples that the early stop left out",
    )
    assert {each.verdict for each in result.regressions if each.model != "new"} == {Verdict.FIRST_RESULT}
    write_result(family.project().lake, result)

    family.run(["new"])
    (row,) = (each for each in judge(family.project(), "nightly", run_id="gate").regressions if each.model == "new")
    assert row.verdict is Verdict.FIRST_RESULT, "the estimate is not its baseline"


class EarlyGate:
    """A gate that plans an early stop. It keeps the evals for which it was asked."""

    suite = "nightly"

    def __init__(self) -> None:
        self.evals: list[str] = []

    def looks_at(self, partition: Partition, prompts: LakeFile) -> Looks | None:
        self.evals.append(f"{partition.eval_name} {int(prompts.info.counts['prompts'])}")
        return None


@pytest.mark.long
@pytest.mark.parametrize(("most", "planned"), [(60, []), (400, ["numbers 70"])])
def test_an_early_stop_is_planned_if_the_estimate_allows_all_samples(tmp_path: Path, most: int, planned: list[str]) -> None:
    gate, estimate = EarlyGate(), f", limit: 70, estimate: {{history: {most}}}"
    family = Family(tmp_path, relatives=0)
    assert not [each for each in family.run(["new"], estimate, gate) if isinstance(each, StageFailure)]
    assert gate.evals == planned
    again = family.run(["new"], estimate, gate)
    assert all(isinstance(each, StageResult) and each.cached for each in again)


@pytest.mark.long
def test_a_plan_takes_no_estimate_for_a_whole_result(family: Family) -> None:
    family.run(["new"], ESTIMATE)
    publish(family.project().lake)

    def planned() -> Planned:
        (row,) = (each for each in plan_samples(family.project(), "nightly", 0.02)[0] if each.model == "new")
        return row

    assert planned().samples == 0
    assert "stopped early or are estimates" in str(planned().reason)
    family.run(["new"])
    family.model("new", 0.1)
    family.run(["new"], ESTIMATE)
    assert (planned().samples, planned().most) == (400, 400), "by the result of all samples before the estimate"


@pytest.mark.long
def test_a_dry_run_says_what_a_higher_number_sends(family: Family) -> None:
    def requests(number: int) -> int | None:
        (state,) = partition_states(family.project(f", estimate: {{history: {number}}}"), ["numbers"], ["new"])
        return state.estimate.requests

    assert requests(100) == 100
    family.run(["new"], ESTIMATE)
    assert requests(150) == 50
    assert requests(600) == 300, "no more than there are"
    family.run(["new"], ", estimate: {history: 150}")
    assert len(family.asked()) == 150


@pytest.mark.long
def test_an_estimate_is_not_compared(family: Family) -> None:
    family.run(["new"], ESTIMATE)
    lake = family.project().lake
    new, old = (MaterializationName(model=name).find(lake, "numbers") for name in ("new", "old0"))
    assert new is not None
    assert old is not None
    with pytest.raises(LakeError, match="is an estimate by history"):
        compare_points(new, old, family.project().task("numbers").METRICS)
    assert family.rows("from paired_difference('old1', 'old0')")
    assert {row["model"] for row in family.rows("select model from noise")} == {f"old{number}" for number in range(4)}
    for pair in ("'new', 'old0'", "'old0', 'new'"):
        assert family.rows(f"from paired_difference({pair})") == []
    reader = CatalogReader(lake)
    client = TestClient(application(reader), base_url="http://127.0.0.1:4000")
    refused = client.get("/compare?eval=numbers&a=new&b=old0")
    assert refused.status_code == 404
    assert "is an estimate by history" in refused.text
    assert "an estimate: 100 of 400 samples asked, the others predicted" in client.get("/samples?eval=numbers&model=new").text
    assert "estimated by history: 100 of 400 samples asked" in client.get("/leaderboard").text
    assert "estimated by history: 100 of 400 asked" in client.get("/history?eval=numbers&model=new").text
    reader.close()
