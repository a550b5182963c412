"""Reports in the home: a page a judgement, and the newest one under a name that stays."""

import os
import secrets
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path

from eval_dagster.gate.records import GateResult
from eval_dagster.project import Project
from eval_dagster.report.contents import collect
from eval_dagster.report.page import render

LATEST = "latest.html"
"""The newest page of a suite."""


def write_report(project: Project, result: GateResult, *, run_ids: Sequence[str] = ()) -> Path:
    """Write the page of a result to `<home>/reports/<suite>/<time of the judgement>.html`, and a copy to `latest.html` beside it.

    Args:
        project: Whose lake is read.
        result: The suite, judged.
        run_ids: The runs whose cost is shown; the last evaluation of each eval and model where not given.

    Returns:
        The page of this result. Written twice, it is replaced.
    """
    page = render(collect(project, result, run_ids=run_ids)).encode("utf-8", errors="replace")
    folder = project.home / "reports" / result.suite
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.judged_at.astimezone(UTC):%Y-%m-%dT%H-%M-%S-%fZ}.html"
    for each in (path, folder / LATEST):
        _write(each, page)
    return path


def _write(path: Path, content: bytes) -> None:
    """Write under another name, then rename: whoever opens the page sees the whole of one."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
