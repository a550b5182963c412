"""The columns of the lake's tables: the fields of one record for each table, with their meanings.

Arrow schemas (`schemas`) and the reference page of the relations are made of them. Rows in memory are mappings with these keys. Common
columns such as `eval` have their meaning in the reference page alone.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, NotRequired, TypedDict

import pyarrow as pa

Int32 = Annotated[int, pa.int32()]
"""An integer that files hold in 32 bits, such as the id of a token."""


class SampleRow(TypedDict):
    """A row of a dataset, in the snapshot of an eval."""

    eval: str
    sample_id: str
    content_id: str
    """Hash of the row's content. Duplicates have the same."""
    subject: str
    split: str
    """Split of the dataset."""
    row_index: int
    """Position in the split of its subject, from 0."""
    row: str
    """The row of the dataset, as JSON."""
    dataset_path: str
    """Hub id, folder, or `module:class` of a task that brings its own rows."""
    dataset_revision: str | None
    """Commit of the dataset. Null if the rows have none."""
    dataset_version: str
    """Version of the dataset snapshot."""
    sample_name: str | None
    """The row's value of the task's `ID_FIELD`. Null without one. The `id` of a `Doc` names prompts, answers and scores alone, since a row
    may have several.
    """


class PromptRow(TypedDict):
    """A request that is sent to a model."""

    eval: str
    model: str
    sample_id: str
    source_id: str
    subject: str
    request_id: str
    response_type: str
    """`completion`, `loglikelihoods` or `perplexity`."""
    messages: str
    """The conversation that the prompt is made of, as JSON."""
    prompt: str
    """The text that the model receives."""
    has_special_tokens: bool
    """Whether the prompt contains the special tokens already, as a chat template writes them."""
    choices: list[str] | None
    """Texts of the choices. Null for a completion."""
    gold: list[str]
    """The correct answers."""
    gold_is_list: bool | None
    """Whether the task gave a list of correct answers."""
    gold_index: list[Int32]
    """Positions of the correct choices, from 0."""
    generation: str | None
    """Settings of generation, as JSON. Null if choices are scored."""
    unconditioned_prompt: str | None
    """The prompt without the question. Null if the task has none."""
    use_logits: bool
    """Whether the logits of the output tokens are kept."""
    images: list[bytes] | None
    """PNG files that belong to the prompt."""
    sent_messages: str | None
    """The messages that are sent to a server instead of the prompt, as JSON; null if the prompt is sent."""
    tools: list[str] | None
    """The tools that the model may call, as JSON; null if there are none."""
    context: str | None
    """Additional values for the metrics, as JSON."""
    num_fewshot: int
    """Few-shot examples before the question."""
    fewshot_ids: list[str]
    """Samples that are the few-shot examples of the prompt, in their order."""
    fewshot_set: int | None
    """Number of the set of few-shot examples, from 1. Null with one set a sample."""
    error: str | None
    prompt_version: str
    """Version of the rendered prompts."""
    sample_name: str | None
    is_system_merged: bool | None
    """Whether the system message stands at the beginning of the first user turn, since the chat template has no turn for it, or by
    `system_role: merge`. Null in older results.
    """


