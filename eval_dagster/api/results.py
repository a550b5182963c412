"""The results of an evaluation as tables of pandas and as a plot, and a DuckDB connection that can only read the results of a home."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from eval_dagster.errors import UsageError
from eval_dagster.lake.catalog import catalog
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake
from eval_dagster.project import Project, default_config_path, default_home
from eval_dagster.stages.partition import StageFailure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


_SPREAD = 0.5
"""Part of the distance between two evals over which their models are spread."""


def plot_scores(scores: "pd.DataFrame") -> "Axes":
    """Draw a point with a 95 % confidence interval for each model, the evals one below the other.

    Args:
        scores: Rows with eval, model, metric, value, ci_low and ci_high.
    """
    from matplotlib import pyplot as plt

    evals, models = list(dict.fromkeys(scores["eval"])), list(dict.fromkeys(scores["model"]))
    _, axes = plt.subplots(figsize=(7, 1 + 0.35 * len(evals) * max(2, len(models))), layout="constrained")
    for index, model in enumerate(models):
        rows = scores[scores["model"] == model]
        offset = (index - (len(models) - 1) / 2) * _SPREAD / max(1, len(models) - 1)
        places = [evals.index(name) + offset for name in rows["eval"]]
        around = [rows["value"] - rows["ci_low"], rows["ci_high"] - rows["value"]]
        axes.errorbar(rows["value"], places, xerr=around, fmt="o", capsize=3, label=model)
    named = scores.drop_duplicates("eval").set_index("eval")["metric"]
    axes.set_yticks(range(len(evals)), [f"{name}\n{named[name]}" for name in evals])
    axes.set_ylim(len(evals) - 0.5, -0.5)
    axes.set_xlabel("score, with its 95 % confidence interval")
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    return axes


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of evals and models."""

    metrics: "pd.DataFrame"
    """A row for each eval, model, metric and subject, with the columns of the relation `metrics`; `is_headline` marks the one of each eval
    that the leaderboard shows."""
    samples: "pd.DataFrame"
    """A row for each eval, model, sample and metric, with the columns of the relation `sample_results`, such as prompt, answer, gold, score
    and error."""
    failures: Sequence[StageFailure]
    """Evals that could not be evaluated with a model, each with the reason."""

    @property
    def scores(self) -> "pd.DataFrame":
        """The headline metric of each eval and model, with its standard error and 95 % confidence interval."""
        columns = ["eval", "model", "metric", "value", "stderr", "ci_low", "ci_high", "n", "n_errors"]
        return self.metrics.loc[self.metrics["is_headline"], columns].reset_index(drop=True)

    @property
    def score(self) -> float:
        """The only score. Raises `UsageError` if there are several evals or models."""
        if len(self.scores) != 1:
            raise UsageError(f"there are {len(self.scores)} scores, one for each eval and model; expected one: see `scores`")
        return float(self.scores["value"].iloc[0])

    @property
    def errors(self) -> "pd.DataFrame":
        """The samples that could not be evaluated, and those whose answer is wrong by the headline metric.

        An answer is wrong if its score is below 1 and all scores of the metric are between 0 and 1. With a perplexity, no answer is wrong.
        """
        headline = self.scores[["eval", "model", "metric"]]
        judged = self.samples.merge(headline, on=["eval", "model", "metric"])
        is_share = judged.groupby(["eval", "model"])["score"].transform(lambda scores: scores.dropna().between(0, 1).all())
        return judged[judged["error"].notna() | (is_share & (judged["score"] < 1))].reset_index(drop=True)

    def plot(self) -> "Axes":
        """Draw the scores of all evals and models, with 95 % confidence intervals."""
        return plot_scores(self.scores)

    def _repr_html_(self) -> str:
        failed = "".join(f"<p>{each.stage} {each.eval_name}|{each.model} failed</p>" for each in self.failures)
        return f"{self.scores.to_html(index=False, float_format='{:.3f}'.format)}{failed}"

    def __repr__(self) -> str:
        """The scores as a table, and how many evals failed."""
        failed = f"\n{len(self.failures)} failed: see `failures`" if self.failures else ""
        return f"{self.scores.to_string(index=False, float_format='{:.3f}'.format)}{failed}"


def read_results(lake: Lake, partitions: Sequence[tuple[str, str]], failures: Sequence[StageFailure]) -> Results:
    """Read the current results of partitions of eval and model, in this order."""
    publish(lake)
    metrics, samples = (_table(lake, relation, partitions) for relation in ("metrics", "sample_results"))
    return Results(metrics=metrics, samples=samples, failures=tuple(failures))


def _table(lake: Lake, relation: str, partitions: Sequence[tuple[str, str]]) -> "pd.DataFrame":
    import pandas as pd

    query = f"select * from {relation} where list_contains($evals, eval) and list_contains($models, model)"  # noqa: S608 - names are bound
    values = {"evals": sorted({name for name, _ in partitions}), "models": sorted({model for _, model in partitions})}
    order, partition_of = {partition: index for index, partition in enumerate(partitions)}, itemgetter("eval", "model")
    rows = [row for row in catalog.read_rows(lake, query, values) if partition_of(row) in order]
    return pd.DataFrame(sorted(rows, key=lambda row: order[partition_of(row)]))


def connect(home: Path | str | Project | None = None) -> duckdb.DuckDBPyConnection:
    """Open the results: the relations that `eval-dagster sql` queries.

    The connection can only read the results of the home, so that it is safe for statements of other people: no statement writes a file,
    reads another one, loads an extension, opens a network connection or changes a setting. Tables that a statement creates are temporary.
    A damaged file of the lake raises `duckdb.Error`, whose message names the file.

    Args:
        home: The folder of the results, or an open project; by default `EVAL_DAGSTER_HOME`, or `.eval_dagster` beside
            evals.yaml (`EVAL_DAGSTER_CONFIG`, or in the current folder).

    Raises:
        QueryError: Nothing has been evaluated there yet, or the catalog cannot be read.
    """
    if isinstance(home, Project):
        catalog.refresh(home.lake)
        return catalog.connect(home.lake)
    folder = Path(home) if home is not None else default_home(default_config_path())
    return catalog.connect(Lake(folder.resolve()))
