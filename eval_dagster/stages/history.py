"""Asks some samples of an eval with `estimate: {history}`, and estimates its score by earlier models' answers to all of them.

The samples of a look are stored before the first of them is asked (the relation `history_looks`). So a run that was killed goes on with the
same samples, and a history that has changed meanwhile changes no choice that was made. The statistics are in `statistics.borrowed`.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from eval_dagster.errors import LakeError, LakeUnreachableError, TaskDefinitionError
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.files import Lake, LakeFile
from eval_dagster.lake.format.parquet_files import FileInfo, read_few_rows, read_table
from eval_dagster.lake.lineage import asked_versions
from eval_dagster.lake.records import append, records_of
from eval_dagster.lake.tables.columns import MetricRow, PromptRow, ResponseRow
from eval_dagster.lake.tables.rows import fields_in
from eval_dagster.metrics.base import CorpusMetric, ItemMetric, known_bounds
from eval_dagster.records.history_looks import HistoryLook
from eval_dagster.stages.episodes import is_episodic
from eval_dagster.stages.looks import NOT_ASKED, Ending
from eval_dagster.stages.partition import Partition
from eval_dagster.stages.scored_answers import ScoredAnswers
from eval_dagster.stages.scores import headline, metric_versions
from eval_dagster.statistics.borrowed import (
    FEWEST_MODELS,
    BorrowedEstimate,
    BorrowedLook,
    Floats,
    Places,
    choose,
    estimate,
    next_end,
    predict,
)
from eval_dagster.texts.figures import counted
from eval_dagster.versions.hashes import stable_hash

_TABLE = "history_looks"
_MOST_FILES, _MOST_RESULTS = 10, 60
"""Newest whole results of a model that are looked through, and most results that predict: the newest."""
_PART = 10_000
"""Prompts whose answers are looked for together."""
_SHOWN = 5
"""Models that a note names."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class _History:
    """Earlier results on the same questions."""

    files: Sequence[str] = ()
    models: Sequence[str] = ()
    values: Floats
    """Of shape (results, samples)."""
    reason: str | None = None
    """Why there is none."""


def looks_of_estimate(partition: Partition, prompts: LakeFile, model_version: str) -> "HistoryLooks | None":
    """Plan how an eval is asked for an estimate. None if its settings have none, allow as many samples as it has, or all are answered.

    Raises:
        TaskDefinitionError: A sample of the eval is not one prompt.
    """
    setting = partition.project.eval(partition.eval_name).estimate
    if setting is None:
        return None
    table = read_table(prompts.path, ["sample_id", "source_id"])
    ids = sorted(table["sample_id"].to_pylist())
    if len(ids) <= setting.history:
        return None
    if is_episodic(partition) or len(pc.unique(table["source_id"])) < len(ids):
        raise TaskDefinitionError(
            f"the eval {partition.eval_name} has `estimate: {{history: {setting.history}}}` in evals.yaml, but a sample of its task is "
            "an episode, or several prompts that are scored together; an estimate needs one prompt for each sample. Remove `estimate`"
        )
    if _is_answered(partition, prompts, model_version):
        return None
    stored = list(_stored(partition.project.lake, partition, prompts.info.version, model_version))
    if stored:
        history = _read(partition, stored[0].history_files, ids, reason=stored[0].reason)
    else:
        history = _found(partition, prompts, ids, model_version)
    return HistoryLooks(
        partition=partition,
        prompts=prompts,
        model_version=model_version,
        most=setting.history,
        ids=ids,
        history=history,
        looks=stored,
    )


def _is_answered(partition: Partition, prompts: LakeFile, model_version: str) -> bool:
    """Whether the response cache has the answers to all prompts."""
    cache = ResponseCache(partition.project.lake, model_version)
    names = read_table(prompts.path, ["request_id"], pc.field("error").is_null())["request_id"].to_pylist()
    return all(cache.find(part).keys() >= set(part) for part in (names[start : start + _PART] for start in range(0, len(names), _PART)))


