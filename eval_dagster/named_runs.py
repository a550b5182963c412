"""The runs of Dagster and MLflow that the files of a lake name, and the runs of MLflow that none of them names any more."""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.scanning import IndexedLake
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import unlisted_folder
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.retention import GRACE
from eval_dagster.tracking.logged_runs import LoggedRun

_PREFIX = 8
"""Characters of a run's id in the names of its files."""
_MERGED = ("attempts", "notices", "endpoint_states", "checkpoints", "human_labels", "night_plans", "history_looks")
"""Tables of events: no result is made of them."""


@dataclass(kw_only=True)
class NamedRuns:
    """The runs that files name."""

    prefixes: set[str] = field(default_factory=set)
    """The beginnings of the ids of the runs that made the files. A damaged file has one, too: its name has it."""
    run_ids: set[str] = field(default_factory=set)
    """Their ids, but for damaged files."""
    mlflow: set[str] = field(default_factory=set)
    """Ids of MLflow's runs."""
    unread: set[tuple[str, str]] = field(default_factory=set)
    """Evals and models with damaged metrics, which may name any of MLflow's runs of theirs."""

    def has(self, run_id: str) -> bool:
        """Whether a file was made by a run. True for a few others, too."""
        return run_id[:_PREFIX] in self.prefixes


def named_runs(lake: Lake, *, without: Collection[Path] = ()) -> NamedRuns:
    """The runs that the files of a lake name. The files in `without` count as deleted.

    Raises:
        LakeError: A folder cannot be listed. The runs of its files would count as named by none.
    """
    found, going = NamedRuns(), frozenset(without)
    indexed = IndexedLake(lake)
    for table in TABLES:
        _require_listed(lake.root / table)
        for path in (path for partition in indexed.partitions(table) for path in partition if path not in going):
            if table in _MERGED:
                break
            found.prefixes.add(path.name.partition("Z-")[2][:_PREFIX])
            try:
                info = indexed.info(path)
            except LakeError:
                if table == "metrics":
                    found.unread.add((path.parent.parent.name.removeprefix("eval="), path.parent.name.removeprefix("model=")))
                continue
            found.run_ids.add(info.run_id)
            if "mlflow_run" in info.inputs:
                found.mlflow.add(info.inputs["mlflow_run"])
    return found


def _require_listed(folder: Path) -> None:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - as in `parquet_files`
    except FileNotFoundError:
        return
    except OSError as error:
        raise LakeError(f"{unlisted_folder(folder, error)}. Until then no run is deleted, since its files name some") from error
    for name in names:
        if "=" in name:  # a partition
            _require_listed(folder / name)


def unnamed(logged: Iterable[LoggedRun], named: NamedRuns, *, made_here: Collection[str] | None, now: datetime) -> list[LoggedRun]:
    """The runs of MLflow whose result or judgement is in no file.

    Runs of the last day stay, since the file that names one may be written after it.

    Args:
        logged: The runs of this package in the experiment.
        named: The runs that the remaining files name.
        made_here: The ids of the runs that belong to the home, if others may log to the same experiment. None if nobody else does.
        now: The time.
    """
    return [
        run
        for run in logged
        if not (
            named.has(run.dagster_run_id) if run.is_report else run.run_id in named.mlflow or (run.eval_name, run.model) in named.unread
        )
        and run.time < now - GRACE
        and (made_here is None or run.dagster_run_id in made_here)
    ]
