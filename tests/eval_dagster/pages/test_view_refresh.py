"""The pages of a shared lake show what other machines add, without a restart."""

import re
import threading
import time
from pathlib import Path

import pytest
from view_home import Home

from eval_dagster.errors import LakeUnreachableError
from eval_dagster.lake.catalog import catalog
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake
from eval_dagster.lake.remote.mirror import mirror_lake, reading_home
from eval_dagster.pages.server.application import Refresher


@pytest.fixture
def there(tmp_path: Path) -> Home:
    """Another machine that writes to a lake on a shared disk."""
    (tmp_path / "disk").mkdir()
    mirror_lake(tmp_path / "there" / "lake", f"file://{tmp_path}/disk")
    home = Home(tmp_path / "there")
    home.write({"own": [0.0, 1.0]}, model="first")
    return home


@pytest.fixture
def copy(there: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the copy of that lake, as `view --lake URL` reads it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = reading_home(f"file://{tmp_path}/disk")
    publish(Lake(home))
    return home


def _until_idle(refresher: Refresher) -> None:
    assert refresher._thread is not None
    refresher._thread.join(60)
    assert not refresher._thread.is_alive()


@pytest.mark.long
def test_a_page_shows_what_another_machine_added(there: Home, copy: Path) -> None:
    refresher = Refresher(Lake(copy), every_s=0)
    here = Home(copy, refresher)
    assert "second" not in here.get("/")
    _until_idle(refresher)
    there.write({"own": [1.0, 1.0]}, model="second")
    before = here.get("/")
    assert "second" not in before, "the page that wakes it does not wait"
    _until_idle(refresher)
    after = here.get("/")
    assert "second" in after
    times = [re.search(r"Results of the shared lake, fetched at (\S+ \S+) UTC\.", text) for text in (before, after)]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0][1] <= times[1][1]
    _until_idle(refresher)
    here.reader.close()


@pytest.mark.long
def test_a_failure_is_a_line_in_the_footer(there: Home, copy: Path, tmp_path: Path) -> None:
    refresher = Refresher(Lake(copy), every_s=0)
    here = Home(copy, refresher)
    disk = tmp_path / "disk"
    disk.rename(tmp_path / "unmounted")
    assert "could not be fetched" not in here.get("/")
    _until_idle(refresher)
    text = here.get("/")
    assert "first" in text
    assert re.search(r"fetched at \S+ \S+ UTC\. Newer ones could not be fetched: \S", text)
    _until_idle(refresher)
    (tmp_path / "unmounted").rename(disk)
    here.get("/")
    _until_idle(refresher)
    assert "could not be fetched" not in here.get("/")
    _until_idle(refresher)
    here.reader.close()


@pytest.mark.long
def test_a_slow_store_stops_no_page_and_is_asked_once(copy: Path) -> None:
    asked, go_on = [], threading.Event()

    def slow(lake: Lake) -> bool:
        asked.append(lake)
        go_on.wait(60)
        raise LakeUnreachableError("the store does not <b>answer</b>")

    refresher = Refresher(Lake(copy), fetch=slow, every_s=0)
    here = Home(copy, refresher)
    for _ in range(3):
        assert "first" in here.get("/")
    assert len(asked) == 1
    go_on.set()
    _until_idle(refresher)
    assert "the store does not &lt;b&gt;answer&lt;/b&gt;" in here.get("/")
    _until_idle(refresher)
    here.reader.close()


@pytest.mark.long
def test_a_copy_that_cannot_be_written_is_not_called_fetched(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr(catalog, "publish", refuse)
    refresher = Refresher(Lake(copy), every_s=0)
    before = refresher.footer()
    time.sleep(1.1)
    refresher.wake()
    _until_idle(refresher)
    assert refresher.footer() == f"{before} Newer ones could not be fetched: {copy} cannot be written"


@pytest.mark.long
def test_a_recent_fetch_is_not_repeated(copy: Path) -> None:
    asked: list[Lake] = []
    refresher = Refresher(Lake(copy), fetch=lambda lake: asked.append(lake) is None, every_s=0.5)
    refresher.wake()
    assert asked == []
    time.sleep(0.6)
    refresher.wake()
    refresher.close()
    refresher.wake()
    assert len(asked) == 1


def test_a_lake_of_this_machine_is_not_fetched(tmp_path: Path) -> None:
    asked: list[Lake] = []
    home = Home(tmp_path / "home")
    home.write({"own": [0.0, 1.0]})
    refresher = Refresher(home.lake, fetch=lambda lake: asked.append(lake) is None, every_s=0)
    assert refresher.footer() is None
    text = Home(tmp_path / "home", refresher).get("/")
    assert "Results of the shared lake" not in text
    assert asked == []