@dataclass(kw_only=True)
class HistoryLooks:
    """The looks at the answers of one eval and model, whose score is to be estimated."""

    partition: Partition
    prompts: LakeFile
    model_version: str
    most: int
    ids: Sequence[str]
    """All samples, sorted."""
    history: _History
    looks: list[HistoryLook]
    """Those that were chosen. Earlier runs may have chosen some."""

    @property
    def rest(self) -> str:
        """Why samples are in no part."""
        return f"the score is estimated from at most {self.most:,} samples (estimate)"

    @property
    def n_parts(self) -> int:
        """Parts in which samples are asked."""
        return len(self._ends)

    @cached_property
    def _ends(self) -> Sequence[int]:
        """Samples that are asked up to each look."""
        ends = [0, *(look.n_asked for look in self.looks)]
        if self.history.reason is not None:  # any parts of an even draw are an even draw
            return [*ends, self.most][1:] if ends[-1] < self.most else ends[1:]
        while (end := next_end(ends[-1], self.most, len(self.ids))) > ends[-1]:
            ends.append(end)
        return ends[1:]

    @cached_property
    def _answers(self) -> ScoredAnswers:
        return ScoredAnswers(partition=self.partition, prompts=self.prompts, metric=headline(self.partition.task).NAME)

    def part(self, number: int) -> Sequence[str]:
        """The samples of a look, from 0. They are drawn and stored, unless an earlier run did."""
        if number == len(self.looks):
            self._choose(number)
        return self.looks[number].sample_ids

    def take(self, prompt: PromptRow, response: ResponseRow) -> None:
        """Take an answer."""
        self._answers.take(prompt, response)

    def look(self) -> Ending | None:
        """None: the number of parts is known from the start."""
        return None

    def _choose(self, number: int) -> None:
        try:
            self._answers.score()
        except LakeUnreachableError:
            raise
        except Exception as error:  # the stage of the scores reports it; predictions need no answers
            log.warning("samples of %s are chosen without the answers since the last look: %s", self.partition, error)
        rest = np.flatnonzero(~np.isin(self.ids, [name for look in self.looks for name in look.sample_ids])).astype(np.intp)
        known = self._answers.values
        answers = np.array([np.nan if (value := known.get(name)) is None else value for name in self.ids], dtype=float)
        if self.history.reason is None and len(self.history.files):
            predictions = predict(self.history.values, answers)
        else:
            predictions = np.full(len(self.ids), 0.5)
        seed = stable_hash([self.partition.project.eval(self.partition.eval_name).seed, self.partition.eval_name, number])
        count = self._ends[number] - (self._ends[number - 1] if number else 0)
        drawn = choose(rest, predictions[rest], count, np.random.default_rng(int(seed[:16], 16)))
        look = HistoryLook(
            eval=self.partition.eval_name,
            model=self.partition.model,
            run_id=self.partition.run_id,
            chosen_at=datetime.now(UTC),
            prompt_version=self.prompts.info.version,
            model_version=self.model_version,
            look=number + 1,
            n_asked=self._ends[number],
            models=tuple(self.history.models),
            history_files=tuple(self.history.files),
            reason=self.history.reason,
            sample_ids=tuple(self.ids[place] for place in rest[drawn.drawn]),
            predictions=tuple(drawn.predictions.tolist()),
            chances=tuple(drawn.chances.tolist()),
        )
        append(self.partition.project.lake, _TABLE, [asdict(look)], self.partition.run_id)
        # Of two processes that choose at one time, the first one counts.
        every = _stored(self.partition.project.lake, self.partition, self.prompts.info.version, self.model_version)
        self.looks.append(next((each for each in every if each.look == look.look), look))


def _stored(lake: Lake, partition: Partition, prompt_version: str, model_version: str) -> Iterator[HistoryLook]:
    """The stored looks at a partition, in their order. Of several with one number, the first counts."""
    where = (
        (pc.field("eval") == partition.eval_name)
        & (pc.field("model") == partition.model)
        & (pc.field("prompt_version") == prompt_version)
        & (pc.field("model_version") == model_version)
    )
    lists = ("models", "history_files", "sample_ids", "predictions", "chances")
    rows = [
        HistoryLook(**fields_in(row, HistoryLook) | {name: tuple(row[name] or ()) for name in lists})
        for row in records_of(lake, _TABLE, where=where)
    ]
    first = {each.look: each for each in sorted(rows, key=lambda each: each.chosen_at, reverse=True)}
    for number in range(1, len(first) + 1):
        if number not in first:
            return
        yield first[number]


