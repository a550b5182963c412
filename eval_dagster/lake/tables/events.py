"""The columns of the tables that record what happened: attempts, notices, looks at servers, checkpoints, labels of people.

As in `columns`, the fields of one record for each table, with their meanings.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict


class NoticeRow(TypedDict):
    """A state of a notice on its way to one address."""

    suite: str
    kind: str
    """Kind of the notice: `regression`, `incomplete`, `not proven`, `failure`, `not evaluated`, `skipped`, `missed` (a night that was not
    judged) or `test`.
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
    """A text that a server answered, or the likely tokens at its first place with their log-probabilities."""

    text: str
    is_cut: bool
    tokens: list[str]
    logprobs: list[float]


class EndpointAnswer(TypedDict):
    """The answers to one question of a look."""

    asked: str
    """The prompt of the canary (with `first token` if likely tokens are asked for, with `border input` if tokens are drawn), or the request
    id of a cached request."""
    is_canary: bool
    """Whether it is a canary, not a cached request."""
    reference: list[CanaryText]
    """The texts that they are compared with; of a border input the token that is counted, empty where a search found it."""
    answers: list[CanaryText]
    """The texts of this look."""
    difference: float | None
    """Mean difference between `answers` and `reference`. Of log-probabilities the root mean square, 1 at most; else 1 for another text."""
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
    """`first` (nothing to compare with), `same`, `different`, `allowed` (different by what may be noise between restarts), or `suspected`
    (border inputs differ, and the look of the next day decides)."""
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
    p_border: float | None
    """Probability of such draws from border inputs where nothing changed, with the noise of earlier nights. Null if they do not decide."""
    n_searched: int | None
    """Prompts that were searched for border inputs. Null in rows of earlier releases."""
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
    """Requests that were sent to the model. One that several samples or evals share is sent once, and counted in one of them. An episode
    with such a request counts as one; `turns_computed` has its requests.
    """
    requests_cached: int | None = None
    """Requests that needed no sending, because the answer was in the cache, or because another sample or eval of the run asked the same.
    """
    turns_computed: int | None = None
    """Requests of episodes that were sent, to the evaluated model and to other roles. Null without episodes."""
    turns_cached: int | None = None
    """Requests of episodes that needed no sending. Null without episodes."""
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

    @property
    def sent(self) -> int:
        """Requests that were sent to the model, with the requests of episodes."""
        return (self.requests_computed if self.turns_computed is None else self.turns_computed) or 0

    @property
    def from_cache(self) -> int:
        """Requests that needed no sending, with the requests of episodes."""
        return (self.requests_cached if self.turns_cached is None else self.turns_cached) or 0


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
