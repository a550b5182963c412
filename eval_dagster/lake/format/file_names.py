"""Names of the lake's files: they sort by time, and each is used once."""

import os
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

from eval_dagster.errors import LakeError

_STAMP = "%Y%m%dT%H%M%S%fZ"
_NAME = re.compile(r"\d{8}T\d{7,12}Z-[^/]*\.parquet", re.ASCII)


def is_name(name: str) -> bool:
    """Whether `new_name` makes such names. Files with other names do not belong to the lake."""
    return _NAME.fullmatch(name) is not None


def new_name(run_id: str, time: datetime | None = None) -> str:
    """A file name that sorts by time and is used once."""
    return f"{(time or datetime.now(UTC)).strftime(_STAMP)}-{run_id[:8]}-{secrets.token_hex(4)}.parquet"


def table_name(path: Path) -> str:
    """The table of a file: its innermost folder that is not a partition."""
    return next((part for part in reversed(path.parent.parts) if "=" not in part), "")


def lake_name(path: Path) -> str:
    """The name of a file relative to its lake, starting with its table."""
    parts = path.parts
    first = next((index for index in range(len(parts) - 2, -1, -1) if "=" not in parts[index]), len(parts) - 1)
    return "/".join(parts[first:])


def time_of(path: Path) -> datetime:
    """The time at which a lake file was materialized, from its name; UTC."""
    day, _, clock = path.name.partition("Z-")[0].partition("T")
    return datetime.fromisoformat(f"{day}T{clock[:6]}.{clock[6:]:0<6}+00:00")  # a tenth of the time of `strptime`


def is_listed(path: Path) -> bool:
    """Whether a folder has an entry of this name. Includes unreadable entries, which `Path.exists` misses."""
    return os.path.lexists(path)


def unlisted_folder(folder: Path, fault: OSError) -> str:
    """The message for a lake folder whose files are unknown."""
    return (
        f"the lake folder {folder} cannot be listed ({fault.strerror}), and its files are left out; expected a folder that this user can "
        "read: restore it, or make it readable, check the disk that it is on, and try again"
    )


def parquet_files(folder: Path) -> list[Path]:
    """The lake's files in a folder, the oldest first; empty if it does not exist. Raises `LakeError` if it cannot be listed."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - one syscall for thousands of names
    except (FileNotFoundError, ValueError):  # ValueError: the name is not valid for a folder
        return []
    except OSError as error:
        raise LakeError(unlisted_folder(folder, error)) from error
    return [folder / name for name in sorted(names) if _NAME.fullmatch(name)]