def _found(partition: Partition, prompts: LakeFile, ids: Sequence[str], model_version: str) -> _History:
    """The history of a partition: the newest whole results of all models, and of other versions of the model itself."""
    lake, metric = partition.project.lake, headline(partition.task)
    none = _History(values=np.empty((0, len(ids))))
    name = metric.NAME
    if (reason := _unfit(partition)) is not None:
        return _History(values=none.values, reason=reason)
    ruler = (name, metric_versions(partition.task, [metric])[name], asked_versions(prompts.path)[1])
    found: list[tuple[str, str]] = []
    for newest in lake.newest_files("metrics", partition.eval_name):
        versions = {model_version} if newest.parent.name == f"model={partition.model}" else set[str]()
        for path, info, row in islice(_whole(lake, newest.parent), _MOST_FILES):
            if info.inputs["model"] not in versions and (row["metric"], row["metric_version"], row["questions_version"]) == ruler:
                versions.add(info.inputs["model"])
                found.append((info.materialized_at, path.relative_to(lake.root).as_posix()))
    read = _read(partition, [file for _, file in sorted(found, reverse=True)[:_MOST_RESULTS]], ids, reason=None)
    if read.reason is None and len(read.files) < FEWEST_MODELS:
        had = f"{len(read.files)} of other models or versions on the same questions, with all samples, by the same metric"
        return _History(values=none.values, reason=f"it needs at least {FEWEST_MODELS} results, and the lake has {had}")
    return read


def _unfit(partition: Partition, values: Iterable[float | None] = ()) -> str | None:
    """Why the score of an eval, whose samples have these values, cannot be estimated by a history. None if it can."""
    metric = headline(partition.task)
    if issubclass(metric, CorpusMetric | ItemMetric) or partition.task.HEADLINE_AGGREGATION != "micro":
        return f"the score by {metric.NAME} is not a mean of all samples"
    if known_bounds(metric, values) != (0.0, 1.0):
        return f"the values of {metric.NAME} do not lie between 0 and 1"
    return None


def _whole(lake: Lake, folder: Path) -> Iterator[tuple[Path, FileInfo, MetricRow]]:
    """The results of a model that have all samples, the newest first, with the row that is shown. Damaged ones are left out."""
    for path in reversed(lake.files(folder)):
        try:
            info = lake.info(path)
            if not info.counts.get(NOT_ASKED) and (row := _shown(read_few_rows(path))) is not None:
                yield path, info, row
        except LakeUnreachableError:
            raise
        except LakeError:
            continue


def _shown(rows: Sequence[MetricRow]) -> MetricRow | None:
    return next((row for row in rows if row["is_headline"] and row["subject"] is None and row["aggregation"] == "micro"), None)


def _read(partition: Partition, files: Sequence[str], ids: Sequence[str], *, reason: str | None) -> _History:
    """The values of some results. One that is gone or damaged is left out, and so is one whose samples come in clusters."""
    lake, metric = partition.project.lake, headline(partition.task).NAME
    models: list[str] = []
    kept: list[str] = []
    values: list[Floats] = []
    for name in files:
        try:
            row = _shown(read_few_rows(lake.file(name)))
            if row is None:
                continue
            table = read_table(lake.file(row["scores_file"]), ["sample_id", "cluster", "value"], pc.field("metric") == metric)
        except LakeUnreachableError:
            raise
        except (LakeError, OSError) as error:
            log.warning("%s does not predict %s: %s", name, partition, error)
            continue
        if len(pc.unique(table["cluster"])) < len(table):
            return _History(values=np.empty((0, len(ids))), reason="the samples come in clusters")
        of_sample = dict(zip(table["sample_id"].to_pylist(), table["value"].to_pylist(), strict=True))
        own = [of_sample.get(each) for each in ids]
        values.append(np.array([np.nan if value is None else value for value in own], dtype=float))
        models.append(row["model"])
        kept.append(name)
    return _History(files=kept, models=models, values=np.array(values).reshape(len(values), len(ids)), reason=reason)


