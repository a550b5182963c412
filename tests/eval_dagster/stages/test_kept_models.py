"""Which model stays loaded between two models of a run."""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from eval_dagster.errors import ModelError
from eval_dagster.models.base import Model
from eval_dagster.models.usage import Usage
from eval_dagster.records import ModelResponse, Request
from eval_dagster.stages.inference import KeptModel


class Loaded(Model):
    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        return iter(())

    def usage(self) -> Sequence[Usage]:
        return ()


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

    def shares(self) -> bool:
        return False


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


def test_a_loaded_model_without_the_members_of_its_base_class_is_refused() -> None:
    class Bare(Handle):
        def load(self) -> Any:
            return object()

    handle: Any = Bare([])
    with pytest.raises(ModelError, match=r"Bare\.load gave a object, .*; expected an instance of a subclass of eval_dagster\.Model"):
        KeptModel().load(handle)
