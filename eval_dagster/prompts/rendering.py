"""Samples become requests: pure functions of the task, the sample and the settings."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from eval_dagster.config.models import GenerationConfig
from eval_dagster.config.schema import FewshotSets
from eval_dagster.errors import DataError, RowError
from eval_dagster.prompts.fewshot import FewshotPool, draw_seed, fewshot_set
from eval_dagster.prompts.formatters import Formatter
from eval_dagster.records import (
    GenerationSettings,
    Message,
    MetricContext,
    Request,
    ResponseType,
    Role,
    Row,
    Sample,
    TaskSample,
    settings_of,
)
from eval_dagster.tasks.answers import contexts_of, given_gold, gold_indices, texts_of, truth_as_given, truths_of
from eval_dagster.tasks.base import BaseTask, FewshotStrategy
from eval_dagster.tasks.samples import NullFieldError, TaskRow, place_of, row_name
from eval_dagster.versions import stable_hash

AnyTask = BaseTask[Any]


@dataclass(frozen=True, kw_only=True)
class RenderedPrompt:
    """What is asked of a model about one sample, and what the answer is."""

    sample_id: str
    """The row's sample id; where a task asks several things about one row, a suffix `.1`, `.2`, ... from the second on."""
    source_id: str
    """The row's sample id."""
    subject: str
    response_type: ResponseType
    messages: tuple[Message, ...]
    request: Request
    ground_truths: tuple[str, ...]
    """Every text that counts as correct."""
    truth_is_list: bool | None = None
    """Whether the task gave these as a list; null where it gave none of them."""
    gold_indices: tuple[int, ...] = ()
    """Positions of the correct choices; several where choices are repeated or more than one is correct. Empty for completions."""
    fewshot_ids: tuple[str, ...] = ()
    """Sample ids of the examples, in the order of the prompt; of examples that are no rows of the dataset the hash of their content."""
    fewshot_set: int | None = None
    """The number of the set that they are from; none without examples, where each sample has a set of its own, or where a task draws
    them itself from rows among which the sample is."""
    context: tuple[MetricContext, ...] = ()
    """What the task hands on to the metrics."""
    error: str | None = None
    """Why it cannot be sent to a model."""

    @property
    def ground_truth(self) -> str | list[str] | None:
        """The correct answer as the task gave it."""
        return truth_as_given(self.ground_truths, self.truth_is_list)


def fewshot_pool(task: AnyTask, samples: Iterable[Sample]) -> FewshotPool:
    """A pool that knows by the task's hooks what a sample asks, of which class it is, and whether it is an example."""

    def compared(hook: Callable[[Row], Any]) -> Callable[[Sample], Any]:
        def ask(sample: Sample) -> Any:
            with _row_errors(sample), task.comparing():
                return hook(TaskRow(sample))

        return ask

    hooks = {"question": task._get_instruction_text, "group": task._get_fewshot_class, "admits": task.is_example}
    return FewshotPool(samples, **{name: compared(hook) for name, hook in hooks.items()})


def render_sample(
    task: AnyTask,
    sample: Sample,
    pool: FewshotPool | None,
    *,
    formatter: Formatter,
    num_fewshot: int,
    seed: int,
    generation: GenerationConfig,
    strategy: FewshotStrategy | None = None,
    sets: FewshotSets = 1,
    num_samples: int | None = None,
) -> list[RenderedPrompt]:
    """Build the requests of one sample: mostly one, more or none where the task wants it so.

    Args:
        task: The benchmark.
        sample: The sample, from `build_samples`.
        pool: What examples are drawn from; not needed where `num_fewshot` is 0.
        formatter: How messages become text.
        num_fewshot: How many examples.
        seed: Seeds the choice of examples, and sampling where the temperature is above 0.
        generation: The model's own settings, combined with the task's.
        strategy: How examples are drawn; the task's own way where not given.
        sets: How many sets of examples the samples of a subject have between them, or `per_sample`.
        num_samples: Texts to generate from each prompt; the task's own number where not given.

    Raises:
        DataError: A field that a hook reads is missing or null, a hook failed on the row, or the gold answer is not among the choices.
    """
    number = _prepare(task, sample, pool, _Draw(num_fewshot, seed, strategy or task.FEWSHOT_STRATEGY, sets))
    with _row_errors(sample, task.examples_used):
        row = TaskRow(sample)
        made = task._create_samples(row, sample.row_index, sample.subject)
    asked = _Asked(
        task=task,
        sample=sample,
        formatter=formatter,
        seed=seed,
        generation=generation,
        num_samples=num_samples or task.NUM_SAMPLES,
        fewshot_set=number,
    )
    return [asked.rendered(each, index) for index, each in enumerate(made)]