@dataclass(frozen=True, kw_only=True)
class Estimated:
    """The score of all samples by the answers to some, for the row of `metrics`."""

    estimate: BorrowedEstimate | None
    """None if the samples are an even draw, whose own mean and error bar stand, or if none of them has a value."""
    is_chosen: bool
    """Whether some samples were likelier than others, so that other means of the samples say nothing."""
    note: str


def estimated(
    partition: Partition, prompts: LakeFile, model_version: str, values: Mapping[str, float | None], clusters: Iterable[str]
) -> Estimated:
    """Estimate the score of a partition.

    Args:
        partition: The eval and the model.
        prompts: All its prompts.
        model_version: The version of the model that was asked.
        values: The values of the samples that were asked, None for an error.
        clusters: Their clusters.

    Raises:
        LakeError: The looks are not in the lake by which these samples were asked, or the headline metric is another one since then, whose
            score no such samples estimate.
    """
    every = list(_stored(partition.project.lake, partition, prompts.info.version, model_version))
    looks = [look for look in every if look.n_asked <= len(values)]
    if {name for look in looks for name in look.sample_ids} != values.keys():
        raise LakeError(
            f"{len(values)} samples of {partition} were asked for an estimate, but the looks in {partition.project.lake.root / _TABLE} are "
            "of other samples, or are gone; remove `estimate` from the eval in evals.yaml, and run it"
        )
    ids = sorted(read_table(prompts.path, ["sample_id"])["sample_id"].to_pylist())
    asked = f"{len(values):,} of {len(ids):,} samples asked"
    if (reason := looks[0].reason) is not None:
        how = f"drawn evenly, without the help of earlier models (on {looks[0].chosen_at:%Y-%m-%d}: {reason})"
        return Estimated(estimate=None, is_chosen=False, note=f"{asked}, {how}")
    if all(value is None for value in values.values()):
        return Estimated(estimate=None, is_chosen=True, note=f"{asked}, and none has a score, so that there is no estimate")
    unfit = _unfit(partition, values.values()) or ("the samples come in clusters" if len(set(clusters)) < len(values) else None)
    if unfit is not None:
        raise LakeError(
            f"{asked} of {partition}, chosen by the answers of earlier models, and now {unfit}, of which they tell nothing; "
            "remove `estimate` from the eval in evals.yaml, and run it"
        )
    answers = np.array([np.nan if (value := values.get(name)) is None else value for name in ids], dtype=float)
    found = estimate(list(_borrowed(looks, ids)), answers, is_proportion=headline(partition.task).IS_PROPORTION)
    models = list(dict.fromkeys(looks[0].models))
    names = ", ".join(models[:_SHOWN]) + (f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else "")
    by = f"{counted(len(looks[0].models), 'earlier result')} ({names})"
    if found.is_dropped:
        note = f"{asked}, chosen by {by}, whose predictions are left out: they would make the estimate less sure than an even draw"
    else:
        note = f"{asked}, the others predicted by {by}"
    all_of_them = f"the score of all is between {found.ci_low:.3f} and {found.ci_high:.3f} (95 %)"
    return Estimated(
        estimate=found, is_chosen=True, note=f"{note}; {all_of_them}; each counts as {found.factor:.2f} samples of an even draw"
    )


def _borrowed(looks: Sequence[HistoryLook], ids: Sequence[str]) -> Iterator[BorrowedLook]:
    """Stored looks, with places in the place of ids."""
    names, rest = np.array(ids), np.arange(len(ids), dtype=np.intp)
    for look in looks:
        is_drawn = np.isin(names[rest], look.sample_ids)
        drawn: Places = np.flatnonzero(is_drawn)
        yield BorrowedLook(rest=rest, predictions=np.array(look.predictions), chances=np.array(look.chances), drawn=drawn)
        rest = rest[~is_drawn]
