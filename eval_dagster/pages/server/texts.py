"""Shared by the pages of samples: prompts and responses of some samples, and the result that a result is compared with."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.catalog import CatalogState
from eval_dagster.pages.server.parameters import Parameters
from eval_dagster.pages.server.results import Result, find_result, previous_result

NOTHING = "-"
"""The value of `against` if nothing is compared: no name of a model."""

NAMED_SCORES = (
    "(select * from read_parquet($scores) union all by name select null::varchar as sample_name, null::varchar as item, "
    "null::varchar as explanation where false)"
)
"""The scores of a result. Files that are older than these columns have null there."""

Row = dict[str, Any]


def compared_with(state: CatalogState, parameters: Parameters, result: Result) -> Result | None:
    """The result that an address compares with: the one that it names, else the one before."""
    model = parameters.text("against")
    if model == NOTHING:
        return None
    if model is None:
        return previous_result(state, result)
    return find_result(state, result.eval, model, parameters.time("against_at"))


def or_alone(against: Result | None, make: Callable[[Result | None, str | None], str]) -> str:
    """A page with a comparison; without one, and with a note, if the other result was deleted or is damaged."""
    try:
        return make(against, None)
    except LakeError as error:
        if against is None:
            raise
        return make(None, f"Nothing is compared: {error}")


def prompts_before(
    state: CatalogState, against: Result, result: Result, prompts: Mapping[str, Row], ids: Sequence[str]
) -> Mapping[str, Row]:
    """The prompts of another result to the same samples: its choices can be others, or in another order."""
    return prompts if against.prompts == result.prompts else prompts_of(state, against, ids, "sample_id, choices")


def prompts_of(
    state: CatalogState, result: Result, ids: Sequence[str], columns: str = "sample_id, prompt, choices, gold"
) -> dict[str, Row]:
    """Columns of the prompts of some samples, by sample id; none if the prompts were deleted."""
    if result.prompts is None or not ids:
        return {}
    query = f"select {columns} from read_parquet($files) where sample_id in (select unnest($ids))"
    return {row["sample_id"]: row for row in state.rows(query, {"files": result.prompts, "ids": list(ids)})}


def answers_of(
    state: CatalogState, result: Result, ids: Sequence[str], columns: str = "sample_id, text, text_post_processed, choice_logprobs, error"
) -> dict[str, Row]:
    """Columns of the responses to some samples, by sample id; none if the responses were deleted."""
    if result.responses is None or not ids:
        return {}
    newer = "union all by name select null::double as cost, null::varchar as served_model where false"
    query = f"select {columns} from (select * from read_parquet($files) {newer}) where sample_id in (select unnest($ids))"
    return {row["sample_id"]: row for row in state.rows(query, {"files": result.responses, "ids": list(ids)})}
