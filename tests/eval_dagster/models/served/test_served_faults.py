"""A whole run through a server that fails at every fifth request has the results of a run without faults, and asks for nothing twice."""

import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.faults import Fault, faulty_proxy
from servers.stub import Stub, stub_server

import eval_dagster as ed
from eval_dagster.models.served.canaries import PROMPTS

CONFIG = """
    models:
      served:
        {{backend: openai, base_url: "{base_url}", model: stub, canaries: 0, pin: the stub, timeout_s: 5, price: {{input: 2, output: 10}}}}
    evals:
      numbers: {{task: "numbers.py:Numbers", limit: {samples}}}
"""
TASK = '''
    from eval_dagster import BaseTask, ExactMatch, ResponseType

    class Numbers(BaseTask[str]):
        """Which word stands for a number? The words are those of the server, so that some answers are right."""

        NAME, DATASET_PATH, SAMPLE_SPLIT = "Numbers", "own", "test"
        RESPONSE_TYPE, METRICS, MAX_TOKENS = ResponseType.COMPLETION, [ExactMatch], 8

        def _load_dataset(self, subject):
            return {"test": [{"number": number} for number in range(2000)]}

        def _get_instruction_text(self, item):
            return f"Which word stands for {item['number']}?"

        def _get_ground_truth(self, item):
            return ("red", "green", "blue")[item["number"] % 3]
'''
TABLES = {
    "prompts": "*",
    "responses": "* exclude (latency_s, answered_at, attempts, prompt_tokens, output_tokens, cost)",
    "sample_results": "*",
    "metrics": "* exclude (dagster_run_id, mlflow_run_id, materialized_at)",
}
"""What has to be equal. The numbers of tokens are missing where the proxy takes them out."""


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with stub_server(tmp_path, slots=64, mean_tokens=1, sigma=0) as running:
        yield running


@pytest.mark.long
def test_faults_change_no_table(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(folder: Path, samples: int) -> None:
        monkeypatch.chdir(folder)
        ed.evaluate("numbers.py:Numbers", "served", limit=samples, name="numbers", home=home_of(folder), progress=False)

    faults = [fault for fault in Fault if fault is not Fault.DELAY]
    compare(stub, tmp_path, evaluate, samples=100, faults=faults, retry_after_s=0)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_faults_of_2000_samples_change_no_table(stub: Stub, tmp_path: Path) -> None:
    def evaluate(folder: Path, _: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
        environment |= {"EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml")}
        command = [sys.executable, "-m", "eval_dagster.cli", "run"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    compare(stub, tmp_path, evaluate, samples=2000)


def compare(stub: Stub, tmp_path: Path, evaluate: Callable[[Path, int], None], *, samples: int, **settings: Any) -> None:
    evaluate(folder_of(tmp_path / "without", stub.base_url, samples), samples)
    assert set(stub.counts().answered.values()) == {1}
    stub.reset()
    with faulty_proxy(stub.server, tmp_path, **settings) as proxy:
        evaluate(folder_of(tmp_path / "with", proxy.base_url, samples), samples)
        traffic = {each.prompt: each for each in proxy.traffic().values()}
    injected = Counter(fault for each in traffic.values() for fault in each.faults)
    assert set(injected) == set(settings.get("faults", Fault))
    assert 0.15 < sum(injected.values()) / sum(each.received for each in traffic.values()) < 0.25
    for relation, columns in TABLES.items():
        query = f"select {columns} from {relation} order by all"
        assert rows(tmp_path / "with", query) == rows(tmp_path / "without", query), relation
    attempts = dict(rows(tmp_path / "with", "select prompt, attempts from prompts join responses using (eval, model, sample_id)"))
    assert len(attempts) == samples
    probes = {prompt: traffic.pop(prompt) for prompt in list(traffic) if prompt not in attempts}
    assert set(probes) <= set(PROMPTS), "nothing else is asked than the samples, and whether the server is down"
    assert sum(each.received for each in probes.values()) <= samples / 100
    assert attempts == {prompt: each.received for prompt, each in traffic.items()}
    # An answer of another model is none, so it is the only one that is asked for again.
    others = {prompt: 1 + each.faults.count(Fault.OTHER_MODEL) for prompt, each in traffic.items()}
    assert {prompt: count for prompt, count in stub.counts().answered.items() if prompt not in probes} == others


def home_of(folder: Path) -> Path:
    return folder / ".eval_dagster"


def folder_of(folder: Path, base_url: str, samples: int) -> Path:
    folder.mkdir()
    (folder / "numbers.py").write_text(textwrap.dedent(TASK))
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG.format(base_url=base_url, samples=samples)))
    return folder


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    return ed.connect(home_of(folder)).execute(query).fetchall()
