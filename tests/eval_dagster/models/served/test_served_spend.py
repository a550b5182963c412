"""Caps on what a served model may spend: the total against a server that counts, in one process and in two, killed, and on the next day."""

import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from servers.faults import Fault, faulty_proxy
from servers.processes import running_server
from servers.stub import Stub, stub_server
from transformers import PreTrainedTokenizerFast

from eval_dagster.config.models import OpenAIModel, Price
from eval_dagster.errors import NotEvaluatedError, StoreError
from eval_dagster.gate.judgement import Attempts
from eval_dagster.lake.records import read_attempts
from eval_dagster.models.served import spend
from eval_dagster.models.served.calls.answer_records import BadAnswerError
from eval_dagster.models.served.calls.answers import TextReader, read_reply
from eval_dagster.models.served.handle import ServedHandle
from eval_dagster.models.served.scoring.responses import failed
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records import GenerationSettings, ModelResponse, Request
from eval_dagster.stages.inference import AskedModel, ask
from eval_dagster.stages.partition import STAGES, StageFailure, StageResult

STAGES_WITHOUT_MLFLOW = [stage for stage in STAGES if stage != "task_metrics"]
PRICE = Price(input=1, output=4)
PROMPT = "Write down the number {number} of this list, and say what you know about it in some words."


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with stub_server(tmp_path, slots=64, base_s=0.0005, mean_tokens=20, sigma=0.8) as running:
        yield running


def spent(stub: Stub) -> tuple[float, float]:
    """The cost of all answers by the counts of the server, and that of the most expensive one."""
    costs = [(prompt * PRICE.input + output * PRICE.output) / 1e6 for prompt, output in stub.usages()]
    return sum(costs), max(costs, default=0.0)


def requests(count: int, **settings: Any) -> list[Request]:
    generation = GenerationSettings(**{"max_tokens": 64, **settings})
    return [Request(request_id=str(number), prompt=PROMPT.format(number=number), generation=generation) for number in range(count)]


def asked(home: Path, stub: Stub, wanted: list[Request], **config: Any) -> tuple[dict[str, ModelResponse], str]:
    """The answers before the cap, and the message of the cap; empty where it was not reached."""
    section = {"backend": "openai", "model": "stub", "base_url": stub.base_url, "price": PRICE, **config}
    model = ServedHandle("served", OpenAIModel.model_validate(section), home=home).load()
    answers: dict[str, ModelResponse] = {}
    try:
        for request, response in model.respond(wanted):
            answers[request.request_id] = response
    except NotEvaluatedError as error:
        return answers, str(error)
    return answers, ""


@pytest.mark.long
@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize("maximum", [64, None])
def test_a_cap_of_a_cent_stops_within_one_request(stub: Stub, tmp_path: Path, concurrency: int, maximum: int | None) -> None:
    wanted = requests(200, max_tokens=maximum)
    answers, message = asked(tmp_path, stub, wanted, concurrency=concurrency, cost_per_run=0.01)
    total, largest = spent(stub)
    assert abs(total - 0.01) < 1.2 * largest
    assert len(answers) == sum(stub.counts().answered.values()) < 200
    assert "the cap `cost_per_run: 0.01` of evals.yaml is reached" in message


def from_ledger(home: Path, query: str) -> float:
    """A figure of the ledger of a home."""
    (path,) = (home / "endpoints").glob("*/spend.db")
    with closing(sqlite3.connect(path)) as database:
        return float(database.execute(query).fetchone()[0])


def spent_by_ledger(home: Path) -> float:
    return from_ledger(home, "select sum(cost) from spent")


PROGRAM = """
import json, sys
from pathlib import Path
from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import NotEvaluatedError, StoreError
from eval_dagster.models.served.calls.answer_records import BadAnswerError
from eval_dagster.models.served.calls.answers import TextReader, read_reply
from eval_dagster.models.served.handle import ServedHandle
from eval_dagster.records import GenerationSettings, Request

first, section = int(sys.argv[2]), json.loads(sys.argv[3])
model = ServedHandle("served", OpenAIModel.model_validate(section), home=Path(sys.argv[1])).load()
settings = GenerationSettings(max_tokens=64)
text = "Write down the number %d of this list, and say what you know about it in some words."
wanted = [Request(request_id=str(number), prompt=text % number, generation=settings) for number in range(first, first + 300)]
print("ready", flush=True)
sys.stdin.readline()
try:
    for request, response in model.respond(wanted):
        print(request.request_id, flush=True)
except NotEvaluatedError as error:
    sys.exit(str(error))
"""


