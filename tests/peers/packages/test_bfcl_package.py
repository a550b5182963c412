"""BFCL's entries, systems and verdicts by its own package: the verdicts on scripted answers are equal to those of its checkers.

`BFCL_PYTHON` names the Python of an environment with bfcl-eval, as `eval-dagster environments add bfcl` makes it.
"""

import csv
import json
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.bfcl.registry import BfclRegistry
from eval_dagster.peers.processes.process import WorkerProcess
from eval_dagster.peers.processes.registry import close_processes

PYTHON = os.environ.get("BFCL_PYTHON")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(PYTHON is None, reason="BFCL_PYTHON names no interpreter of an environment with bfcl-eval"),
]
log = logging.getLogger(__name__)
HERE = Path(__file__).resolve().parent
NUMBERS = {
    "simple_python": 400,
    "simple_java": 100,
    "simple_javascript": 50,
    **dict.fromkeys(("multiple", "parallel", "parallel_multiple"), 200),
    "live_simple": 258,
    "live_multiple": 1053,
    "live_parallel": 16,
    "live_parallel_multiple": 24,
    "irrelevance": 240,
    "live_irrelevance": 884,
    "live_relevance": 16,
    **dict.fromkeys(("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context"), 200),
    **dict.fromkeys(("memory_kv", "memory_rec_sum"), 155),
}
"""The entries of each category that can be scored without a network."""
FORM = "ret_fmt=python&tool_call_tag=False&func_doc_fmt=python&prompt_fmt=plaintext&style=classic"
"""A format in which the package reads calls in all of a text."""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BfclRegistry]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield BfclRegistry().within(Path(str(PYTHON)))
        close_processes()


@pytest.fixture(scope="module")
def process(registry: BfclRegistry) -> WorkerProcess:
    found: Any = registry.benchmark("simple_python", HERE)
    asked: WorkerProcess = found.PROCESS
    return asked


def official(folder: Path, *categories: str) -> list[dict[str, Any]]:
    """Scripted answers with the verdicts of the package's checkers."""
    file = folder / "official.jsonl"
    subprocess.run([str(PYTHON), str(HERE / "bfcl_itself.py"), str(file), *categories], check=True, timeout=1800)
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_verdicts_on_all_entries_are_those_of_the_checkers(process: WorkerProcess, tmp_path: Path) -> None:
    expected = official(tmp_path, *NUMBERS)
    assert Counter(each["category"] for each in expected if each["kind"] == "right") == NUMBERS
    started = time.monotonic()
    found = [process.call("verdict", category=each["category"], entry=each["id"], result=each["result"]) for each in expected]
    seconds = time.monotonic() - started
    differ = [(each, one) for each, one in zip(expected, found, strict=True) if each["valid"] != one["valid"]]
    assert not differ, differ[:3]
    kinds = Counter((each["kind"], each["valid"]) for each in expected)
    log.info(f"{len(found)} verdicts in {seconds:.1f} s: {dict(kinds)}")
    # Many answers of each kind are right, and many are wrong: the verdicts are no constant.
    assert kinds["right", True] > 4000
    assert min(kinds["wrong", False], kinds["missing", False]) > 2000
    wrong = [one for each, one in zip(expected, found, strict=True) if not one["valid"] and "memory" not in each["category"]]
    assert all(one["fault"] for one in wrong)
    assert seconds < 240


def test_rows_are_those_of_the_package(process: WorkerProcess) -> None:
    rows = process.call("rows", category="multi_turn_miss_func")
    assert len(rows) == 200
    for row in rows:
        tools = {turn: {json.loads(text)["function"]["name"] for text in texts} for turn, texts in json.loads(row["tools"]).items()}
        turns = json.loads(row["turns"])
        [later] = tools.keys() - {"0"}
        assert tools["0"] < tools[later]  # the held-out functions come with a sentence of their own
        assert turns[int(later)] == [{"role": "user", "content": "I have updated some more functions you can choose from. What about now?"}]
    [java] = [row for row in process.call("rows", category="simple_java") if row["id"] == "simple_java_0"]
    parameters = json.loads(json.loads(java["tools"])["0"][0])["function"]["parameters"]["properties"]
    assert {each["type"] for each in parameters.values()} == {"string"}  # as the package asks a model


