"""The parameters of an address, and the results that they name, with their scores, prompts and responses."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby

from eval_dagster.errors import LakeError, UsageError
from eval_dagster.lake.catalog.catalog import CatalogState
from eval_dagster.lake.catalog.sessions import held_url_of
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import parquet_files, time_of
from eval_dagster.lake.tables.columns import MetricRow, PromptRow, ResponseRow
from eval_dagster.results.materializations import gone
from eval_dagster.results.trust import part_words

_MOST_DIGITS = 7


class NotFoundError(UsageError):
    """An address names something that the lake does not hold."""


class Parameters:
    """The parameters after the `?` of an address. Each method raises `UsageError` if a value is not as expected."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        """A text; null if it is missing or empty."""
        return self._values.get(name) or None

    def required(self, name: str) -> str:
        """A text that must be there."""
        found = self.text(name)
        if found is None:
            raise UsageError(f"the address has no {name!r}; expected ?{name}=... in it: open the page by a link")
        return found

    def number(self, name: str) -> float | None:
        """A number; null if it is missing or empty."""
        found = self.text(name)
        if found is None:
            return None
        try:
            number = float(found)
        except ValueError as error:
            raise UsageError(f"found {name}={found!r} in the address; expected a number") from error
        if number != number:
            raise UsageError(f"found {name}={found!r} in the address; expected a number")
        return number

    def page(self) -> int:
        """The number of a part of a long list, from 1."""
        found = self.text("page") or "1"
        if not (found.isascii() and found.isdigit() and len(found) <= _MOST_DIGITS and int(found) >= 1):
            raise UsageError(f"found page={found!r} in the address; expected a whole number from 1 to 9999999")
        return int(found)

    def switch(self, name: str) -> bool:
        """Whether a box is ticked."""
        return self.text(name) is not None

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        """One of some words; null if it is missing or empty."""
        found = self.text(name)
        if found is not None and found not in choices:
            raise UsageError(f"found {name}={found!r} in the address; expected one of {', '.join(choices)}")
        return found

    def time(self, name: str) -> datetime | None:
        """A time with its zone, UTC if it has none; null if it is missing or empty."""
        found = self.text(name)
        if found is None:
            return None
        return time_of_address(found, f"{name}={found!r}")


def time_of_address(text: str, shown: str) -> datetime:
    """A time of an address in UTC; one without a zone is in UTC. Raises `UsageError`, with `shown` as what was found, if it is none."""
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"found {shown} in the address; expected a time such as 2026-01-31T02:00:00Z") from error


class _ResultRow(MetricRow):
    """A row of `_metrics_files`, with the time of the model's newest result."""

    _file: str
    newest_at: datetime


@dataclass(frozen=True, kw_only=True)
class Result:
    """An eval and a model at one materialization."""

    lake: Lake
    eval: str
    model: str
    materialized_at: datetime
    """UTC."""
    metrics: Sequence[MetricRow]
    """Its rows of `metrics_history` without subject, the headline metric first."""
    metrics_file: str
    """The file of the metrics, relative to the lake."""
    scores_file: str | None
    """The file of the scores, relative to the lake."""
    is_current: bool

    @property
    def has_scores(self) -> bool:
        """Whether its scores are still in the lake."""
        return self.scores_file is not None and self.lake.file(self.scores_file).exists()

    @cached_property
    def scores(self) -> list[str]:
        """The URL of the scores, as the argument of `read_parquet`. Raises `LakeError` if they were deleted."""
        if self.scores_file is None or not self.has_scores:
            raise gone("scores", self.eval, self.model, self.materialized_at)
        return [held_url_of(self.lake.root / self.scores_file)]

    @cached_property
    def prompts(self) -> list[str] | None:
        """The URL of the prompts; null if they were deleted."""
        with suppress(LakeError):
            return self._of_version("prompts", self.lake.info(self.lake.root / self.metrics_file).inputs.get("rendered_prompts"))
        return None

    @cached_property
    def responses(self) -> list[str] | None:
        """The URL of the responses; null if they were deleted."""
        with suppress(LakeError):
            if self.scores_file is not None:
                return self._of_version("responses", self.lake.info(self.lake.root / self.scores_file).inputs.get("model_outputs"))
        return None

    @property
    def name(self) -> str:
        """Eval, model and time for people."""
        return f"{self.eval} on {self.model} of {self.materialized_at:%Y-%m-%d %H:%M} UTC"

    @property
    def metric_names(self) -> list[str]:
        """Its metrics, the headline metric first."""
        return [row["metric"] for row in self.metrics]

    def metric(self, name: str | None) -> MetricRow:
        """The row of a metric; by default of the headline metric. Raises `NotFoundError` for another name."""
        found = next((row for row in self.metrics if name in (None, row["metric"])), None)
        if found is None:
            raise NotFoundError(f"{self.name} has no metric {name!r}; it has {', '.join(self.metric_names) or 'none'}")
        return found

    @property
    def part(self) -> str | None:
        """How many samples were asked, if a night stopped early; null if all were."""
        row = self.metric(None)
        return None if not row["n_not_asked"] else part_words(row["n"] + row["n_errors"], row["n_not_asked"], row.get("estimate_note"))

    def _of_version(self, table: str, version: str | None) -> list[str] | None:
        """A file of a version: a local one first, then one of an object store. They all have the same rows."""
        if version is None:
            return None
        folder = self.lake.folder(table, self.eval, self.model)
        for list_files in (parquet_files, *([self.lake.files] if self.lake.mirror is not None else [])):
            # Newest first: scores are mostly computed from the newest file before them.
            paths = sorted(list_files(folder), key=lambda path: (time_of(path) <= self.materialized_at, path.name), reverse=True)
            for path in paths:
                found = None
                with suppress(LakeError):
                    found = self.lake.info(path).version
                if found == version:
                    return [held_url_of(path)]
        return None


