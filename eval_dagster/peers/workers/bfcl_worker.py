"""The entries of BFCL v4, its systems and its verdicts, made by bfcl-eval.

It runs in the environment that has bfcl-eval, and in the sandbox.
"""

from __future__ import annotations

import copy
import decimal
import importlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import mpmath
from bfcl_faults import first_fault
from bfcl_memory import remember as remember_session
from bfcl_memory import sessions
from bfcl_package import (
    NATIVE,
    PROMPTED,
    category_mapping,
    default_prompts,
    enums,
    eval_runner,
    executable_backend_config,
    handler,
    handler_utils,
    multi_turn_utils,
)
from bfcl_texts import may_be_evaluated
from clean_child import ChildError, CleanChild, EndedError
from installed_versions import versions_around

if TYPE_CHECKING:
    from eval_dagster.peers.workers.bfcl_messages import CategoriesDescribed, Combination, EntryRow, MemorySent, VerdictSent

__all__ = ["describe", "execute", "names", "remember", "rows", "verdict"]

_SIMPLE = ("simple_python", "simple_java", "simple_javascript")
_NON_LIVE = (*_SIMPLE, "multiple", "parallel", "parallel_multiple")
_LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
_MULTI_TURN = tuple(category_mapping.MULTI_TURN_CATEGORY)
_MEMORY = ("memory_kv", "memory_rec_sum")
_FORMATS = tuple(eval_runner.get_all_format_sensitivity_configs())
_Entry: TypeAlias = Any
"""An entry as the package reads it."""
_GROUPS: Mapping[str, tuple[Sequence[str], Combination, str]] = {
    "simple": (_SIMPLE, "macro", "Simple calls: the mean of the three languages."),
    "non_live": (_NON_LIVE, "non_live", "Calls of one turn: the mean of simple (the mean of its languages), multiple, parallel and both."),
    "live": (_LIVE, "micro", "Calls of one turn that users wrote: the share of all entries."),
    "irrelevance": (("irrelevance", "live_irrelevance"), "macro", "Entries that need no call: the mean of both categories."),
    "multi_turn": (_MULTI_TURN, "macro", "Calls over several turns: the mean of the categories."),
    "memory": (_MEMORY, "macro", "What a model remembers by a memory: the mean of two of the package's three kinds of memory."),
    "format_sensitivity": (_FORMATS, "formats", "How far the score depends on the format of the prompt: 200 entries in 26 formats."),
}
"""Groups: categories, how their scores become one as in the package, and a description."""
_CATEGORIES = (*_NON_LIVE, *_LIVE, "live_irrelevance", "live_relevance", *_MULTI_TURN, *_MEMORY)
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
        "has_systems": any(category in (*_MULTI_TURN, *_MEMORY) for category in categories),
        "runs_calls": any(category in (*_MULTI_TURN, *_MEMORY, *_FORMATS) for category in categories),
        "shares_entries": name in ("multi_turn", "memory", "format_sensitivity"),
        "version": versions_around(_PACKAGE, "tree-sitter", "tree-sitter-java", "tree-sitter-javascript", "rank-bm25", "mpmath", "numpy"),
    }


def _loaded(category: str) -> str:
    """The category that the package loads: each of its formats of prompts is one here."""
    return "format_sensitivity" if category in _FORMATS else category


@cache
def _all_entries(loaded: str, *, is_asked: bool) -> list[_Entry]:
    found: list[_Entry] = eval_runner.load_dataset_entry(loaded, include_prereq=False, include_language_specific_hint=is_asked)
    return found


@cache
def _all_answers(loaded: str) -> list[Any]:
    found: list[Any] = eval_runner.load_ground_truth_entry(loaded)
    return found


@cache
def _entries(category: str, *, is_asked: bool) -> dict[str, _Entry]:
    """The entries of a category by id. The checker needs the functions without the hints on a language that a model gets."""
    found = _all_entries(_loaded(category), is_asked=is_asked)
    return {entry["id"]: entry for entry in found if category not in _FORMATS or f":{category}:" in entry["id"]}


