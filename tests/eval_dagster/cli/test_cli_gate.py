"""`run --suite`: what got worse, on the screen, in files for CI systems, in a notice, and as an exit status."""

import os
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import run_command
from hook_server import Hook, hook_server
from scripted_calculator import write_calculator

CONFIG = """
    models:
      calculator: {backend: scripted, function: "calculator.py:answer"}
      sevens: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, limit: 20}
      capitals: {task: capitals, limit: 2}
    suites:
      nightly: {evals: [sums, capitals], models: [calculator, sevens], notify: [GATE_HOOK]}
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    with hook_server() as hook:
        yield hook


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gate")
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    return folder


@pytest.fixture(scope="module")
def cli(folder: Path, hook: Hook) -> Run:
    def run(*arguments: str, error: str = "0") -> "subprocess.CompletedProcess[str]":
        write_calculator(folder, error=error)
        environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
        environment |= {"EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"), "GATE_HOOK": hook.address}
        return run_command(*arguments, environment=environment)

    return run


@pytest.mark.long
@pytest.mark.parametrize("option", ["--junit", "--markdown"])
def test_a_summary_of_no_suite_is_wrong_usage(cli: Run, folder: Path, option: str) -> None:
    alone = cli("run", option, str(folder / "summary"))
    assert alone.returncode == 2
    assert f"{option} writes the result of a suite's gate; name the suite: --suite NAME" in alone.stderr


def test_a_summary_that_cannot_be_written_is_said_before_anything_runs(cli: Run, folder: Path) -> None:
    nowhere = cli("run", "--suite", "nightly", "--junit", str(folder / "none" / "gate.xml"))
    assert nowhere.returncode == 2
    assert "gate.xml cannot be written" in nowhere.stderr
    assert not (folder / ".eval_dagster" / "lake").exists()


def test_a_smallest_difference_beyond_the_metrics_range_is_said_before_anything_runs(cli: Run, folder: Path) -> None:
    config = folder / "evals.yaml"
    written = config.read_text()
    config.write_text(written.replace("notify: [GATE_HOOK]", "gate: {smallest_difference: 2.0}"))
    try:
        refused = cli("run", "--suite", "nightly")
    finally:
        config.write_text(written)
    assert refused.returncode == 2
    assert "suites.nightly.gate.smallest_difference: found 2; expected a number below 1" in " ".join(refused.stderr.split())
    assert not (folder / ".eval_dagster" / "lake").exists()


@pytest.mark.long
def test_three_nights(cli: Run, folder: Path, hook: Hook) -> None:
    junit, markdown = folder / "gate.xml", folder / "gate.md"
    first = cli("run", "--suite", "nightly", "--junit", str(junit))
    assert first.returncode == 0, first.stderr
    assert "nightly: First results: nothing to compare with yet; later results are compared with these 4" in first.stdout
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
    assert hook.notices == []

    second = cli("run", "--suite", "nightly", "--junit", str(junit), "--markdown", str(markdown), error="right % 3 == 0")
    assert second.returncode == 1
    assert "failed" not in second.stderr, "the evaluation and the gate did their work"
    assert "nightly: 1 of 4 results regressed: sums on calculator (exact_number -" in second.stdout
    table = [line for line in second.stdout.splitlines() if "│ sums" in line and "regressed" in line]
    assert len(table) == 1
    assert "model" in table[0].split("│")[-2]
    next_line = next(line for line in second.stdout.splitlines() if "the samples that flipped" in line)
    command = next_line.split("  the samples")[0].split("compare", 1)[1].split()
    shown = cli("compare", *command, error="right % 3 == 0")
    assert shown.returncode == 0, shown.stderr
    assert "regressed" in shown.stdout
    root = ElementTree.parse(junit).getroot()
    assert (root.get("tests"), root.get("failures")) == ("4", "1")
    [failed] = root.iterfind(".//testcase[failure]")
    assert failed.get("classname") == "nightly.sums"
    assert "1 of 4 results regressed" in markdown.read_text("utf-8")
    assert not list(folder.glob(".gate*")), "no unfinished file is left"
    [notice] = hook.notices
    assert "nightly" in notice["title"]
    assert "sums" in notice["message"]
    assert hook.address not in second.stdout + second.stderr

    third = cli("run", "--suite", "nightly", "--junit", str(junit))
    assert third.returncode == 0, third.stdout + third.stderr
    assert "0 requests sent to models" in third.stdout
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
    assert len(hook.notices) == 1


@pytest.mark.long
def test_what_is_accepted_is_the_baseline(cli: Run, folder: Path) -> None:
    """After a healthy night: a worse one is red, is accepted with a reason, and green from then on."""
    healthy = cli("run", "--suite", "nightly")
    assert healthy.returncode == 0, healthy.stderr
    worse = cli("run", "--suite", "nightly", error="1")
    assert worse.returncode == 1, worse.stderr
    assert cli("accept", "nightly", error="1").returncode == 2, "there is no reason"
    nothing = cli("accept", "nightly", "--eval", "sums", "--model", "seven", "--why", "because", error="1")
    assert nothing.returncode == 2
    assert "unknown model 'seven'" in nothing.stderr
    accepted = cli("accept", "nightly", "--why", "the new calculator rounds", "--by", "Ada", error="1")
    assert accepted.returncode == 0, accepted.stderr
    assert "accepted  sums on calculator" in accepted.stdout
    again = cli("accept", "nightly", "--why", "once more", error="1")
    assert again.returncode == 2
    assert "there is nothing to accept in nightly" in again.stderr
    rows = cli("sql", "select eval, model, accepted_by, why from acceptances", "--format", "csv", error="1")
    assert "sums,calculator,Ada,the new calculator rounds" in rows.stdout
    after = cli("run", "--suite", "nightly", error="1")
    assert after.returncode == 0, after.stdout + after.stderr
    page = (folder / ".eval_dagster" / "reports" / "nightly" / "latest.html").read_text("utf-8")
    assert "the new calculator rounds" in page
    assert "Ada" in page