def test_no_call_reaches_the_machine_or_another_entry(process: WorkerProcess) -> None:
    entry = {"category": "multi_turn_base", "entry": "multi_turn_base_0"}
    before = process.call("execute", **entry, calls=[["ls", {}]])
    assert process.call("execute", **entry, calls=[["mkdir", {"dir_name": "new"}], ["ls", {}]]) != before
    assert process.call("execute", **entry, calls=[["ls", {}]]) == before
    # The package executes the name of a call as Python; here it sees no files of the machine, and what it changes is gone.
    seen = process.call("execute", **entry, calls=[[f"open({__file__!r}).read() or str", {}]])
    assert "No such file" in seen
    process.call("execute", **entry, calls=[["globals().update(execute_multi_turn_func_call=None) or str", {}]])
    process.call("execute", **entry, calls=[["open('/tmp/left', 'w').close() or str", {}]])
    assert "left" not in process.call("execute", **entry, calls=[["str(__import__('os').listdir('/tmp')) or str", {}]])
    assert process.call("execute", **entry, calls=[["ls", {}]]) == before


def test_what_is_evaluated_in_a_text_leaves_nothing_behind(process: WorkerProcess) -> None:
    given = {"category": FORM, "entry": process.call("rows", category=FORM)[0]["id"]}
    leaves = "(__import__('os').environ.update(LEFT='7') or 1) + 1"
    look = {**given, "result": "[f(a=0 + int(__import__('os').environ.get('LEFT', 'gone')))]"}
    assert "'gone'" in process.call("verdict", **look)["error"]
    for text in (f"[f(a={leaves})]", f"[f(a={leaves}), #<TOOLCALL>x()</TOOLCALL>\n g(b=1)]", f"'#'.f(a={leaves})"):
        assert process.call("verdict", **given, result="[f(a=1)]")["valid"] is False
        process.call("verdict", **given, result=text)
        assert "'gone'" in process.call("verdict", **look)["error"]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ({"__import__('os')._exit(3) or str": "{}"}, "ended_or_timed_out"),
        ({"(_ for _ in ()).throw(SystemExit) or str": "{}"}, "ended_or_timed_out"),
        ({"ls": "[" * 100_000}, "multi_turn:empty_turn_model_response"),  # the package leaves out calls that it cannot read
    ],
)
def test_an_answer_that_ends_the_checker_is_wrong(process: WorkerProcess, call: dict[str, str], kind: str) -> None:
    entry = {"category": "multi_turn_base", "entry": "multi_turn_base_0"}
    [row] = [row for row in process.call("rows", category=entry["category"]) if row["id"] == entry["entry"]]
    found = process.call("verdict", **entry, result=[[[call]] for _ in json.loads(row["turns"])])
    assert (found["valid"], found["error_type"]) == (False, kind)


def test_an_evaluated_text_that_ends_the_checker_is_wrong(process: WorkerProcess) -> None:
    given = {"category": FORM, "entry": process.call("rows", category=FORM)[0]["id"]}
    found = process.call("verdict", **given, result="[f(a=1 + __import__('os')._exit(3))]")
    assert (found["valid"], found["error_type"]) == (False, "ended_or_timed_out")


def test_names_without_a_network_are_refused(registry: BfclRegistry) -> None:
    for name in ("web_search_base", "memory_vector"):
        with pytest.raises(TaskDefinitionError, match="cannot be evaluated here"):
            registry.benchmark(name, HERE)
    with pytest.raises(TaskDefinitionError, match="no category and no group 'sample'"):
        registry.benchmark("sample", HERE)


def test_evals_come_to_a_score_with_an_explanation(tmp_path: Path) -> None:
    config = {
        "models": {"silent": {"backend": "scripted", "default": "I cannot."}},
        "environments": {"bfcl": str(PYTHON)},
        "sandbox": {"allow_code_execution": True},
        "evals": {
            "none": {"task": "bfcl:irrelevance", "limit": 2},
            "turns": {"task": "bfcl:multi_turn_base", "limit": 2},
            "remembered": {"task": "bfcl:memory_rec_sum", "limit": 1},
        },
    }
    (tmp_path / "evals.yaml").write_text(yaml.safe_dump(config))
    environment = {**os.environ, "EVAL_DAGSTER_CONFIG": str(tmp_path / "evals.yaml"), "EVAL_DAGSTER_HOME": str(tmp_path / "home")}
    query = "select eval, avg(value) as score, min(explanation) as explanation from scores group by eval order by eval"
    for command in (["run"], ["sql", query, "--format", "csv"]):
        done = subprocess.run(
            [sys.executable, "-m", "eval_dagster.cli.program", *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["eval"]: row for row in csv.DictReader(done.stdout.splitlines())}
    assert {name: float(row["score"]) for name, row in rows.items()} == {"none": 1.0, "remembered": 0.0, "turns": 0.0}
    assert "was expected, and not called" in rows["turns"]["explanation"]
    assert "agentic:answer_not_found" in rows["remembered"]["explanation"]
