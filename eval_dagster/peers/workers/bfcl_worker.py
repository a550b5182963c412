"""The entries of BFCL v4, its systems and its verdicts, made by bfcl-eval.

It runs in the environment that has bfcl-eval, and in the sandbox.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from bfcl_faults import first_fault
from bfcl_package import (
    NATIVE,
    category_mapping,
    default_prompts,
    enums,
    eval_runner,
    executable_backend_config,
    handler,
    multi_turn_utils,
)
from clean_child import in_child
from installed_versions import versions_around

if TYPE_CHECKING:
    from eval_dagster.peers.workers.bfcl_messages import CategoriesDescribed, Combination, EntryRow, VerdictSent

__all__ = ["describe", "execute", "names", "rows", "verdict"]

_SIMPLE = ("simple_python", "simple_java", "simple_javascript")
_NON_LIVE = (*_SIMPLE, "multiple", "parallel", "parallel_multiple")
_LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
_MULTI_TURN = tuple(category_mapping.MULTI_TURN_CATEGORY)
_Entry: TypeAlias = Any
"""An entry as the package reads it."""
_GROUPS: Mapping[str, tuple[Sequence[str], Combination, str]] = {
    "simple": (_SIMPLE, "macro", "Simple calls: the mean of the three languages."),
    "non_live": (_NON_LIVE, "non_live", "Calls of one turn: the mean of simple (the mean of its languages), multiple, parallel and both."),
    "live": (_LIVE, "micro", "Calls of one turn that users wrote: the share of all entries."),
    "irrelevance": (("irrelevance", "live_irrelevance"), "macro", "Entries that need no call: the mean of both categories."),
    "multi_turn": (_MULTI_TURN, "macro", "Calls over several turns: the mean of the categories."),
}
"""Groups: categories, how their scores become one as in the package, and a description."""
_CATEGORIES = (*_NON_LIVE, *_LIVE, "live_irrelevance", "live_relevance", *_MULTI_TURN)
_REFUSED = {
    "web_search": "it searches the web by a paid service; a run would depend on what is found",
    "memory_vector": "it downloads a model for its vectors, all-MiniLM-L6-v2, when it is imported",
}
_PACKAGE = "bfcl-eval"


def names() -> dict[str, str]:
    """Categories and groups."""
    return {**dict.fromkeys(_GROUPS, "group"), **dict.fromkeys(_CATEGORIES, "task")}


def describe(name: str) -> CategoriesDescribed:
    """The categories of a name, and how their scores become one. Raises `ValueError` for a name that is unknown or refused."""
    for refused, reason in _REFUSED.items():
        if name.startswith(refused):
            raise ValueError(f"{name} of BFCL cannot be evaluated here: {reason}")
    one = f"The category {name} of the Berkeley Function-Calling Leaderboard, version 4."
    if name not in names():
        raise ValueError(f"BFCL has no category and no group {name!r}; it has: {', '.join(names())}")
    categories, combination, description = _GROUPS.get(name, ((name,), "micro", one))
    return {
        "subjects": list(categories),
        "combination": combination,
        "description": description,
        "runs_calls": any(category in _MULTI_TURN for category in categories),
        "version": versions_around(_PACKAGE, "tree-sitter", "tree-sitter-java", "tree-sitter-javascript", "rank-bm25", "mpmath", "numpy"),
    }


@cache
def _entries(category: str, *, is_asked: bool) -> dict[str, _Entry]:
    """The entries of a category by id. The checker needs the functions without the hints on a language that a model gets."""
    found = eval_runner.load_dataset_entry(category, include_prereq=False, include_language_specific_hint=is_asked)
    return {entry["id"]: entry for entry in found}


@cache
def _answers(category: str) -> dict[str, object]:
    """The right answers by the ids of their entries, with which they agree by position."""
    ids = list(_entries(category, is_asked=False))
    if eval_runner.is_relevance_or_irrelevance(category):
        return dict.fromkeys(ids)
    found = eval_runner.load_ground_truth_entry(category)
    return {name: answer["ground_truth"] for name, answer in zip(ids, found, strict=True)}


def rows(category: str) -> list[EntryRow]:
    """The rows of a category, each with its messages and tools by turn as JSON."""
    asked, answers = _entries(category, is_asked=True), _answers(category)
    return [_row(category, copy.deepcopy(entry), answers[name]) for name, entry in asked.items()]


def _row(category: str, entry: _Entry, answer: object) -> EntryRow:
    turns, held_out = entry["question"], entry.get("missed_function", {})
    native = handler(NATIVE)
    tools = {"0": native._compile_tools({}, entry)["tools"]}
    for turn in sorted(held_out, key=int):
        entry["function"].extend(held_out[turn])
        tools[turn] = native._compile_tools({}, entry)["tools"]
        turns[int(turn)] = [{"role": "user", "content": default_prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC}]
    texts = {turn: [json.dumps(each) for each in several] for turn, several in tools.items()}
    steps = default_prompts.MAXIMUM_STEP_LIMIT if category in _MULTI_TURN else 0
    return {
        "id": entry["id"],
        "category": category,
        "steps": str(steps),
        "turns": json.dumps(turns),
        "tools": json.dumps(texts),
        "answer": json.dumps(answer),
    }


def execute(category: str, entry: str, calls: Sequence[tuple[str, Mapping[str, object]]]) -> str:
    """The result of the last of all calls of an entry's systems so far, which are made anew.

    The calls may be many: the systems answer in microseconds, and no call can leave anything for another entry.
    """
    about = _entries(category, is_asked=False)[entry]
    for each in about["involved_classes"]:
        importlib.import_module(executable_backend_config.CLASS_FILE_PATH_MAPPING[each])
    found: str = in_child(_executed, category, about, calls)
    return found


def _executed(category: str, about: _Entry, calls: Sequence[tuple[str, Mapping[str, object]]]) -> str:
    texts = handler(NATIVE).decode_execute([{name: json.dumps(arguments)} for name, arguments in calls], has_tool_call_tag=False)
    results, _ = multi_turn_utils.execute_multi_turn_func_call(
        texts, about["initial_config"], about["involved_classes"], NATIVE, about["id"], long_context="long_context" in category
    )
    return str(results[-1])


def verdict(category: str, entry: str, result: Any) -> VerdictSent:
    """The official verdict on a result, in the form of the package's files of results.

    Returns:
        `valid`, and for a wrong result `error_type`, `error` and `fault`: its first wrong call.
    """
    about, answer = _entries(category, is_asked=False)[entry], _answers(category)[entry]
    if category not in _MULTI_TURN:  # it compares values, and runs nothing
        return _judged(category, copy.deepcopy(about), answer, result)
    for each in about["involved_classes"]:
        importlib.import_module(executable_backend_config.CLASS_FILE_PATH_MAPPING[each])
    found: VerdictSent = in_child(_judged, category, about, answer, result)
    return found


def _judged(category: str, about: _Entry, answer: Any, result: Any) -> VerdictSent:
    native, functions = handler(NATIVE), about["function"]
    if eval_runner.is_relevance_or_irrelevance(category):
        found = eval_runner._evaluate_single_relevance_entry(native, about["id"], result, about, NATIVE, category)
    elif category in _MULTI_TURN:
        found = eval_runner._evaluate_single_multi_turn_entry(native, about["id"], result, answer, about, NATIVE, category)
    else:
        language = _language(category)
        found = eval_runner._evaluate_single_ast_entry(
            native, about["id"], result, answer, about, NATIVE, category, enums.Language(language), enums.ReturnFormat(language)
        )
    if found["valid"]:
        return {"valid": True}
    error = found.get("error")
    details = error if isinstance(error, dict) else {"error_message": error, "error_type": found.get("error_type")}
    return {
        "valid": False,
        "error_type": str(details.get("error_type")),
        "error": json.dumps(details.get("error_message"), default=str, ensure_ascii=False),
        "fault": first_fault(_language(category), functions, result, answer, details),
    }


def _language(category: str) -> str:
    return "java" if eval_runner.is_java(category) else "javascript" if eval_runner.is_js(category) else "python"