def process(home: Path, stub: Stub, first: int, *, waits: bool = False, **config: Any) -> "subprocess.Popen[str]":
    """A process that asks 300 requests from a number on; where it waits, after `begin`."""
    section = {"backend": "openai", "model": "stub", "base_url": stub.base_url, "price": PRICE.model_dump(), **config}
    command = [sys.executable, "-c", PROGRAM, str(home), str(first), json.dumps(section)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    if not waits:
        begin(started)
    return started


def begin(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.long
def test_two_processes_share_the_cap_of_a_day(stub: Stub, tmp_path: Path) -> None:
    stub.change(base_s=0.005)
    running = [process(tmp_path, stub, first, waits=True, concurrency=16, cost_per_day=0.02) for first in (0, 1000)]
    for each in running:
        begin(each)
    said = [each.communicate(timeout=120) for each in running]
    total, largest = spent(stub)
    assert abs(total - 0.02) < 1.2 * largest
    assert all("the cap `cost_per_day: 0.02` of evals.yaml is reached" in errors for _, errors in said)
    assert all(len(output.splitlines()) > 10 for output, _ in said), "both had a part"


@pytest.mark.long
def test_a_second_process_does_not_wait_for_the_end_of_the_first_one(stub: Stub, tmp_path: Path) -> None:
    """It expects answers as long as those that the first process has, which sends beside others all the time."""
    stub.change(base_s=0.002)
    first = process(tmp_path, stub, 0, concurrency=4, cost_per_day=1)
    assert first.stdout is not None
    first.stdout.readline()
    answers, message = asked(tmp_path, stub, requests(5), concurrency=4, cost_per_day=1)
    assert (len(answers), message) == (5, "")
    assert first.poll() is None
    first.kill()
    first.communicate()


@pytest.mark.long
def test_the_cap_of_a_run_does_not_wait_for_other_processes(stub: Stub, tmp_path: Path) -> None:
    stub.change(base_s=0.002)
    first = process(tmp_path, stub, 0, concurrency=4, cost_per_day=1)
    assert first.stdout is not None
    first.stdout.readline()
    _, message = asked(tmp_path, stub, requests(60), concurrency=4, cost_per_day=1, cost_per_run=0.001)
    assert "the cap `cost_per_run: 0.001`" in message
    assert first.poll() is None
    first.kill()
    first.communicate()


@pytest.mark.long
def test_what_a_killed_process_had_under_way_counts_as_spent(stub: Stub, tmp_path: Path) -> None:
    """A server bills what it answers, also where nobody receives it: the total of all processes stays under the cap."""
    running = process(tmp_path, stub, 0, concurrency=16, cost_per_day=0.02)
    assert running.stdout is not None
    for _ in range(12):
        running.stdout.readline()
    running.kill()
    running.communicate()
    assert from_ledger(tmp_path, "select count(*) from under_way") > 0
    assert 0.2 * spent(stub)[0] < spent_by_ledger(tmp_path) < 0.02
    _, errors = process(tmp_path, stub, 5000, concurrency=16, cost_per_day=0.02).communicate(timeout=120)
    assert "is reached" in errors
    assert from_ledger(tmp_path, "select count(*) from under_way") == 0
    counted = spent_by_ledger(tmp_path)
    total, largest = spent(stub)
    assert abs(counted - 0.02) < 1.2 * largest, "the next request was expected to take its longest answer"
    assert 0.02 - 17 * largest < total <= counted, "what was under way at a kill may have been billed"
    assert not list((tmp_path / "endpoints").glob("*/*.spender")), "files of killed processes are removed"


def test_unknown_usage_counts_its_estimate(stub: Stub, tmp_path: Path) -> None:
    stub.change(usage=False)
    answers, message = asked(tmp_path, stub, requests(200), concurrency=16, cost_per_run=0.01)
    assert "is reached" in message
    total, _ = spent(stub)
    assert 0.4 * 0.01 < total < 1.5 * 0.01
    assert all(response.report is not None and response.report.cost is None for response in answers.values())


def test_answers_without_a_maximum_are_sent_one_by_one_until_their_length_is_known(stub: Stub, tmp_path: Path) -> None:
    asked(tmp_path, stub, requests(3, max_tokens=None), concurrency=16, cost_per_run=1)
    assert stub.counts().most_at_once == 1
    stub.change(base_s=0.004)
    stub.reset()
    asked(tmp_path, stub, requests(60, max_tokens=None), concurrency=16, cost_per_run=1)
    assert stub.counts().most_at_once > 3


def test_tokens_have_caps_without_a_price(stub: Stub, tmp_path: Path) -> None:
    answers, message = asked(tmp_path, stub, requests(200), price=None, concurrency=8, tokens_per_day=2000)
    used = [prompt + output for prompt, output in stub.usages()]
    assert abs(sum(used) - 2000) < max(used)
    assert "the cap `tokens_per_day: 2000` of evals.yaml is reached: " in message
    assert answers


@pytest.mark.long
@pytest.mark.parametrize(("fault", "is_billed"), [(Fault.LIMITED, False), (Fault.GARBAGE, True)])
def test_what_is_rejected_costs_nothing_and_what_is_lost_counts(stub: Stub, tmp_path: Path, fault: Fault, is_billed: bool) -> None:
    """The proxy injects the faults itself, so that the server's own bill is the part that is known."""
    (tmp_path / "proxy").mkdir()
    with faulty_proxy(stub.server, tmp_path / "proxy", share=0.15, faults=[fault], most=1) as proxy:
        answers, _ = asked(tmp_path, stub, requests(20), base_url=proxy.base_url, concurrency=4, cost_per_day=1)
        faults = sum(len(each.faults) for each in proxy.traffic().values())
    assert len(answers) == 20
    assert faults >= 2
    total, largest = spent(stub)
    counted = spent_by_ledger(tmp_path)
    if is_billed:
        assert total + 0.1 * faults * largest < counted < total + 1.5 * faults * largest
    else:
        assert counted == pytest.approx(total)


def test_an_error_that_was_paid_for_has_its_usage_and_cost() -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
    with pytest.raises(BadAnswerError) as raised:
        read_reply({"choices": [{"message": {"refusal": "No."}}], "usage": usage}, TextReader())
    response = failed(raised.value, PRICE)
    assert str(response.error).startswith("RefusalError: ")
    assert response.report is not None
    assert (response.report.prompt_tokens, response.report.output_tokens) == (1000, 500)
    assert response.report.cost == pytest.approx(0.003)


def test_a_damaged_ledger_names_its_file_and_sends_nothing(stub: Stub, tmp_path: Path) -> None:
    asked(tmp_path, stub, requests(1), cost_per_day=1)
    (path,) = (tmp_path / "endpoints").glob("*/spend.db")
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    path.write_bytes(b"this is no database, and was none " * 100)
    stub.reset()
    with pytest.raises(StoreError, match=r"spend\.db, cannot be used .*move it away: what was spent today then counts from 0"):
        asked(tmp_path, stub, requests(1), cost_per_day=1)
    assert not stub.counts().received


def test_a_cap_that_is_reached_while_the_model_loads_is_no_failure(stub: Stub, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Without /tokenize, the comparison of tokenizers takes calls that cost something."""
    stub.change(tokenize=False)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    section = {"backend": "openai", "model": "stub", "base_url": stub.base_url, "canaries": 0, "tokenizer": {"folder": "tokenizer"}}
    section |= {"price": PRICE.model_dump(), "cost_per_run": 1e-9}
    (tmp_path / "evals.yaml").write_text(yaml.safe_dump({"models": {"served": section}, "evals": {"any": {"task": "arithmetic"}}}))
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path)
    model = AskedModel(project=project, name="served", version=project.handle("served").version(), run_id="run")
    run = ask(model, requests(1), {"0": "any"}, SilentReporter())
    assert run.is_limited
    assert "the cap `cost_per_run: 1e-09` of evals.yaml is reached" in (run.failure or "")


def test_a_cap_on_the_cost_needs_a_price() -> None:
    section = {"backend": "openai", "model": "stub", "base_url": "http://127.0.0.1:1/v1"}
    with pytest.raises(ValidationError, match="expected the key `price` beside it"):
        OpenAIModel.model_validate({**section, "cost_per_day": 1.0})
    OpenAIModel.model_validate({**section, "tokens_per_day": 1})


CONFIG = """
    models:
      served:
        backend: openai
        canaries: 0
        base_url: {base_url}
        model: stub
        concurrency: {concurrency}
        price: {{input: 1, output: 4}}
        {caps}
      other: {{backend: openai, base_url: "{base_url}", model: stub, canaries: 0, concurrency: 16}}
    evals:
      few: {{task: arithmetic, limit: 2}}
      sums: {{task: arithmetic, limit: 30, seed: 1}}
    suites:
      nightly: {{evals: [few, sums], models: [served]}}
"""
Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, stub: Stub) -> Run:
    """Start a command on the home of the test, with these caps."""

    def start(*arguments: str, caps: str = "", concurrency: int = 16) -> "subprocess.Popen[str]":
        config = textwrap.dedent(CONFIG.format(base_url=stub.base_url, caps=caps, concurrency=concurrency))
        (tmp_path / "evals.yaml").write_text(config)
        environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
        environment |= {"EVAL_DAGSTER_CONFIG": str(tmp_path / "evals.yaml")}
        command = [sys.executable, "-m", "eval_dagster.cli", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Exit status, output and errors."""
    output, errors = process.communicate(timeout=300)
    return process.returncode, output, errors


def rows(start: Run, query: str, **settings: Any) -> list[list[str]]:
    _, output, errors = end(start("sql", query, "--format", "csv", **settings))
    assert output, errors
    return [line.split(",") for line in output.splitlines()[1:]]


def ledger(home: Path) -> sqlite3.Connection:
    (path,) = (home / ".eval_dagster" / "endpoints").glob("*/spend.db")
    return sqlite3.connect(path)


def let_a_day_pass(home: Path) -> None:
    """Date all that was spent back by a day."""
    with closing(ledger(home)) as database, database:
        database.execute("update spent set day = date(day, '-1 day')")


@pytest.mark.long
def test_an_eval_with_all_answers_is_evaluated_and_the_others_go_on_the_next_day(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text(
        textwrap.dedent(CONFIG.format(base_url=stub.base_url, caps="tokens_per_day: 1500", concurrency=16))
    )
    days = []
    for _ in range(3):
        project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / ".eval_dagster")
        partitions = [("few", "served"), ("sums", "served")]
        outcomes = list(evaluate(project, partitions, stages=STAGES_WITHOUT_MLFLOW, run_id="run", reporter=SilentReporter()))
        days.append([each for each in outcomes if isinstance(each, StageFailure)])
        let_a_day_pass(tmp_path)
    [[first], *_, last] = days
    assert (first.stage, first.eval_name, first.status) == ("model_outputs", "sums", "not evaluated")
    assert f"{first.counts['requests_left']} of 90 requests are left: " in first.message
    assert last == []
    assert set(stub.counts().received.values()) == {1}, "nothing is asked twice"
    attempts = [(each.eval, each.status) for each in read_attempts(project.lake)]
    assert attempts[:2] == [("few", "ok"), ("sums", "not evaluated")]
    assert attempts[-2:] == [("few", "ok"), ("sums", "ok")]
    problems = [Attempts(read_attempts(project.lake)[: count * 2]).problem("sums", "served") or "" for count in (1, 3)]
    assert [problem.startswith("was not evaluated on ") for problem in problems] == [True, False]
    bill = sum((prompt + 4 * output) / 1e6 for prompt, output in stub.usages())
    assert sum(each.cost or 0.0 for each in read_attempts(project.lake)) == pytest.approx(bill)


@pytest.mark.long
def test_a_suite_over_its_daily_cap_is_judged_and_goes_on_the_next_day(start: Run, stub: Stub, tmp_path: Path) -> None:
    caps = "cost_per_day: 0.003"
    status, output, errors = end(start("run", "--suite", "nightly", caps=caps))
    total, largest = spent(stub)
    assert status == 3
    assert abs(total - 0.003) < largest
    answered = sum(stub.counts().answered.values())
    assert f"not evaluated: model_outputs sums|served: {90 - answered} of 90 requests are left: Model 'served': the cap" in errors
    assert "1 result was not evaluated" in errors
    assert "tokens/s, $0.00" in errors, "the progress shows the cost"
    assert f"The answers of this run cost ${total:.6f}" in output
    assert "sums on served: was not evaluated on" in output
    state = rows(start, "select eval, status, requests_left from attempts order by eval", caps=caps)
    assert state == [["few", "ok", ""], ["sums", "not evaluated", str(90 - answered)]]
    report = next((tmp_path / ".eval_dagster" / "reports").rglob("*.html")).read_text()
    assert f"{90 - answered} requests" in report
    assert end(start("run", "--suite", "nightly", caps=caps))[0] == 3
    assert sum(stub.counts().answered.values()) == answered, "the rest of the day, nothing is sent"
    for _ in range(2):
        let_a_day_pass(tmp_path)
        status, output, errors = end(start("run", "--suite", "nightly", caps=caps))
    assert status == 0, errors
    assert stub.counts().answered == stub.counts().received
    assert set(stub.counts().answered.values()) == {1}, "nothing is asked twice"
    assert len(stub.counts().answered) == 90
    _, output, _ = end(start("leaderboard", "--cost", caps=caps))
    assert "$0.00" in output
    assert "cost" in output


def test_a_usage_of_nothing_switches_no_cap_off(tmp_path: Path) -> None:
    """The proxy replaces the counts of every answer by 0."""
    wanted = requests(100)
    with (
        stub_server(tmp_path, mean_tokens=20, sigma=0) as stub,
        running_server("catalogue_program", stub.server.url, model="stub", folder=tmp_path) as proxy,
    ):
        proxy.post("/control/apply", {"name": "usage: 0 tokens", "share": 1.0})
        section = {
            "backend": "openai",
            "model": "stub",
            "base_url": proxy.base_url,
            "price": PRICE,
            "cost_per_run": 0.003,
            "concurrency": 4,
        }
        model = ServedHandle("served", OpenAIModel.model_validate(section), home=tmp_path).load()
        answers: list[ModelResponse] = []
        with pytest.raises(NotEvaluatedError, match="the cap `cost_per_run"):
            answers.extend(response for _, response in model.respond(wanted))
        total, _ = spent(stub)
    assert 0.001 < total < 0.005, "the estimates are rather too high"
    assert 0 < len(answers) < 100
    assert {response.report.cost for response in answers if response.report} == {None}, "it is not known"


LOOKED_AT = """
    models:
      served: {{backend: openai, base_url: "{base_url}", model: stub, price: {{input: 1, output: 4}}, canaries: 20, {cap}}}
    evals:
      sums: {{task: arithmetic, limit: 2}}
"""


@pytest.mark.long
@pytest.mark.parametrize("cap", ["cost_per_run: 0.0008", "tokens_per_day: 1000"])
def test_canaries_wait_for_a_cap_that_can_bear_them(stub: Stub, tmp_path: Path, cap: str) -> None:
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(LOOKED_AT.format(base_url=stub.base_url, cap=cap)))
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / ".eval_dagster")
    outcomes = list(evaluate(project, [("sums", "served")], stages=STAGES_WITHOUT_MLFLOW, run_id="run", reporter=SilentReporter()))
    assert [each for each in outcomes if isinstance(each, StageFailure)] == []
    [warning] = next(each.warnings for each in outcomes if isinstance(each, StageResult) and each.stage == "model_outputs")
    assert "it is not known whether served changed, because its canaries may need" in warning
    assert len(stub.counts().received) == 6, "the requests of the eval alone"


def test_canaries_are_part_of_what_a_run_cost(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(LOOKED_AT.format(base_url=stub.base_url, cap="cost_per_run: 1")))
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / ".eval_dagster")
    list(evaluate(project, [("sums", "served")], stages=STAGES_WITHOUT_MLFLOW, run_id="run", reporter=SilentReporter()))
    total, _ = spent(stub)
    assert len(stub.counts().received) > 6
    assert sum(each.cost or 0.0 for each in read_attempts(project.lake)) == pytest.approx(total)


def test_a_ledger_that_cannot_be_opened_leaves_no_connection_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spend.db").write_text("no database, " * 100)
    opened: list[sqlite3.Connection] = []
    monkeypatch.setattr(spend, "connect", lambda path, mode: opened.append(sqlite3.connect(path)) or opened[-1])
    with pytest.raises(StoreError), spend.Ledger(tmp_path, "served"):
        pass
    [connection] = opened
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("select 1")
