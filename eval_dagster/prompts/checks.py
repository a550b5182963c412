"""Checks of rendered prompts and of the metrics of their answers, which need no model.

A sound benchmark passes them for every prompt and every formatter. A metric that does not declare its best value is judged by how it
behaves: it is checked if it gives the gold answer a better value than every wrong one. If it does not, it may measure something else, such
as a length; that is neither a problem nor a check.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from eval_dagster.metrics.base import (
    BaseMetric,
    CorpusMetric,
    ItemMetric,
    RepeatedMetric,
    RowMetric,
    bounds_of,
    metrics_for,
    named_values,
)
from eval_dagster.prompts.views import AnsweredPrompt
from eval_dagster.records import Completion, GenerationSettings, Loglikelihood, Message, ModelResponse, ResponseType, Role, Sample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.sandbox import execution_allowed
from eval_dagster.tasks.base import BaseTask, Formatter, join_cue

Answers = Mapping[str, Completion | Loglikelihood]
"""What a metric sees, by a description of it."""
_IMPROBABLE = -1000.0
"""Log-probability a byte of an impossible text: a probability of 0 even if a metric divides by the length."""
_UNCERTAIN = -0.01
"""Log-probability a character of an uncertain text; so close to 0 that exp() does not overflow for long words."""
_MOST_SHOWN = 4
"""Choices that a message shows."""
_WRONG_TEXTS = ("qwzx vbnk", "")
"""Wrong answers to every question, but one: the correct answer of a question without answer may be the empty text."""
_BEGIN = re.compile(r"<\|begin_of_text\|>|<\|startoftext\|>|<bos>|\A<s>")
"""Begin tokens. `<s>` counts at the start alone, since it is HTML for struck-out text elsewhere."""
_TWICE = re.compile(r"(<\|\w+\|>|<bos>|<eos>|</?s>)\s*\1")
_NEXT = Message(Role.USER, "?")
"""Any question after an example."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A metric after a look at its values for right and wrong answers."""

    metric: type[BaseMetric]
    problem: str | None = None
    """One sentence."""
    unchecked: str | None = None
    """The reason that its values show neither that it tells right from wrong, nor a problem; null if they show one of them."""
    lacks_bounds: bool = False
    """Whether its class declares no bounds although all values lie between 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class GoldScores:
    """The metrics of right and wrong answers to a prompt."""

    asked: AnsweredPrompt
    answer: str
    """What a model should write; not used where choices or a text are scored."""

    def problems(self) -> Iterator[str]:
        """The problems of the prompt as a whole, one sentence each; problems of single metrics are in `judged`."""
        prompt, all_metrics = self.asked.prompt, self.asked.task.METRICS
        if not metrics_for(all_metrics, prompt.response_type):
            listed = ", ".join(metric.NAME for metric in all_metrics)
            yield f"none of the task's metrics ({listed}) scores what is asked for: {prompt.response_type.value}"
        words, generation = len(self.answer.split()), prompt.request.generation
        # A word is one token at least.
        if generation is not None and generation.max_tokens is not None and words > generation.max_tokens:
            yield f"the gold answer has {words} words, more than the {generation.max_tokens} tokens (max_tokens) that are generated"

    def judged(self) -> Iterator[Judged]:
        """Every metric of the prompt.

        Metrics that need other prompts of the row are left out, and metrics that run code if that is not allowed.
        """
        prompt, choices = self.asked.prompt, self.asked.choices
        right: Answers = {}
        if prompt.response_type is ResponseType.PERPLEXITY:
            right = {"a text that is certain": self._text(0.0)}
            wrong: Answers = {"a text that is less than certain": self._text(_UNCERTAIN)}
        elif prompt.response_type is ResponseType.LOGLIKELIHOODS:
            right = {f"the gold answer {choices[index]!r}": self._chosen(index) for index in prompt.gold_indices}
            others = [index for index in range(len(choices)) if index not in prompt.gold_indices]
            wrong = {f"the wrong answer {choices[index]!r}": self._chosen(index) for index in others}
            wrong = wrong or {"a gold answer that is improbable": self._chosen(None)}
        else:
            if self.answer:
                stops = (prompt.request.generation or GenerationSettings()).stop_sequences
                stop = min((stop for stop in stops if stop and stop in self.answer), key=self.answer.index, default="")
                text = self.answer.partition(stop)[0] if stop else self.answer
                cut = f", which the stop sequence {stop!r} cuts to {text!r}," if stop else ""
                right = {f"the gold answer {self.answer!r}{cut}": self._completion(text)}
            wrong = {f"the wrong answer {text!r}": self._completion(text) for text in _WRONG_TEXTS if text not in prompt.ground_truths}
        texts = prompt.request.generation.num_samples if prompt.request.generation else 1
        for metric in metrics_for(self.asked.task.METRICS, prompt.response_type):
            if issubclass(metric, RowMetric) or (metric.EXECUTES_CODE and not execution_allowed()):
                continue
            found = _judged(metric, right, wrong, texts)
            if found.problem is not None and (absent := absent_gold(prompt.ground_truths, prompt.request.choices)):
                found = replace(found, problem=f"{found.problem}; {absent}")
            yield found

    def _chosen(self, index: int | None) -> Completion | Loglikelihood:
        """The choices' log-probabilities of a model that is certain of one choice, or rules out all of them.

        Of several correct choices, the others are more probable than the wrong ones, by whatever length a metric divides.
        """
        choices, gold = self.asked.choices, self.asked.gold_indices
        longest = max((len(choice.encode()) for choice in choices), default=0)
        ruled_out = [_IMPROBABLE * longest * (1 if each in gold else longest + 1) for each in range(len(choices))]
        if index is not None and index not in gold:
            ruled_out = [min(ruled_out)] * len(ruled_out)
        values = [0.0 if position == index else value for position, value in enumerate(ruled_out)]
        response = ModelResponse(
            token_logprobs=[[value] for value in values],
            unconditioned_logprobs=None if self.asked.prompt.request.unconditioned_prompt is None else [-1.0] * len(values),
            argmax_logits_eq_gold=[position == index for position in range(len(values))],
        )
        return self.asked.views(response)[0]

    def _text(self, per_character: float) -> Completion | Loglikelihood:
        """A text that is scored as a whole."""
        return self.asked.views(ModelResponse(token_logprobs=[[per_character] * len(self.asked.prompt.request.prompt)]))[0]

    def _completion(self, text: str) -> Completion | Loglikelihood:
        """A generated text after the task's post-processing."""
        return self.asked.views(ModelResponse(text=[text], reasonings=[None], finish_reason=["stop"]))[0]


