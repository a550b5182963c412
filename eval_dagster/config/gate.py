"""The section `gate` of a suite in `evals.yaml`: when results count as worse, and what has to be judged and proven."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, TypeGuard

from pydantic import Field, PlainValidator, WithJsonSchema

from eval_dagster.config.values import Integer, Number, Section, Switch


def _require(value: object) -> object:
    if value == "all":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ValueError(f"expected {_REQUIRE}")


_REQUIRE = "'all', a share above 0 and at most 1 such as 0.9, or a list of evals of the suite"
Require = Annotated[
    Literal["all"] | float | tuple[str, ...],
    PlainValidator(_require),
    WithJsonSchema({"pattern": "", "description": _REQUIRE}),
]


def _margin(value: object) -> object:
    if isinstance(value, Mapping) and value and all(isinstance(name, str) and _is_above_zero(each) for name, each in value.items()):
        return {name: float(each) for name, each in value.items()}
    if _is_above_zero(value):
        return float(value)
    raise ValueError(f"expected {_MARGIN}")


def _is_above_zero(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


_MARGIN = "a number above 0 in the metric's unit such as 0.03, or a number for each of some evals of the suite"
Margin = Annotated[
    float | dict[str, float],
    PlainValidator(_margin),
    WithJsonSchema({"pattern": "", "description": _MARGIN}),
]


def _critical(value: object) -> object:
    if value == "all":
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ValueError(f"expected {_CRITICAL}")


_CRITICAL = "'all', or a list of evals of the suite"
Critical = Annotated[
    Literal["all"] | tuple[str, ...],
    PlainValidator(_critical),
    WithJsonSchema({"pattern": "", "description": _CRITICAL}),
]


class GateConfig(Section):
    """When a suite's results count as worse than their baseline, and how many of them have to be judged."""

    alpha: Number = Field(default=0.05, gt=0, lt=1)
    """If nothing but chance is at work, at most this share of suites turns red in 30 days."""
    smallest_difference: Number = Field(default=0.0, ge=0)
    """The smallest difference that matters, in the metric's unit. A smaller one is no change, even if it is significant."""
    max_error_rate: Number = Field(default=0.05, ge=0, le=1)
    """The largest share of errors: among samples that the baseline could evaluate, among those that the anchor could, and among all."""
    metrics: Literal["headline", "all"] = "headline"
    """The metrics that are compared: the one of each eval that the leaderboard shows, or all. More comparisons have less power each."""
    require: Require = "all"
    """The results that have to be judged; a suite without them is incomplete, which is red: `all`, a share of the suite's evals and models
    such as 0.9, or the names of evals. A first result counts as judged, and a gap that a person accepted is not required."""
    margin: Margin | None = None
    """The fall that matters, in the metric's unit, or one for each of some evals. A result is *not worse (proven)* if a fall of the margin
    is refuted, at 5 %. If not given: 0.03 for shares of right answers (0.02 from 2,000 samples on), 3 % of the range of other metrics of
    single samples that have one. Others, such as perplexity and BLEU, have none, and nothing is proven about them."""
    critical: Critical = "all"
    """The evals that must each be proven, for the suite to be proven: `all`, or their names. The others must not be red, and are proven by
    their mean at half of their margins."""
    require_proof: Switch = False
    """Whether a suite fails in which nothing is red, but a critical eval, or the mean of the others, is not proven. First results and
    accepted gaps need no proof."""
    pool: Integer = Field(default=1, ge=1, le=8)
    """The most earlier states whose mean is the baseline of a proof, never of a red verdict: those that passed with the model, the prompts,
    the data and the metric of the baseline, without another state between. 1: the baseline alone, which sees a slow drift sooner. Nights
    that may stop early have none."""
    stop: Literal["early", "never"] = "never"
    """`early`: samples are asked in growing parts, and an eval stops when it is proven not to be worse, or found worse. When one is found
    worse, the other evals of its model stop too, and are not judged. What was not asked is shown, and a run without the suite asks it."""
    full_every: Integer = Field(default=7, ge=1)
    """With `stop: early`, one of so many results of an eval and a model is asked in full, whatever its looks say. Full results alone are
    baselines."""
    severity: Literal["error", "warn"] = "error"
    """Whether a suite that regressed, is incomplete or lacks a required proof fails the gate, or is only reported."""
    confirm: Switch = True
    """Whether samples are asked again before a result that a test finds worse counts as regressed, where answers vary: of a served model,
    of vLLM, and on a GPU."""
