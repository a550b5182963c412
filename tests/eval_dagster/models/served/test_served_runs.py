"""Whole runs with a served model: by the command line, killed, through faults, and with a key that must not stay anywhere."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers.faults import Fault, faulty_proxy
from servers.stub import Stub, stub_server

from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageResult
from eval_dagster.task_files.registries import registered_tasks

CONFIG = """
    models:
      served:
        backend: openai
        base_url: {base_url}
        model: stub
        api_key_env: SERVED_KEY
        timeout_s: 2
        concurrency: {concurrency}
        canaries: 0
        price: {{input: 2, output: 10}}
      chat: {{backend: openai, base_url: "{base_url}", model: stub, prompt_format: chat, api_key_env: SERVED_KEY, timeout_s: 2}}
    evals:
      sums: {{task: arithmetic, limit: {limit}}}
"""
KEY = "sk-very-secret-0123456789"
Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with stub_server(tmp_path, slots=8, base_s=0.01) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Run:
    """Start a command on the home of the test."""

    def start(base_url: str, *arguments: str, limit: int = 40, concurrency: int = 8) -> "subprocess.Popen[str]":
        config = textwrap.dedent(CONFIG.format(base_url=base_url, limit=limit, concurrency=concurrency))
        (tmp_path / "evals.yaml").write_text(config)
        environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
        environment |= {"EVAL_DAGSTER_CONFIG": str(tmp_path / "evals.yaml"), "SERVED_KEY": KEY}
        command = [sys.executable, "-m", "eval_dagster.cli", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


def rows(start: Run, base_url: str, query: str, **settings: int) -> list[list[str]]:
    output, _ = start(base_url, "sql", query, "--format", "csv", **settings).communicate(timeout=120)
    return [line.split(",") for line in output.splitlines()[1:]]


@pytest.mark.long
def test_a_killed_run_asks_for_nothing_that_was_answered(start: Run, stub: Stub) -> None:
    """The server counts its answers. What it answered within the last moments may not have arrived before the kill."""
    kills, asked_before = 10, 0
    for _ in range(kills):
        process = start(stub.base_url, "run", "--model", "served", limit=100)
        deadline = time.monotonic() + 120
        while sum(stub.counts().answered.values()) < asked_before + 25 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        asked_before = sum(stub.counts().answered.values())
    output, errors = start(stub.base_url, "run", "--model", "served", limit=100).communicate(timeout=300)
    assert "300 requests" in output or "answered from the cache" in output, errors
    answered = stub.counts().answered
    assert len(answered) == 300
    again = sum(count - 1 for count in answered.values())
    assert again <= kills * 8, "no more than were under way at a kill"
    assert rows(start, stub.base_url, "select count(*), count(error) from responses where model = 'served'", limit=100) == [["300", "0"]]


@pytest.mark.long
def test_a_run_through_faults_has_costs_and_conversations_and_leaves_no_key(start: Run, stub: Stub, tmp_path: Path) -> None:
    faults = [fault for fault in Fault if fault is not Fault.DELAY]
    (tmp_path / "proxy").mkdir()
    with faulty_proxy(stub.server, tmp_path / "proxy", share=0.3, faults=faults) as proxy:
        output, errors = start(proxy.base_url, "run", limit=20).communicate(timeout=300)
    assert "Leaderboard" in output, errors
    assert stub.requests()[-1]["headers"]["authorization"] == f"Bearer {KEY}"
    assert KEY not in output + errors
    _require_costs_and_conversations(start, stub)
    refused, said = start("http://127.0.0.1:9/v1", "run", "--model", "served", limit=21).communicate(timeout=120)
    assert "no server answers at http://127.0.0.1:9/v1/models" in said
    assert KEY not in refused + said
    home = tmp_path / ".eval_dagster"
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def _require_costs_and_conversations(start: Run, stub: Stub) -> None:
    query = (
        "select model, count(*), bool_and(cost is null), "
        "bool_and(cost is null or abs(cost - (prompt_tokens * 2 + output_tokens * 10) / 1e6) < 1e-12), min(served_model) "
        "from responses group by all order by all"
    )
    assert rows(start, stub.base_url, query, limit=20) == [
        ["chat", "60", "True", "True", "stub"],
        ["served", "60", "False", "True", "stub"],
    ]
    sent = rows(start, stub.base_url, "select model, count(sent_messages) from prompts group by all order by all", limit=20)
    assert sent == [["chat", "60"], ["served", "0"]]
    assert {request["path"] for request in stub.requests()} == {"/v1/chat/completions", "/v1/completions"}


def test_a_task_whose_choices_no_server_scores_is_named_with_its_written_variant(stub: Stub, tmp_path: Path) -> None:
    stub.change(logprobs="none")
    config = {
        "models": {"served": {"backend": "openai", "base_url": stub.base_url, "model": "stub"}},
        "evals": {"c": {"task": "capitals", "limit": 1}},
    }
    (tmp_path / "evals.yaml").write_text(json.dumps(config))
    registry = registered_tasks()
    tasks = {**registry, "capitals_generative": registry["capitals_completion"]}
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home", tasks=tasks)
    outcomes = evaluate(project, [("c", "served")], stages=set(STAGES), run_id="test", reporter=SilentReporter())
    [outputs] = [each for each in outcomes if isinstance(each, StageResult) and each.stage == "model_outputs"]
    [warning] = outputs.warnings
    assert "requests ask for log-probabilities that the server of served does not give" in warning
    assert warning.endswith("; the task capitals_generative asks the same questions for written answers")
