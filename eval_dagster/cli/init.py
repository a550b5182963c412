"""The command that writes the files of a new project."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eval_dagster.cli.console import out, print_table, program_name
from eval_dagster.errors import UsageError

_TEMPLATES = Path(__file__).resolve().parents[1] / "templates" / "project"
_GITIGNORE = ".gitignore"


@dataclass(frozen=True)
class _ProjectFile:
    """A file that the command writes."""

    template: str
    """Name in the folder of templates."""
    path: str
    """Where it is written, relative to the project's folder."""
    content: str
    """Its content, for the table that the command prints."""


_FILES = (
    _ProjectFile("evals.yaml", "evals.yaml", "models, evals and suites"),
    _ProjectFile("benchmark.py", "benchmark.py", "a benchmark of your own"),
    _ProjectFile("workspace.yaml", "workspace.yaml", "what Dagster loads"),
    _ProjectFile("workflow.yml", ".github/workflows/evals.yml", "GitHub workflow: runs the suite, uploads the report"),
    _ProjectFile("gitignore", _GITIGNORE, "excludes the results from Git"),
)


def write_project(folder: Path) -> None:
    """Write the files of a new project, and print what was written and which command comes next.

    A `.gitignore` that exists gets one more line. No other file may exist.

    Raises:
        UsageError: A file exists, or the folder cannot be written to. Nothing is written then.
    """
    existing = [each.path for each in _FILES if each.path != _GITIGNORE and os.path.lexists(folder / each.path)]
    if existing:
        raise UsageError(
            f"{folder.resolve()} already has {', '.join(existing)}, and init overwrites nothing; name another folder, or move "
            f"{'this file' if len(existing) == 1 else 'these files'} away"
        )
    try:
        texts = [(_TEMPLATES / each.template).read_text("utf-8") for each in _FILES]
        with _undone_on_failure() as made:
            statuses = [_write(folder / each.path, text, made) for each, text in zip(_FILES, texts, strict=True)]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the files of a project cannot be written to {folder.resolve()} ({error}); nothing was written") from error
    rows = [[each.path, status, each.content] for each, status in zip(_FILES, statuses, strict=True)]
    print_table(None, ["file", "status", "content"], rows)
    out.print(f"\nNext\n  {_next_command(folder)}", soft_wrap=True)


def _write(path: Path, text: str, made: list[Path]) -> str:
    """Write one file, and add new files and folders to `made`. Returns what was done."""
    if path.name == _GITIGNORE and os.path.lexists(path):
        return _add_line(path, text)
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir()
            made.append(parent)
    with path.open("x", encoding="utf-8") as file:
        made.append(path)
        file.write(text)
    return "written"


def _add_line(path: Path, line: str) -> str:
    lines = path.read_text("utf-8")
    if line.strip() in lines.splitlines():
        return "unchanged"
    with path.open("a", encoding="utf-8") as file:
        file.write(line if lines.endswith("\n") or not lines else f"\n{line}")
    return "one line added"


@contextmanager
def _undone_on_failure() -> Iterator[list[Path]]:
    """Yield a list of files and folders, which are removed if the block fails."""
    made: list[Path] = []
    try:
        yield made
    except BaseException:
        for path in reversed(made):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        raise


def _next_command(folder: Path) -> str:
    program = program_name()
    if folder.resolve() == Path.cwd():
        return f"{program} run --suite nightly"
    return f"cd {shlex.quote(str(folder))} && {program if program == 'eval-dagster' else Path(program).resolve()} run --suite nightly"