@cache
def _answers(category: str) -> dict[str, object]:
    """The right answers by the ids of their entries, with which they agree by position."""
    ids = list(_entries(category, is_asked=False))
    if eval_runner.is_relevance_or_irrelevance(category):
        return dict.fromkeys(ids)
    found = _all_answers(_loaded(category))
    if category in _FORMATS:  # each entry comes in all formats before the next one
        found = found[:: len(_FORMATS)]
    return {name: answer["ground_truth"] for name, answer in zip(ids, found, strict=True)}


def rows(category: str) -> list[EntryRow]:
    """The rows of a category, each with its messages and tools by turn as JSON."""
    asked, answers = _entries(category, is_asked=True), _answers(category)
    return [_row(category, copy.deepcopy(entry), answers[name]) for name, entry in asked.items()]


def _row(category: str, entry: _Entry, answer: object) -> EntryRow:
    turns, held_out = entry["question"], entry.get("missed_function", {})
    native = handler(NATIVE)
    tools = {"0": native._compile_tools({}, entry)["tools"]}
    if category in _FORMATS:
        handler(PROMPTED)._pre_query_processing_prompting(entry)  # the functions are told in the prompt
        tools = {"0": []}
    before = sessions(category) if category in _MEMORY else {}
    for turn in sorted(held_out, key=int):
        entry["function"].extend(held_out[turn])
        tools[turn] = native._compile_tools({}, entry)["tools"]
        turns[int(turn)] = [{"role": "user", "content": default_prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC}]
    texts = {turn: [json.dumps(each) for each in several] for turn, several in tools.items()}
    steps = default_prompts.MAXIMUM_STEP_LIMIT if category in (*_MULTI_TURN, *_MEMORY) else 0
    return {
        "id": entry["id"],
        "category": category,
        "origin": entry["id"].rpartition(":")[2].removeprefix(category),
        "steps": str(steps),
        "turns": json.dumps(turns),
        "tools": json.dumps(texts),
        "answer": json.dumps(answer),
        "sessions": json.dumps([{"id": each, "turns": before[each]["question"]} for each in entry.get("depends_on", ())]),
    }


def execute(category: str, entry: str, calls: Sequence[tuple[str, Mapping[str, object]]]) -> str:
    """The result of the last of all calls of an entry's systems so far, which are made anew.

    The systems answer in microseconds, and so no call can leave anything for another entry.
    """
    named = all(_is_plain(_methods(category, entry), name, arguments) for name, arguments in calls)
    found: str = _child.ask("execute", category, entry, calls, is_harmless=named)
    return found


def remember(category: str, entry: str, kept: str | None, calls: Sequence[tuple[str, Mapping[str, object]]]) -> MemorySent:
    """A session or a question of the memory: its system prompt, the result of the last of all calls so far, and what is kept."""
    sessions(category)  # a child begins with what was read before
    [system] = _systems(category, next(iter(_entries(category, is_asked=False))))
    plain = all(_is_plain(_public(system), name, arguments) for name, arguments in calls)
    found: MemorySent = _child.ask("remember", category, entry, [kept, calls], is_harmless=plain)
    return found


def verdict(category: str, entry: str, result: Any) -> VerdictSent:
    """The official verdict on a result, which has the form of the package's files of results."""
    if category not in (*_FORMATS, *_MULTI_TURN):  # the checker compares values, and executes nothing
        return _judged(category, entry, result)
    _answers(category)  # a child begins with what was read before
    if category in _FORMATS:
        _, has_tag, *_ = handler_utils.parse_prompt_variation_params(category)
        is_harmless = not may_be_evaluated(result, has_tag=has_tag)
        is_executed = not is_harmless
    else:
        named = [(name, _object(text)) for step in _calls(result) for name, text in step.items()]
        is_harmless = all(_is_plain(_methods(category, entry), name, arguments) for name, arguments in named)
        is_executed = bool(named)
    try:
        found: VerdictSent = _child.ask("verdict", category, entry, result, is_harmless=is_harmless)
    except ChildError as error:
        if is_harmless and not (is_executed and isinstance(error, EndedError)):
            raise
        # It is the answer's doing, and an answer that has no verdict would not count.
        return {"valid": False, "error_type": "ended_or_timed_out", "error": json.dumps(str(error)), "fault": ""}
    return found


def _calls(result: Any) -> Iterator[Mapping[str, str]]:
    """The calls of a result of several turns."""
    for turn in result:
        for step in turn:
            if isinstance(step, list):
                yield from step


