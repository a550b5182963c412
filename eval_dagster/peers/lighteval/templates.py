"""Prompt functions by lighteval's templates for questions, in English."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.lighteval.values import Language, as_list
from eval_dagster.records import Row
from eval_dagster.tasks.doc import Doc

Adapter = Callable[[Row], Mapping[str, Any] | None] | Mapping[str, str]
"""Returns the parts of the question of a row, or names the fields that hold them."""


@dataclass
class MCFFormulation:
    """The choices are listed, and their labels are scored."""

    choice_prefix: str = "Letters"
    name: str = "MCF"


@dataclass
class HybridFormulation:
    """The choices are listed, and their texts are scored."""

    choice_prefix: str = "Letters"
    name: str = "Hybrid"


@dataclass
class CFFormulation:
    """The choices are not listed, and their texts are scored."""

    name: str = "CF"


Formulation = MCFFormulation | HybridFormulation | CFFormulation


def get_qa_prompt_function(language: Language, adapter: Adapter) -> Callable[[Row, str], Doc | None]:
    """Make a prompt function of questions whose `choices` are all correct. Equal ones are kept once, in their order.

    Raises:
        TaskDefinitionError: The language is not English.
    """
    read = _reader(adapter)

    def parts(row: Row) -> Mapping[str, Any] | None:
        given = read(row)
        if given is None:
            return None
        choices = list(dict.fromkeys(given["choices"]))
        return {**given, "choices": choices, "gold_idx": list(range(len(choices)))}

    return get_mcq_prompt_function(language, parts, CFFormulation())


def get_mcq_prompt_function(
    language: Language, adapter: Adapter, formulation: Formulation | None = None
) -> Callable[[Row, str], Doc | None]:
    """Make a prompt function of questions with `question`, `choices`, `gold_idx`, and maybe `context` and `instruction`.

    Raises:
        TaskDefinitionError: The language is not English.
    """
    if language.name != Language.ENGLISH.name:
        raise TaskDefinitionError(f"the templates are offered in English; the task file asks for {language.name.title()}")
    read, form = _reader(adapter), formulation or MCFFormulation()

    def prompt(row: Row, task_name: str) -> Doc | None:
        parts = read(row)
        return None if parts is None else _doc(parts, form, task_name)

    return prompt


def _doc(parts: Mapping[str, Any], form: Formulation, task_name: str) -> Doc:
    choices = [_sentence(str(choice)) for choice in parts["choices"]]
    is_numbered = getattr(form, "choice_prefix", "") == "Numbers"
    labels = [str(index + 1) if is_numbered else ascii_uppercase[index] for index in range(len(choices))]
    before = [parts["instruction"]] if parts.get("instruction") else []
    before += [_sentence(parts["context"])] if parts.get("context") else []
    listed = [] if isinstance(form, CFFormulation) else [f" {label}. {text}" for label, text in zip(labels, choices, strict=True)]
    return Doc(
        query="\n".join([*before, f"Question: {_sentence(parts['question'])}", *listed, "Answer:"]),
        choices=[f" {each}" for each in (labels if isinstance(form, MCFFormulation) else choices)],
        gold_index=as_list(parts["gold_idx"]),
        instruction=parts.get("instruction"),
        unconditioned_query="Answer:",
        task_name=task_name,
    )


def _reader(adapter: Adapter) -> Callable[[Row], Mapping[str, Any] | None]:
    if not isinstance(adapter, Mapping):
        return adapter
    return lambda row: {name: row[field] for name, field in adapter.items()}


def _sentence(text: str) -> str:
    """The text with a capital letter first and no white space at the end."""
    return text[:1].upper() + text[1:].rstrip()
