"""The results of a home move to an object store, and none is lost on the way."""

from pathlib import Path

import pytest
from shared_writes import add_answers, names_of, write_results

from eval_dagster.errors import UsageError
from eval_dagster.lake.answers.responses import Journal, ResponseCache
from eval_dagster.lake.files import Lake
from eval_dagster.lake.remote import mirror
from eval_dagster.stores.locks import locked


def test_a_home_moves_to_an_object_store(url: str, tmp_path: Path) -> None:
    root = tmp_path / "here" / "lake"
    lake = Lake(tmp_path / "here")
    list(write_results(lake, "a", 2))
    add_answers(ResponseCache(lake, "v1"), "a")
    journal = Journal(ResponseCache(lake, "v1").folder, "left")
    journal.add([{"request_id": "b"}])
    journal.close()
    before = names_of(lake)
    with pytest.raises(UsageError, match=r"holds the results of this home; move them there by `eval-dagster upload s3://"):
        mirror.mirror_lake(root, url)
    mirror.upload(root, url)
    mirror.mirror_lake(root, url)
    assert names_of(Lake(tmp_path / "here")) == before
    mirror.mirror_lake(tmp_path / "there" / "lake", url)
    there = Lake(tmp_path / "there")
    there.pull(everything=True)
    assert names_of(there) == before
    assert ResponseCache(Lake(tmp_path / "here"), "v1").find({"a", "b"}).keys() == {"a", "b"}, "journals stay"
    with pytest.raises(UsageError, match=r"mirrors the lake s3://.*, but evals.yaml names no lake"):
        mirror.mirror_lake(root, None)


def test_a_home_with_a_run_at_work_does_not_move(url: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    list(write_results(lake, "a", 1))
    before = names_of(lake)
    run = tmp_path / "locks" / "runs" / "12345678"
    with locked(run), pytest.raises(UsageError, match="is at work; upload when it has ended"):
        mirror.upload(lake.root, url)
    assert (names_of(lake), mirror.mirrored_url(lake.root)) == (before, None)
    assert run.exists()
    mirror.upload(lake.root, url)
    assert mirror.mirrored_url(lake.root) == url


def test_a_move_that_was_killed_goes_on(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, lake = tmp_path / "lake", Lake(tmp_path)
    list(write_results(lake, "a", 2))
    before = names_of(lake)

    def killed(root: Path, url: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mirror, "note_mirror", killed)
        with pytest.raises(KeyboardInterrupt):
            mirror.upload(root, url)
    with pytest.raises(UsageError, match="end that first: eval-dagster upload"):
        mirror.mirror_lake(root, None)
    mirror.upload(root, url)
    assert names_of(Lake(tmp_path)) == before
