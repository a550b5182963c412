"""The command that deletes old results."""

from collections.abc import Sequence
from itertools import groupby

from eval_dagster.cli.console import errors, out, print_next, print_table, say
from eval_dagster.project import Project
from eval_dagster.retention import CACHE, TRIALS, Keep, Policy, Prunable, Pruning, Reason, plan, prune
from eval_dagster.texts.figures import counted, file_size

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


def collect(*, keep: str, catalogs: str | None, removed: bool, yes: bool) -> None:
    """Print what can be deleted and why the rest stays. Delete it if `yes` is set."""
    of_lake = Keep.parse(keep, what="--keep")
    policy = Policy(keep=of_lake, catalogs=Keep.parse(catalogs, what="--catalogs", least=0) if catalogs else of_lake, removed=removed)
    project = Project.open()
    found = prune(project, policy) if yes else plan(project, policy)
    _print(found, yes=yes)
    kept = [(len(files), _size(files), _WHY[reason].format(keep=keep)) for reason, files in found.kept.items()]
    if kept:
        print_table("Kept", _KEPT_COLUMNS, kept, right=_NUMBERS)
    for note in found.notes:
        say(errors, "warning", note, style="yellow")
    if not found.files and not found.kept:
        out.print("There is nothing to delete: nothing has been evaluated here yet.")
        print_next(("run", "evaluate what evals.yaml has"))
    elif not found.files:
        out.print("There is nothing to delete.")
        print_next(("sql score_history", "what the lake keeps"))
    elif yes:
        out.print(f"Deleted: {_files(found.files)}.")
        print_next(("sql score_history", "what the lake still keeps"))
    else:
        options = "".join([f" --keep {keep}", f" --catalogs {catalogs}" if catalogs else "", " --removed" if removed else ""])
        out.print(f"Nothing was deleted. It would be: {_files(found.files)}.")
        print_next((f"gc{options} --yes", "delete them"))


def _print(found: Pruning, *, yes: bool) -> None:
    groups = {what: list(files) for what, files in groupby(found.files, key=lambda each: each.what)}
    if groups:
        title = "Deleted" if yes else "Could be deleted"
        print_table(title, _COLUMNS, ([*_figures(what, files), _REMARKS.get(what, "")] for what, files in groups.items()), right=_NUMBERS)


def _figures(what: str, files: Sequence[Prunable]) -> list[str]:
    times = [each.time for each in files]
    return [what, str(len(files)), _size(files), f"{min(times):%Y-%m-%d}", f"{max(times):%Y-%m-%d}"]


def _files(files: Sequence[Prunable]) -> str:
    return f"{counted(len(files), 'file')}, {_size(files)}"


def _size(files: Sequence[Prunable]) -> str:
    return file_size(sum(each.size for each in files))
