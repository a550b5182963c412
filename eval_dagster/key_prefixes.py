"""The prefix of the names in Dagster that a code location gives to a project, kept in the home."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from eval_dagster.stores.whole_files import replaced


def keep_key_prefix(home: Path, prefix: Sequence[str] | None) -> None:
    """Keep the prefix that a code location gives to the names of a project, so that commands use the same names in Dagster.

    None if the code location uses the prefix in evals.yaml.
    """
    path = _key_prefix_file(home)
    if kept_key_prefix(home) == (None if prefix is None else tuple(prefix)):
        return
    with suppress(OSError):  # a home that cannot be written to has no commands either
        if prefix is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as temporary:
            temporary.write_text(json.dumps({"key_prefix": list(prefix)}), "utf-8")


def kept_key_prefix(home: Path) -> tuple[str, ...] | None:
    """The prefix that `keep_key_prefix` kept. None without one."""
    try:
        return tuple(json.loads(_key_prefix_file(home).read_text("utf-8"))["key_prefix"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _key_prefix_file(home: Path) -> Path:
    return home / "dagster_names.json"
