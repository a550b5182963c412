"""The command that verifies the files of a home."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import typer

from eval_dagster.cli.console import errors, out, print_table, program_name, say
from eval_dagster.lake.files import trial_lake
from eval_dagster.lake.verification import Verified, verifiable, verify
from eval_dagster.progress.bars import RichReporter
from eval_dagster.project import Project

_COLUMNS = ("files of", "files", "MB", "damaged")


def verify_home() -> None:
    """Compare all files with their checksums, and print how many there are and what is damaged; exit status 1 where something is."""
    project = Project.open()
    files = verifiable([project.lake, trial_lake(project.lake)])
    if not files:
        out.print("There is nothing to verify: nothing has been evaluated here yet.")
        return
    with RichReporter(errors).track("verify", total=len(files), unit="files") as advance:
        found = verify(files, advance)
    by_kind: dict[str, list[Verified]] = defaultdict(list)
    for each in found:
        by_kind[each.what].append(each)
    print_table("Verified", _COLUMNS, _rows(by_kind), right=_COLUMNS[1:])
    damaged = [each.damage for each in found if each.damage is not None]
    for message in damaged:
        say(errors, "damaged", message, style="red")
    if damaged:
        out.print(f"{len(damaged)} of {len(found)} files are damaged. What is current of them is left out of all results.")
        out.print(f"\nNext\n  {program_name()} run  makes anew what was deleted", soft_wrap=True)
        raise typer.Exit(1)
    out.print(f"All {len(found)} files are sound.")


def _rows(by_kind: Mapping[str, Sequence[Verified]]) -> list[list[str]]:
    return [
        [
            kind,
            str(len(files)),
            f"{sum(each.size for each in files) / 1e6:.1f}",
            str(sum(each.damage is not None for each in files)),
        ]
        for kind, files in by_kind.items()
    ]