class AnswerColumns(TypedDict):
    """The columns that a cached answer and a response have in common."""

    text: list[str]
    """Generated texts, as the model wrote them."""
    text_is_escaped: bool
    """Whether a text contained half of a character, which is stored as an escape."""
    input: str | None
    """The prompt as the model received it, if it was truncated. Null otherwise."""
    choice_logprobs: list[float]
    """Log-probability of each choice (natural logarithm). Of a perplexity, one value a token."""
    choice_token_logprobs: list[list[float]]
    """Log-probability of each token of each choice. Of a perplexity, one list of all tokens."""
    choice_is_greedy: list[bool]
    """For each choice, whether each of its tokens is the most probable one."""
    unconditioned_logprobs: list[float] | None
    """Log-probability of each choice after the prompt without the question, if the task has one."""
    logits: list[list[float]] | None
    """Logit of each output token, if the task asks for it."""
    input_token_ids: list[Int32]
    """Token ids of the prompt."""
    output_token_ids: list[list[Int32]]
    """Token ids of each choice or text."""
    prompt_tokens: int | None
    """Tokens of the prompt."""
    output_tokens: int | None
    """Tokens of all texts or choices."""
    truncated_tokens: int
    """Tokens that were cut off on the left of the prompt."""
    padded_tokens: int
    """Padding tokens of the request in its batch."""
    finish_reason: list[str]
    """One a text: `stop`, `length` or `reasoning`."""
    latency_s: float
    """Model time in seconds, the batch's time divided by its requests."""
    server_reasoning: list[str | None] | None
    """The reasoning that a server separated from each text; null if there is none."""
    tool_calls: list[list[str]] | None
    """The calls of tools in each text, as JSON; null if there are none."""
    cached_tokens: int | None
    """Tokens of the prompt that the server had in its cache; null if it does not tell."""
    reasoning_tokens: int | None
    """Tokens of the reasoning, as the server counts them; null if it does not."""
    cost: float | None
    """US dollars, by the `price` of the model; null without one, or where the server does not count the tokens."""
    attempts: int | None
    """Times that the request was sent to a server, those included that failed; null for a model on this machine."""
    served_model: str | None
    """The name of the model in the answer of a server."""
    server_fingerprint: str | None
    """The `system_fingerprint` in the answer of a server."""
    server_finish_reason: NotRequired[list[str | None] | None]
    """The words of a server for the end of each text, as they came. Null for other models, and for answers of earlier versions."""
    worker: NotRequired[str | None]
    """The node and the process that computed the answer, where a model computes on several; null for one process."""
    worker_s: NotRequired[float | None]
    """Seconds of the worker since its previous answer, when the answer was computed. Their sum is the time in which workers were busy; the
    first answer of a batch has the time of the batch. Null if not known, as of a served model.
    """
    gpu_s: NotRequired[float | None]
    """`worker_s` times the number of GPUs that the worker uses: 0 without one; null if `worker_s` is null."""
    model_version: str
    """Version of model and engine."""
    error: str | None


class _Requested(TypedDict):
    request_id: str


class AnswerRow(_Requested, AnswerColumns):
    """An answer in the response cache."""


class _OfSample(TypedDict):
    eval: str
    model: str
    sample_id: str


class Answer(AnswerRow):
    """An answer in memory."""

    retryable: NotRequired[bool]
    """Whether the next run asks again. Such answers are not stored."""


class ResponseRow(_OfSample, _Requested, AnswerColumns):
    """A response of a model to the request of a sample."""

    text_post_processed: list[str] | None
    """Texts after the reasoning was split off and the task post-processed them."""
    reasoning: list[str | None]
    """Reasoning of each text, between the model's reasoning tags. Null if there is none."""
    retryable: bool
    """Whether the next run asks again."""
    sample_name: str | None


class ScoreRow(TypedDict):
    """A metric of a sample."""

    eval: str
    model: str
    sample_id: str
    source_id: str
    cluster: str
    """Samples with the same value are not independent."""
    subject: str
    metric: str
    value: float | None
    """Value of the metric. Null if there is none."""
    text_values: list[float] | None
    """Value of each text, if a prompt has several."""
    item: str | None
    """The sample's part of a metric of all samples together, as JSON. Null for other metrics, and if `value` is that part."""
    error: str | None
    explanation: str | None
    """Why the score is what it is, as JSON: `answer` (found in the text), `judge_prompt`, `judge_response`, `program_output`, `tie`
    (several choices are equally good); each a list with one text for each text of the model.
    """
    sample_name: str | None


