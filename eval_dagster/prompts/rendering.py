"""Turns samples into prompts. A prompt depends on the task, the sample and the settings alone.

A sample that cannot be sent to a model has an error of its own and does not affect the others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from eval_dagster.config.models import GenerationConfig
from eval_dagster.config.schema import FewshotSets
from eval_dagster.errors import DataError, EndedError, EvalDagsterError, RowError, SampleError, WholeEvalError, described
from eval_dagster.prompts.fewshot import FewshotPool, draw_seed, fewshot_set
from eval_dagster.prompts.formatters import ChatTemplateFormatter, ConversationFormatter, verbatim
from eval_dagster.records import GenerationSettings, Grammar, Message, Request, ResponseType, Role, Row, Sample, TaskSample, Turn
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.tasks.base import BaseTask, FewshotStrategy, Formatter
from eval_dagster.tasks.benchmark import AdapterTask, OrderedTask, RenderSettings
from eval_dagster.tasks.samples import (
    MissingFieldError,
    NullFieldError,
    TaskRow,
    check_prompt,
    check_settings,
    contexts_of,
    given_gold,
    gold_indices,
    place_of,
    row_name,
    shown,
    texts_of,
    truths_of,
    unreadable_reason,
)
from eval_dagster.texts.visible_text import is_storable, one_line
from eval_dagster.users_code import calling, raised_at
from eval_dagster.versions.hashes import canonical_json, stable_hash, text_hash

AnyTask = BaseTask[Any]
_MOST_KNOWN = 256
"""Most settings that are kept in memory."""
_BEFORE, _AFTER = 20, 10
"""Characters before and after the fault of a text that a message shows."""


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """How the samples of a task become prompts for a model."""

    task: AnyTask
    formatter: Formatter
    """Turns messages into text."""
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    """The model's own settings, combined with the task's."""
    num_fewshot: int = 0
    """Examples before each question."""
    seed: int = 0
    """Seeds the choice of examples and, without `sampling_seed`, sampling if the temperature is above 0."""
    fewshot_seed: int | None = None
    """Seeds the choice of examples instead of `seed`."""
    sampling_seed: int | None = None
    """Seeds sampling."""
    strategy: FewshotStrategy | None = None
    """How examples are drawn; the task's own way if not given."""
    sets: FewshotSets = 1
    """How many sets of examples the samples of a subject have between them, or `per_sample`."""
    num_samples: int | None = None
    """Texts to generate from each prompt; the task's own number if not given."""
    variant: str | None = None
    """The variant of the eval that this is. Null without variants."""
    others: tuple["Rendering", ...] = ()
    """How the other variants become prompts, for the default."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """By subject an answer that begins as most of its answers do, as `knowing` finds it. Prompts of generated texts end as before this."""
    _known_settings: dict[str, GenerationSettings] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The settings of prompts so far, by the text of what they are made of. Nearly all prompts of an eval have the same settings."""

    def knowing(self, samples: Iterable[Sample]) -> "Rendering":
        """The rendering with the usual answers of these samples, all that are evaluated.

        A prompt must not tell its own gold answer, by a line break that is there before some answers only. So the answers of a subject
        decide together, by majority, whether they begin with white space. Empty ones do not count, and rows whose hooks fail.
        """
        if self.formatter.answer_gap("?", "answer") != "\n":
            return self  # no prompt of this format depends on how its answer begins
        votes: dict[str, list[int]] = {}
        for sample in samples:
            # An exception of the task is raised where the row is asked.
            with suppress(Exception), calling("a hook of the task", sample.sample_id), self.task.comparing():
                answer = self.task._get_fewshot_target_text(TaskRow(sample))
                if answer:
                    votes.setdefault(sample.subject, []).append(1 if answer[0].isspace() else -1)
                else:
                    votes.setdefault(sample.subject, [])
        usual = {subject: " answer" if sum(each) > 0 else "answer" if each else "" for subject, each in votes.items()}
        return replace(self, answers=usual)

    @property
    def settings(self) -> RenderSettings:
        """The settings for a `Benchmark`."""
        per_sample = self.sets == "per_sample"
        return RenderSettings(
            num_fewshot=self.num_fewshot, seed=self.seed, examples_per_sample=per_sample, formatter=verbatim(self.formatter)
        )


