"""What answers cost: requests, tokens, seconds; and what the cache spared."""

from collections.abc import Sequence
from dataclasses import dataclass

from eval_dagster.lake.attempts import Attempt, read_attempts
from eval_dagster.lake.files import Lake


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The answers of a model to an eval in its last evaluation."""

    eval: str
    model: str
    computed: int
    """Requests that were sent to the model."""
    cached: int
    """Requests that were answered from the cache."""
    errors: int
    prompt_tokens: int
    """Of all answers, also those from the cache."""
    output_tokens: int
    model_seconds: float
    """That the model worked."""


def costs_of(lake: Lake, partitions: Sequence[tuple[str, str]], *, run_ids: Sequence[str] = ()) -> list[Cost]:
    """What it cost to evaluate evals with models; those of which no evaluation reached the answers are left out.

    Args:
        lake: Whose attempts are read.
        partitions: Evals and models.
        run_ids: The runs that count; of each eval and model the last one where not given.
    """
    found: dict[tuple[str, str], Attempt] = {}
    for attempt in read_attempts(lake):
        if not run_ids or attempt.run_id in run_ids:
            found[attempt.eval, attempt.model] = attempt  # later ones last
    return [cost for key in partitions if key in found and (cost := _cost(found[key])) is not None]


def _cost(attempt: Attempt) -> Cost | None:
    if attempt.requests_computed is None or attempt.requests_cached is None:
        return None
    return Cost(
        eval=attempt.eval,
        model=attempt.model,
        computed=attempt.requests_computed,
        cached=attempt.requests_cached,
        errors=attempt.errors or 0,
        prompt_tokens=attempt.prompt_tokens or 0,
        output_tokens=attempt.output_tokens or 0,
        model_seconds=attempt.model_seconds or 0.0,
    )
