"""A server that the tests of a file share."""

from collections.abc import Iterator

import pytest
from servers.stub import Stub, stub_server


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    with stub_server(tmp_path_factory.mktemp("stub")) as stub:
        yield stub
