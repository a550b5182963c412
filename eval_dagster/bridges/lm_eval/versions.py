"""The version of a task of lm-eval: of the packages, its configuration and the files of the code beside it."""

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from eval_dagster.versions import file_hash, package_versions, stable_hash

_PACKAGES = ("lm_eval", "datasets", "jinja2", "nltk", "numpy", "rouge_score", "sacrebleu", "scikit-learn")
_READ_BY_CODE = {".py", ".json", ".jsonl", ".txt", ".csv", ".tsv", ".yaml"}


def task_version(config: Mapping[str, Any]) -> str:
    """Hash of a configuration with its functions."""
    return stable_hash([package_versions(_PACKAGES), _plain(config), _files(config)])


def _functions(value: Any) -> Iterator[Any]:
    """The functions and classes in a configuration, those in a partial included."""
    if isinstance(value, partial):
        yield from _functions([value.func, *value.args, *value.keywords.values()])
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _functions(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _functions(each)
    elif callable(value):
        yield value


def _files(config: Mapping[str, Any]) -> dict[str, str]:
    """A hash of each file in the folders of the functions: helpers, and data that some of them read."""
    hashes: dict[str, str] = {}
    for module in sorted({str(getattr(function, "__module__", "")) for function in _functions(config)}):
        file = getattr(sys.modules.get(module), "__file__", None)
        if not file or not file.endswith(".py"):
            continue
        is_task = "/lm_eval/tasks/" in file or "/site-packages/" not in file
        beside = [path for path in Path(file).parent.iterdir() if path.suffix in _READ_BY_CODE - {".yaml"}] if is_task else [Path(file)]
        hashes |= {path.name: file_hash(path) for path in sorted(beside) if path.is_file()}
    return hashes


def _plain(value: Any) -> Any:
    """A configuration without what differs between machines: functions by name, no paths of the package."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if key != "config_source"}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, partial):
        return ["partial", _plain(value.func), _plain(value.args), _plain(value.keywords)]
    if callable(value):
        return f"{value.__module__.rpartition('/')[2]}.{getattr(value, '__qualname__', type(value).__name__)}"
    if isinstance(value, str):
        return value.rpartition("site-packages/")[2]
    return value if value is None or isinstance(value, bool | int | float) else repr(value)