class MetricRow(TypedDict):
    """A metric of an eval and a model, for one subject or for all."""

    eval: str
    model: str
    subject: str | None
    metric: str
    aggregation: str
    """`micro` (mean of the samples), `corpus` (one value of all samples, such as BLEU) or `macro` (mean of the subjects' values)."""
    value: float | None
    """Value of the metric. Null if there is none."""
    stderr: float | None
    """Standard error of the value."""
    ci_low: float | None
    """Lower end of the 95 % interval."""
    ci_high: float | None
    """Upper end of the 95 % interval."""
    n: int
    """Samples with a value."""
    n_errors: int
    """Samples without a value because of an error."""
    n_clusters: int
    """Clusters among these samples."""
    n_ties: int | None
    """Samples for which several choices have exactly the highest value. Null for a metric that compares no choices."""
    higher_is_better: bool
    """Whether a higher value is better."""
    bound_low: float | None
    """Least possible value of one sample. Null if it is not known."""
    bound_high: float | None
    """Largest possible value of one sample. Null if it is not known."""
    is_headline: bool
    """Whether the leaderboard shows this metric."""
    dagster_run_id: str
    """The Dagster run that computed the result."""
    mlflow_run_id: str | None
    """The MLflow run of the result. Null if it could not be logged."""
    materialized_at: datetime
    dataset_version: str
    """Version of the dataset snapshot."""
    prompt_version: str
    """Version of the rendered prompts."""
    model_version: str
    """Version of model and engine."""
    model_content_version: str
    """Version of the model alone: weights, configuration, tokenizer, chat template."""
    model_declared_version: str | None
    """Version of a served model without the epoch of its endpoint. Null for other models."""
    metric_version: str
    """Version of the metric's code and packages."""
    scores_file: str
    """The file of the scores that the metric was computed from, relative to the lake."""
    changed_since: datetime | None
    """Time of the result that `changed_inputs` refers to."""
    changed_inputs: list[str] | None
    """Inputs that differ from the result of `changed_since`: `data`, `samples`, `prompt`. Null if there is none, or if it cannot be read.
    """
    samples_version: str
    """Hash of the sample ids."""
    questions_version: str
    """Hash of the questions without the model's template. Results with the same hash can be ranked."""
    findings: str | None
    """Checks that found a sign that the score measures something else, by name; `eval_findings` describes them. Null if nobody has looked.
    """
    mixed_answers: str | None
    """The models and the states of a server whose answers the score mixes, such as `2 states of the server`. Null if the answers name one.
    """


class MetricFigures(TypedDict):
    """The figures that `MetricRow` and rows of relations about metrics have in common."""

    value: float | None
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    n_errors: int


class NoticeRow(TypedDict):
    """A state of a notice on its way to one address."""

    suite: str
    kind: str
    """Kind of the notice: `regression`, `incomplete`, `failure`, `not evaluated`, `skipped`, `missed` (a night that was not judged) or
    `test`.
    """
    title: str
    """Title of the notice."""
    body: str
    """Text of the notice."""
    variable: str | None
    """Environment variable that holds the address."""
    status: str
    """`sent`; `unsent` (written, and not tried yet); `failed`, and tried again later; or `no address`."""
    attempts: int
    """Attempts to send, all tries together."""
    error: str | None
    attempted_at: datetime | None
    """Time of the last attempt to send."""
    sent_at: datetime | None
    """Time at which the notice was sent. Null if it was not."""
    run_id: str | None
    notice_id: str
    """Identifies the notice. Receivers get it as the header `Idempotency-Key`, as `id` in JSON, and as the last line of the text."""
    written_at: datetime
    """Time at which the notice was written, before it was sent."""
    reached: list[str] | None
    """Addresses that took the notice, as hashes."""


class CanaryText(TypedDict):
    """A text that a server answered, with the log-probabilities of its tokens."""

    text: str
    is_cut: bool
    tokens: list[str]
    logprobs: list[float]


class EndpointAnswer(TypedDict):
    """The answers to one question of a look."""

    asked: str
    """The prompt of the canary (with the version of canaries, from the second one on), or the request id of a cached request."""
    is_canary: bool
    """Whether it is a canary, not a cached request."""
    reference: list[CanaryText]
    """The texts that they are compared with."""
    answers: list[CanaryText]
    """The texts of this look."""
    difference: float | None
    """Mean difference between `answers` and `reference`. Of log-probabilities the root mean square above 0.05; else 1 for another text.
    """
    noise: float | None
    """Mean difference of the answers to one question at one time, as `difference`."""
    error: str | None


