"""Answers of a partition that are scored while others are still asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.parquet_files import iter_rows
from eval_dagster.lake.tables.columns import PromptRow, ResponseRow
from eval_dagster.lake.tables.rows import prompt_of, response_of
from eval_dagster.records import Sample
from eval_dagster.stages.partition import Partition, allowed_execution
from eval_dagster.stages.scores import asked_types, headline, scores_of
from eval_dagster.stages.snapshot import samples_to_score


@dataclass(kw_only=True)
class ScoredAnswers:
    """The answers so far, and the values of one metric for them."""

    partition: Partition
    prompts: LakeFile
    metric: str
    """Name of a value of the task's headline metric."""
    values: dict[str, float | None] = field(default_factory=dict)
    """The value of each scored sample; None for an error."""
    _answers: dict[str, ResponseRow] = field(default_factory=dict)

    def take(self, prompt: PromptRow, response: ResponseRow) -> None:
        """Take an answer."""
        self._answers[prompt["sample_id"]] = response

    def score(self) -> None:
        """Score the answers that were taken since the last time."""
        rows = (row for row in iter_rows(self.prompts.path) if row["sample_id"] in self._answers)
        answered = ((prompt_of(row), response_of(self._answers[row["sample_id"]])) for row in rows)
        with allowed_execution(self.partition.project):
            for prompt, score in scores_of(self._scorer, self._samples, answered, asked_types(self.prompts)):
                if score.metric == self.metric:
                    self.values[prompt.sample_id] = score.value
        self._answers.clear()

    @cached_property
    def _samples(self) -> Mapping[str, Sample]:
        return samples_to_score(self._scorer, self.partition.project, self.partition.eval_name)

    @cached_property
    def _scorer(self) -> Any:
        """The task, with its headline metric alone."""
        task = self.partition.scorer()
        vars(task)["METRICS"] = [headline(self.partition.task)]
        return task