def fewshot_pool(task: AnyTask, samples: Iterable[Sample]) -> FewshotPool:
    """A pool of samples; the task's hooks give the question and the class of each, and whether it can be an example."""

    def compared(hook: Callable[[Row], Any]) -> Callable[[Sample], Any]:
        def ask(sample: Sample) -> Any:
            with _row_errors(sample), task.comparing():
                return hook(TaskRow(sample))

        return ask

    hooks = {"question": task._get_instruction_text, "group": task._get_fewshot_class, "admits": task.is_example}
    return FewshotPool(samples, **{name: compared(hook) for name, hook in hooks.items()})


def render_sample(rendering: Rendering, sample: Sample, pool: FewshotPool | None) -> list[RenderedPrompt]:
    """Build the prompts of one sample: one as a rule, several or none if the task returns so many.

    Args:
        rendering: The task, the format and the settings.
        sample: The sample, from `build_samples`.
        pool: The samples that examples are drawn from; not needed without examples.

    Raises:
        WholeEvalError: No row can be asked.
        DataError: A field that a hook reads is missing or null, a hook failed on the row, or the gold answer is not among the choices.
    """
    task, number = rendering.task, _prepare(rendering, sample, pool)
    with _row_errors(sample, task):
        row = TaskRow(sample)
        given: Any = (
            task.questions(sample) if isinstance(task, OrderedTask) else task._create_samples(row, sample.row_index, sample.subject)
        )
        if not isinstance(given, Iterable):
            raise DataError(f"the task made {shown(given)} of the row; expected a list of TaskSample")
        made = list(given)
    asked = AskedRow(rendering=rendering, sample=sample, row=row, fewshot_set=number)
    prompts = []
    for index, each in enumerate(made):
        check_prompt(each, sample)
        try:
            prompts.append(asked.rendered(each, index))
        except SampleError as error:
            prompts.append(unaskable_prompt(task, sample, each, index, error))
    return prompts


def _prepare(how: Rendering, sample: Sample, pool: FewshotPool | None) -> int | None:
    """Set up the task to draw the examples of one sample. They depend on the seed, the set of the sample and the sample alone.

    Returns:
        The number of the set; None without examples, or if they may differ from the set's.
    """
    task, fewshot_seed = how.task, how.seed if how.fewshot_seed is None else how.fewshot_seed
    task.written_example = None
    if isinstance(task, OrderedTask):
        task.formatter = how.formatter
        return None

    def draw(_item: Row) -> list[Row]:
        if pool is None:
            raise WholeEvalError(
                f"{how.num_fewshot} few-shot examples are wanted, but task {task.NAME} names no split for them (FEWSHOT_SPLIT)"
            )
        strategy = how.strategy or task.FEWSHOT_STRATEGY
        try:
            drawn = pool.draw(sample, count=how.num_fewshot, seed=fewshot_seed, strategy=strategy, sets=how.sets)
        except RowError as error:
            if str(error).startswith(place_of(sample)):
                raise
            raise RowError(f"{place_of(sample)}: its few-shot examples cannot be drawn: {error}") from error
        return [TaskRow(example) for example in drawn]

    task.num_fewshot = how.num_fewshot
    task.formatter = how.formatter
    task.examples_used.clear()
    task.draw_examples = draw
    task.seed_random(f"{how.seed}/{sample.sample_id}", draw_seed(sample, fewshot_seed, how.sets))
    if pool is not None and task.FEWSHOT_SPLIT and type(task)._sample_fewshot_examples is not BaseTask._sample_fewshot_examples:
        others = pool.without(sample)
        task.dataset = {task.FEWSHOT_SPLIT: [TaskRow(each) for each in others]}
        if len(others) < len(pool):  # the same random numbers choose other examples from a shorter list
            return None
    return fewshot_set(sample.sample_id, how.sets) if how.num_fewshot else None


