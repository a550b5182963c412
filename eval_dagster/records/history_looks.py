"""The samples that a model is asked for an estimate by history, as they were chosen before the first answer of a look."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class HistoryLook:
    """A look of an eval with `estimate: {history}`: the samples that were drawn, with their chances."""

    eval: str
    model: str
    run_id: str
    chosen_at: datetime
    """Time at which the samples were drawn, before the first of them was asked."""
    prompt_version: str
    """Version of the prompts that are asked."""
    model_version: str
    """Version of the model that is asked."""
    look: int
    """The number of the look, from 1."""
    n_asked: int
    """Samples that are asked up to this look, and with it."""
    models: tuple[str, ...]
    """The models whose answers predict, each as often as it has results of different versions. Empty without a history."""
    history_files: tuple[str, ...]
    """Their results: files of `metrics`, relative to the lake."""
    reason: str | None = None
    """Why the samples are drawn evenly, without a history. Null with one."""
    sample_ids: tuple[str, ...]
    """The samples that were drawn."""
    predictions: tuple[float, ...]
    """The predicted score of each sample that no earlier look has asked, in the order of their ids."""
    chances: tuple[float, ...]
    """The chance of each of them to be drawn by this look."""
