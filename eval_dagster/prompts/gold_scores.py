"""Whether a benchmark's metrics tell a gold answer from a wrong one: they are given both, as a model would answer them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval_dagster.metrics.base import BaseMetric, CorpusMetric, RepeatedMetric, metrics_for, named_values
from eval_dagster.prompts.rendering import RenderedPrompt
from eval_dagster.records import Completion, GenerationSettings, Loglikelihood, ResponseType, Sample, TaskSample
from eval_dagster.sandbox import execution_allowed
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.samples import TaskRow

Answers = Mapping[str, Completion | Loglikelihood]
"""What a metric sees, by what it is called."""

_IMPROBABLE = -1000.0
"""Log-probability a byte of what a model rules out: a probability of 0 even where a metric divides by the length."""
_UNCERTAIN = -0.01
"""Log-probability a character of a text that a model is not sure of; small enough that exp() does not overflow for long words."""
_WRONG_TEXTS = ("qwzx vbnk", "")
"""Answers to nothing, unless nothing is the answer: a question that cannot be answered may want an empty text."""


@dataclass(frozen=True, kw_only=True)
class GoldScores:
    """The metrics of the right and the wrong answers to a prompt."""

    task: BaseTask[Any]
    sample: Sample
    prompt: RenderedPrompt
    answer: str
    """What a model should write; not looked at where choices or a text are scored."""

    def problems(self) -> Iterator[str]:
        """What is wrong with the scores, each in a sentence. Metrics that run code are left out where that is not allowed."""
        response_type = self.prompt.response_type
        metrics = metrics_for(self.task.METRICS, response_type)
        if not metrics:
            listed = ", ".join(metric.NAME for metric in self.task.METRICS)
            yield f"none of the task's metrics ({listed}) scores what is asked for: {response_type.value}"
        yield from self._length_problems()
        right, wrong = self._right_answers(), self._wrong_answers()
        texts = self.prompt.request.generation.num_samples if self.prompt.request.generation else 1
        for metric in metrics:
            if metric.EXECUTES_CODE and not execution_allowed():
                continue
            yield from _metric_problems(metric, right, wrong, texts)

    def _length_problems(self) -> Iterator[str]:
        words, generation = len(self.answer.split()), self.prompt.request.generation
        # A word is one token at least.
        if generation is not None and generation.max_tokens is not None and words > generation.max_tokens:
            yield f"the gold answer has {words} words, more than the {generation.max_tokens} tokens (max_tokens) that are generated"

    def _right_answers(self) -> Answers:
        prompt = self.prompt
        if prompt.response_type is ResponseType.PERPLEXITY:
            return {"a text that is certain": self._text(0.0)}
        if prompt.response_type is ResponseType.LOGLIKELIHOODS:
            return {f"the gold answer {self._choices[index]!r}": self._chosen(index) for index in prompt.gold_indices}
        if not self.answer:
            return {}
        text, stop = _cut(self.answer, (prompt.request.generation or GenerationSettings()).stop_sequences)
        cut = f", which the stop sequence {stop!r} cuts to {text!r}," if stop else ""
        return {f"the gold answer {self.answer!r}{cut}": self._completion(text)}

    def _wrong_answers(self) -> Answers:
        prompt = self.prompt
        if prompt.response_type is ResponseType.PERPLEXITY:
            return {"a text that is less than certain": self._text(_UNCERTAIN)}
        if prompt.response_type is ResponseType.COMPLETION:
            wrong_texts = [text for text in _WRONG_TEXTS if text not in prompt.ground_truths]
            return {f"the wrong answer {text!r}": self._completion(text) for text in wrong_texts}
        wrong = [index for index in range(len(self._choices)) if index not in prompt.gold_indices]
        found = {f"the wrong answer {self._choices[index]!r}": self._chosen(index) for index in wrong}
        return found or {"a gold answer that is improbable": self._chosen(None)}

    def _chosen(self, index: int | None) -> Loglikelihood:
        """The choices' log-probabilities where a model is certain of one of them, or rules out all.

        Where several are correct, the others of them are more probable than what is wrong, by whatever length a metric divides.
        """
        longest = max((len(choice.encode()) for choice in self._choices), default=0)
        ruled_out = [_IMPROBABLE * longest * (1 if each in self.prompt.gold_indices else longest + 1) for each in range(len(self._choices))]
        if index is not None and index not in self.prompt.gold_indices:
            ruled_out = [min(ruled_out)] * len(ruled_out)
        values = [0.0 if position == index else value for position, value in enumerate(ruled_out)]
        return Loglikelihood(
            loglikelihoods=values,
            choices=self._choices,
            gold_indices=self.prompt.gold_indices,
            token_loglikelihoods=[[value] for value in values],
            unconditioned_loglikelihoods=None if self.prompt.request.unconditioned_prompt is None else [-1.0] * len(values),
            is_greedy=[position == index for position in range(len(values))],
            **self._shared(),
        )

    def _text(self, per_character: float) -> Loglikelihood:
        """A text that is scored as a whole: its only choice, and the correct one."""
        text = self.prompt.request.prompt
        tokens = [per_character] * len(text)
        return Loglikelihood(
            loglikelihoods=[math.fsum(tokens)], choices=[text], gold_indices=[0], token_loglikelihoods=[tokens], **self._shared()
        )

    def _completion(self, text: str) -> Completion:
        """A generated text after the task's post-processing."""
        prompt, shared = self.prompt, self._shared()
        made = TaskSample(
            messages=prompt.messages,
            ground_truth=prompt.ground_truth,
            context=shared["context"],
            id=self.sample.row_index,
            subject=prompt.subject,
            row=shared["row"],
        )
        return Completion(
            completion_text=self.task.post_process_generated_completion(text, made),
            raw_text=text,
            ground_truths=prompt.ground_truths,
            ground_truth=prompt.ground_truth,
            messages=prompt.messages,
            **shared,
        )

    @property
    def _choices(self) -> tuple[str, ...]:
        return self.prompt.request.choices or ()

    def _shared(self) -> dict[str, Any]:
        """What every metric sees, whatever it scores."""
        parts = self.prompt.context
        context = parts[0] if len(parts) == 1 else parts or None
        return {"prompt": self.prompt.request.prompt, "context": context, "row": TaskRow(self.sample)}


