"""Formatting checks. A sound benchmark passes them for every prompt and every formatter. They need no model."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from eval_dagster.prompts.gold_scores import GoldScores, Judged
from eval_dagster.prompts.views import AnsweredPrompt
from eval_dagster.records import Message, Role, Sample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import BaseTask, Formatter, join_cue

_BEGIN = re.compile(r"<\|begin_of_text\|>|<\|startoftext\|>|<bos>|\A<s>")
"""Begin tokens. `<s>` counts at the start alone, since it is HTML for struck-out text elsewhere."""
_TWICE = re.compile(r"(<\|\w+\|>|<bos>|<eos>|</?s>)\s*\1")
_NEXT = Message(Role.USER, "?")
"""Any question after an example."""


def formatting_problems(
    task: BaseTask[Any], sample: Sample, prompt: RenderedPrompt, *, formatter: Formatter, tokenizer: Any = None
) -> list[str]:
    """The problems of a rendered prompt, one sentence each, as in `checked_prompt`."""
    return checked_prompt(task, sample, prompt, formatter=formatter, tokenizer=tokenizer).problems


@dataclass(frozen=True, kw_only=True)
class CheckedPrompt:
    """The findings of the checks in a prompt."""

    problems: list[str]
    """One sentence each; empty for a sound prompt."""
    told: frozenset[str] = frozenset()
    """The metrics that were seen to give the gold answer a better value than a wrong one, by name."""
    unchecked: Mapping[str, str] = field(default_factory=dict)
    """For each metric whose values do not show that, the reason."""
    unbounded: frozenset[str] = frozenset()
    """The metrics that declare no bounds although the values of these answers lie between 0 and 1, by name."""


def checked_prompt(
    task: BaseTask[Any], sample: Sample, prompt: RenderedPrompt, *, formatter: Formatter, tokenizer: Any = None
) -> CheckedPrompt:
    """Check a rendered prompt.

    The checks: no two choices are equal; no special token is repeated; the white space between prompt and answer is as in the same
    question as a few-shot example, with no space lost or doubled; the gold answer gets the best value of each metric, and a wrong one a
    worse value.

    Args:
        task: The benchmark.
        sample: The row.
        prompt: The prompt of the row, from `render_sample`.
        formatter: The formatter of the prompt.
        tokenizer: A tokenizer of Hugging Face. With it, begin tokens are counted in the encoded prompt; without it, in the text.
    """
    if prompt.error is not None:
        return CheckedPrompt(problems=[prompt.error])
    asked = _Asked(task=task, sample=sample, prompt=prompt, formatter=formatter)
    problems: list[str] = []
    judged: list[Judged] = []
    try:
        problems += _choice_problems(asked)
        problems += _token_problems(asked, tokenizer)
        problems += _joint_problems(asked)
        scores = GoldScores(asked=asked, answer=asked.answer)
        problems += scores.problems()
        judged += scores.judged()
    except Exception as error:  # hooks are user code: their exceptions are problems like all others
        problems.append(f"the task raised {type(error).__name__}: {error}")
    return CheckedPrompt(
        problems=[*problems, *(each.problem for each in judged if each.problem is not None)],
        told=frozenset(each.metric.NAME for each in judged if each.problem is each.unchecked is None),
        unchecked={each.metric.NAME: each.unchecked for each in judged if each.unchecked is not None},
        unbounded=frozenset(each.metric.NAME for each in judged if each.lacks_bounds),
    )


@dataclass(frozen=True, kw_only=True)
class _Asked(AnsweredPrompt):
    """A rendered prompt with what the checks need."""

    formatter: Formatter

    @cached_property
    def cue(self) -> str:
        last = self.prompt.messages[-1]
        return last.content if last.role is Role.ASSISTANT else ""

    @cached_property
    def answer(self) -> str:
        """The answer that a model should give, as a few-shot example has it without its cue.

        Where a task asks several questions about a row, an example shows only one of them. The answers of the others are their gold texts.
        """
        if self.prompt.request.perplexity:
            return ""
        if not self._is_asked_as_example:
            return (self.prompt.ground_truths or ("",))[0]
        return join_cue(self.cue, self.task._get_fewshot_target_text(self.row)).removeprefix(self.cue)

    @cached_property
    def as_example(self) -> str | None:
        """The prompt with its answer as an example, and another question after it; None if the question cannot be an example."""
        if not self.answer.strip() or self.prompt.request.images or not self._is_asked_as_example:
            return None
        if not self.prompt.request.prompt.startswith(self.formatter.format(list(self.prompt.messages))):
            return None  # the task wrote the whole prompt as text
        return self.formatter.format([*self._turns, Message(Role.ASSISTANT, self.cue + self.answer), _NEXT])

    @cached_property
    def _turns(self) -> list[Message]:
        """The prompt without its cue."""
        return list(self.prompt.messages[:-1] if self.cue else self.prompt.messages)

    @cached_property
    def _is_asked_as_example(self) -> bool:
        question = self.task._get_instruction_messages(self.row)
        turns = self._turns[-len(question) :]
        pairs = zip(turns, question, strict=False)
        # The first turn of a prompt may begin with an introduction that an example lacks.
        return len(turns) == len(question) > 0 and all(turn.content.endswith(asked.content) for turn, asked in pairs)


def _choice_problems(asked: _Asked) -> Iterator[str]:
    choices = [choice.strip() for choice in asked.prompt.request.choices or ()]
    for text in dict.fromkeys(choice for choice in choices if choices.count(choice) > 1):
        positions = [index for index, choice in enumerate(choices) if choice == text]
        yield f"the choice {text!r} stands at the positions {positions}; expected each choice once"


def _token_problems(asked: _Asked, tokenizer: Any) -> Iterator[str]:
    request = asked.prompt.request
    for what, text in (("prompt", request.prompt), ("unconditioned prompt", request.unconditioned_prompt or "")):
        if found := _TWICE.search(text):
            yield f"the {what} holds the special token {found[1]} twice in a row: {_around(text, found.start())}"
        adds = not (request.has_special_tokens or request.perplexity)
        begins, name = _begin_tokens(text, tokenizer, adds=adds)
        if begins > 1:
            where = "one that a tokenizer adds, the others in its text" if adds else "all in its text"
            yield f"the {what} has {begins} begin tokens {name}, {where}; expected one at most (see Formatter.has_special_tokens)"


def _begin_tokens(text: str, tokenizer: Any, *, adds: bool) -> tuple[int, str]:
    """How many begin tokens a model reads, and their text."""
    if tokenizer is None or tokenizer.bos_token_id is None:
        found = _BEGIN.findall(text)
        return len(found) + adds, found[0] if found else ""
    return list(tokenizer(text, add_special_tokens=adds)["input_ids"]).count(tokenizer.bos_token_id), tokenizer.bos_token


def _joint_problems(asked: _Asked) -> Iterator[str]:
    """Problems of the white space between prompt and answer; of several choices the first problem."""
    request = asked.prompt.request
    if request.perplexity:
        return
    prompt, choices, example = request.prompt, request.choices or (), asked.as_example
    if example is not None:
        wholes = [prompt + choices[index] for index in asked.prompt.gold_indices] or [prompt]
        if not any(example.startswith(whole) for whole in wholes):
            where = _first_difference(wholes[0], example)
            alone, before = _around(wholes[0], where), _around(example, where)
            yield f"the question with its answer reads {alone}; as a few-shot example it reads {before}"
        elif not choices:
            rest = example[len(prompt) :]
            choices = (rest[: len(rest) - len(rest.lstrip()) + len(asked.answer.strip())],)
    is_marked = asked.formatter.has_special_tokens and not asked.cue
    yield from [problem for choice in choices if (problem := _gap_problem(prompt, choice, is_marked=is_marked))][:1]


def _gap_problem(prompt: str, answer: str, *, is_marked: bool) -> str | None:
    """The problem of the white space between prompt and answer; `is_marked` if the formatter has marks between them."""
    gap = prompt[len(prompt.rstrip()) :] + answer[: len(answer) - len(answer.lstrip())]
    shown = f"{prompt[-20:]!r} is followed by {answer[:20]!r}"
    if len(gap) > 1 and "\n" not in gap:
        return f"{shown}, with more than one space between them"
    # Only ASCII is checked, since some scripts have no spaces between words.
    if not gap and not is_marked and re.search(r"[\w.,:;?!)]\Z", prompt, re.ASCII) and re.match(r"\w", answer, re.ASCII):
        return f"{shown}, with no space between them"
    return None


def _first_difference(one: str, other: str) -> int:
    return next((index for index, (here, there) in enumerate(zip(one, other, strict=False)) if here != there), min(len(one), len(other)))


def _around(text: str, position: int) -> str:
    return repr(text[max(position - 30, 0) : position + 10])
