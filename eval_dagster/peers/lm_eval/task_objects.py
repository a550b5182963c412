"""lm-eval's task objects over given rows, and the splits that the rows come from.

No class of lm-eval is patched: each object is of a subclass of its own class.
"""

import datetime
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from eval_dagster.errors import DataError, TaskDefinitionError
from eval_dagster.peers.lm_eval.configurations import (
    SEED,
    Configuration,
    DatasetKwargs,
    Leaf,
    MetricListed,
    code_files,
    package_code,
    seeded,
)
from eval_dagster.records import Row
from eval_dagster.tasks.benchmark import BenchmarkRows, DatasetSplit, OpenSplit
from eval_dagster.versions.hashes import stable_hash

_KINDS = ("csv", "json", "parquet", "text")
"""Names of readers of `datasets` that stand for a dataset of named files."""
_NO_OPTION = ("features", "trust_remote_code", "streaming")
_ON_HUB = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@[^/]+)?/(.+)")


class Docs(list[Row]):
    """Rows with the names of their columns, as lm-eval asks for them."""

    @property
    def features(self) -> dict[str, None]:
        """The names of the columns."""
        return dict.fromkeys(self[0]) if self else {}


class _Splits(dict[str, object]):
    """Splits by name, each read when it is first asked for."""

    def __init__(self, read: Callable[[str], object]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, split: str) -> object:
        self[split] = self._read(split)
        return self[split]


def read_rows(leaf: Leaf, open_split: OpenSplit, *, fewshot: bool) -> BenchmarkRows:
    """The documents that a task makes of the rows of its dataset: the evaluated ones, and those that examples are drawn from.

    Raises:
        DataError: A document holds a value that is not text, a number, a list or a mapping.
    """
    import datasets

    config, folder = leaf.load(), leaf.file.parent
    unread = None if fewshot else example_split(config)
    splits = {split.split: split for split in dataset_splits(config, folder, fewshot=True)}

    def read(name: str) -> Any:
        if name == unread:
            return datasets.Dataset.from_list([])
        known = splits.get(name)
        return datasets.Dataset.from_list(open_split(known or split_of(config, folder, name)))

    def download(task: Any, dataset_kwargs: Any = None, **_: Any) -> None:  # noqa: ARG001 - the signature is lm-eval's
        if callable(getattr(task.config, "custom_dataset", None)):
            task.dataset = task.config.custom_dataset(**(task.config.metadata or {}), **(task.config.dataset_kwargs or {}))
        else:
            task.dataset = _Splits(read)

    if config.process_docs is not None:
        config.document["process_docs"] = _once(config.process_docs)
    with seeded(), package_code(code_files(config)), _quiet():
        datasets.disable_progress_bars()
        task = _built(config, {"download": download})
        evaluated = [dict(row) for row in task.eval_docs]
        examples = [dict(row) for row in task.fewshot_docs() or ()] if fewshot else []
    for row in (*evaluated, *examples):
        for field, value in row.items():
            # Rows are kept in another form, so that a template would write these values differently than in lm-eval.
            is_image = type(value).__module__.startswith("PIL.")
            if is_image or isinstance(value, datetime.date | datetime.time | datetime.timedelta | bytes):
                raise DataError(
                    f"lm_eval:{leaf.name}: the field {field!r} holds a {type(value).__name__}; expected text, numbers, lists and mappings. "
                    "In a task of your own, change or remove the field in `process_docs`"
                )
    return BenchmarkRows(evaluated=evaluated, examples=examples)


def task_over(leaf: Leaf, rows: BenchmarkRows) -> Any:
    """The task over documents that `read_rows` made. It neither reads nor processes them again."""
    docs, pool = Docs(rows.evaluated), Docs(rows.examples)
    given: dict[str, object] = {"download": lambda *_, **__: None, "eval_docs": property(lambda _: docs)}
    given |= {name: lambda _: pool for name in ("fewshot_docs", "training_docs")}
    config = leaf.load()
    with seeded(), package_code(code_files(config)), _quiet():
        return _built(config, given)


def set_examples(task: Any, *, num_fewshot: int, seed: int) -> None:
    """Set the number of examples and the generator that draws them. An example is never the question itself."""
    task.set_config("num_fewshot", num_fewshot)
    task.set_fewshot_seed(SEED + seed)
    sampler = getattr(task, "sampler", None)
    if sampler is None or hasattr(sampler, "without_question"):
        return
    draw = type(sampler).sample

    def sample(n: int, eval_doc: Row | None = None, **given: Any) -> Sequence[Row]:
        drawn = list(draw(sampler, n, eval_doc, **given))
        asked = sampler.asked
        if asked not in drawn:
            return drawn
        # lm-eval shows the question with its answer if a task names no split for examples; here another row takes its place.
        others = [row for row in sampler.fewshot_docs() if row != asked and row not in drawn]
        Random(stable_hash([seed, str(asked)])).shuffle(others)  # noqa: S311
        return [row if row != asked else others.pop() for row in drawn if row != asked or others]

    sampler.sample, sampler.without_question, sampler.asked = sample, True, None


