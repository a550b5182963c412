"""The command that writes the files of a new project."""

import json
import os
import shlex
from importlib.metadata import distribution
from pathlib import Path
from typing import Annotated

import typer

from eval_dagster.cli.console import out, print_table, program_name
from eval_dagster.errors import UsageError

_TEMPLATES = Path(__file__).resolve().parents[1] / "templates" / "project"
_GITIGNORE = ".gitignore"
_FILES = (
    ("evals.yaml", "evals.yaml", "models, evals and suites"),
    ("benchmark.py", "benchmark.py", "a benchmark of your own"),
    ("workspace.yaml", "workspace.yaml", "what Dagster loads"),
    ("workflow.yml", ".github/workflows/evals.yml", "GitHub workflow: runs the suite, uploads the report"),
    ("gitignore", _GITIGNORE, "excludes the results from Git"),
)
"""Name of the template, path in the project's folder, and the content in words."""


def write_project(
    folder: Annotated[Path, typer.Argument(help="Folder of the project; created if it does not exist.")] = Path(),
) -> None:
    """Write the files of a new project, and print what was written and which command comes next.

    A `.gitignore` that exists gets one more line. If another of the files exists, or if one cannot be written, nothing is written.
    """
    existing = [path for _, path, _ in _FILES if path != _GITIGNORE and os.path.lexists(folder / path)]
    if existing:
        raise UsageError(
            f"{folder.resolve()} already has {', '.join(existing)}, and init overwrites nothing; name another folder, or move "
            f"{'this file' if len(existing) == 1 else 'these files'} away"
        )
    source = _installed_from()
    texts = {name: (_TEMPLATES / name).read_text("utf-8").replace("INSTALLED_FROM", source) for name, *_ in _FILES}
    made: list[Path] = []
    try:
        rows = [(path, _write(folder / path, texts[template], made), content) for template, path, content in _FILES]
    except BaseException as error:
        for path in reversed(made):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        if isinstance(error, OSError | UnicodeDecodeError):
            raise UsageError(f"the files of a project cannot be written to {folder.resolve()} ({error}); nothing was written") from error
        raise
    print_table(None, ["file", "status", "content"], rows)
    if not source:
        out.print(
            "\nThe workflow cannot install eval_dagster by itself, since it is installed from a folder of this machine: set the variable "
            "EVAL_DAGSTER of the GitHub repository to a Git address or a wheel that pip can install there.",
            soft_wrap=True,
        )
    program, inside = program_name(), ""
    if folder.resolve() != Path.cwd():
        inside = f"cd {shlex.quote(str(folder))} && "
        program = program if program == "eval-dagster" else str(Path(program).resolve())
    out.print(f"\nNext\n  {inside}{program} run --suite nightly", soft_wrap=True)


def _installed_from() -> str:
    """The requirement by which pip installs this package elsewhere; empty if it is installed from a file or folder of this machine."""
    installed = distribution("eval_dagster")
    origin = json.loads(installed.read_text("direct_url.json") or "{}")  # of PEP 610; absent if a package index had it
    url = str(origin.get("url", ""))
    if not url:
        return f"eval_dagster=={installed.version}"
    if url.startswith("file:"):
        return ""
    version_control = origin.get("vcs_info")
    return f"eval_dagster @ {version_control['vcs']}+{url}@{version_control['commit_id']}" if version_control else f"eval_dagster @ {url}"


def _write(path: Path, text: str, made: list[Path]) -> str:
    """Write one file, and add new files and folders to `made`. Returns what was done."""
    if path.name == _GITIGNORE and os.path.lexists(path):
        lines = path.read_text("utf-8")
        if text.strip() in lines.splitlines():
            return "unchanged"
        with path.open("a", encoding="utf-8") as file:
            file.write(text if lines.endswith("\n") or not lines else f"\n{text}")
        return "one line added"
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir()
            made.append(parent)
    with path.open("x", encoding="utf-8") as file:
        made.append(path)
        file.write(text)
    return "written"
