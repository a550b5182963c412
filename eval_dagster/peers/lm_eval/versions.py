"""The version of a task of lm-eval: of the packages, its configuration and the files of the code beside it."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from eval_dagster.peers.lm_eval.configurations import file_of, functions_in, is_of_task
from eval_dagster.versions.hashes import file_hash, package_versions, stable_hash

_PACKAGES = ("lm_eval", "datasets", "jinja2", "nltk", "numpy", "rouge_score", "sacrebleu", "scikit-learn")
_READ_BY_CODE = {".py", ".json", ".jsonl", ".txt", ".csv", ".tsv", ".yaml"}


def task_version(config: Mapping[str, Any]) -> str:
    """Hash of a configuration with its functions."""
    return stable_hash([package_versions(_PACKAGES), _plain(config), _files(config)])


def _files(config: Mapping[str, Any]) -> dict[str, str]:
    """A hash of each file in the folders of the functions: helpers, and data that some of them read."""
    hashes: dict[str, str] = {}
    for file in sorted({found for function in functions_in(config) if (found := _source(function)).endswith(".py")}):
        beside = (
            [path for path in Path(file).parent.iterdir() if path.suffix in _READ_BY_CODE - {".yaml"}] if is_of_task(file) else [Path(file)]
        )
        for path in sorted(each for each in beside if each.is_file()):
            digest = file_hash(path)
            # Two folders may have files of one name.
            name = path.name if hashes.setdefault(path.name, digest) == digest else f"{path.parent.name}/{path.name}"
            hashes[name] = digest
    return hashes


def _source(function: Any) -> str:
    own = file_of(function)
    return own if is_of_task(own) else str(getattr(sys.modules.get(str(getattr(function, "__module__", ""))), "__file__", None) or "")


def _plain(value: Any) -> Any:
    """A configuration without the parts that differ between machines: functions by name, no paths of the package."""
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
