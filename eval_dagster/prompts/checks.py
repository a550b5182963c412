"""Formatting checks: what holds for every prompt of a sound benchmark, whatever the formatter. They need no model."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eval_dagster.prompts.formatters import Formatter
from eval_dagster.prompts.gold_scores import GoldScores
from eval_dagster.prompts.rendering import RenderedPrompt
from eval_dagster.records import Message, Role, Sample
from eval_dagster.tasks.base import BaseTask, join_cue
from eval_dagster.tasks.samples import TaskRow

_BEGIN = re.compile(r"<\|begin_of_text\|>|<\|startoftext\|>|<bos>|\A<s>")
"""How tokenizers write the token that begins a text; elsewhere in a text, `<s>` strikes out a word."""
_TWICE = re.compile(r"(<\|\w+\|>|<bos>|<eos>|</?s>)\s*\1")
_NEXT = Message(Role.USER, "?")
"""Whatever follows an example."""


def formatting_problems(
    task: BaseTask[Any], sample: Sample, prompt: RenderedPrompt, *, formatter: Formatter, tokenizer: Any = None
) -> list[str]:
    """What is wrong with a rendered prompt, each in a sentence; nothing where all is well.

    The checks: no two choices are alike; no special token stands twice; prompt and answer meet as they do where the same question is a
    few-shot example, with no space lost or doubled; the gold answer gets the best value of each metric, and a wrong one a worse value.

    Args:
        task: The benchmark.
        sample: The row.
        prompt: What `render_sample` made of it.
        formatter: The one that it was rendered with.
        tokenizer: Of Hugging Face. With it, begin tokens are counted in the encoded prompt; without, in its text.
    """
    asked = _Asked(task=task, sample=sample, prompt=prompt, formatter=formatter)
    problems: list[str] = []
    try:
        problems += _choice_problems(asked)
        problems += _token_problems(asked, tokenizer)
        problems += _joint_problems(asked)
        problems += GoldScores(task=task, sample=sample, prompt=prompt, answer=asked.answer).problems()
    except Exception as error:  # hooks are user code: what one raises is a problem as any other
        problems.append(f"the task raised {type(error).__name__}: {error}")
    return problems


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A rendered prompt with all that the checks look at."""

    task: BaseTask[Any]
    sample: Sample
    prompt: RenderedPrompt
    formatter: Formatter

    @cached_property
    def cue(self) -> str:
        last = self.prompt.messages[-1]
        return last.content if last.role is Role.ASSISTANT else ""

    @cached_property
    def answer(self) -> str:
        """What a model should say: the answer as a few-shot example gives it, its cue left out.

        Where a row is asked about in several ways, an example shows one of them alone; the others answer with their gold text.
        """
        if self.prompt.request.perplexity:
            return ""
        if not self._is_asked_as_example:
            return (self.prompt.ground_truths or ("",))[0]
        return join_cue(self.cue, self.task._get_fewshot_target_text(TaskRow(self.sample))).removeprefix(self.cue)

    @cached_property
    def as_example(self) -> str | None:
        """The prompt where its question is an example with its answer, and another question follows; None where it never is one."""
        if not self.answer.strip() or self.prompt.request.images or not self._is_asked_as_example:
            return None
        return self.formatter.format([*self._turns, Message(Role.ASSISTANT, self.cue + self.answer), _NEXT])

    @cached_property
    def _turns(self) -> list[Message]:
        """The prompt without its cue."""
        return list(self.prompt.messages[:-1] if self.cue else self.prompt.messages)

    @cached_property
    def _is_asked_as_example(self) -> bool:
        question = self.task._get_instruction_messages(TaskRow(self.sample))
        turns = self._turns[-len(question) :]
        pairs = zip(turns, question, strict=False)
        # The first turn of a prompt may hold an introduction that an example lacks.
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
    """How many begin tokens a model gets to see, and what they are called."""
    if tokenizer is None or tokenizer.bos_token_id is None:
        found = _BEGIN.findall(text)
        return len(found) + adds, found[0] if found else ""
    return list(tokenizer(text, add_special_tokens=adds)["input_ids"]).count(tokenizer.bos_token_id), tokenizer.bos_token


def _joint_problems(asked: _Asked) -> Iterator[str]:
    """What is wrong where prompt and answer meet; of several choices the first is reported."""
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
    """What is wrong with the white space between prompt and answer; `is_marked` where a formatter's marks stand there."""
    gap = prompt[len(prompt.rstrip()) :] + answer[: len(answer) - len(answer.lstrip())]
    shown = f"{prompt[-20:]!r} is followed by {answer[:20]!r}"
    if len(gap) > 1 and "\n" not in gap:
        return f"{shown}, with more than one space between them"
    # Scripts without spaces between words are left out: only ASCII is looked at.
    if not gap and not is_marked and re.search(r"[\w.,:;?!)]\Z", prompt, re.ASCII) and re.match(r"\w", answer, re.ASCII):
        return f"{shown}, with no space between them"
    return None


def _first_difference(one: str, other: str) -> int:
    return next((index for index, (here, there) in enumerate(zip(one, other, strict=False)) if here != there), min(len(one), len(other)))


def _around(text: str, position: int) -> str:
    return repr(text[max(position - 30, 0) : position + 10])