def _object(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_plain(methods: Collection[str], name: str, arguments: object) -> bool:
    """Whether the checker does nothing but call a method with values.

    It executes the text of a call. The name and the names of arguments are parts of this text; values are written as literals.
    """
    return name in methods and isinstance(arguments, dict) and all(map(str.isidentifier, arguments))


@cache
def _methods(category: str, entry: str) -> frozenset[str]:
    """The methods of an entry's systems."""
    return frozenset().union(*map(_public, _systems(category, entry)))


def _public(system: type) -> frozenset[str]:
    return frozenset(method for method in dir(system) if not method.startswith("_"))


def _systems(category: str, entry: str) -> list[type]:
    places = executable_backend_config.CLASS_FILE_PATH_MAPPING
    return [getattr(importlib.import_module(places[name]), name) for name in _entries(category, is_asked=False)[entry]["involved_classes"]]


def _in_child(what: str, category: str, entry: str, given: Any) -> object:
    """Execute or judge, and leave nothing behind: the package keeps systems by their entries, and some set the precision of numbers."""
    try:
        if what == "remember":
            kept, calls = given
            return remember_session({**_entries(category, is_asked=False), **sessions(category)}[entry], kept, _texts(calls))
        return _executed(category, entry, given) if what == "execute" else _judged(category, entry, given)
    finally:
        for name in [name for name in vars(multi_turn_utils) if name.endswith("_instance")]:
            delattr(multi_turn_utils, name)
        decimal.setcontext(decimal.DefaultContext.copy())
        mpmath.mp.dps = 15


_child = CleanChild(_in_child)


def _texts(calls: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    """Calls as Python text, as the package makes it."""
    made: list[str] = handler(NATIVE).decode_execute([{name: json.dumps(given)} for name, given in calls], has_tool_call_tag=False)
    return made


def _executed(category: str, entry: str, calls: Sequence[tuple[str, Mapping[str, object]]]) -> str:
    about = _entries(category, is_asked=False)[entry]
    texts = _texts(calls)
    results, _ = multi_turn_utils.execute_multi_turn_func_call(
        texts, about["initial_config"], about["involved_classes"], NATIVE, entry, long_context="long_context" in category
    )
    return str(results[-1])


def _judged(category: str, entry: str, result: Any) -> VerdictSent:
    native, answer = handler(NATIVE), copy.deepcopy(_answers(category)[entry])
    about: _Entry = copy.deepcopy(_entries(category, is_asked=False)[entry])
    functions = [*about["function"], *(each for several in about.get("missed_function", {}).values() for each in several)]
    if eval_runner.is_relevance_or_irrelevance(category):
        found = eval_runner._evaluate_single_relevance_entry(native, entry, result, about, NATIVE, category)
    elif category in _MULTI_TURN:
        found = eval_runner._evaluate_single_multi_turn_entry(native, entry, result, answer, about, NATIVE, category)
    elif category in _MEMORY:
        found = eval_runner._evaluate_single_agentic_entry(native, entry, result, answer, about, NATIVE, category)
    elif category in _FORMATS:
        form, has_tag, *_ = handler_utils.parse_prompt_variation_params(category)
        found = eval_runner._evaluate_single_ast_entry(
            handler(PROMPTED),
            entry,
            result,
            answer,
            about,
            PROMPTED,
            "format_sensitivity",
            enums.Language.PYTHON,
            enums.ReturnFormat(form),
            has_tag,
        )
    else:
        language = _language(category)
        found = eval_runner._evaluate_single_ast_entry(
            native, entry, result, answer, about, NATIVE, category, enums.Language(language), enums.ReturnFormat(language)
        )
    if found["valid"]:
        return {"valid": True}
    error = found.get("error")
    details = error if isinstance(error, dict) else {"error_message": error, "error_type": found.get("error_type")}
    return {
        "valid": False,
        "error_type": str(details.get("error_type")),
        "error": json.dumps(details.get("error_message"), default=str, ensure_ascii=False),
        "fault": "" if category in (*_MEMORY, *_FORMATS) else first_fault(_language(category), functions, result, answer, details),
    }


def _language(category: str) -> str:
    return "java" if eval_runner.is_java(category) else "javascript" if eval_runner.is_js(category) else "python"
