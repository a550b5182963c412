"""Hashes of large files, computed once: a restart does not read gigabytes again."""

import json
import time
from contextlib import suppress
from pathlib import Path

from eval_dagster.stores.whole_files import replaced
from eval_dagster.versions.hashes import file_hash

_SETTLED_S = 2.0
"""A file changed more recently than this is hashed again next time: a second write may fall into the same tick of its clock."""


class Digests:
    """File hashes remembered in a JSON file, keyed by path, size and times of change.

    A process that writes at the same time as another may lose entries; they are computed again.
    """

    def __init__(self, file: Path):
        self._file = file
        self._known = self._read()

    def of(self, path: Path) -> str:
        """Hash of a file's content."""
        stat = path.stat()
        # A copy that preserves the time of modification still gets a new time of change.
        key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}"
        if key in self._known:
            return self._known[key]
        digest = file_hash(path)
        if time.time() - max(stat.st_mtime, stat.st_ctime) > _SETTLED_S:
            self._remember(key, digest)
        return digest

    def _read(self) -> dict[str, str]:
        # A damaged file costs time only, never a wrong hash: it is written again.
        with suppress(OSError, ValueError, AttributeError):
            return {str(key): str(value) for key, value in json.loads(self._file.read_text("utf-8")).items()}
        return {}

    def _remember(self, key: str, digest: str) -> None:
        self._known = {**self._read(), **self._known, key: digest}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(self._file) as made:
            made.write_text(json.dumps(self._known, indent=1, sort_keys=True), "utf-8")
