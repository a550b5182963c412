"""The groups of lm-eval whose tasks have no value in common, as the evals of a suite."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.lm_eval.configurations import GROUP_KEYS, group_config
from eval_dagster.peers.lm_eval.index import Entry


def suite_evals(entry: Entry, index: Mapping[str, Entry], folder: Path, is_one_eval: Callable[[Entry], bool]) -> dict[str, dict[str, Any]]:
    """The settings of the evals, by name. A member that is not one eval is replaced by its own members.

    Args:
        entry: A task, a group or a tag.
        index: All names.
        folder: The folder that the files of the entries are relative to.
        is_one_eval: Whether the tasks of a name have the same metrics.

    Raises:
        TaskDefinitionError: A group sets something for a member that no key of an eval sets.
    """
    return dict(_evals(entry, index, folder, is_one_eval, {}))


def _evals(
    entry: Entry,
    index: Mapping[str, Entry],
    folder: Path,
    is_one_eval: Callable[[Entry], bool],
    given: Mapping[str, Any],
) -> Iterator[tuple[str, dict[str, Any]]]:
    if entry.kind == "task" or is_one_eval(entry):
        yield entry.name, {"task": f"lm_eval:{entry.name}", **_settings(entry.name, given)}
    elif entry.kind == "tag":
        for name in entry.members:
            yield from _evals(index[name], index, folder, is_one_eval, given)
    else:
        yield from _of_group(group_config(folder / entry.file), index, folder, is_one_eval, given)


def _of_group(
    config: Mapping[str, Any],
    index: Mapping[str, Entry],
    folder: Path,
    is_one_eval: Callable[[Entry], bool],
    given: Mapping[str, Any],
) -> Iterator[tuple[str, dict[str, Any]]]:
    merged = {**{key: value for key, value in config.items() if key not in GROUP_KEYS}, **given}
    listed = config.get("task") or ()
    for member in [listed] if isinstance(listed, str) else listed:
        if not isinstance(member, str) and "group" in member and member["group"] not in index:
            yield from _of_group(member, index, folder, is_one_eval, merged)
            continue
        name = member if isinstance(member, str) else member.get("group", member.get("task"))
        own = {} if isinstance(member, str) else {key: value for key, value in member.items() if key not in ("group", "task")}
        if name not in index:
            raise TaskDefinitionError(f"a group of lm-eval names {name!r}, which is not there")
        yield from _evals(index[name], index, folder, is_one_eval, {**merged, **own})


def _settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a group for a member, as keys of an eval."""
    others = sorted(given.keys() - {"num_fewshot", "task_alias", "alias"})
    if others:
        raise TaskDefinitionError(
            f"the group sets {', '.join(others)} for lm_eval:{name}, which an eval of evals.yaml cannot set; write a YAML task of your own "
            "that includes it, and name its file"
        )
    return {"num_fewshot": given["num_fewshot"]} if "num_fewshot" in given else {}
