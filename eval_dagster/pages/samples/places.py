"""The places of the pages of results."""

from collections.abc import Iterable
from pathlib import Path

PAGE = "samples.html"
"""The name of a page, also among the artifacts of a result's MLflow run."""
_FEW = 3
"""Most pages that are named one by one."""


def page_path(home: Path, eval_name: str, model: str) -> Path:
    """The page of the current result of an eval and a model."""
    return home / "pages" / eval_name / model / PAGE


def shown_pages(home: Path, results: Iterable[tuple[str, str]]) -> list[str]:
    """The pages of evals and models for people: each if there are a few, else their folder; none without a page."""
    found = [str(path) for key in results if (path := page_path(home, *key)).exists()]
    return found if len(found) <= _FEW else [str(home / "pages")]
