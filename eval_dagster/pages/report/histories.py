"""Histories of scores: their points, and their pictures."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from eval_dagster.gate.results import change_points
from eval_dagster.lake.files import Lake
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.pages.report.plots import ScorePoint, history_markdown, history_png
from eval_dagster.records.judgements import Look
from eval_dagster.results.materializations import Materialization, history, overall
from eval_dagster.stores.whole_files import replaced
from eval_dagster.versions.hashes import code_version, stable_hash

_LOG = logging.getLogger(__name__)
_DRAWN_BY = (history_png, history_markdown)


@dataclass(frozen=True, kw_only=True)
class History:
    """A score over its materializations."""

    eval: str
    model: str
    metric: str
    points: Sequence[ScorePoint]
    changes: Sequence[Look]
    """Where the score left its band, the oldest first."""
    mlflow_run: str | None
    """Id of the MLflow run of the newest result."""
    is_headline: bool

    @property
    def title(self) -> str:
        """Title of the picture."""
        return f"{self.eval} · {self.model}"


def history_of(points: Sequence[Materialization], metric: str, changes: Iterable[Look]) -> History:
    """The history of a metric over materializations (at least one, the oldest first), with the changes of its own.

    Of several suites that found a change at the same result, one counts.
    """
    newest = points[-1]
    own = [look for look in changes if (look.eval, look.model, look.metric) == (newest.eval_name, newest.model, metric)]
    changed = {look.materialized_at: look for look in own}
    drawn = [
        ScorePoint(
            at=point.materialized_at,
            value=row["value"],
            ci_low=row["ci_low"],
            ci_high=row["ci_high"],
            is_change=point.materialized_at in changed,
        )
        for point in points
        if (row := overall(point).get(metric)) is not None
    ]
    row = overall(newest).get(metric)
    return History(
        eval=newest.eval_name,
        model=newest.model,
        metric=metric,
        points=drawn,
        changes=[changed[at] for at in sorted(changed)],
        mlflow_run=row and row.get("mlflow_run_id"),
        is_headline=bool(row and row["is_headline"]),
    )


def headline_of(point: Materialization) -> MetricRow | None:
    """The row of `metrics` that the leaderboard shows."""
    return next((row for row in point.metric_rows if row["is_headline"] and row["subject"] is None), None)


def headline_markdown(lake: Lake, eval_name: str, model: str) -> str | None:
    """The picture of the headline score's history as Markdown, for Dagster's metadata. It embeds the picture, in about 20 KB at most.

    Change points are from the last judgement of a suite.

    Returns:
        None if there are fewer than two results, or if the picture cannot be drawn, which is logged.
    """
    try:
        return _headline_markdown(lake, eval_name, model)
    except Exception as error:  # the boundary between a result and its picture
        _LOG.warning("no picture of the history of %s|%s: %s: %s", eval_name, model, type(error).__name__, error)
        return None


def _headline_markdown(lake: Lake, eval_name: str, model: str) -> str | None:
    points = history(lake, eval_name, model)
    if len(points) < 2:
        return None
    row = headline_of(points[-1])
    if row is None:
        return None
    drawn = history_of(points, str(row["metric"]), change_points(lake))
    if len(drawn.points) < 2:
        return None
    path = lake.home / "pictures" / f"eval={eval_name}" / f"model={model}.md"
    return _picture(path, drawn.points, title=drawn.title, metric=drawn.metric)


def _picture(path: Path, points: Sequence[ScorePoint], *, title: str, metric: str) -> str:
    """The picture from its file, or drawn and stored there, since drawing is slow and most nights bring no new score."""
    key = stable_hash([code_version(*_DRAWN_BY), title, metric, [[str(value) for value in asdict(point).values()] for point in points]])
    with suppress(OSError, ValueError):
        known, _, markdown = path.read_text("utf-8").partition("\n")
        if known == key:
            return markdown
    markdown = history_markdown(history_png(points, title=title, metric=metric))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as temporary:
        temporary.write_text(f"{key}\n{markdown}", "utf-8")
    return markdown
