"""Frozen records that the stages pass on, with the names of eval-framework and lighteval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from eval_dagster.reasoning import DEFAULT_TAGS, split_reasoning

Row = dict[str, Any]
"""One item of a dataset, as its loader gave it."""


class Role(StrEnum):
    """The speaker of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True)
class Message:
    """One turn of a conversation. Built by position or by keyword: `Message(Role.USER, "Hi")`."""

    role: Role
    content: str


class ResponseType(Enum):
    """The kind of answer that a task asks for."""

    COMPLETION = "completion"
    """Free text."""
    LOGLIKELIHOODS = "loglikelihoods"
    """The log-probability of each of a list of choices."""
    PERPLEXITY = "perplexity"
    """The log-probability of every token of the prompt itself."""


class MetricContext(BaseModel):
    """Values that a metric needs beside the gold answer: any fields with the types of JSON."""

    model_config = ConfigDict(extra="allow", frozen=True)


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """The form that a whole generated text must have."""

    kind: Literal["json_schema", "regex"]
    value: str
    """The JSON schema as JSON text, or the regular expression."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One item of a dataset snapshot."""

    sample_id: str
    """Hash of subject and content, with a suffix `-2`, `-3`, ... for a repeated row."""
    content_id: str
    """Hash of the content alone: equal for duplicates, whatever their subject or split."""
    subject: str
    split: str
    row_index: int
    """Position in the split of its subject, from 0."""
    row: Row


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Settings of generation; part of a request's identity."""

    max_tokens: int | None = None
    """Most tokens to generate; null: as many as the model's context holds after the prompt."""
    stop_sequences: tuple[str, ...] = ()
    """Generation ends before the first of these; the text does not include it."""
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int | None = None
    top_p: float | None = None
    num_samples: int = 1
    """Texts to generate from the prompt; more than one needs a temperature above 0."""
    seed: int = 0
    grammar: Grammar | None = None


