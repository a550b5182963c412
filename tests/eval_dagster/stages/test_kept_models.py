"""Which model stays loaded between two models of a run."""

import weakref
from typing import Any

from eval_dagster.stages.inference import KeptModel


class Loaded:
    pass


class Handle:
    """Notes which of the models loaded before are there when it is loaded."""

    def __init__(self, before: list[Any]):
        self.before = before
        self.alive: list[bool] = []

    def load(self) -> Any:
        self.alive = [each() is not None for each in self.before]
        model = Loaded()
        self.before.append(weakref.ref(model))
        return model


class Sharing(Handle):
    def shares(self) -> bool:
        return True


def test_a_model_is_kept_for_one_that_may_share_and_is_gone_before_any_other() -> None:
    kept, before = KeptModel(), []
    handles: list[Any] = [kind(before) for kind in (Sharing, Sharing, Handle, Handle)]
    for handle in handles:
        kept.load(handle)
    assert [handle.alive for handle in handles] == [[], [True], [False, False], [False, False, False]]


def test_the_end_of_a_run_frees_its_model() -> None:
    kept, before = KeptModel(), []
    handle: Any = Sharing(before)
    kept.load(handle)
    del kept
    assert before[0]() is None
