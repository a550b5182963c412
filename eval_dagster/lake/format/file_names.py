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
    """Whether it is a name that `new_name` gives. Files with other names are not of the lake."""
    return _NAME.fullmatch(name) is not None


def new_name(run_id: str, time: datetime | None = None) -> str:
    """A file name that sorts by time and is used once."""
    return f"{(time or datetime.now(UTC)).strftime(_STAMP)}-{run_id[:8]}-{secrets.token_hex(4)}.parquet"


def table_name(path: Path) -> str:
    """The table of a file: its innermost folder that is not a partition."""
    return next((part for part in reversed(path.parent.parts) if "=" not in part), "")


def lake_name(path: Path) -> str:
    """The name of a file relative to its lake: from its table on."""
    parts = path.parts
    first = next((index for index in range(len(parts) - 2, -1, -1) if "=" not in parts[index]), len(parts) - 1)
    return "/".join(parts[first:])


def time_of(path: Path) -> datetime:
    """When a file of the lake was materialized, by its name; UTC."""
    day, _, clock = path.name.partition("Z-")[0].partition("T")
    return datetime.fromisoformat(f"{day}T{clock[:6]}.{clock[6:]:0<6}+00:00")  # a tenth of the time of `strptime`


def is_listed(path: Path) -> bool:
    """Whether a folder has an entry of this name, also one that cannot be read, which `Path.exists` takes for none."""
    return os.path.lexists(path)


def unlisted_folder(folder: Path, fault: OSError) -> str:
    """The message about a folder of the lake whose files are unknown."""
    return (
        f"the lake folder {folder} cannot be listed ({fault.strerror}), and its files are left out; expected a folder that this user can "
        "read: restore it, or make it readable, check the disk that it is on, and try again"
    )


def parquet_files(folder: Path) -> list[Path]:
    """The lake's files in a folder, the oldest first; nothing where there is no such folder. Raises `LakeError` if it cannot be listed."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - one syscall for thousands of names
    except (FileNotFoundError, ValueError):  # the last for names that no folder can have
        return []
    except OSError as error:
        raise LakeError(unlisted_folder(folder, error)) from error
    return [folder / name for name in sorted(names) if _NAME.fullmatch(name)]
