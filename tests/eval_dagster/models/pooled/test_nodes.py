"""A model over the nodes of a cluster: a node that ends and one that comes back, a run that is killed, and the answers of a network."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kept_notes import KeptNotes
from servers.ray_cluster import RayCluster, running_cluster

from eval_dagster.config.models import ScriptedModel, TransformersModel, WorkersConfig
from eval_dagster.models.pooled.handle import PooledModel, open_handle
from eval_dagster.progress.reporting import use_reporter
from eval_dagster.records import GenerationSettings, Request

pytestmark = pytest.mark.long
ANSWERS = """
    import os, time
    from pathlib import Path

    def answer(request):
        with Path(__file__).with_name("asked").open("a") as file:
            file.write(f"{request.request_id} {os.getpid()}\\n")
        time.sleep(0.1)
        return "slept"
"""
CONFIG = """
    models:
      pooled: {backend: scripted, function: "answers.py:answer", workers: {count: 2, cpus: 0.5}}
    evals:
      sums: {task: arithmetic, num_fewshot: 0, limit: 500}
"""


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    with running_cluster(nodes=3, cpus=1) as running:
        yield running


def test_a_lost_node_costs_only_what_was_unanswered(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "answers.py").write_text(textwrap.dedent(ANSWERS))
    config = WorkersConfig(address=cluster.address, count=3, cpus=1)
    section = ScriptedModel(backend="scripted", function="answers.py:answer", workers=config)
    sent = [Request(request_id=f"{k}", prompt=f"{k}", generation=GenerationSettings(max_tokens=64)) for k in range(1200)]
    notes = KeptNotes()
    with use_reporter(notes):
        model = open_handle("pooled", section, folder=tmp_path, home=tmp_path).load()
        assert isinstance(model, PooledModel)
        model.wait(3)
        found: list[str] = []
        before: set[str] = set()
        removal = threading.Thread(target=cluster.remove_node)
        for request, response in model.respond(sent):
            assert response.error is None
            assert response.worker is not None
            found.append(request.request_id)
            if len(found) == 100:
                before = set(found)
                removal.start()
            if len(found) == 300:
                removal.join()
                cluster.add_node()
    assert sorted(found) == sorted(request.request_id for request in sent)
    asked = [line.split() for line in (tmp_path / "asked").read_text().splitlines()]
    again = {name for name, count in Counter(name for name, _ in asked).items() if count > 1}
    assert before.isdisjoint(again)
    assert len(again) <= 20, "what the lost worker had answered was sent at once"
    assert any("its node has ended or cannot be reached" in line for line in notes.lines), notes.lines
    assert len({pid for _, pid in asked}) >= 4, "a new worker starts on the new node"


def test_a_network_answers_as_in_one_process(cluster: RayCluster, tiny_model: Path, tmp_path: Path) -> None:
    section = {"backend": "transformers", "device": "cpu", "source": {"folder": str(tiny_model)}}
    workers = {"address": cluster.address, "count": 2, "cpus": 1}
    alone, pooled = (
        open_handle("tiny", TransformersModel.model_validate({**section, **more}), folder=tmp_path, home=tmp_path / "home")
        for more in ({}, {"workers": workers})
    )
    assert alone.version() == pooled.version()
    one, two = alone.load(), pooled.load()
    expected, found = ({request.request_id: response for request, response in model.respond(_few_shot())} for model in (one, two))
    assert found.keys() == expected.keys()
    for name, response in expected.items():
        assert found[name].error is None
        assert found[name].text == response.text
        assert found[name].logprobs == pytest.approx(response.logprobs, abs=1e-4)
    computed = [sum(usage.computed() for usage in model.usage()) for model in (one, two)]
    assert computed[1] <= 1.05 * computed[0], computed
    assert {usage.kind for usage in two.usage()} == {"scoring", "generation"}
    assert all("2 of 2 workers" in usage.reason for usage in two.usage())


def _few_shot() -> list[Request]:
    settings = GenerationSettings(max_tokens=8)
    prompts = [f"{f'subject {part} ' * 30} question {k} of many?" for part in range(8) for k in range(20)]
    texts = [Request(request_id=f"t{k}", prompt=prompt, generation=settings) for k, prompt in enumerate(prompts)]
    return [*texts, *(Request(request_id=f"c{k}", prompt=prompt, choices=(" yes", " no")) for k, prompt in enumerate(prompts))]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_where_a_run_ends(tmp_path: Path, sent: signal.Signals) -> None:
    (tmp_path / "answers.py").write_text(textwrap.dedent(ANSWERS))
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"EVAL_DAGSTER_MARK": str(tmp_path)}
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "eval_dagster.cli", "run"]
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 240
        while not (tmp_path / "asked").exists():
            assert run.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        time.sleep(2)
        run.send_signal(sent)
        assert run.wait(timeout=120) != 0
        while left := _processes(tmp_path):
            assert time.monotonic() < deadline, left
            time.sleep(0.5)
        assert list(tmp_path.glob(".eval_dagster/lake/response*/**/*.parquet")) or sent is signal.SIGKILL
    finally:
        for process in _processes(tmp_path):
            os.kill(process, signal.SIGKILL)


def _processes(mark: Path) -> list[int]:
    """The processes of a run, by a variable in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (
                f"EVAL_DAGSTER_MARK={mark}\0".encode() in (path / "environ").read_bytes()
                and "\nState:\tZ" not in (path / "status").read_text()
            ):
                found.append(int(path.name))
        except OSError:
            continue
    return found