@dataclass(frozen=True, kw_only=True)
class AskedRow:
    """A row that is asked about. Its requests share these."""

    rendering: Rendering
    sample: Sample
    row: TaskRow
    fewshot_set: int | None

    def rendered(self, made: TaskSample, index: int) -> RenderedPrompt:
        """The prompt of a question about the row; `index` is its position among them."""
        sample, task, formatter = self.sample, self.rendering.task, self.rendering.formatter
        response_type = made.response_type or task.RESPONSE_TYPE
        truths = truths_of(made.ground_truth, sample)
        gold: tuple[int, ...] = ()
        if response_type is ResponseType.LOGLIKELIHOODS:
            texts = texts_of(made.possible_completions, "choices", sample)
            if made.gold_indices is None:
                gold = gold_indices(truths, texts, sample)
            elif made.gold_indices or made.prompt is None:
                gold = given_gold(made.gold_indices, texts, sample)
            # Otherwise the code that wrote the whole prompt may keep its gold answer to itself, or have one that is no choice.
            truths = truths or tuple(texts[position] for position in gold)
            request = self._scored(made, texts)
        elif response_type is ResponseType.PERPLEXITY:
            text = "".join(message.content for message in made.messages) if made.prompt is None else made.prompt
            request = new_request(prompt=text, perplexity=True, use_logits=made.use_logits)
        else:
            # A benchmark of another package renders its prompts to their ends.
            usual = "" if isinstance(task, AdapterTask) else self.rendering.answers.get(sample.subject, "answer")
            prompt, _ = self.joined(made, (usual,))
            request = new_request(
                prompt=prompt,
                has_special_tokens=formatter.has_special_tokens,
                generation=self.settings(made),
                use_logits=made.use_logits,
                images=tuple(made.images),
                messages=self.sent(made),
            )
        return RenderedPrompt(
            sample_id=question_id(sample, index),
            source_id=sample.sample_id,
            subject=sample.subject,
            sample_name=made.sample_name or sample.sample_name,
            response_type=response_type,
            messages=tuple(made.messages),
            request=request,
            ground_truths=truths,
            truth_is_list=None if made.ground_truth is None else not isinstance(made.ground_truth, str),
            gold_indices=gold,
            fewshot_ids=tuple(map(row_name, task.examples_used)),
            fewshot_set=self.fewshot_set,
            context=contexts_of(made.context, sample),
            is_system_merged=isinstance(formatter, ChatTemplateFormatter | ConversationFormatter)
            and formatter.merges_system(made.messages)
            and (made.prompt is None or made.prompt == formatter.format(made.messages, images=len(made.images))),
        )

    def _scored(self, made: TaskSample, texts: tuple[str, ...]) -> Request:
        formatter = self.rendering.formatter
        prompt, joined = self.joined(made, texts)
        unconditioned = None
        if made.unconditioned_query is not None:
            alone = Message(Role.USER, made.unconditioned_query)
            # The choices are the same after both prompts, so white space that they lack is added to this prompt.
            unconditioned = formatter.format([alone]) + formatter.answer_gap(alone.content, joined[0])
        return new_request(
            prompt=prompt,
            has_special_tokens=formatter.has_special_tokens,
            choices=joined,
            unconditioned_prompt=unconditioned,
            use_logits=made.use_logits,
            images=tuple(made.images),
            messages=self.sent(made),
        )

    def sent(self, made: TaskSample) -> tuple[Message, ...] | None:
        """The messages that are sent instead of the prompt. A whole prompt that the task wrote is one message."""
        if not isinstance(self.rendering.formatter, ConversationFormatter):
            return None
        if made.prompt is not None:
            return (Message(Role.USER, made.prompt),)
        return self.rendering.formatter.sent(made.messages)

    def joined(self, made: TaskSample, answers: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """The prompt and the answers with the white space that stands between them in a few-shot example, once.

        A line break is added to the prompt. A space is added to the answers, since tokenizers join it to their first word. An indented
        answer keeps its indentation.
        """
        if made.prompt is not None:
            return made.prompt, answers
        formatter = self.rendering.formatter
        return joined_after(formatter.format(made.messages, images=len(made.images)), made.messages[-1], formatter, answers)

    def settings(self, made: TaskSample) -> GenerationSettings:
        """The settings of the model, the row and the task. The model's come first."""
        task = self.rendering.task
        stops = task.stop_sequences if made.stop_sequences is None else made.stop_sequences
        if isinstance(stops, str) or not isinstance(stops, Iterable | None):
            raise DataError(f"{place_of(self.sample)}: the task gives stop_sequences as {stops!r}; expected a list of texts")
        stops = list(stops or ())
        sampling = {name: getattr(made, name) for name in ("temperature", "top_k", "top_p")}
        max_tokens, num_samples = made.max_tokens or task.max_tokens, made.num_samples or self.rendering.num_samples or task.NUM_SAMPLES
        # Equal values of other types, such as 0 and 0.0, are other texts in JSON.
        known, key = self.rendering._known_settings, repr((stops, sampling, max_tokens, num_samples, made.grammar))
        if key not in known:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[key] = self._settings(stops, sampling, max_tokens, num_samples, made.grammar)
        return known[key]

    def _settings(
        self, stops: list[str], sampling: Mapping[str, Any], max_tokens: int | None, num_samples: int, grammar: Grammar | None
    ) -> GenerationSettings:
        how, config = self.rendering, self.rendering.generation
        config = config.model_copy(
            update={name: value for name, value in sampling.items() if value is not None and name not in config.model_fields_set}
        )
        seed = how.seed if how.sampling_seed is None else how.sampling_seed
        settings = GenerationSettings(
            max_tokens=min((cap for cap in (max_tokens, config.max_tokens) if cap is not None), default=None),
            stop_sequences=tuple(dict.fromkeys([*stops, *config.stop_sequences])),
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            num_samples=num_samples,
            # Greedy text does not depend on the seed: a request with another seed must find the same answer in the cache.
            seed=seed if config.temperature > 0 else 0,
            grammar=grammar,
        )
        if not isinstance(how.task, AdapterTask):  # another package has checks of its own
            check_settings(settings, self.sample)
        return settings


def joined_after(prompt: str, last: Message, formatter: Formatter, answers: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The text of messages and the answers to the last of them, with the white space that `AskedRow.joined` puts between the two."""
    if prompt[-1:].isspace():
        return prompt, tuple(answer if answer[1:2].isspace() else answer.removeprefix(" ") for answer in answers)
    if last.role is Role.ASSISTANT:
        gaps = ["" if not answer or answer[0].isspace() else " " for answer in answers]
    else:
        gaps = [formatter.answer_gap(last.content, answer) for answer in answers]
    if all(gap == "\n" for gap in gaps):
        return f"{prompt}\n", answers
    return prompt, tuple(gap + answer for gap, answer in zip(gaps, answers, strict=True))


def new_request(**fields: Any) -> Request:
    """A request with its id."""
    request = Request(request_id="", **fields)
    # Nobody has seen it yet, and a copy takes as long as its hash.
    object.__setattr__(request, "request_id", stable_hash(identity_of(request)))
    return request


def named(request: Request) -> Request:
    """The request with the hash of its other fields as its id."""
    return replace(request, request_id=stable_hash(identity_of(request)))


def turns_json(messages: Iterable[Message]) -> str:
    """The JSON of messages by which they count in the id of a request, without the brackets of the list."""
    return ",".join(canonical_json(_turn_identity(message)) for message in messages)


def ids_by_count(request: Request, counts: Iterable[int]) -> dict[int, str]:
    """The ids that a request for generated texts has for each of these numbers of texts. The rest of it is hashed once."""
    assert request.generation is not None
    generation = {**request.generation.fields, "num_samples": None}
    before, after = canonical_json({**identity_of(request), "generation": generation}).split('"num_samples":null')
    return {count: text_hash(f'{before}"num_samples":{count}{after}') for count in counts}


def identity_of(request: Request) -> dict[str, object]:
    """The fields that make the id of a request, as JSON has them."""
    # Fields that are not set do not count, so that a new field keeps the ids of all other requests.
    identity: dict[str, object] = {
        name: value
        for name, value in vars(request).items()
        if name not in ("request_id", "messages") and value not in ("", None, False, ())
    }
    if request.generation is not None:
        identity["generation"] = request.generation.fields
    identity["images"] = [stable_hash(image.hex()) for image in request.images]
    if request.messages is not None:
        identity["messages"] = [_turn_identity(message) for message in request.messages]
    return identity


def _turn_identity(message: Message) -> list[Any]:
    if isinstance(message, Turn) and (message.tool_calls or message.tool_call_id):
        calls = [[call.call_id, call.name, call.arguments_text] for call in message.tool_calls]
        return [message.role, message.content, calls, message.tool_call_id]
    return [message.role, message.content]


@contextmanager
def _row_errors(sample: Sample, task: AnyTask | None = None) -> Iterator[None]:
    """Turn every exception of a hook into a `RowError` that names the row, and the example that `task` was writing."""
    try:
        with calling("a hook of the task", sample.sample_id):
            yield
    except RowError:
        raise
    except WholeEvalError as error:
        raise WholeEvalError(f"{place_of(sample)}: {error}") from error
    except Exception as error:
        example = None if task is None or task.written_example is None else place_of(task.written_example)
        if isinstance(error, NullFieldError):
            seen = f"{error.args[0]}; fill it in, or read it with item.get where it may be absent"
        elif isinstance(error, MissingFieldError):
            seen = f"{error.args[0]}{raised_at(error)}"
        else:
            what = str(error) if isinstance(error, DataError) else f"the task raised {described(error)}{raised_at(error)}"
            seen = f"{example or place_of(sample)}: {what}"
        if isinstance(error, EvalDagsterError) and not isinstance(error, DataError | EndedError):
            raise WholeEvalError(seen) from error  # a package is missing, for instance
        raise RowError(seen if example is None else f"{place_of(sample)}: its few-shot example, {seen}") from error


def unreadable_prompt(task: BaseTask[Any], sample: Sample) -> RenderedPrompt | None:
    """The prompt with an error for a row that could not be read; None for a readable row."""
    reason = unreadable_reason(sample.row)
    if reason is None:
        return None
    return _unasked(task.RESPONSE_TYPE, sample, stable_hash(["unreadable", sample.content_id]), f"RowError: {reason}")


def unaskable_prompt(task: BaseTask[Any], sample: Sample, made: TaskSample, index: int, error: SampleError) -> RenderedPrompt:
    """The prompt with an error for a question that cannot be asked; `index` is its position among those about the row."""
    prompt = _unasked(
        made.response_type or task.RESPONSE_TYPE, sample, stable_hash(["unaskable", sample.content_id, index]), f"RowError: {error}"
    )
    return replace(
        prompt,
        sample_id=question_id(sample, index),
        sample_name=made.sample_name or sample.sample_name,
        messages=tuple(made.messages),
    )


def failed_prompt(task: BaseTask[Any], sample: Sample, error: DataError) -> RenderedPrompt:
    """The prompt with an error for a row on which the task's own code fails. Another error is another prompt, so that answers name it."""
    prompt = _unasked(task.RESPONSE_TYPE, sample, stable_hash(["failed", sample.content_id, str(error)]), f"RowError: {error}")
    return replace(prompt, is_retryable=True)


def question_id(sample: Sample, index: int) -> str:
    """The sample id of a question about a row: the row's, from the second question on with the question's position."""
    return f"{sample.sample_id}.{index}" if index else sample.sample_id


def _unasked(response_type: ResponseType, sample: Sample, request_id: str, error: str) -> RenderedPrompt:
    return RenderedPrompt(
        sample_id=sample.sample_id,
        source_id=sample.sample_id,
        subject=sample.subject,
        sample_name=sample.sample_name,
        response_type=response_type,
        messages=(),
        request=Request(request_id=request_id, prompt=""),
        ground_truths=(),
        error=error,
    )


def checked(prompt: RenderedPrompt, sample: Sample) -> RenderedPrompt:
    """The prompt, with an error if one of its texts holds half of a character, which no tokenizer reads and no file stores."""
    request = prompt.request
    texts = [
        request.prompt,
        *(message.content for message in prompt.messages),
        *(request.choices or ()),
        *prompt.ground_truths,
        *(request.generation.stop_sequences if request.generation else ()),
        request.unconditioned_prompt or "",
    ]
    wrong = next((text for text in texts if not is_storable(text)), None)
    if wrong is None:
        return prompt
    place = next(index for index, letter in enumerate(wrong) if "\ud800" <= letter <= "\udfff")
    around = one_line(wrong[max(0, place - _BEFORE) : place + _AFTER])
    return replace(
        prompt,
        context=(),
        error=f"RowError: {place_of(sample)}: its prompt, choices or gold answer hold half of a character, or a byte that is no UTF-8: "
        f"…{around}…; correct the row, and save files in UTF-8",
    )