def metric_functions(config: Configuration) -> dict[str, tuple[Callable[..., float], bool]]:
    """The metrics of a configuration: name -> aggregation and whether higher is better."""
    from lm_eval.api.metrics import mean
    from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY, get_aggregation, get_metric_aggregation, is_higher_better

    with package_code(code_files(config)), _quiet():
        if config.task_class is not None:
            # These methods of lm-eval's classes need no rows, and an instance would read them.
            task = object.__new__(config.task_class)
            try:
                directions = task.higher_is_better()
            except AttributeError as error:
                raise TaskDefinitionError(
                    f"lm_eval:{config.task} is of the class {config.task_class.__name__}, which knows its metrics only after another "
                    "package brought its rows; eval_dagster needs them before"
                ) from error
            return {name: (function, bool(directions.get(name, True))) for name, function in task.aggregation().items()}
        found: dict[str, tuple[Callable[..., float], bool]] = {}
        kind = config.output_type or "generate_until"
        for each in config.metric_list or [MetricListed(metric=name) for name in DEFAULT_METRIC_REGISTRY[kind]]:
            name, given, better = getattr(each.metric, "__name__", each.metric), each.aggregation, each.higher_is_better
            aggregation = given if callable(given) else get_aggregation(given) if given else get_metric_aggregation(name)
            if better is None and not callable(each.metric):
                better = is_higher_better(name)
            found[name] = (aggregation or mean, better is not False)
        return found


def _built(config: Configuration, attributes: Mapping[str, object]) -> Any:
    from lm_eval.api.task import ConfigurableTask

    given = config.task_class or ConfigurableTask
    made = type(given.__name__, (given,), {"__module__": given.__module__, **attributes})
    task = made(config=config.document) if "config" in inspect.signature(made).parameters else made()
    if getattr(task.config, "task", None) is None and config.task is not None:
        task.config.task = config.task
    return task


def _once(process: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Process each split once. lm-eval does it at each access, so that a task that shuffles would have other rows each time."""
    known: dict[int, tuple[Any, Any]] = {}

    def once(rows: Any) -> Any:
        if id(rows) not in known:
            known[id(rows)] = (rows, process(rows))
        return known[id(rows)][1]

    return once


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the block, lm-eval logs only errors."""
    log = logging.getLogger("lm_eval")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def dataset_splits(config: Configuration, folder: Path, *, fewshot: bool) -> list[DatasetSplit]:
    """The splits that a task reads; empty if it makes the rows itself."""
    if callable(config.custom_dataset):
        return []
    if config.task_class is not None:
        names = [split for split in ("test", "validation") if _class_has(config.task_class, split)][:1]
    else:
        names = [config.test_split or config.validation_split or ""]
    if fewshot:
        names.append(example_split(config) or "")
    return [split_of(config, folder, name) for name in dict.fromkeys(filter(None, names))]


def example_split(config: Configuration) -> str | None:
    """The split of examples, unless it is the evaluated one."""
    settings = config.fewshot_config or {}
    if not isinstance(settings, Mapping):
        return None
    named = settings.get("split") or config.fewshot_split
    if not named and settings.get("samples") is not None:
        return None
    named = named or config.training_split or config.validation_split
    return str(named) if named and named != (config.test_split or config.validation_split) else None


def split_of(config: Configuration, folder: Path, name: str) -> DatasetSplit:
    """A split of a task's dataset by its name.

    Args:
        config: The task's configuration.
        folder: The folder of its YAML file, which local files are relative to.
        name: The split.

    Raises:
        TaskDefinitionError: The task names its files in a way that is not supported.
    """
    options = config.dataset_kwargs or DatasetKwargs()
    path = str(config.dataset_path or getattr(config.task_class, "DATASET_PATH", None) or "")
    subset, revision = config.dataset_name or getattr(config.task_class, "DATASET_NAME", None), options.revision
    if options.data_dir:
        raise TaskDefinitionError(f"lm_eval:{config.task} names a folder of its dataset (data_dir); eval_dagster reads named files")
    if not options.data_files:
        return DatasetSplit(path=path, config=subset, split=name, revision=revision)
    given = options.data_files
    listed = given.get(name) if isinstance(given, Mapping) else given if name == "train" else None
    files = [listed] if isinstance(listed, str) else list(listed or ())
    if not files or any(("://" in file and not _ON_HUB.fullmatch(file)) or "*" in file for file in files):
        raise TaskDefinitionError(
            f"lm_eval:{config.task} has the data_files {given!r}; expected local files or files of a dataset on the Hub for the "
            f"split {name!r}, without a pattern"
        )
    if found := _ON_HUB.fullmatch(files[0]):
        path, files = found[1], [str(found[2]) for file in files if (found := _ON_HUB.fullmatch(file))]
    elif path in _KINDS:
        path = str(folder.resolve())
    more = {key: value for key, value in (options.model_extra or {}).items() if key not in _NO_OPTION}
    return DatasetSplit(path=path, config=subset, split=name, revision=revision, files=tuple(files), options=more)


def _class_has(task_class: Any, split: str) -> bool:
    try:
        return bool(getattr(object.__new__(task_class), f"has_{split}_docs")())
    except Exception:  # an instance that was not built may lack what the method asks
        return split == "test"
