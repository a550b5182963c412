"""What models, datasets and errors say reaches no terminal, log or file for others as anything but text."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import dagster as dg
import duckdb
import pytest
from hostile_project import write_project
from hostile_texts import COLOURS, DANGEROUS, STORABLE
from terminals import read_all

from eval_dagster.cli.main import main
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project, evaluated by both models."""
    folder = tmp_path_factory.mktemp("hostile")
    write_project(folder)
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    partitions = [("words", "echo"), ("words", "other")]
    list(evaluate(project, partitions, stages=set(STAGES), run_id="hostile", reporter=SilentReporter()))
    return folder


@pytest.fixture
def cli(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command line; gives exit status, standard output and standard error."""
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(folder / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(folder / "home"))
    monkeypatch.setattr(os, "_exit", sys.exit)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["eval-dagster", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capfd.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return run


COMMANDS = [
    ["sql", "sample_results"],
    ["sql", "errors"],
    ["sql", "select prompt, answer from sample_results limit 5"],
    ["sql", "select row->>'text' as \"a\x1b[31mb\" from samples"],
    ["sql", "select answer from sample_results", "--format", "json"],
    ["sql", "select answer from sample_results", "--format", "spreadsheet"],
    ["sql", "select '\x1b[31m\u202e' as"],
    ["sql", "select error('\x1b[31m\u202e')"],
    ["compare", "echo", "other", "--samples", "50"],
    ["compare", "echo", "other", "--all-metrics", "--format", "json"],
    ["leaderboard"],
    ["models"],
    ["show", "words", "--sample", "1"],
    ["tasks", "words"],
    ["tasks"],
    ["show", "\x1b[31mwords\u202e"],
    ["run", "--eval", "\x1b[31mwords\u202e"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments).encode("ascii", "backslashreplace").decode())
def test_no_command_prints_what_a_terminal_would_obey(cli: Run, arguments: list[str]) -> None:
    status, out, err = cli(*arguments)
    assert status in (0, 1, 2)
    found = DANGEROUS.search(COLOURS.sub("", out.removeprefix("\ufeff") + err))
    assert not found, repr(found)
    assert "Traceback" not in err
    if "spreadsheet" not in arguments:  # in which a cell may have several lines
        assert "\nfailed: line two" not in out + err


@pytest.mark.parametrize("sample", range(len(STORABLE)))
def test_every_prompt_can_be_shown(cli: Run, sample: int) -> None:
    status, out, err = cli("show", "words", "--sample", str(sample))
    assert (status, err) == (0, "")
    assert not DANGEROUS.search(out)


def test_data_for_programs_is_exact(cli: Run) -> None:
    """CSV and JSON to a pipe hold the very texts."""
    _, out, err = cli("sql", "select row->>'text' as text from samples order by row_index", "--format", "csv")
    assert [row["text"] for row in csv.DictReader(io.StringIO(out, newline=""))] == [text or "nothing" for text in STORABLE]
    assert "a spreadsheet would compute" in err
    _, out, _ = cli("sql", "select row->>'text' as text, row from samples order by row_index", "--format", "json")
    assert [row["text"] for row in json.loads(out)] == [text or "nothing" for text in STORABLE]


def test_a_spreadsheet_computes_nothing(cli: Run) -> None:
    query = "select row->>'text' as text, -7 as number, '-7' as answer from samples"
    _, out, err = cli("sql", query, "--format", "spreadsheet")
    assert out.startswith("\ufeff")
    rows = list(csv.reader(io.StringIO(out.removeprefix("\ufeff"), newline="")))[1:]
    assert all(not text.startswith(("=", "+", "-", "@", "\t", "\r", "＝")) for text, *_ in rows)
    assert {(number, answer) for _, number, answer in rows} == {("-7", "-7")}
    assert err == ""


def test_mlflow_has_the_very_texts(folder: Path) -> None:
    with duckdb.connect(str(folder / "home" / "evals.duckdb"), read_only=True) as catalog:
        assert catalog.execute("select count(*) from metrics where mlflow_run_id is null").fetchone() == (0,)
    tables = list((folder / "home" / "mlartifacts").rglob("samples.json"))
    assert len(tables) == 2
    for table in tables:
        content = json.loads(table.read_text())
        rows = [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]
        assert {row["gold"][0] for row in rows} == {text or "nothing" for text in STORABLE}


@pytest.mark.long
def test_csv_on_a_terminal_is_visible(folder: Path) -> None:
    shown = _on_a_terminal(folder, "sql", "select answer from sample_results", "--format", "csv")
    assert r"\x1b[31mred" in shown
    assert not DANGEROUS.search(COLOURS.sub("", shown.replace("\r\n", "\n")))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_says_what_failed_as_text_wherever_it_says_it(folder: Path) -> None:
    """On the terminal, in Dagster's log and metadata, in JUnit XML and in Markdown."""
    files = ["--junit", str(folder / "gate.xml"), "--markdown", str(folder / "gate.md")]
    shown = _on_a_terminal(folder, "run", "--suite", "nightly", *files)
    assert r"RuntimeError: cannot read \x1b[31mred" in shown
    assert not DANGEROUS.search(COLOURS.sub("", shown.replace("\r\n", "\n")))
    assert not DANGEROUS.search((folder / "gate.md").read_text())
    ElementTree.parse(folder / "gate.xml")
    assert not DANGEROUS.search((folder / "gate.xml").read_text())
    page = (folder / "home" / "reports" / "nightly" / "latest.html").read_text()
    assert r"broken \x1b[31m" in page
    assert not DANGEROUS.search(page)
    os.environ["DAGSTER_HOME"] = str(folder / "home" / "dagster")
    with dg.DagsterInstance.get() as instance:
        entries = [entry for run in instance.get_runs() for entry in instance.all_logs(run.run_id)]
    texts = [*(entry.user_message for entry in entries), *(text for entry in entries for text in _metadata_texts(entry))]
    assert any("cannot read" in text for text in texts)
    assert not [text for text in texts if DANGEROUS.search(text)]


def _metadata_texts(entry: dg.EventLogEntry) -> Iterator[str]:
    event = entry.dagster_event
    if event is None or not event.is_step_materialization:
        return
    for name, value in event.step_materialization_data.materialization.metadata.items():
        yield name
        if isinstance(value, dg.TableMetadataValue):
            yield from (str(text) for record in value.records for pair in record.data.items() for text in pair)
        else:
            yield str(value.value)


def _on_a_terminal(folder: Path, *arguments: str) -> str:
    """All that a command writes to a terminal."""
    leader, follower = pty.openpty()
    environment = os.environ | {
        "EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"),
        "EVAL_DAGSTER_HOME": str(folder / "home"),
        "DAGSTER_HOME": str(folder / "home" / "dagster"),
        "TERM": "xterm-256color",
        "COLUMNS": "140",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "eval_dagster.cli", *arguments], env=environment, stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    written = read_all(leader)
    assert process.wait(timeout=120) in (0, 1)
    return written.decode(errors="replace")
