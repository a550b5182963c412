"""The commands `verify`, `gc` and `upload`: the files of a home are checked, deleted, or moved to an object store."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from eval_dagster.cli.console import errors, out, print_next, print_table, say
from eval_dagster.cli.old_runs import stored_runs
from eval_dagster.config.values import LAKE_URLS, LAKE_VARIABLE, wrong_lake_url
from eval_dagster.errors import LakeError, StoreError, TrackingError, UsageError
from eval_dagster.lake.catalog.verification import Verifiable, Verified, verifiable, verify
from eval_dagster.lake.files import trial_lake
from eval_dagster.lake.remote.mirror import upload
from eval_dagster.models.transformers.weights.gguf import converted_folders, damage
from eval_dagster.named_runs import NamedRuns, named_runs
from eval_dagster.progress.bars import RichReporter
from eval_dagster.progress.reporting import LogReporter, use_reporter
from eval_dagster.project import Project, default_config_path, default_home
from eval_dagster.retention import CACHE, TRIALS, Keep, Policy, Prunable, Reason, plan, prune
from eval_dagster.texts.figures import counted, file_size

_VERIFIED_COLUMNS = ("files of", "files", "size", "damaged")
_COLUMNS = ("what", "files", "size", "oldest", "newest", "")
_NUMBERS = ("files", "size")
_REMARKS = {
    CACHE: "of model versions that nothing uses; would have to be computed again",
    TRIALS: "results of `run --limit`; their answers stay in the response cache",
    "metrics": "past results, with what they were computed from",
    "regressions": "past judgements",
    "catalogs": "states of past days",
    "nights": "past nights that were queried here",
    "pages": "pages of samples",
}
_KEPT_COLUMNS = ("files", "size", "why they stay")
_WHY = {
    Reason.CURRENT: "current results and judgements, what they were computed from, answers of the models of evals.yaml",
    Reason.KEEP: "kept by --keep {keep}, with what they were computed from",
    Reason.LAST_DAY: "always spared: written or current in the last 24 hours, since a run may be using them",
    Reason.COMPARED: "always spared: what these are compared with: previous states, baselines of suites",
    Reason.CATALOG: "always spared: named by kept catalogs of past days; --catalogs 7d keeps fewer of those",
}


def verify_home() -> None:
    """Compare all files with their checksums, and print their number and the damaged ones; exit status 1 if a file is damaged."""
    project = Project.open()

    def check_converted(path: Path) -> None:
        if reason := damage(path.parent):
            raise LakeError(f"{reason}; delete the folder, or run the model: that converts its GGUF file again")

    files = list(verifiable([project.lake, trial_lake(project.lake)]))
    for folder in converted_folders(project.home):  # each counts by its largest file, and all of its files are compared
        if within := [path for path in folder.iterdir() if path.is_file()]:
            largest = max(within, key=lambda path: path.stat().st_size)
            files.append(Verifiable(what="converted models", path=largest, check=check_converted))
    if not files:
        out.print("There is nothing to verify: nothing has been evaluated here yet.")
        return
    with RichReporter(errors).track("verify", total=len(files), unit="files") as advance:
        found = verify(files, advance)
    by_kind: dict[str, list[Verified]] = defaultdict(list)
    for each in found:
        by_kind[each.what].append(each)
    rows = [(kind, len(each), _size(each), sum(file.damage is not None for file in each)) for kind, each in by_kind.items()]
    print_table("Verified", _VERIFIED_COLUMNS, rows, right=_VERIFIED_COLUMNS[1:])
    damaged = [each.damage for each in found if each.damage is not None]
    for message in damaged:
        say(errors, "damaged", message, style="red")
    if damaged:
        out.print(f"{len(damaged)} of {len(found)} files are damaged. Those that hold current results are left out of all tables.")
        print_next(("run", "makes anew what was deleted"))
        raise typer.Exit(1)
    out.print(f"All {len(found)} files are sound.")


def collect(
    *,
    keep: Annotated[str, typer.Option(metavar="90d|10", help="Keep the last 90 days (90d), or the newest 10 of each partition (10).")],
    catalogs: Annotated[
        str | None, typer.Option(metavar="90d|10", help="The same for the catalogs of past days (0: none); by default as --keep.")
    ] = None,
    removed: Annotated[
        bool, typer.Option("--removed", help="Also delete all files of evals, models and suites outside evals.yaml.")
    ] = False,
    stores: Annotated[
        bool, typer.Option("--stores", help="Also delete the runs of such results in Dagster and MLflow, with events, logs and artifacts.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete the files instead of only listing them.")] = False,
) -> None:
    """Print what can be deleted and why the rest stays. Delete it if `yes` is set."""
    of_lake = Keep.parse(keep, what="--keep")
    policy = Policy(keep=of_lake, catalogs=Keep.parse(catalogs, what="--catalogs", least=0) if catalogs else of_lake, removed=removed)
    project = Project.open()
    before = named_runs(project.lake) if stores else NamedRuns()
    found = prune(project, policy) if yes else plan(project, policy)
    rows = []
    for what, group in groupby(found.files, key=lambda each: each.what):
        files = list(group)
        times = [each.time for each in files]
        ends = (f"{min(times):%Y-%m-%d}", f"{max(times):%Y-%m-%d}")
        rows.append((what, str(len(files)), _size(files), *ends, _REMARKS.get(what, "")))
    notes, amounts, rest = list(found.notes), [f"{counted(len(found.files), 'file')}, {_size(found.files)}"], ""
    problem: StoreError | TrackingError | None = None
    if stores:
        try:
            with stored_runs(project, of_lake, before=before, found=found, tolerant=not yes) as old:
                notes += [*old.notes, *(old.delete() if yes else [])]
                rows += old.rows
                amounts += [old.amount] if old.amount else []
                rest = old.kept
        except (StoreError, TrackingError) as error:  # after what was deleted is printed
            problem = error
    if rows:
        print_table("Deleted" if yes else "Could be deleted", _COLUMNS, rows, right=_NUMBERS)
    kept = [(len(files), _size(files), _WHY[reason].format(keep=keep)) for reason, files in found.kept.items()]
    if kept:
        print_table("Kept", _KEPT_COLUMNS, kept, right=_NUMBERS)
    if rest:
        out.print(rest)
    for note in notes:
        say(errors, "warning", note, style="yellow")
    if problem is not None:
        raise type(problem)(f"not all runs were deleted: {problem}; run the command again") from problem
    amount = "; ".join(amounts)
    if not rows and not found.kept:
        out.print("There is nothing to delete: nothing has been evaluated here yet.")
        print_next(("run", "evaluate what evals.yaml has"))
    elif not rows:
        out.print("There is nothing to delete.")
        print_next(("sql score_history", "what the lake keeps"))
    elif yes:
        out.print(f"Deleted: {amount}.")
        print_next(("sql score_history", "what the lake still keeps"))
    else:
        chosen = [
            f" --keep {keep}",
            f" --catalogs {catalogs}" if catalogs else "",
            " --removed" if removed else "",
            " --stores" if stores else "",
        ]
        out.print(f"Nothing was deleted. It would be: {amount}.")
        print_next((f"gc{''.join(chosen)} --yes", "delete them"))


def _size(files: Sequence[Prunable | Verified]) -> str:
    return file_size(sum(each.size for each in files))


def upload_home(
    url: Annotated[str, typer.Argument(metavar="URL", help="The new place of the lake, s3://bucket/prefix for instance.")],
) -> None:
    """Put all files of the home's lake into the store at a URL, and make the home its mirror."""
    if (reason := wrong_lake_url(url)) is not None:  # not repeated in the message, since it can hold a secret
        raise UsageError(f"the URL is wrong: {reason}; expected {LAKE_URLS}")
    root = default_home(default_config_path()).resolve() / "lake"
    if not root.is_dir():
        raise UsageError(f"there are no results to upload: {root} does not exist; name the lake in evals.yaml (`lake: {url}`) and run")
    with use_reporter(LogReporter(lambda line: errors.print(line, style="dim", soft_wrap=True))):
        upload(root, url)
    out.print(f"The lake is {url} now, and {root} mirrors it.", soft_wrap=True)
    out.print(f"Name it in evals.yaml, or in {LAKE_VARIABLE}: `lake: {url}`", soft_wrap=True)
    print_next(("leaderboard", "reads it"))
