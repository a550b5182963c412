"""An object store for the tests of a lake at a URL, and homes of machines that share it."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from servers.object_store import ObjectStore, moto_store

from eval_dagster.lake.files import Lake
from eval_dagster.lake.remote.mirror import mirror_lake

_numbers = count()


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    pytest.importorskip("obstore", reason="object storage is not installed: pip install 'eval_dagster[s3]'")
    with moto_store(tmp_path_factory.mktemp("moto")) as store:
        yield store


@pytest.fixture
def store(moto: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The store, whose address and credentials are in the environment."""
    for name, value in moto.variables.items():
        monkeypatch.setenv(name, value)
    return moto


@pytest.fixture
def url(store: ObjectStore) -> str:
    """The URL of an empty lake."""
    return store.url(f"lake-{next(_numbers)}")


@pytest.fixture
def machine(url: str, tmp_path: Path) -> Callable[[str], Lake]:
    """The lake as the machine of a name has it."""

    def opened(name: str) -> Lake:
        mirror_lake(tmp_path / name / "lake", url)
        return Lake(tmp_path / name)

    return opened