def absent_gold(truths: Sequence[str], choices: Sequence[str] | None) -> str | None:
    """Advice if no gold answer is a choice, to the letter; None if one is, or without anything to compare."""
    if not truths or not choices or any(truth in choices for truth in truths):
        return None
    near = {" ".join(choice.split()).casefold(): choice for choice in reversed(choices)}
    meant = next((near[folded] for truth in truths if (folded := " ".join(truth.split()).casefold()) in near), None)
    shown = ", ".join(map(repr, choices[:_MOST_SHOWN])) + (", …" if len(choices) > _MOST_SHOWN else "")
    if meant is None:
        return f"the gold answer {truths[0]!r} is none of the choices ({shown}); let _get_ground_truth return the text of one"
    return f"the gold answer {truths[0]!r} is none of the choices ({shown}); did you mean {meant!r}? Let _get_ground_truth return that"


def _judged(metric: type[BaseMetric], right: Answers, wrong: Answers, texts: int) -> Judged:
    """One metric with its first problem, since later ones may follow from it."""
    found: dict[str, Mapping[str, float]] = {}
    for words, answer in [*right.items(), *wrong.items()]:
        try:
            found[words] = _values(metric, answer, texts)
        except Exception as error:  # one metric's failure hides no other's
            return Judged(metric=metric, problem=f"the metric {metric.NAME} raised {type(error).__name__} for {words}: {error}")
    numbers = [value for each in found.values() for value in each.values()]
    # One sample may be too few: BLEU, for instance, is 0 if all texts have less than four words.
    is_telling = not any(map(math.isnan, numbers)) and len(set(numbers)) > 1
    if issubclass(metric, CorpusMetric | ItemMetric) and not is_telling:
        return Judged(metric=metric, unchecked="it needs more than one sample")
    for words, values in found.items():
        if problem := _value_problem(metric, values, is_right=words in right, has_gold=bool(right)):
            seen = ", ".join(f"{name} = {value:g}" for name, value in values.items())
            return Judged(metric=metric, problem=f"{words} gets {seen}{problem}")
    lacks_bounds = bounds_of(metric) is None and bool(numbers) and all(0.0 <= value <= 1.0 for value in numbers)
    return Judged(metric=metric, unchecked=_untold(metric, found, right), lacks_bounds=lacks_bounds)


def _untold(metric: type[BaseMetric], found: Mapping[str, Mapping[str, float]], right: Answers) -> str | None:
    """The reason that the values do not show that the metric tells gold answers from wrong ones; None if they do."""
    if not right:
        return "the task names no gold answer"
    if metric.BEST is not None:
        return None
    gold, wrong = ([pair for pair in found.items() if (pair[0] in right) is is_right] for is_right in (True, False))
    if not wrong:
        return "there is no wrong answer to compare with"
    reasons = []
    for name in gold[0][1]:
        sign = 1 if metric.HIGHER_IS_BETTER else -1
        worst_words, worst = min(((words, values.get(name, math.nan)) for words, values in gold), key=lambda pair: sign * pair[1])
        best_words, best = max(((words, values.get(name, math.nan)) for words, values in wrong), key=lambda pair: sign * pair[1])
        if sign * worst > sign * best:
            return None
        if worst == best:
            reasons.append(f"it gives {best_words} the value of {worst_words}, {best:g}")
        else:
            reasons.append(f"it gives {best_words} {best:g}, a better value than the {worst:g} of {worst_words}")
    return reasons[0]


