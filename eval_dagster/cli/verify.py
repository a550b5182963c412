"""The command that verifies the files of a home."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import typer

from eval_dagster.cli.console import errors, out, print_next, print_table, say
from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.verification import Verifiable, Verified, verifiable, verify
from eval_dagster.lake.files import trial_lake
from eval_dagster.models.transformers.weights.gguf import converted_folders, damage
from eval_dagster.progress.bars import RichReporter
from eval_dagster.project import Project

_COLUMNS = ("files of", "files", "MB", "damaged")


def verify_home() -> None:
    """Compare all files with their checksums, and print their number and the damaged ones; exit status 1 if a file is damaged."""
    project = Project.open()
    files = [*verifiable([project.lake, trial_lake(project.lake)]), *_converted(project.home)]
    if not files:
        out.print("There is nothing to verify: nothing has been evaluated here yet.")
        return
    with RichReporter(errors).track("verify", total=len(files), unit="files") as advance:
        found = verify(files, advance)
    by_kind: dict[str, list[Verified]] = defaultdict(list)
    for each in found:
        by_kind[each.what].append(each)
    rows = [
        (kind, len(each), f"{sum(file.size for file in each) / 1e6:.1f}", sum(file.damage is not None for file in each))
        for kind, each in by_kind.items()
    ]
    print_table("Verified", _COLUMNS, rows, right=_COLUMNS[1:])
    damaged = [each.damage for each in found if each.damage is not None]
    for message in damaged:
        say(errors, "damaged", message, style="red")
    if damaged:
        out.print(f"{len(damaged)} of {len(found)} files are damaged. Those that hold current results are left out of all tables.")
        print_next(("run", "makes anew what was deleted"))
        raise typer.Exit(1)
    out.print(f"All {len(found)} files are sound.")


def _converted(home: Path) -> Iterator[Verifiable]:
    """The folders that GGUF files were converted to, each by its largest file. All of its files are compared."""

    def check(path: Path) -> None:
        if reason := damage(path.parent):
            raise LakeError(f"{reason}; delete the folder, or run the model: that converts its GGUF file again")

    for folder in converted_folders(home):
        if files := [path for path in folder.iterdir() if path.is_file()]:
            yield Verifiable(what="converted models", path=max(files, key=lambda path: path.stat().st_size), check=check)
