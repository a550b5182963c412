"""The names of samples on the pages and in the commands that show samples."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from page_contents import content_of
from starlette.testclient import TestClient

from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog.catalog import CatalogReader, read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.pages.server.application import application
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure

EARLIER = Path(__file__).parents[2] / "e2e" / "earlier_home"
"""A project of which an earlier state of the code made the home."""
TASK = """
from eval_dagster import BaseTask, ExactMatch, ResponseType


class Tickets(BaseTask[str]):
    NAME = "Tickets"
    DATASET_PATH = "./tickets"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [ExactMatch]
    ID_FIELD = "ticket_id"

    def _get_instruction_text(self, item):
        return f"Which team? {item['text']}"

    def _get_ground_truth(self, item):
        return item["team"]
"""
CONFIG = """
models:
  one: {backend: scripted, answers: {crash: core, bill: sales}}
  two: {backend: scripted, answers: {crash: core, bill: money}}
evals:
  tickets: {task: "tickets.py:Tickets"}
suites:
  nightly: {evals: [tickets], models: [one], baseline: two}
"""
ROWS = [
    {"ticket_id": "T-4711", "text": "A crash.", "team": "core"},
    {"ticket_id": "T-4712", "text": "A bill.", "team": "money"},
    {"ticket_id": 4713, "text": "Another bill.", "team": "money"},
]


@pytest.fixture
def cli(tmp_path: Path, cli_in: Callable[[Path], Callable[..., str]]) -> Callable[..., str]:
    (tmp_path / "tickets").mkdir()
    (tmp_path / "tickets" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "tickets.py").write_text(TASK)
    (tmp_path / "evals.yaml").write_text(CONFIG)
    return cli_in(tmp_path)


@pytest.mark.long
def test_names_are_where_samples_are(cli: Callable[..., str], tmp_path: Path) -> None:
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    asked = [("tickets", "one"), ("tickets", "two")]
    assert not [
        each
        for each in evaluate(project, asked, stages=set(STAGES), run_id="test", reporter=SilentReporter())
        if isinstance(each, StageFailure)
    ]

    compared = cli("compare", "one", "two")
    assert "T-4712 (" in compared
    assert "T-4711" not in compared, "it is answered alike"

    page = tmp_path / "samples.html"
    cli("samples", "tickets", "one", "--against", "two", "--to", str(page))
    samples = content_of(page.read_bytes())["samples"]
    assert sorted(each["sample_name"] for each in samples) == ["4713", "T-4711", "T-4712"]

    client = TestClient(application(CatalogReader(project.lake)), base_url="http://127.0.0.1:4000")
    address = "eval=tickets&model=one"
    listed = client.get(f"/samples?{address}").text
    assert all(name in listed for name in ("T-4711", "T-4712", "4713"))
    searched = client.get(f"/samples?{address}&text=t-4712").text
    assert "T-4712" in searched
    assert "T-4711" not in searched
    by_name = client.get(f"/sample?{address}&sample=T-4712")
    assert by_name.status_code == 200
    assert "<h1>Sample T-4712 <code>" in by_name.text
    assert client.get(f"/sample?{address}&sample=T-1").status_code == 404


def test_a_sample_is_shown_by_its_name(cli: Callable[..., str]) -> None:
    by_number = cli("show", "tickets", "--sample", "1")
    assert "sample 1 (T-4712, " in by_number
    assert cli("show", "tickets", "--sample", "T-4712") == by_number
    assert "Another bill." in cli("show", "tickets", "--sample", "4713"), "a name may be a number"
    with pytest.raises(UsageError, match=r"no sample 'T-4713' among its 3; did you mean 'T-471[12]'\?.*or 0 to 2"):
        cli("show", "tickets", "--sample", "T-4713")


def test_a_number_that_is_a_name_means_the_name(cli: Callable[..., str], tmp_path: Path) -> None:
    numbered = [{**row, "ticket_id": number} for number, row in zip((2, 0, 7), ROWS, strict=True)]
    (tmp_path / "tickets" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in numbered))
    named = cli("show", "tickets", "--sample", "2")
    assert "sample 0 (2, " in named
    assert "2 is the own name of this sample; sample number 2 is another: --sample 7" in named
    assert "sample 1 (0, " in cli("show", "tickets", "--sample", "0")
    assert "sample 0 (2, " in cli("show", "tickets"), "the first one"
    by_number = cli("show", "tickets", "--sample", "1")
    assert "sample 1 (0, " in by_number, "no sample has this name"
    assert "is another" not in by_number


@pytest.mark.long
def test_a_stored_prompt_is_shown_without_rendering(cli: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIG.replace('"tickets.py:Tickets"}', '"tickets.py:Tickets", variants: {short: {template: "Team of {{ text }}?"}}}')
    config += "  sums: {task: arithmetic, num_fewshot: 2, limit: 7}\n"
    config = config.replace("suites:", "").replace("  nightly: {evals: [tickets], models: [one], baseline: two}\n", "")
    (tmp_path / "evals.yaml").write_text(config)
    asked = [
        *(["show", "tickets", *args] for args in ([], ["--sample", "1"], ["--sample", "T-4712"], ["--sample", "4713"])),
        *(["show", "sums", "--sample", str(number)] for number in (0, 3, 6)),
    ]
    rendered = [cli(*each) for each in asked]
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    asked_of = [("tickets", "one"), ("sums", "one")]
    made = list(evaluate(project, asked_of, stages={"rendered_prompts"}, run_id="test", reporter=SilentReporter()))
    assert not [each for each in made if isinstance(each, StageFailure)]
    with monkeypatch.context() as patched:
        patched.delattr("eval_dagster.stages.shown_prompts.render_eval")
        stored = [cli(*each) for each in asked]
    assert [_unplaced(each) for each in stored] == [_unplaced(each) for each in rendered]
    assert all("Team of Which team? A bill.?" in each for each in stored[1:3])

    (tmp_path / "evals.yaml").write_text(config.replace("Team of", "Whose is"))
    assert "Whose is Which team? A bill.?" in cli("show", "tickets", "--sample", "T-4712"), "the stored one is of before"


def _unplaced(text: str) -> str:
    """Without the number of a prompt: that of a variant depends on how many prompts are there."""
    return re.sub(r"sample \d+ ", "sample ", text)


def test_results_that_are_older_than_names_are_shown(tmp_path: Path) -> None:
    shutil.copytree(EARLIER, tmp_path / "project")
    project = Project.open(config_path=tmp_path / "project" / "evals.yaml", home=tmp_path / "project" / "home")
    assert publish(project.lake) == []
    assert {row["sample_name"] for row in read_rows(project.lake, "select sample_name from sample_results")} == {None}
    client = TestClient(application(CatalogReader(project.lake)), base_url="http://127.0.0.1:4000")
    listed = client.get("/samples?eval=capitals&model=guesser&text=capital")
    assert listed.status_code == 200
    (sample, *_) = re.findall(r"sample=(\w+)", listed.text)
    shown = client.get(f"/sample?eval=capitals&model=guesser&sample={sample}")
    assert f"<h1>Sample <code>{sample}</code>" in shown.text