def _values(metric: type[BaseMetric], answer: Completion | Loglikelihood, texts: int) -> Mapping[str, float]:
    """The value of the metric if all samples were like this one, and all `texts` of a prompt were equal."""
    if issubclass(metric, RepeatedMetric) and isinstance(answer, Completion):
        return named_values(metric.NAME, metric().calculate_all([answer] * texts))
    if issubclass(metric, ItemMetric):
        return {metric.NAME: float(metric.aggregate([metric().calculate(answer)]))}
    values = named_values(metric.NAME, metric().calculate(answer))
    if not issubclass(metric, CorpusMetric):
        return values
    statistics = np.array([values[f"{metric.NAME}/{name}"] for name in metric.STATISTICS])
    return {metric.NAME: float(metric.aggregate(statistics))}


def _value_problem(metric: type[BaseMetric], values: Mapping[str, float], *, is_right: bool, has_gold: bool) -> str | None:
    best, sign = metric.BEST, 1 if metric.HIGHER_IS_BETTER else -1
    # The perplexity of an impossible text is infinite.
    may_be_infinite = issubclass(metric, CorpusMetric) and not is_right
    if any(math.isnan(value) or (math.isinf(value) and not may_be_infinite) for value in values.values()):
        return "; expected finite numbers"
    if best is None or not has_gold:
        return None
    if is_right and not all(math.isclose(value, best, abs_tol=1e-9) for value in values.values()):
        return f"; expected {best:g}, the best value (see {metric.__name__}.BEST)"
    if not is_right and not any(sign * value < sign * best for value in values.values()):
        return f", which is no worse than the gold answer's {best:g}"
    return None


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
        choices = [choice.strip() for choice in prompt.request.choices or ()]
        for text in dict.fromkeys(choice for choice in choices if choices.count(choice) > 1):
            positions = [index for index, choice in enumerate(choices) if choice == text]
            problems.append(f"the choice {text!r} stands at the positions {positions}; expected each choice once")
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


def _token_problems(asked: _Asked, tokenizer: Any) -> Iterator[str]:
    request = asked.prompt.request
    for what, text in (("prompt", request.prompt), ("unconditioned prompt", request.unconditioned_prompt or "")):
        if found := _TWICE.search(text):
            yield f"the {what} holds the special token {found[1]} twice in a row: {_around(text, found.start())}"
        adds = not (request.has_special_tokens or request.perplexity)
        if tokenizer is None or tokenizer.bos_token_id is None:
            marks = _BEGIN.findall(text)
            begins, name = len(marks) + adds, marks[0] if marks else ""
        else:
            begins = list(tokenizer(text, add_special_tokens=adds)["input_ids"]).count(tokenizer.bos_token_id)
            name = tokenizer.bos_token
        if begins > 1:
            where = "one that a tokenizer adds, the others in its text" if adds else "all in its text"
            yield f"the {what} has {begins} begin tokens {name}, {where}; expected one at most (see Formatter.has_special_tokens)"


def _joint_problems(asked: _Asked) -> Iterator[str]:
    """Problems of the white space between prompt and answer; of several choices the first problem."""
    request = asked.prompt.request
    if request.perplexity:
        return
    prompt, choices, example = request.prompt, request.choices or (), asked.as_example
    if example is not None:
        wholes = [prompt + choices[index] for index in asked.prompt.gold_indices] or [prompt]
        if not any(example.startswith(whole) for whole in wholes):
            whole = wholes[0]
            letters = enumerate(zip(whole, example, strict=False))
            where = next((index for index, (here, there) in letters if here != there), min(len(whole), len(example)))
            alone, before = _around(whole, where), _around(example, where)
            yield f"the question with its answer reads {alone}; as a few-shot example it reads {before}"
        elif not choices:
            rest = example[len(prompt) :]
            choices = (rest[: len(rest) - len(rest.lstrip()) + len(asked.answer.strip())],)
    is_marked = asked.formatter.has_special_tokens and not asked.cue
    for choice in choices:
        gap = prompt[len(prompt.rstrip()) :] + choice[: len(choice) - len(choice.lstrip())]
        shown = f"{prompt[-20:]!r} is followed by {choice[:20]!r}"
        if len(gap) > 1 and "\n" not in gap:
            yield f"{shown}, with more than one space between them"
            return
        # Only ASCII is checked, since some scripts have no spaces between words.
        if not gap and not is_marked and re.search(r"[\w.,:;?!)]\Z", prompt, re.ASCII) and re.match(r"\w", choice, re.ASCII):
            yield f"{shown}, with no space between them"
            return


def _around(text: str, position: int) -> str:
    return repr(text[max(position - 30, 0) : position + 10])
