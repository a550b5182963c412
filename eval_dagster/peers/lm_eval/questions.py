"""The requests that lm-eval makes of a document, as questions of ours, and our answers as its instances."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, TypedDict

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.records import Message, ResponseType, Role, Row, TaskSample
from eval_dagster.tasks.base import Formatter
from eval_dagster.tasks.benchmark import Answer

_POSITIONS = "positions"
_REPEATS = "repeats"
_MOST_TOKENS = 256
"""lm-eval's default."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The requests that lm-eval makes of a document."""

    instances: Sequence[Any]
    context: str
    """The context of the question, with its examples."""
    turns: Sequence[Message]
    """The examples and the question as lm-eval's own code writes them one after the other; empty if a task writes them itself."""


def asked_of(task: Any, doc: Row, *, num_fewshot: int, formatter: Formatter, has_chat: bool) -> Asked:
    """Ask lm-eval about a document."""
    if sampler := getattr(task, "sampler", None):
        sampler.asked = doc

    def chat(messages: Sequence[Mapping[str, str]], **_: Any) -> str:
        return formatter.format([Message(Role(each["role"]), each["content"]) for each in messages])

    turns: list[Message] = []
    build = getattr(task, "build_qa_turn", None)

    def noted(**given: Any) -> Any:
        made = build(**given)  # type: ignore[misc]
        turns.extend(Message(Role(each.role), each.content) for each in made)
        return made

    _keep_templates()
    options: dict[str, object] = {"apply_chat_template": has_chat, "chat_template": chat if has_chat else None}
    if build is not None:
        task.build_qa_turn = noted
    try:
        context = task.fewshot_context(
            doc,
            num_fewshot=num_fewshot,
            system_instruction=None,
            fewshot_as_multiturn=has_chat,
            gen_prefix=task.doc_to_prefix(doc) if hasattr(task, "doc_to_prefix") else None,
            **options,
        )
    finally:
        if build is not None:
            del task.build_qa_turn
    made = task.construct_requests(doc=doc, ctx=context, metadata=(None, 0, task.config.repeats), **options)
    return Asked(instances=made if isinstance(made, list) else [made], context=context, turns=turns)


@cache
def _keep_templates() -> None:
    """Have lm-eval's environment of Jinja compile each template once. It compiles a template for each field of each example."""
    from lm_eval.utils import env

    env.from_string = lru_cache(maxsize=1024)(env.from_string)


def questions_of(name: str, task: Any, doc: Row, asked: Asked) -> list[TaskSample]:
    """The questions. Choices after the same context form one question. Its messages are the turns, if known, for people and checks."""
    scored: dict[str, tuple[list[str], list[int]]] = {}
    others: list[TaskSample] = []
    for position, each in enumerate(asked.instances):
        if each.request_type == "loglikelihood":
            choices, positions = scored.setdefault(each.args[0], ([], []))
            choices.append(each.args[1])
            positions.append(position)
        elif each.request_type == "loglikelihood_rolling":
            others.append(_verbatim(each.args[0], ResponseType.PERPLEXITY, [position]))
        else:
            settings = text_settings(name, each.args[1])
            others.append(
                _verbatim(
                    each.args[0],
                    ResponseType.COMPLETION,
                    [position],
                    repeats=each.repeats,
                    ground_truth=_targets(task, doc),
                    stop_sequences=settings.stop_sequences,
                    max_tokens=settings.max_tokens,
                    temperature=settings.temperature or None,
                    top_p=settings.top_p,
                    top_k=settings.top_k,
                    # Greedy texts of one prompt are all the same.
                    num_samples=each.repeats if settings.temperature else 1,
                )
            )
    made = [
        _verbatim(
            context, ResponseType.LOGLIKELIHOODS, positions, possible_completions=choices, gold_indices=gold_positions(task, doc, positions)
        )
        for context, (choices, positions) in scored.items()
    ]
    if not made and not others:
        raise ValueError(f"lm_eval:{name} asks nothing about a document: it has no choices")
    return [replace(each, messages=asked.turns) if asked.turns and each.prompt == asked.context else each for each in (*made, *others)]


def _verbatim(prompt: str, kind: ResponseType, positions: list[int], *, repeats: int = 1, **fields: Any) -> TaskSample:
    context = {_POSITIONS: positions, **({_REPEATS: repeats} if repeats > 1 else {})}
    fields.setdefault("ground_truth", None)
    return TaskSample(messages=[Message(Role.USER, prompt)], prompt=prompt, response_type=kind, context=context, **fields)