class EndpointStateRow(TypedDict):
    """A look at a served model: whether it answers as at the start of the epoch."""

    model: str
    base_url: str
    """Address of the server."""
    name: str
    """Name of the model on the server."""
    endpoint: str
    """Hash of what is asked, and of how it is asked."""
    run_id: str
    looked_at: datetime
    """Time of the look (UTC)."""
    outcome: str
    """`first` (nothing to compare with), `same`, `different`, or `allowed` (different by what may be noise between restarts)."""
    message: str
    """The look in one line."""
    epoch: int
    """Number of the epoch, from 0. It rises when the answers change under an unchanged name."""
    epoch_began_at: datetime
    """Time of the first look of the epoch."""
    epoch_rose: bool
    """Whether this look began the epoch."""
    facts: str
    """What the server declares about the model, as JSON."""
    fingerprint: str | None
    """The `system_fingerprint` of the server. It is not part of the version."""
    n_calls: int
    """Calls that the look took."""
    n_compared: int
    """Questions with earlier answers and two new ones."""
    n_different: int
    """Questions whose answers differ more from the earlier ones than from each other."""
    n_failed: int
    """Questions without an answer."""
    difference: float | None
    """Mean of the `difference` in `endpoint_answers`."""
    noise: float | None
    """Mean of the `noise` in `endpoint_answers`."""
    p_value: float | None
    """Probability of such differences where nothing changed (permutation test)."""
    p_ties: float | None
    """Probability that rounding alone changes so many answers."""
    cost: float | None
    """US dollars for the look, by the `price` of the model. Null without one."""
    answers: list[EndpointAnswer]
    """The questions with all answers and log-probabilities. `endpoint_answers` has them one by one."""


@dataclass(frozen=True, kw_only=True)
class HumanLabel:
    """A person's label of an answer."""

    eval: str
    model: str
    materialized_at: datetime
    """Time of the result that the answer is from."""
    sample_id: str
    answer: str | None
    """The answer that was labelled, as it was in the lake. Null if the responses were deleted."""
    label: str
    """The person's words about the answer."""
    comment: str | None
    """The person's words besides the label. Null if there are none."""
    labelled_by: str
    """Who labelled."""
    labelled_at: datetime
    """Time of the import."""
    sample_name: str | None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An eval that a run took through its stages with a model. Counts are null if it failed before the stage `model_outputs`."""

    eval: str
    model: str
    run_id: str
    finished_at: datetime
    """Time at which the attempt ended (UTC)."""
    status: Literal["ok", "failed", "not evaluated"]
    """`ok`, `failed`, or `not evaluated` if a limit, such as a cap on the cost, kept requests from being sent."""
    stage: str
    """The last stage, which is the one that failed if the attempt failed."""
    message: str | None
    """Why it failed, or was not evaluated."""
    requests_computed: int | None = None
    """Requests that were sent to the model. One that several samples or evals share is sent once, and counted in one of them."""
    requests_cached: int | None = None
    """Requests that needed no sending, because the answer was in the cache, or because another sample or eval of the run asked the same.
    """
    requests_left: int | None = None
    """Requests that a cap kept from being sent. Null if there are none."""
    errors: int | None = None
    """Requests that were answered by an error."""
    prompt_tokens: int | None = None
    """Tokens of the prompts of all answers, including cached ones."""
    output_tokens: int | None = None
    """Tokens of all texts or choices."""
    cost: float | None = None
    """US dollars for the answers that this run asked for. Null without a price. An answer that several evals share counts in one of them.
    """
    cost_unknown: int | None = None
    """Answers of this run with unknown cost, though the model has a price. Null if there are none."""
    model_seconds: float | None = None
    """Seconds of model time in this run."""
    worker_s: float | None = None
    """Seconds in which workers were busy with the answers that this run asked for. Null if unknown, for example for a served model. An
    answer that several evals share counts in one of them.
    """
    gpu_s: float | None = None
    """Those seconds, each times the number of GPUs of its worker: 0 without one."""
    cached: bool
    """Whether every stage was current, so that nothing was computed."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRow:
    """A checkpoint of a training run: that it was seen complete, or that it was evaluated."""

    model: str
    family: str
    """Name of the training run in evals.yaml."""
    step: int
    """Training step, by the name of the checkpoint."""
    place: str
    """Folder, or revision on the Hub, as evals.yaml leads to it."""
    commit: str | None = None
    """Commit on the Hub. Null for a folder."""
    seen_at: datetime
    """Time at which it was first seen complete."""
    model_version: str | None = None
    """Version of model and engine when it was last evaluated. Null before."""
    model_content_version: str | None = None
    """Version of the model alone when it was last evaluated. Null before."""
    template_version: str | None = None
    """Version of tokenizer and chat template when it was last evaluated. Null before."""
    evaluated_at: datetime | None = None
    """Time of the evaluation that first had these versions. Null before."""
