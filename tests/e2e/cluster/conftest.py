"""A cluster on one machine: three nodes of Ray, PostgreSQL, an object store."""

from collections.abc import Iterator

import pytest
from servers.object_store import ObjectStore, moto_store
from servers.postgres import Postgres, running_postgres
from servers.ray_cluster import RayCluster, running_cluster


@pytest.fixture
def ray_cluster() -> Iterator[RayCluster]:
    """Three nodes with a core each, so that a model with three workers has one on each node."""
    pytest.importorskip("ray")
    with running_cluster(nodes=3, cpus=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    pytest.importorskip("psycopg2")
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def radosgw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Ceph's gateway."""
    pytest.importorskip("obstore")
    from servers.radosgw import radosgw_store

    with radosgw_store(tmp_path_factory.mktemp("radosgw")) as store:
        yield store


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    with moto_store(tmp_path_factory.mktemp("moto")) as store:
        yield store
