"""A model over workers of a real Ray: equal answers, none lost or asked twice when a worker ends, another version refused."""

import os
import signal
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kept_notes import KeptNotes
from servers.ray_cluster import RayCluster, running_cluster

from eval_dagster.config.models import ScriptedModel, WorkersConfig
from eval_dagster.errors import ConfigError, ModelError, ModelNotFoundError
from eval_dagster.models import registry
from eval_dagster.models.base import ModelHandle
from eval_dagster.models.pooled.crew import connect
from eval_dagster.models.pooled.handle import PooledModel, open_handle
from eval_dagster.progress.reporting import use_reporter
from eval_dagster.records import GenerationSettings, ModelResponse, Request

ANSWERS = """
    import os, signal, time
    from pathlib import Path

    FOLDER = Path(__file__).parent

    def answer(request):
        with (FOLDER / "asked").open("a") as file:
            file.write(f"{request.request_id} {os.getpid()}\\n")
        if "deadly" in request.prompt:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
        if request.choices:
            return [-float(len(choice)) for choice in request.choices]
        return f"{request.prompt} is {len(request.prompt)} long"
"""
BACKEND = """
    import os
    import time
    from typing import Literal

    from eval_dagster.config.models import ModelSection
    from eval_dagster.models.scripted import ScriptedHandle

    class OddSection(ModelSection):
        backend: Literal["odd"]
        marker: str
        driver: int
        others: int
        failing: bool = False
        check_s: float = 0

    class Odd(ScriptedHandle):
        SECTION = OddSection

        @classmethod
        def open(cls, name, config, *, folder, home):
            handle = cls(name, default="yes")
            handle.config, handle.suffix = config, ""
            if os.getpid() != config.driver:
                for number in range(config.others):
                    try:
                        os.close(os.open(f"{config.marker}{number}", os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        continue
                    handle.suffix = "-other"
                    break
            return handle

        def check(self):
            if os.getpid() != self.config.driver:
                time.sleep(self.config.check_s)

        def load(self):
            if self.config.failing:
                raise MemoryError("no room for the weights")
            return super().load()

        def version(self):
            return super().version() + self.suffix
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A package with a backend, installed for this process and for the workers."""
    folder = tmp_path_factory.mktemp("site")
    information = folder / "odds-1.0.dist-info"
    information.mkdir()
    (folder / "odds.py").write_text(textwrap.dedent(BACKEND))
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: odds\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{registry.GROUP}]\nodd = odds:Odd\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))
        registry._entries.cache_clear()
        yield folder
    registry._entries.cache_clear()
    sys.modules.pop("odds", None)


@pytest.fixture(scope="module")
def cluster(packages: Path) -> Iterator[RayCluster]:
    with running_cluster(nodes=1, cpus=2) as running:
        yield running


def workers(cluster: RayCluster, **keys: Any) -> WorkersConfig:
    return WorkersConfig(address=cluster.address, **{"count": 2, "cpus": 0.5, **keys})


def scripted(folder: Path, config: WorkersConfig | None) -> ModelHandle:
    (folder / "answers.py").write_text(textwrap.dedent(ANSWERS))
    section = ScriptedModel(backend="scripted", function="answers.py:answer", workers=config)
    return open_handle("pooled", section, folder=folder, home=folder / "home")


def odd(packages: Path, folder: Path, config: WorkersConfig, others: int = 0, **keys: Any) -> ModelHandle:
    section = registry.registered_sections()["odd"].model_validate(
        {"backend": "odd", "marker": str(folder / "marker"), "driver": os.getpid(), "others": others, "workers": config, **keys}
    )
    return open_handle("odd", section, folder=folder, home=folder / "home")


def requests(count: int) -> list[Request]:
    texts = [Request(request_id=f"t{index}", prompt=f"Text {index}", generation=GenerationSettings(max_tokens=8)) for index in range(count)]
    scored = [Request(request_id=f"c{index}", prompt=f"Choice {index}", choices=(" a", " bb")) for index in range(count)]
    return [each for pair in zip(texts, scored, strict=True) for each in pair]


def plain(response: ModelResponse) -> tuple[Any, ...]:
    return response.text, response.logprobs, response.argmax_logits_eq_gold, response.error


def asked(folder: Path) -> list[tuple[str, int]]:
    lines = [line.split() for line in (folder / "asked").read_text().splitlines()]
    return [(name, int(pid)) for name, pid in lines]


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def load(handle: ModelHandle) -> PooledModel:
    model = handle.load()
    assert isinstance(model, PooledModel)
    return model


@pytest.mark.long
def test_answers_are_those_of_one_process(cluster: RayCluster, tmp_path: Path) -> None:
    sent = requests(60)
    alone = scripted(tmp_path, None)
    expected = {request.request_id: plain(response) for request, response in alone.load().respond(sent)}
    (tmp_path / "asked").unlink()
    handle = scripted(tmp_path, workers(cluster))
    assert handle.version() == alone.version()
    model = load(handle)
    model.wait(2)
    found = [(request.request_id, plain(response)) for request, response in model.respond(sent)]
    assert len(found) == len(sent)
    assert dict(found) == expected
    seen = asked(tmp_path)
    assert Counter(name for name, _ in seen) == Counter(request.request_id for request in sent)
    assert len({pid for _, pid in seen}) == 2
    del model
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for _, pid in seen):
        assert time.monotonic() < deadline, "the workers end with the model"
        time.sleep(0.1)


