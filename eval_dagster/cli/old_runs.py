"""The runs of Dagster and MLflow that `gc --stores` deletes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from eval_dagster.cli.console import errors
from eval_dagster.errors import StoreError, TrackingError
from eval_dagster.named_runs import NamedRuns, named_runs, unnamed
from eval_dagster.progress.bars import RichReporter
from eval_dagster.project import Project
from eval_dagster.retention import Keep, Pruning, Reason
from eval_dagster.stores.sqlite_files import shrink
from eval_dagster.texts.figures import counted, file_size
from eval_dagster.tracking.logged_runs import LoggedRun

if TYPE_CHECKING:
    import dagster as dg

    from eval_dagster.assets.instance.old_runs import OldRuns


@dataclass(frozen=True, kw_only=True)
class StoredRuns:
    """The old runs of a home in its stores."""

    project: Project
    instance: "dg.DagsterInstance | None"
    """Open as long as the block of `stored_runs`. None if the home has none, or it cannot be used."""
    dagster: "OldRuns | None"
    mlflow: Sequence[LoggedRun]
    mlflow_kept: int
    """Number of MLflow's runs of results and reports that stay."""
    notes: Sequence[str]
    """Warnings about stores that cannot be read."""

    @property
    def rows(self) -> list[tuple[str, str, str, str, str, str]]:
        """What can be deleted, as rows of the table of the command."""
        found = []
        if self.dagster and self.dagster.runs:
            runs = self.dagster.runs
            days = f"{runs[0].time:%Y-%m-%d}", f"{runs[-1].time:%Y-%m-%d}"
            found.append(("Dagster runs", str(len(runs)), file_size(self._dagster_size), *days, "with their events and logs"))
        if self.dagster and (observations := max(map(len, self.dagster.observations.values()), default=0)):
            found.append(("definitions", str(observations), "", "", "", "their observations in Dagster that newer ones replace"))
        if self.mlflow:
            times = [run.time for run in self.mlflow]
            days = f"{min(times):%Y-%m-%d}", f"{max(times):%Y-%m-%d}"
            found.append(("MLflow runs", str(len(self.mlflow)), file_size(self._mlflow_size), *days, "with their artifacts"))
        return found

    @property
    def amount(self) -> str:
        """What can be deleted, in words. Empty for nothing."""
        runs = [
            *([f"{counted(len(self.dagster.runs), 'run')} of Dagster"] if self.dagster and self.dagster.runs else []),
            *([f"{counted(len(self.mlflow), 'run')} of MLflow"] if self.mlflow else []),
        ]
        return f"{' and '.join(runs)}, {file_size(self._dagster_size + self._mlflow_size)}" if runs else ""

    @property
    def kept(self) -> str:
        """What stays, in words. Empty for nothing."""
        dagster = self.dagster.kept if self.dagster else 0
        runs = [*([f"{dagster} of Dagster"] if dagster else []), *([f"{self.mlflow_kept} of MLflow"] if self.mlflow_kept else [])]
        why = "new ones, and the runs that made results that stay, or show the current state of assets"
        return f"Runs that stay: {' and '.join(runs)}: {why}." if runs else ""

    @property
    def _dagster_size(self) -> int:
        return sum(run.size for run in self.dagster.runs) if self.dagster else 0

    @property
    def _mlflow_size(self) -> int:
        """Bytes of the artifacts, and of the runs' share of the home's own store."""
        file = self.project.tracker.own_file
        total = len(self.mlflow) + self.mlflow_kept
        share = file.stat().st_size * len(self.mlflow) // total if file is not None and total else 0
        return share + sum(run.size for run in self.mlflow)

    def delete(self) -> list[str]:
        """Delete the runs. It may be repeated after a killed process. Returns what could not be done, with reasons.

        MLflow's go first: where other projects log to the same experiment, Dagster's runs tell which ones are of this home.

        Raises:
            StoreError: Dagster's storage fails.
            TrackingError: MLflow cannot be reached. Dagster's runs stay.
        """
        remarks: list[str] = []
        tracker = self.project.tracker
        if self.mlflow:
            deleted = 0
            with RichReporter(errors).track("delete MLflow runs", total=len(self.mlflow), unit="runs") as advance:
                for run in self.mlflow:
                    deleted += tracker.delete(run)
                    advance(1)
            if stay := len(self.mlflow) - deleted:
                remarks.append(f"{counted(stay, 'run')} of MLflow stay: new results got them meanwhile")
        if self.mlflow and tracker.is_server:
            remarks.append(
                f"the runs are marked as deleted in MLflow at {tracker.shown_uri}, as a server has no call that removes them for good; "
                "`mlflow gc` does where its database is"
            )
        if self.mlflow and tracker.own_file is not None and (reason := shrink(tracker.own_file)):
            remarks.append(reason)
        if self.instance is not None and self.dagster is not None:
            from eval_dagster.assets.instance.old_runs import delete_old_runs

            remarks += delete_old_runs(self.instance, self.dagster)
        return remarks


@contextmanager
def stored_runs(
    project: Project, keep: Keep, *, before: NamedRuns, found: Pruning, tolerant: bool, now: datetime | None = None
) -> Iterator[StoredRuns]:
    """Determine which runs can be deleted. Nothing is changed, and no store is created.

    A judgement that only a kept catalog names keeps no run: each catalog names all judgements before it.

    Args:
        project: The project.
        keep: The states to keep.
        before: The runs that files named before any was deleted.
        found: The files that are deleted, or could be.
        tolerant: Whether a store that cannot be used is a note and not an error.
        now: The time that ages are relative to.

    Raises:
        StoreError: Dagster's storage cannot be used.
        TrackingError: MLflow cannot be reached.
    """
    # Imported lazily: Dagster takes a second.
    from eval_dagster.assets.instance.instance import has_instance, open_instance
    from eval_dagster.assets.instance.old_runs import find_old_runs

    of_catalogs = [each for each in found.kept.get(Reason.CATALOG, ()) if each.what != "metrics"]
    named = named_runs(project.lake, without=[each.path for each in (*found.files, *of_catalogs)])
    now, notes = now or datetime.now(UTC), list[str]()
    with ExitStack() as stack:
        instance = dagster = None
        try:
            if has_instance(project.home):
                instance = stack.enter_context(open_instance(project.home))
                dagster = find_old_runs(instance, project, keep, named, now)
        except (StoreError, OSError) as error:  # for instance in a home that this user may only read
            if not tolerant:
                raise
            instance = dagster = None
            notes.append(f"Dagster's runs stay: {error}")
        logged: list[LoggedRun] = []
        tracker = project.tracker
        try:
            logged = tracker.logged()
        except TrackingError as error:
            if not tolerant:
                raise
            notes.append(f"MLflow's runs stay: {error}")
        of_home = None if tracker.own_file else before.run_ids | (dagster.run_ids if dagster else set())
        going = unnamed(logged, named, made_here=of_home, now=now)
        yield StoredRuns(
            project=project, instance=instance, dagster=dagster, mlflow=going, mlflow_kept=len(logged) - len(going), notes=notes
        )
