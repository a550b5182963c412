"""The demo suite on a cluster has the tables of a plain run, also where parts of the cluster fail, and asks for no answer that it has."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from places import MODELS, SCRIPTED, Place, config_of, followed, kill_a_worker
from servers.object_store import ObjectStore, unreliable
from servers.postgres import Postgres
from servers.ray_cluster import RayCluster

ONE = {MODELS[0]: SCRIPTED[MODELS[0]]}
_ORPHAN = 1
"""The parent of a worker whose node has just been killed."""
FAULTS = {"share": 0.1, "delay_s": 0.02}
"""The store answers one request in ten by 503, and all of them 20 ms later."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The demo suite in one process, with all state in its home."""
    place = Place(tmp_path_factory.mktemp("plain"), config=config_of(None), answer_s=0.0)
    place.run_here()
    return place


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The demo suite with one model alone, in one process."""
    place = Place(tmp_path_factory.mktemp("plain_model"), config=config_of(None, models=ONE), answer_s=0.0)
    place.run_here()
    return place


@pytest.fixture
def slow_store(moto: ObjectStore, tmp_path: Path) -> Iterator[ObjectStore]:
    """A store with faults."""
    with unreliable(moto, tmp_path, **FAULTS) as store:
        yield store


def _require_tables(place: Place, plain: Place) -> None:
    contents = place.contents()
    for name, rows in plain.contents().items():
        assert contents[name] == rows, name


def _run_through_faults(place: Place, plain: Place, cluster: RayCluster, postgres: Postgres, *, most_s: float) -> float:
    """Run the suite while a worker is killed, PostgreSQL crashes and a node is removed. Returns the seconds."""
    requests = len(plain.asked_for())
    try:
        run = place.begin("run")
        disturbances = [
            (requests // 8, lambda: kill_a_worker(place)),
            (requests // 4, lambda: postgres.restart(down_s=1)),
            (requests // 2, cluster.remove_node),
        ]
        seen = followed(place, run, disturbances, most_s=most_s)
    finally:
        place.stop()
    assert run.returncode == 0, place.printed("run")
    _require_tables(place, plain)
    asked = place.asked_for()
    assert {(each.model, each.request_id) for each in asked} == {(each.model, each.request_id) for each in plain.asked_for()}
    assert seen.asked_again(place) == []
    assert len(asked) > requests, "the lost workers had requests without an answer"
    nodes = {each.node for each in asked} - {_ORPHAN}
    assert len(nodes) == 3, "workers of three nodes answered"
    return seen.seconds


@pytest.mark.long
def test_tables_are_those_of_a_plain_run_where_parts_fail(
    plain_model: Place, ray_cluster: RayCluster, postgres: Postgres, slow_store: ObjectStore, tmp_path: Path
) -> None:
    parts: Mapping[str, Any] = {"postgres": postgres, "store": slow_store, "cluster": ray_cluster}
    place = Place(tmp_path / "faults", config=config_of(3, models=ONE), answer_s=0.1, **parts)
    _run_through_faults(place, plain_model, ray_cluster, postgres, most_s=300)
    assert slow_store.counts()["faults"] > 0


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_ten_minutes_of_a_store_that_fails(
    plain: Place,
    ray_cluster: RayCluster,
    postgres: Postgres,
    radosgw: ObjectStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with unreliable(radosgw, tmp_path, **FAULTS) as store:
        parts: Mapping[str, Any] = {"postgres": postgres, "store": store, "cluster": ray_cluster}
        place = Place(tmp_path / "slow", config=config_of(3), answer_s=3.6, **parts)
        seconds = _run_through_faults(place, plain, ray_cluster, postgres, most_s=1500)
        counts = store.counts()
    assert seconds > 600
    with capsys.disabled():
        sys.stdout.write(f"\n{seconds:.0f} s, {counts['passed']} calls of the store, {counts['faults']} of them answered by 503\n")
    assert counts["faults"] > 0.05 * counts["passed"]


@pytest.mark.long
def test_two_models_run_on_two_nodes_at_once(
    plain: Place, ray_cluster: RayCluster, postgres: Postgres, moto: ObjectStore, tmp_path: Path
) -> None:
    parts: Mapping[str, Any] = {"postgres": postgres, "store": moto, "cluster": ray_cluster}
    place = Place(tmp_path / "launched", config=config_of(1), answer_s=0.1, **parts)
    try:
        place.serve()
        done = place.run("--suite", "demo", "--launch")
        assert done.returncode == 0, done.stdout + done.stderr + place.printed("daemon") + place.printed("code")
    finally:
        place.stop()
    _require_tables(place, plain)
    asked = place.asked_for()
    assert len(asked) == len(plain.asked_for()), "each request is asked once"
    places = {model: {(each.node, each.pid) for each in asked if each.model == model} for model in MODELS}
    assert [len(each) for each in places.values()] == [1, 1]
    assert len({node for each in places.values() for node, _ in each}) == 2
    times = [[each.at for each in asked if each.model == model] for model in MODELS]
    assert max(map(min, times)) < min(map(max, times)), "both models answer at the same time"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_demo_model_over_workers_of_three_nodes(
    demo_gguf: Path, ray_cluster: RayCluster, postgres: Postgres, radosgw: ObjectStore, tmp_path: Path
) -> None:
    models = {"smollm2": {"backend": "transformers", "source": {"gguf": str(demo_gguf)}, "dtype": "float32"}}
    alone = Place(tmp_path / "alone", config=config_of(None, models=models), answer_s=0.0)
    alone.run_here()
    parts: Mapping[str, Any] = {"postgres": postgres, "store": radosgw, "cluster": ray_cluster}
    place = Place(tmp_path / "workers", config=config_of(3, models=models), answer_s=0.0, **parts)
    done = place.run("--suite", "demo", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    ours, theirs = place.contents(), alone.contents()
    for name in ("samples", "prompts", "scores", "metrics", "leaderboard"):
        assert [_rounded(row) for row in ours[name]] == [_rounded(row) for row in theirs[name]], name
    for mine, other in zip(ours["responses"], theirs["responses"], strict=True):
        assert mine[:5] == other[:5]
        assert mine[5] == pytest.approx(other[5], abs=1e-3), "log-probabilities of choices"
    assert {row[1] is None for row in place.seconds_and_workers()} == {False}


def _rounded(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(round(value, 3) if isinstance(value, float) else value for value in row)
