"""The splits of the datasets of lm-eval's tasks."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.tasks.benchmark import DatasetSplit

_KINDS = ("csv", "json", "parquet", "text")
"""Names of readers of `datasets` that stand for a dataset of named files."""
_NO_OPTION = ("data_files", "revision", "trust_remote_code", "streaming")
_ON_HUB = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@[^/]+)?/(.+)")


def dataset_splits(config: Mapping[str, Any], folder: Path, *, fewshot: bool) -> list[DatasetSplit]:
    """The splits that a task reads; empty if it makes the rows itself."""
    if callable(config.get("custom_dataset")):
        return []
    if "class" in config:
        names = [split for split in ("test", "validation") if _class_has(config["class"], split)][:1]
    else:
        names = [str(config.get("test_split") or config.get("validation_split") or "")]
    if fewshot:
        names.append(example_split(config) or "")
    return [split_of(config, folder, name) for name in dict.fromkeys(filter(None, names))]


def example_split(config: Mapping[str, Any]) -> str | None:
    """The split of examples, unless it is the evaluated one."""
    settings = config.get("fewshot_config") or {}
    if not isinstance(settings, Mapping):
        return None
    named = settings.get("split") or config.get("fewshot_split")
    if not named and settings.get("samples") is not None:
        return None
    named = named or config.get("training_split") or config.get("validation_split")
    evaluated = config.get("test_split") or config.get("validation_split")
    return str(named) if named and named != evaluated else None


def split_of(config: Mapping[str, Any], folder: Path, name: str) -> DatasetSplit:
    """A split of a task's dataset by its name.

    Args:
        config: The task's configuration.
        folder: The folder of its YAML file, which local files are relative to.
        name: The split.

    Raises:
        TaskDefinitionError: The task names its files in a way that is not supported.
    """
    task_class, options = config.get("class"), config.get("dataset_kwargs") or {}
    path = str(config.get("dataset_path") or getattr(task_class, "DATASET_PATH", None) or "")
    subset, revision = config.get("dataset_name") or getattr(task_class, "DATASET_NAME", None), options.get("revision")
    if options.get("data_dir"):
        raise TaskDefinitionError(f"lm_eval:{config.get('task')} names a folder of its dataset (data_dir); eval_dagster reads named files")
    if not options.get("data_files"):
        return DatasetSplit(path=path, config=subset, split=name, revision=revision)
    given = options["data_files"]
    listed = given.get(name) if isinstance(given, Mapping) else given if name == "train" else None
    files = [listed] if isinstance(listed, str) else list(listed or ())
    if not files or any(("://" in file and not _ON_HUB.fullmatch(file)) or "*" in file for file in files):
        raise TaskDefinitionError(
            f"lm_eval:{config.get('task')} has the data_files {given!r}; expected local files or files of a dataset on the Hub for the "
            f"split {name!r}, without a pattern"
        )
    if found := _ON_HUB.fullmatch(files[0]):
        path, files = found[1], [str(found[2]) for file in files if (found := _ON_HUB.fullmatch(file))]
    elif path in _KINDS:
        path = str(folder.resolve())
    more = {key: value for key, value in options.items() if key not in _NO_OPTION and key != "features"}
    return DatasetSplit(path=path, config=subset, split=name, revision=revision, files=tuple(files), options=more)


def _class_has(task_class: Any, split: str) -> bool:
    try:
        return bool(getattr(object.__new__(task_class), f"has_{split}_docs")())
    except Exception:  # an instance that was not built may lack what the method asks
        return split == "test"
