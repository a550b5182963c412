"""Checks an object store before anything is computed: it is there, this machine may write, conditions are honoured, the clock is right."""

from datetime import UTC, datetime, timedelta

from eval_dagster.errors import UsageError
from eval_dagster.lake.remote.store import Store

_FOLDER = ".eval_dagster"
_MARK = f"{_FOLDER}/probe"
_CONTENT = b"eval-dagster writes this object to see whether the store refuses a second one of the same name.\n"
_LARGEST_SKEW = timedelta(minutes=1)
"""Files are named by the clock of the machine that writes them."""


def probe(store: Store) -> None:
    """Check that a store can hold a lake.

    The object of the probe stays in the store, so that a later probe is one refused write.

    Raises:
        UsageError: It cannot. The message names what was seen, and what to do.
        LakeUnreachableError: It does not answer for some time.
    """
    if store.put_new(_MARK, _CONTENT) and store.put_new(_MARK, _CONTENT):
        raise UsageError(
            f"the lake {store.url}: the server ignores the condition of a write (If-None-Match: *): it wrote an object twice, and two "
            "machines could overwrite each other's files; use a store that honours conditional writes: S3, GCS, Azure, Ceph or MinIO"
        )
    written = store.replace(f"{_FOLDER}/clock", b"").modified
    skew = datetime.now(UTC) - written
    if abs(skew) > _LARGEST_SKEW:
        raise UsageError(
            f"the lake {store.url}: the clock of this machine is {abs(skew).total_seconds():.0f} s "
            f"{'ahead of' if skew > timedelta() else 'behind'} that of the server; expected at most {_LARGEST_SKEW.total_seconds():.0f} s: "
            "set it, for instance by NTP, and try again"
        )


def was_probed(store: Store) -> bool:
    """Whether the object of an earlier probe is in a store: one that was emptied, or a disk that is not mounted, has none."""
    return _MARK in store.list(_FOLDER)
