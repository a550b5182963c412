"""The columns of the lake's tables: the fields of one record for each table, with their meanings.

Arrow schemas (`schemas`) and the reference page of the relations are made of them. Rows in memory are mappings with these keys. Common
columns such as `eval` have their meaning in the reference page alone.
"""

from datetime import datetime
from typing import Annotated, NotRequired, TypedDict

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
    variant: str | None
    """The variant of the prompt, `default` for the task's own. Null in an eval without variants."""


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
    """Model time in seconds, the batch's time divided by its requests. Null if an imported log does not tell it."""
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
    answered_at: NotRequired[datetime | None]
    """Time at which a server's answer was there (UTC). Null for a model on this machine, and for answers of earlier versions."""
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
    episode: NotRequired[str | None]
    """The course of an episode as JSON, which `episodes`, `turns` and `tool_calls` show. Null for a single question."""


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
    variant: str | None
    """The variant of the prompt, `default` for the task's own. Null in an eval without variants."""


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
    n_cut_off: int | None
    """Samples with an answer that was cut off at `max_tokens`, or within its reasoning. This and the next counts are null without texts."""
    n_empty: int | None
    """Samples with an empty answer, although an answer is expected."""
    n_unparsed: int | None
    """Samples with another whole answer in which the metric finds none. Null too if the metric does not say what the answer is."""
    n_refused: int | None
    """Samples with an answer that begins with a refusal, or that a server withheld."""
    n_repeated: int | None
    """Samples with an answer that ends in a loop: the same words again and again."""
    n_shortened: int | None
    """Samples with a prompt that was too long for the model, and was cut on the left."""
    n_completed: int | None
    """Samples with a value and no answer that was cut off."""
    value_completed: float | None
    """Value of these samples alone."""
    value_lowest: float | None
    """Value if each cut-off answer had the least possible value. Null without known bounds, and for metrics of all samples together."""
    value_highest: float | None
    """Value if each cut-off answer had the largest possible value."""
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
    n_not_asked: int | None
    """Samples that were not asked, because the gate of a suite stopped the eval early, or the score is an estimate. Null if all were."""
    estimate: str | None
    """`history` if the score is estimated by earlier models' answers, `plain` if by an even draw. Null if no sample was left out for it."""
    estimate_factor: float | None
    """Effective samples for one that was asked: the variance of an even draw of as many, divided by the estimate's. Null without a history.
    """
    estimate_note: str | None
    """How the score was estimated, from which models' answers, or why not from any. Null if no sample was left out for it."""
    chance: float | None
    """Score of guessing, for a metric that counts correct choices. Null for others, and in older results."""
    variants: str | None
    """The metric by variant of the prompt, and what the prompt makes of it, as JSON; `variant_scores` and `prompt_sensitivity` show it.
    Null for single subjects and without variants.
    """


class MetricFigures(TypedDict):
    """The figures that `MetricRow` and rows of relations about metrics have in common."""

    value: float | None
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    n_errors: int


class AggregateRow(TypedDict):
    """An aggregate of a suite for a model, as the catalog computes it."""

    suite: str
    aggregate: str
    """Name of the aggregate in evals.yaml."""
    model: str
    value: float | None
    """Mean, weighted mean or median of the evals' scores. Null if one of them has none."""
    stderr: float | None
    """Standard error, with the correlation of evals that ask the same samples. Null if an eval has none."""
    ci_low: float | None
    ci_high: float | None
    n_evals: int
    """Evals with a score."""
    n_samples: int
    """Different samples of these evals. One that several evals ask counts once."""
    missing: list[str]
    """Evals without a score that can be used, by name. Empty if there is a value."""
    reason: str | None
    """Why there is no value. Null if there is one."""