def part_notes(*results: Result | None) -> list[str]:
    """A note for each result of a night that stopped early."""
    return [f"{each.name}: {each.part}." for each in results if each is not None and each.part is not None]


def find_result(state: CatalogState, eval_name: str, model: str, materialized_at: datetime | None = None) -> Result:
    """The result of an eval and a model at a time, the newest by default. Raises `NotFoundError` if there is none."""
    found = _results(state, "model = $model", {"eval": eval_name, "model": model, "at": materialized_at})
    if not found:
        when = "" if materialized_at is None else f" of {materialized_at.isoformat()}"
        raise NotFoundError(
            f"there is no result{when} of {eval_name} on {model}; the leaderboard and the histories list all that there are"
        )
    return found[0]


def previous_result(state: CatalogState, result: Result) -> Result | None:
    """The materialization before a result; null if there is none."""
    rows = state.rows(
        "select max(materialized_at) as at from _metrics_files where eval = $eval and model = $model and materialized_at < $at",
        {"eval": result.eval, "model": result.model, "at": result.materialized_at},
    )
    return None if rows[0]["at"] is None else find_result(state, result.eval, result.model, rows[0]["at"])


def other_results(state: CatalogState, result: Result, most: int) -> list[Result]:
    """The newest results of other models at the same eval, in the order of their names."""
    where = "model in (select distinct model from _metrics_files where eval = $eval and model != $model order by model limit $most)"
    return _results(state, where, {"eval": result.eval, "model": result.model, "most": most, "at": None})


def _results(state: CatalogState, where: str, values: Mapping[str, object]) -> list[Result]:
    """The results of one eval: of each chosen model that at a time, or the newest."""
    rows: list[_ResultRow] = state.rows(
        # `metrics_history` has the same rows without the names of the files.
        f"""
        with chosen as (
            select *, max(materialized_at) over (partition by model) as newest_at
            from _metrics_files where eval = $eval and {where} and subject is null
        )
        select * from chosen
        where materialized_at = coalesce($at, newest_at)
        -- A metric can have a mean of the samples and one of the subjects.
        qualify row_number() over (partition by model, metric order by coalesce(is_headline, false) desc, aggregation = 'macro') = 1
        order by model, coalesce(is_headline, false) desc, metric
        """,
        values,
    )
    results = []
    for _, found in groupby(rows, key=lambda row: row["model"]):
        metrics = list(found)
        first = metrics[0]
        results.append(
            Result(
                lake=state.lake,
                eval=first["eval"],
                model=first["model"],
                materialized_at=first["materialized_at"].astimezone(UTC),
                metrics=metrics,
                metrics_file=first["_file"],
                scores_file=first["scores_file"],
                is_current=first["newest_at"] == first["materialized_at"],
            )
        )
    return results


NOTHING = "-"
"""The value of `against` if nothing is compared: no name of a model."""

NAMED_SCORES = (
    "(select * from read_parquet($scores) union all by name select null::varchar as sample_name, null::varchar as item, "
    "null::varchar as explanation, null::varchar as variant where false)"
)
"""The scores of a result. Files that are older than these columns have null there."""


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
    state: CatalogState, against: Result, result: Result, prompts: Mapping[str, PromptRow], ids: Sequence[str]
) -> Mapping[str, PromptRow]:
    """The prompts of another result to the same samples: its choices can be others, or in another order."""
    return prompts if against.prompts == result.prompts else prompts_of(state, against, ids, "sample_id, choices")


def prompts_of(
    state: CatalogState, result: Result, ids: Sequence[str], columns: str = "sample_id, prompt, choices, gold"
) -> dict[str, PromptRow]:
    """Columns of the prompts of some samples, by sample id; none if the prompts were deleted."""
    if result.prompts is None or not ids:
        return {}
    query = f"select {columns} from read_parquet($files) where sample_id in (select unnest($ids))"
    return {row["sample_id"]: row for row in state.rows(query, {"files": result.prompts, "ids": list(ids)})}


def answers_of(
    state: CatalogState, result: Result, ids: Sequence[str], columns: str = "sample_id, text, text_post_processed, choice_logprobs, error"
) -> dict[str, ResponseRow]:
    """Columns of the responses to some samples, by sample id; none if the responses were deleted."""
    if result.responses is None or not ids:
        return {}
    newer = "union all by name select null::double as cost, null::varchar as served_model, null::varchar as episode where false"
    query = f"select {columns} from (select * from read_parquet($files) {newer}) where sample_id in (select unnest($ids))"
    return {row["sample_id"]: row for row in state.rows(query, {"files": result.responses, "ids": list(ids)})}
