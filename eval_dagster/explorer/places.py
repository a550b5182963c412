"""Where the pages of results are."""

from pathlib import Path

PAGE = "samples.html"
"""The name of a page, also among the artifacts of a result's MLflow run."""


def page_path(home: Path, eval_name: str, model: str) -> Path:
    """The page of the current result of an eval and a model."""
    return home / "pages" / eval_name / model / PAGE


def shown_pages(home: Path) -> str | None:
    """The place of the pages for people, with `EVAL` and `MODEL` in it; None where there is no page."""
    return str(page_path(home, "EVAL", "MODEL")) if (home / "pages").is_dir() else None