@dataclass(frozen=True)
class _Draw:
    """How examples are drawn."""

    count: int
    seed: int
    strategy: FewshotStrategy
    sets: FewshotSets


def _prepare(task: AnyTask, sample: Sample, pool: FewshotPool | None, how: _Draw) -> int | None:
    """Let the task draw examples for one sample by what depends on the seed, its set of examples and this sample alone.

    Returns:
        The number of the set; none without examples, or where they need not be those of the set.
    """

    def draw(_item: Row) -> list[Row]:
        if pool is None:
            raise DataError(f"{how.count} few-shot examples are wanted, but task {task.NAME} names no split for them (FEWSHOT_SPLIT)")
        drawn = pool.draw(sample, count=how.count, seed=how.seed, strategy=how.strategy, sets=how.sets)
        return [TaskRow(example) for example in drawn]

    task.num_fewshot = how.count
    task.examples_used.clear()
    task.draw_examples = draw
    task.rnd = Random(f"{how.seed}/{sample.sample_id}")  # noqa: S311
    task.examples_rnd = Random(draw_seed(sample, how.seed, how.sets))  # noqa: S311
    if pool is not None and task.FEWSHOT_SPLIT and type(task)._sample_fewshot_examples is not BaseTask._sample_fewshot_examples:
        others = pool.without(sample)
        task.dataset = {task.FEWSHOT_SPLIT: [TaskRow(each) for each in others]}
        if len(others) < len(pool):  # by the same numbers the task draws others from a shorter list
            return None
    return fewshot_set(sample.sample_id, how.sets) if how.count else None


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What the requests of one sample have in common."""

    task: AnyTask
    sample: Sample
    formatter: Formatter
    seed: int
    generation: GenerationConfig
    num_samples: int
    fewshot_set: int | None

    def rendered(self, made: TaskSample, index: int) -> RenderedPrompt:
        sample = self.sample
        response_type = made.response_type or self.task.RESPONSE_TYPE
        truths = truths_of(made.ground_truth, sample)
        gold: tuple[int, ...] = ()
        if response_type is ResponseType.LOGLIKELIHOODS:
            texts = texts_of(made.possible_completions, "choices", sample)
            gold = given_gold(made.gold_indices, texts, sample) if made.gold_indices is not None else gold_indices(truths, texts, sample)
            truths = truths or tuple(texts[position] for position in gold)
            request = self._scored(made, texts)
        elif response_type is ResponseType.PERPLEXITY:
            text = "".join(message.content for message in made.messages)
            request = _request(prompt=text, perplexity=True, use_logits=made.use_logits)
        else:
            request = self._generated(made)
        return RenderedPrompt(
            sample_id=f"{sample.sample_id}.{index}" if index else sample.sample_id,
            source_id=sample.sample_id,
            subject=sample.subject,
            response_type=response_type,
            messages=tuple(made.messages),
            request=request,
            ground_truths=truths,
            truth_is_list=None if made.ground_truth is None else not isinstance(made.ground_truth, str),
            gold_indices=gold,
            fewshot_ids=tuple(map(row_name, self.task.examples_used)),
            fewshot_set=self.fewshot_set,
            context=contexts_of(made.context, sample),
        )

    def _scored(self, made: TaskSample, texts: tuple[str, ...]) -> Request:
        prompt, joined = _join(self.formatter.format(made.messages, images=len(made.images)), made.messages[-1], texts, self.formatter)
        unconditioned = None
        if made.unconditioned_query is not None:
            alone = Message(Role.USER, made.unconditioned_query)
            # The choices are the same after both prompts, so a gap that they do not bring goes to this one.
            unconditioned = self.formatter.format([alone]) + self.formatter.answer_gap(alone.content, joined[0])
        return _request(
            prompt=prompt,
            has_special_tokens=self.formatter.has_special_tokens,
            choices=joined,
            unconditioned_prompt=unconditioned,
            use_logits=made.use_logits,
            images=tuple(made.images),
        )

    def _generated(self, made: TaskSample) -> Request:
        with _row_errors(self.sample):
            target = self.task._get_fewshot_target_text(TaskRow(self.sample))
        last = made.messages[-1]
        if last.role is Role.ASSISTANT:
            target = target.removeprefix(last.content)
        prompt, _ = _join(self.formatter.format(made.messages, images=len(made.images)), last, (target,), self.formatter)
        return _request(
            prompt=prompt,
            has_special_tokens=self.formatter.has_special_tokens,
            generation=self._settings(made),
            use_logits=made.use_logits,
            images=tuple(made.images),
        )

    def _settings(self, made: TaskSample) -> GenerationSettings:
        config, task = self.generation, self.task
        caps = (made.max_tokens or task.max_tokens, config.max_tokens)
        stops = task.stop_sequences if made.stop_sequences is None else made.stop_sequences
        return GenerationSettings(
            max_tokens=min((cap for cap in caps if cap is not None), default=None),
            stop_sequences=tuple(dict.fromkeys([*(stops or ()), *config.stop_sequences])),
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            num_samples=made.num_samples or self.num_samples,
            # Greedy text depends on no seed: another one must not miss the cache.
            seed=self.seed if config.temperature > 0 else 0,
            grammar=made.grammar,
        )


def _join(prompt: str, last: Message, answers: tuple[str, ...], formatter: Formatter) -> tuple[str, tuple[str, ...]]:
    """Prompt and answers such that one followed by the other reads as a few-shot example does: no white space lost or doubled.

    A line break goes to the prompt; a space to the answers, to whose first word tokenizers join it. An indented answer keeps its own.
    """
    if prompt[-1:].isspace():
        return prompt, tuple(answer if answer[1:2].isspace() else answer.removeprefix(" ") for answer in answers)
    if last.role is Role.ASSISTANT:
        gaps = ["" if not answer or answer[0].isspace() else " " for answer in answers]
    else:
        gaps = [formatter.answer_gap(last.content, answer) for answer in answers]
    if all(gap == "\n" for gap in gaps):
        return f"{prompt}\n", answers
    return prompt, tuple(gap + answer for gap, answer in zip(gaps, answers, strict=True))


def _request(*, prompt: str, **fields: Any) -> Request:
    unnamed = Request(request_id="", prompt=prompt, **fields)
    # What is not asked for is no part of the identity: a new field must not rename every request.
    identity = {name: value for name, value in settings_of(unnamed).items() if value not in ("", None, False, ())}
    if unnamed.generation is not None:
        grammar = unnamed.generation.grammar
        identity["generation"] = {**settings_of(unnamed.generation), "grammar": grammar and dict(settings_of(grammar))}
    identity["images"] = [stable_hash(image.hex()) for image in unnamed.images]
    return replace(unnamed, request_id=stable_hash(identity))


@contextmanager
def _row_errors(sample: Sample, examples: Sequence[Row] = ()) -> Iterator[None]:
    """Turn whatever a hook raises into a `DataError` that names the row, once."""
    try:
        yield
    except RowError:
        raise
    except DataError as error:
        raise RowError(f"{place_of(sample)}: {error}") from error
    except NullFieldError as error:
        raise RowError(f"{error.args[0]}; fill it in, or read it with item.get where it may be absent") from error
    except KeyError as error:
        key = error.args[0] if error.args else None
        rows = [(place_of(sample), sample.row), *((place_of(example), example) for example in examples)]
        where, lacking = next(((where, row) for where, row in rows if key not in row), (None, {}))
        if where is None:
            raise RowError(f"{place_of(sample)}: the task raised KeyError: {error}") from error
        raise RowError(f"{where} lacks the field {key!r}; it has: {', '.join(lacking)}") from error
    except Exception as error:
        raise RowError(f"{place_of(sample)}: the task raised {type(error).__name__}: {error}") from error
