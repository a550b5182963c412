"""Names of a lake's files in a store: which are files, which are the newest, and in which order their folders are listed."""

from collections.abc import Collection, Iterable

_FILE = ".parquet"
_DOWNSTREAM_FIRST = (
    *(("notices", "acceptances", "human_labels"), ("regressions",), ("sample_changes", "looks", "confirmations")),
    *(("metrics",), ("scores",), ("responses",), ("prompts",), ("samples", "attempts", "endpoint_states")),
)
"""The tables, in groups. Files of a group name files of later groups, which are written before them."""


def is_file(name: str) -> bool:
    """Whether a name is that of a whole file of a lake."""
    return name.endswith(_FILE) and not name.rpartition("/")[2].startswith(".")


def is_inside(name: str) -> bool:
    """Whether a name that a file gives is that of a file in the lake."""
    parts = name.split("/")
    return is_file(name) and not {"", ".", ".."} & set(parts)


def downstream_first(folders: Iterable[str]) -> list[list[str]]:
    """Folders of tables in groups, each before those whose files its own files name."""
    order = {table: number for number, tables in enumerate(_DOWNSTREAM_FIRST) for table in tables}
    groups: list[list[str]] = [[] for _ in range(len(_DOWNSTREAM_FIRST) + 1)]
    for folder in folders:
        groups[order.get(folder.partition("/")[0], len(_DOWNSTREAM_FIRST))].append(folder)
    return groups


def newest(names: Iterable[str], tables: Collection[str]) -> list[str]:
    """Without the older files of the partitions of some tables."""
    last: dict[str, str] = {}
    kept: list[str] = []
    for name in names:
        if name.partition("/")[0] in tables:
            partition = name.rpartition("/")[0]
            last[partition] = max(name, last.get(partition, ""))
        else:
            kept.append(name)
    return kept + list(last.values())