def _metric_problems(metric: type[BaseMetric], right: Answers, wrong: Answers, texts: int) -> Iterator[str]:
    """What is wrong with one metric; the first thing, since others follow from it."""
    found: dict[str, Mapping[str, float]] = {}
    for words, answer in [*right.items(), *wrong.items()]:
        try:
            found[words] = _values(metric, answer, texts)
        except Exception as error:  # one metric's failure hides no other's
            yield f"the metric {metric.NAME} raised {type(error).__name__} for {words}: {error}"
            return
    if issubclass(metric, CorpusMetric) and not _tells(list(found.values())):
        return
    for words, values in found.items():
        if problem := _value_problem(metric, values, is_right=words in right, has_gold=bool(right)):
            yield f"{words} gets {', '.join(f'{name} = {value:g}' for name, value in values.items())}{problem}"
            return


def _values(metric: type[BaseMetric], answer: Completion | Loglikelihood, texts: int) -> Mapping[str, float]:
    """What the metric would be if all samples were like this one, and all `texts` that are generated from a prompt alike."""
    if issubclass(metric, RepeatedMetric) and isinstance(answer, Completion):
        return named_values(metric.NAME, metric().calculate_all([answer] * texts))
    values = named_values(metric.NAME, metric().calculate(answer))
    if not issubclass(metric, CorpusMetric):
        return values
    statistics = np.array([values[f"{metric.NAME}/{name}"] for name in metric.STATISTICS])
    return {metric.NAME: float(metric.aggregate(statistics))}


def _tells(answers: Sequence[Mapping[str, float]]) -> bool:
    """Whether one sample is enough for a metric of many: BLEU, for instance, is 0 where all texts have less than four words."""
    values = [value for each in answers for value in each.values()]
    return not any(map(math.isnan, values)) and len(set(values)) > 1


def _value_problem(metric: type[BaseMetric], values: Mapping[str, float], *, is_right: bool, has_gold: bool) -> str | None:
    best, sign = metric.BEST, 1 if metric.HIGHER_IS_BETTER else -1
    # The perplexity of what a model rules out is infinite.
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


def _cut(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """A text as a model's answer would end, and the stop sequence that ends it."""
    stop = min((stop for stop in stops if stop and stop in text), key=text.index, default="")
    return (text.partition(stop)[0], stop) if stop else (text, "")