@dataclass(frozen=True, kw_only=True)
class TaskSample:
    """A prompt and its gold answer, as a task makes them of a row; eval-framework's `Sample`. Some tasks make several of one row."""

    messages: Sequence[Message]
    """The prompt; a last assistant message is a cue. For `ResponseType.PERPLEXITY` the contents together are the text to score."""
    ground_truth: str | Sequence[str] | None
    """The correct answer or answers; for log-likelihoods these are among the choices."""
    possible_completions: Sequence[str] | None = None
    """The choices to score."""
    prompt: str | None = None
    """The whole prompt as text. It and the choices are sent as they are, with no space added or removed; `messages` are for people."""
    context: MetricContext | Mapping[str, Any] | Sequence[MetricContext] | None = None
    """Values for the metrics."""
    id: int = 0
    """Position of the row in its split, from 0."""
    subject: str = ""
    row: Row = field(default_factory=dict)
    """The dataset row."""
    response_type: ResponseType | None = None
    """The task's own where not given."""
    gold_indices: Sequence[int] | None = None
    """Positions of the correct choices, for choices with equal texts; found by `ground_truth` where not given."""
    unconditioned_query: str | None = None
    """A prompt without the question. Each choice is scored after it, too, for pointwise mutual information."""
    use_logits: bool = False
    """Whether the logit of every output token is kept."""
    images: Sequence[bytes] = ()
    """PNG files, in the order in which the prompt refers to them."""
    max_tokens: int | None = None
    """Most tokens to generate; the task's own where not given."""
    stop_sequences: Sequence[str] | None = None
    """The task's own where not given."""
    num_samples: int | None = None
    """Texts to generate; the eval's own where not given."""
    temperature: float | None = None
    """The task's customary temperature. What the model sets itself in evals.yaml counts more; so it is for `top_k` and `top_p`."""
    top_k: int | None = None
    top_p: float | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is sent to a model for one sample.

    With `choices`, each is scored after the prompt. With `perplexity`, the prompt itself is scored. Else text is generated by `generation`.
    """

    request_id: str
    """Hash of all other fields."""
    prompt: str
    has_special_tokens: bool = False
    """Whether `prompt` holds the special tokens, as after a chat template, so that none may be added."""
    choices: tuple[str, ...] | None = None
    generation: GenerationSettings | None = None
    perplexity: bool = False
    """Whether every token of `prompt` is scored, given all before it that the context holds."""
    unconditioned_prompt: str | None = None
    """A prompt after which the choices are scored a second time."""
    use_logits: bool = False
    """Whether the logit of every output token is wanted."""
    images: tuple[bytes, ...] = ()
    """PNG files that belong to the prompt, in the order of its image marks."""
    messages: tuple[Message, ...] | None = None
    """The conversation that is sent to a server instead of `prompt`, which shows it as one text. Null where the prompt is sent."""
    tools: tuple[str, ...] = ()
    """The tools that the model may call: definitions as JSON texts, in the form of OpenAI."""


@dataclass(frozen=True, kw_only=True)
class ServerReport:
    """What a server reports about its answer to a request. What it leaves out is null, never 0."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """Tokens of the answer, its reasoning included."""
    cached_tokens: int | None = None
    """Tokens of the prompt that the server had in its cache."""
    reasoning_tokens: int | None = None
    """Tokens of the reasoning."""
    cost: float | None = None
    """US dollars, by the price in evals.yaml; null without a price, or where the tokens are not known."""
    attempts: int = 1
    """Times that the request was sent, those included that failed."""
    model: str | None = None
    """The name of the model that answered."""
    fingerprint: str | None = None
    """`system_fingerprint`: what the server names its own state."""


@dataclass(frozen=True, kw_only=True)
class ModelResponse:
    """The answer of a backend to one request. Field names as in lighteval where it has them.

    Lists over choices are in the order of the request's choices; lists over texts in the order of the generated texts.
    """

    input: str | Sequence[Any] | None = None
    """The exact prompt that the model read."""
    input_tokens: Sequence[int] = ()
    """Token ids of the prompt."""
    text: Sequence[str] = ()
    """One generated text a sample, as the model wrote it."""
    text_post_processed: Sequence[str] | None = None
    """The texts without their reasoning; set by `post_process`."""
    reasonings: Sequence[str | None] = ()
    """The reasoning of each text, null where there is none: as the server separated it, else that between the thinking tags, which
    `post_process` sets."""
    tool_calls: Sequence[Sequence[str]] = ()
    """The calls of tools in each text, as JSON texts in the form of OpenAI."""
    output_tokens: Sequence[Sequence[int]] = ()
    """Token ids, one list a choice or a generated text; for a perplexity one list a token."""
    logprobs: Sequence[float] = ()
    """Sum of the token log-probabilities (natural logarithm), one a choice; for a perplexity one a token."""
    token_logprobs: Sequence[Sequence[float]] = ()
    """Log-probability of each token of each choice (natural logarithm); for a perplexity one list of all tokens."""
    argmax_logits_eq_gold: Sequence[bool] = ()
    """For each choice, whether every one of its tokens is the most probable one."""
    logits: Sequence[Sequence[float]] | None = None
    """The logit (before the softmax) of each output token, one list a choice or a generated text; only where the request asks for it."""
    unconditioned_logprobs: Sequence[float] | None = None
    """One a choice: its log-probability after the request's unconditioned prompt."""
    truncated_tokens_count: int = 0
    """Prompt tokens cut off on the left because the model's context is shorter; 0 unless the model allows truncation."""
    padded_tokens_count: int = 0
    """Tokens of padding that the request's sequences had in their batches; no other count and no log-probability includes them."""
    finish_reason: Sequence[str] = ()
    """One a generated text: `stop` (end token or stop sequence) or `length` (cut at `max_tokens`, or where the context ends)."""
    latency_s: float = 0.0
    """Seconds of model time: the batch's seconds divided by the requests in it. Of a served model, those from sending to the answer."""
    report: ServerReport | None = None
    """What a server reports; null for a model on this machine."""
    error: str | None = None
    """Class and message of the error of this request; all lists are empty then."""
    retryable: bool = False
    """Whether the request may succeed later, as after running out of memory; other errors are cached like answers."""

    @property
    def choice_logprobs(self) -> Sequence[float]:
        """The log-probability of each choice: the sum of its tokens'. A perplexity has one choice, the whole text."""
        return [math.fsum(values) for values in self.token_logprobs] or self.logprobs

    @property
    def final_text(self) -> Sequence[str]:
        """The texts without their reasoning where that was split off, else as generated."""
        return self.text if self.text_post_processed is None else self.text_post_processed

    def post_process(self, tags: tuple[str, str] = DEFAULT_TAGS) -> "ModelResponse":
        """The response with `text_post_processed` and `reasonings` set: the text between the opening and closing tag is split off."""
        prompt = self.input if isinstance(self.input, str) else ""
        parts = [split_reasoning(text, prompt=prompt, tags=tags) for text in self.text]
        separated = self.reasonings or [None] * len(parts)
        reasonings = [own or part.reasoning for own, part in zip(separated, parts, strict=True)]
        return replace(self, text_post_processed=[part.answer for part in parts], reasonings=reasonings)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a completion metric sees: a generated text joined with its gold answers."""

    completion_text: str
    """The text after the reasoning was split off and the task's post-processing."""
    raw_text: str = ""
    """The text as generated."""
    reasoning: str | None = None
    """The text between the thinking tags."""
    ground_truths: Sequence[str] = ()
    """Every text that counts as correct."""
    ground_truth: str | Sequence[str] | None = None
    """The same as the task gave it: one text, a list of texts, or none."""
    finish_reason: str = "stop"
    """`length` where the text was cut at `max_tokens`, `reasoning` where it ends inside its reasoning and so has no answer."""
    prompt: str = ""
    messages: Sequence[Message] = ()
    """The conversation that the prompt was made from."""
    context: MetricContext | Sequence[MetricContext] | None = None
    """What the task's `_get_context` gave."""
    row: Row = field(default_factory=dict)
    """The dataset row."""


