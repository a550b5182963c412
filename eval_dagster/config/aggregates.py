"""The section `aggregates` of a suite in `evals.yaml`: one number for several evals."""

from typing import Annotated, Literal

from pydantic import Field

from eval_dagster.config.values import Number, Section, Switch, Text


class AggregateConfig(Section):
    """One number for several evals of a suite, for each model."""

    of: Literal["mean", "median", "weighted"] = "mean"
    """The mean of the scores, their median, or their mean with `weights`."""
    evals: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Names of evals of the suite; all if not given."""
    weights: dict[str, Annotated[Number, Field(gt=0)]] | None = None
    """The weight of each eval, above 0, in proportion to their sum; for `weighted` alone."""
    normalised: Switch = False
    """Whether scores are first placed between guessing (0) and the best score (1): score minus chance, divided by best minus chance. For
    evals that count correct choices, whose score by chance is known."""
    metric: Text | None = None
    """A metric that all of the evals have; of each eval the one that the leaderboard shows if not given."""