@pytest.mark.long
def test_a_killed_worker_costs_only_what_was_unanswered(cluster: RayCluster, tmp_path: Path) -> None:
    sent, notes = requests(100), KeptNotes()
    with use_reporter(notes):
        model = load(scripted(tmp_path, workers(cluster)))
        model.wait(2)
        answered: list[str] = []
        before: set[str] = set()
        for request, response in model.respond(sent):
            assert response.error is None
            answered.append(request.request_id)
            if len(answered) == 40:
                before = set(answered)
                os.kill(asked(tmp_path)[-1][1], signal.SIGKILL)
    assert sorted(answered) == sorted(request.request_id for request in sent)
    again = [name for name, count in Counter(name for name, _ in asked(tmp_path)).items() if count > 1]
    assert before.isdisjoint(again)
    assert len(again) < 60, "answers are sent a few times a second"
    assert any("lost the worker 127.0.0.1:" in line for line in notes.lines), notes.lines


@pytest.mark.long
def test_a_request_that_ends_its_worker_becomes_an_error(cluster: RayCluster, tmp_path: Path) -> None:
    deadly = Request(request_id="deadly", prompt="A deadly text", generation=GenerationSettings(max_tokens=8))
    sent = [*requests(1), deadly]
    model = load(scripted(tmp_path, workers(cluster, count=1)))
    answers = {request.request_id: response for request, response in model.respond(sent)}
    assert answers.keys() == {request.request_id for request in sent}
    errors = {name: response for name, response in answers.items() if response.error}
    assert errors.keys() == {"deadly"}
    assert str(errors["deadly"].error).startswith("WorkerLostError: 3 workers ended while they answered this request")
    assert errors["deadly"].retryable


@pytest.mark.long
def test_a_worker_of_another_version_is_refused_by_name(cluster: RayCluster, packages: Path, tmp_path: Path) -> None:
    notes = KeptNotes()
    with use_reporter(notes):
        model = load(odd(packages, tmp_path, workers(cluster), others=1))
        model.wait(2)
        assert len(list(model.respond(requests(5)))) == 10
    (refused,) = [line for line in notes.lines if "is refused" in line]
    assert "odd: the worker 127.0.0.1:" in refused
    assert "neither weights, device nor packages differ" in refused


@pytest.mark.long
def test_it_is_an_error_where_all_workers_are_refused(cluster: RayCluster, packages: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"all its workers were refused:\n- 127\.0\.0\.1:\d+: neither"):
        odd(packages, tmp_path, workers(cluster, count=1), others=9).load()


@pytest.mark.long
def test_a_worker_that_cannot_start_is_no_other_version(cluster: RayCluster, packages: Path, tmp_path: Path) -> None:
    notes = KeptNotes()
    with (
        use_reporter(notes),
        pytest.raises(ModelError, match=r"5 workers could not start; the last one: .* MemoryError: no room") as raised,
    ):
        odd(packages, tmp_path, workers(cluster, count=1), failing=True).load()
    assert "version" not in f"{raised.value} {notes.lines}"


@pytest.mark.long
def test_patience_ends_where_a_worker_has_a_place(cluster: RayCluster, packages: Path, tmp_path: Path) -> None:
    slow = odd(packages, tmp_path, workers(cluster, count=1, patience_s=6), check_s=8)
    assert len(list(load(slow).respond(requests(1)))) == 2


@pytest.mark.long
def test_a_second_address_is_an_error(cluster: RayCluster, tmp_path: Path) -> None:
    connect("pooled", workers(cluster))
    with pytest.raises(ModelError, match=rf"'pooled': .* at 10\.0\.0\.1:6379, but this process is connected to Ray at {cluster.address}"):
        scripted(tmp_path, WorkersConfig(address="10.0.0.1:6379")).load()


@pytest.mark.long
def test_a_cluster_without_room_is_one_clear_error(cluster: RayCluster, tmp_path: Path) -> None:
    has = r"the cluster has 1 nodes, 2 CPUs .*, no GPUs\. Lower `cpus` or `gpus`"
    with pytest.raises(ModelError, match=rf"no worker got a place within 1 s .* asks for 64 CPUs and 0 GPUs; {has}"):
        scripted(tmp_path, workers(cluster, cpus=64, patience_s=1)).load()
    with pytest.raises(ModelNotFoundError, match=rf"no worker answered within 1 s .* asks for 0.5 CPUs and 2 GPUs; {has}"):
        scripted(tmp_path, workers(cluster, gpus=2, patience_s=1)).check()


def test_a_cluster_that_is_not_there_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    config = WorkersConfig(address="127.0.0.1:1")
    with pytest.raises(ModelError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 \(ConnectionRefusedError"):
        scripted(tmp_path, config).load()


def test_an_interpreter_that_is_not_on_this_machine_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"`python` of its `workers`, /not/there/python, does not exist"):
        connect("m", WorkersConfig(python="/not/there/python"))


@pytest.mark.long
def test_workers_end_where_the_caller_does(cluster: RayCluster, tmp_path: Path) -> None:
    model = load(scripted(tmp_path, workers(cluster)))
    answers = iter(model.respond(requests(100)))
    next(answers)
    pids = {pid for _, pid in asked(tmp_path)}
    answers.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 20
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.long
def test_a_refused_worker_is_replaced_on_another_node(cluster: RayCluster, packages: Path, tmp_path: Path) -> None:
    cluster.add_node()
    notes = KeptNotes()
    try:
        with use_reporter(notes):
            model = load(odd(packages, tmp_path, workers(cluster, count=1), others=1))
            assert len(list(model.respond(requests(1)))) == 2
    finally:
        cluster.remove_node()
    assert len([line for line in notes.lines if "is refused" in line]) == 1
