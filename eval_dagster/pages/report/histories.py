"""Histories of scores and learning curves of training runs: their points, and their pictures."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.gate.results import change_points
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.files import Lake
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.pages.report.plots import MOST_POINTS, ScorePoint, StepPoint, as_markdown, curve_svg, history_svg
from eval_dagster.records.judgements import Look
from eval_dagster.results.materializations import Materialization, history, overall, with_rows
from eval_dagster.texts.figures import number

_LOG = logging.getLogger(__name__)


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
            is_part=bool(row.get("n_not_asked")),
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
    points = with_rows(history(lake, eval_name, model)[-MOST_POINTS:])
    if len(points) < 2:
        return None
    row = headline_of(points[-1])
    if row is None:
        return None
    drawn = history_of(points, str(row["metric"]), change_points(lake))
    if len(drawn.points) < 2:
        return None
    return as_markdown(history_file(drawn))


def history_file(drawn: History) -> str:
    """The picture of a history as the text of an SVG file."""
    return history_svg(drawn.points, title=drawn.title, metric=drawn.metric, is_file=True)


MEAN = "mean of all evals"
"""The name of the curve over the evals of a training run."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The score of an eval, or the mean of several, over the steps of a training run."""

    family: str
    eval: str | None
    """Null for the mean of the evals."""
    metric: str
    points: Sequence[StepPoint]
    """At least one, by step."""
    left_band_at: int | None
    """The first step at which the score left its band; null if it never did."""
    fell_at: int | None
    """The first step at which the score was significantly worse than at an earlier one."""
    signal_to_noise: float | None
    noise: float | None
    n_noise: int | None
    n_models: int | None

    @property
    def title(self) -> str:
        """Title of the picture."""
        return f"{self.family} · {self.eval or MEAN}"

    @property
    def words(self) -> str:
        """The step at which the score left its band, and the size of its noise."""
        last = self.points[-1]
        rose = self.left_band_at if self.left_band_at != self.fell_at else None
        noisy = f"noise {number(self.noise)} (relative, last {self.n_noise} steps)" if self.noise is not None else "noise not known yet"
        ratio = f", signal-to-noise {self.signal_to_noise:.1f} among {self.n_models} models" if self.signal_to_noise is not None else ""
        said = [
            f"{number(last.value)} at step {last.step:,}",
            *([f"left its band upwards at step {rose:,}"] if rose is not None else []),
            *([f"◆ fell below an earlier step at step {self.fell_at:,}"] if self.fell_at is not None else []),
            *(["never left its band"] if self.left_band_at is None and len(self.points) > 1 else []),
            noisy + ratio,
        ]
        return "; ".join(said)


def curves_of(rows: Iterable[Mapping[str, Any]]) -> list[Curve]:
    """The curves of rows of `learning_curves`, the mean of the evals first."""
    found: dict[tuple[str, str | None, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["family"], row["eval"], row["metric"]), []).append(row)
    curves = [
        Curve(
            family=family,
            eval=eval_name,
            metric=metric if eval_name else "mean score",
            points=[
                StepPoint(
                    **{name: row[name] for name in ("step", "value", "ci_low", "ci_high", "change")},
                    is_part=bool(row["n_not_asked"]),
                    is_estimate=row["estimate"] is not None,
                )
                for row in of_curve
            ],
            **{name: of_curve[0][name] for name in ("left_band_at", "fell_at", "signal_to_noise", "noise", "n_noise", "n_models")},
        )
        for (family, eval_name, metric), of_curve in found.items()
    ]
    return sorted(curves, key=lambda curve: (curve.family, curve.eval is not None, curve.eval or ""))


def learning_curves(lake: Lake, families: Sequence[str], evals: Sequence[str] | None = None) -> list[Curve]:
    """The learning curves of training runs by the last published catalog, the mean of the evals first.

    Args:
        lake: The lake.
        families: The training runs.
        evals: The evals, and the mean of all evals; all if not given.

    Raises:
        QueryError: Nothing has been evaluated yet.
        LakeError: The catalog cannot be read.
    """
    query = (
        "select * from learning_curves where list_contains($families, family) and ($evals is null or eval is null or "
        "list_contains($evals, eval)) order by family, eval, metric, step"
    )
    parameters = {"families": list(families), "evals": None if evals is None else list(evals)}
    return curves_of(read_rows(lake, query, parameters)) if families else []


def learning_curve_markdown(lake: Lake, family: str, eval_name: str | None = None) -> str | None:
    """The picture of a learning curve as Markdown, with its noise in words, for Dagster's metadata. It has about 20 KB at most.

    Args:
        lake: The lake. Its last published catalog is read.
        family: The training run.
        eval_name: The eval; the mean of all evals if not given.

    Returns:
        None if there are fewer than two steps, or if the picture cannot be drawn, which is logged.
    """
    try:
        curves = [curve for curve in learning_curves(lake, [family]) if curve.eval == eval_name and len(curve.points) > 1]
        if not curves:
            return None
        drawn = curve_svg(curves[0].points, title=curves[0].title, metric=curves[0].metric, is_file=True)
        return f"{as_markdown(drawn, name='learning curve')}\n\n{curves[0].words}"
    except Exception as error:  # the boundary between a result and its picture
        _LOG.warning("no learning curve of %s|%s: %s: %s", eval_name, family, type(error).__name__, error)
        return None
