"""Keeps eval-framework and the files of its users from loading datasets: within a block, another function is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import datasets


class FoundError(BaseException):
    """Raised where the dataset would be loaded, with what of it is wanted. It is no `Exception`, which code may catch."""

    def __init__(self, path: str, config: str | None, revision: str | None) -> None:
        super().__init__(path)
        self.path, self.config, self.revision = path, config, revision


@contextmanager
def loading(load: Callable[..., Any]) -> Iterator[None]:
    """Within the block, `load_dataset` of the package `datasets` is another function, in each module that has it."""
    own = datasets.load_dataset
    named = [
        (module, name)
        for module in list(sys.modules.values())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is own
    ]
    for module, name in named:
        setattr(module, name, load)
    try:
        yield
    finally:
        for module, name in named:
            setattr(module, name, own)
