"""lm-eval's own evaluation, over rows that are given to it, asked of a model that answers by hashes."""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import datasets
import evaluate
import numpy as np
from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs

POOL = ("B", "The answer is (A).", "no", "#### 4", " yes\n\nno", "", "apple river", "2", "True, since \\boxed{7}", "[[3]] C")
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def drawn(*parts: object) -> int:
    """A number that depends on the parts alone."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:6], "big")


def likelihood(context: str, continuation: str) -> tuple[float, bool]:
    """Log-probability and greedy flag of a continuation."""
    number = drawn(context, continuation)
    return -1 - (number % 100_003) / 1000, number % 3 == 0


def written(context: str, golds: Mapping[str, str], copy: int) -> str:
    """A text; every third one holds the correct answer."""
    number = drawn(context, copy)
    if number % 3 == 0 and context in golds:
        return golds[context]
    return POOL[number % len(POOL)]


def chat_text(messages: Sequence[tuple[str, str]]) -> str:
    """Messages by the template of the invented model. A last message of the assistant stays open."""
    turns = "".join(f"<{role}>{content}</{role}>" for role, content in messages)
    return turns.removesuffix("</assistant>") if messages[-1][0] == "assistant" else f"{turns}<assistant>"


class HashLM(LM):
    """Answers by hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.golds: dict[str, str] = {}

    tokenizer_name = "hash"

    def chat_template(self, chat_template: bool | str = False) -> str:
        return ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        turns = [(each["role"], each["content"]) for each in chat_history]
        assert add_generation_prompt == (turns[-1][0] != "assistant")
        return chat_text(turns)

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        return [likelihood(*each.args[:2]) for each in requests]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return [likelihood("", each.args[0])[0] for each in requests]

    def generate_until(self, requests: list[Any]) -> list[str]:
        texts: list[str] = []
        copies: dict[int, int] = {}
        for each in requests:
            settings = normalize_gen_kwargs(each.args[1])
            copy = copies.get(id(each), 0) if settings["do_sample"] else 0
            copies[id(each)] = copy + 1
            text = written(each.args[0], self.golds, copy)
            for stop in settings["until"]:
                text = text.split(stop)[0] if stop else text
            texts.append(text)
        return texts


@contextmanager
def rows_instead(found: Any) -> Iterator[None]:
    """Within the block, `datasets.load_dataset` returns these splits, and `evaluate.load` fails without asking the network."""
    own = datasets.load_dataset, evaluate.load
    datasets.load_dataset, evaluate.load = lambda *_, **__: found, _no_metric
    try:
        yield
    finally:
        datasets.load_dataset, evaluate.load = own


def _no_metric(*_: Any, **__: Any) -> Any:
    raise OSError("there is no network")


def task_of(config: Mapping[str, Any], rows: Rows) -> Any:
    """lm-eval's task over rows."""
    from lm_eval.api.task import ConfigurableTask

    datasets.disable_progress_bars()
    given = {key: each for key, each in config.items() if key not in ("tag", "group", "task_list")}
    random.seed(0)
    np.random.seed(1234)
    found = datasets.DatasetDict({name: datasets.Dataset.from_list([dict(row) for row in split]) for name, split in rows.items()})
    with rows_instead(found):
        made = given.pop("class", None)
        if made is not None:
            return made(config=deepcopy(given)) if "config" in made.__init__.__code__.co_varnames else made()
        return ConfigurableTask(config=deepcopy(given))


def stored(folder: Path) -> datasets.DatasetDict:
    """The splits of a folder of Parquet files."""
    files = {file.stem: str(file) for file in sorted(folder.glob("*.parquet"))}
    cache = str(folder / "cache")
    return datasets.DatasetDict({name: datasets.Dataset.from_parquet(file, cache_dir=cache) for name, file in files.items()})