def gold_positions(task: Any, doc: Row, positions: Sequence[int]) -> list[int]:
    """Positions of the correct choices in a question, for people; empty if the task does not tell."""
    try:
        if len(positions) == 1 and task.OUTPUT_TYPE == "loglikelihood":
            return [0]
        gold = task.doc_to_text(doc) if getattr(task, "multiple_input", 0) else task.doc_to_target(doc)
        if isinstance(gold, str):
            gold = task.doc_to_choice(doc).index(gold)
        wanted = gold if isinstance(gold, list) else [gold]
        return [number for number, position in enumerate(positions) if position in wanted]
    except Exception:  # the task's code; its scores do not depend on this
        return []


def _targets(task: Any, doc: Row) -> str | list[str] | None:
    """The correct texts, for people; None if the task has a blank target for all rows, because it scores by other fields."""
    template = task.config.doc_to_target
    if isinstance(template, str) and not template.strip():
        return None
    try:
        target = task.doc_to_target(doc)
    except Exception:  # as above
        return None
    if isinstance(target, list):
        return [str(each) for each in target] or None
    return None if target is None else str(target)


def answered(name: str, doc: Row, answers: Sequence[Answer]) -> list[Any]:
    """The answers as lm-eval's instances, in its order."""
    from lm_eval.api.instance import Instance

    found: dict[int, Any] = {}
    for answer in answers:
        positions = answer.context[_POSITIONS]
        for number, position in enumerate(positions):
            responses: list[Any]
            if answer.choices:
                kind, responses = "loglikelihood", [(answer.loglikelihoods[number], bool(answer.is_greedy[number]))]
            elif answer.texts:
                kind, responses = "generate_until", list(answer.texts)
                if len(responses) == 1:
                    responses *= int(answer.context.get(_REPEATS, 1))
            else:
                kind, responses = "loglikelihood_rolling", [math.fsum(answer.loglikelihoods)]
            arguments = (answer.prompt, answer.choices[number]) if answer.choices else (answer.prompt, {})
            instance = Instance(request_type=kind, doc=doc, arguments=arguments, idx=position, metadata=(name, 0, len(responses)))
            instance.resps = responses
            found[position] = instance
    return [found[position] for position in sorted(found)]


class GenerationKwargs(TypedDict, total=False):
    """The `generation_kwargs` of a task, as far as they have a counterpart here."""

    until: str | Sequence[str] | None
    max_gen_toks: int | None
    max_new_tokens: int | None
    max_tokens: int | None
    max_completion_tokens: int | None
    temperature: float | None
    do_sample: bool | None
    num_beams: int
    top_p: float | None
    top_k: int | None


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The settings of the texts of an lm-eval task."""

    stop_sequences: tuple[str, ...]
    max_tokens: int
    temperature: float
    top_p: float | None
    top_k: int | None


def text_settings(name: str, generation_kwargs: GenerationKwargs | None) -> TextSettings:
    """The settings in `generation_kwargs`, read as lm-eval's model for transformers reads them.

    Raises:
        TaskDefinitionError: A setting has no counterpart here, beam search for instance.
    """
    given = generation_kwargs or {}
    until = given.get("until") or []
    numbers = (given.get("max_gen_toks"), given.get("max_new_tokens"), given.get("max_tokens"), given.get("max_completion_tokens"))
    temperature, samples = float(given.get("temperature") or 0.0), given.get("do_sample")
    if samples is False:
        temperature = 0.0
    elif samples and not temperature:
        temperature = 1.0
    if given.get("num_beams", 1) != 1:
        raise TaskDefinitionError(f"lm_eval:{name} wants beam search (num_beams), which eval_dagster has not")
    if rest := given.keys() - GenerationKwargs.__annotations__.keys():
        raise TaskDefinitionError(f"lm_eval:{name} has the generation_kwargs {', '.join(sorted(rest))}, which eval_dagster does not know")
    return TextSettings(
        stop_sequences=tuple(dict.fromkeys(text for text in ([until] if isinstance(until, str) else until) if text)),
        max_tokens=int(next((number for number in numbers if number is not None), _MOST_TOKENS)),
        temperature=temperature,
        top_p=given.get("top_p") if temperature else None,
        top_k=given.get("top_k") if temperature else None,
    )