@dataclass(frozen=True, kw_only=True)
class Loglikelihood:
    """What a log-likelihood metric sees: the choices' log-probabilities and the gold answer. A perplexity has its text as only choice."""

    loglikelihoods: Sequence[float]
    """One a choice, natural logarithm."""
    choices: Sequence[str] = ()
    """The choices' texts, aligned with `loglikelihoods`."""
    gold_indices: Sequence[int] = ()
    """Positions of the correct choices; more than one where several are correct."""
    token_loglikelihoods: Sequence[Sequence[float]] = ()
    """Log-probability of each token of each choice; no padding among them."""
    unconditioned_loglikelihoods: Sequence[float] | None = None
    """One a choice, after the unconditioned prompt, where the task has one."""
    is_greedy: Sequence[bool] = ()
    """For each choice, whether every one of its tokens is the most probable one."""
    prompt: str = ""
    context: MetricContext | Sequence[MetricContext] | None = None
    """What the task's `_get_context` gave."""
    row: Row = field(default_factory=dict)
    """The dataset row."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of one sample: a value, or the error."""

    metric: str
    value: float | None
    error: str | None = None
    retryable: bool = False
    """Whether the machine failed and not the text, so that another run may give a value."""


@dataclass(frozen=True, kw_only=True)
class RepeatedScore(Score):
    """The mean over several texts of a prompt. The code of every metric depends on `Score`, so that this is a class of its own."""

    text_values: tuple[float, ...]
    """One a text: their spread shows how much of the mean is chance."""


@dataclass(frozen=True, kw_only=True)
class ItemScore(Score):
    """The item of a sample, for a metric of all samples together; `value` is null unless the item is a number."""

    item: str | None
    """The item as JSON; null where `value` is the item."""


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """Where the rows of an eval came from."""

    path: str
    """Hub id, folder, or `<module>:<class>` for a task that brings its own rows."""
    revision: str | None
    """Commit, or null where the rows have none."""
