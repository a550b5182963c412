"""The messages between this package and the process of a worker, as JSON has them.

A worker names these types for the checker of types alone: its process does not import this module.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from eval_dagster.records import Row

ErrorSent = TypedDict("ErrorSent", {"$error": str, "$retryable": NotRequired[bool]})
"""An error in the place of the questions about a row, or of the value of a metric. With `$retryable`, the next run may have the value."""


class Call(TypedDict, total=False):
    """A message to the process: a call, or the next items or the end of a stream."""

    method: str
    """A function of the worker."""
    arguments: Mapping[str, object]
    each: Sequence[Mapping[str, object]]
    """One call is made with each of these beside the arguments; the result is a list of answers."""
    next: int
    """The number of a stream."""
    close: int
    """The number of a stream."""


class Failure(TypedDict):
    """An exception that was raised."""

    type: str
    message: str


class Reply(TypedDict, total=False):
    """The answer to a call: a result or an error."""

    result: Any
    error: Failure
    stream: int
    """The number of the stream that has more items."""
    ask: str
    """Instead of an answer: a function of this package that the worker asks for. It gets a `Reply`, and answers after that."""
    arguments: Mapping[str, object]
    """Its arguments."""


class MetricDescribed(TypedDict):
    """A metric of a benchmark."""

    name: str
    higher_is_better: NotRequired[bool]
    """Default: true."""
    is_mean: NotRequired[bool]
    """Whether its value is the mean of the rows' values, instead of what `aggregate` gives. Default: true."""
    runs_programs: NotRequired[bool]
    """Whether it asks for programs to be run in the sandbox. Default: false."""


class SplitDescribed(TypedDict):
    """A split of a dataset: the fields of `DatasetSplit`."""

    path: str
    config: str | None
    split: str
    revision: NotRequired[str | None]
    files: NotRequired[Sequence[str]]
    options: NotRequired[Mapping[str, object]]


class SplitsDescribed(TypedDict, total=False):
    """The splits of a subject; none if the worker makes the rows itself."""

    evaluated: Sequence[SplitDescribed]
    examples: Sequence[SplitDescribed]
    """Also read for few-shot examples."""
    no_examples: str
    """The reason why there cannot be few-shot examples."""


class Described(TypedDict):
    """The result of `describe`."""

    subjects: Sequence[str]
    response_type: str
    metrics: Sequence[MetricDescribed]
    version: object
    """It changes with everything that decides the results."""
    shown: NotRequired[str]
    """The name for people, if it is not the one that was asked for."""
    description: NotRequired[str]
    num_fewshot: NotRequired[int]
    """Default: 0."""
    is_macro: NotRequired[bool]
    """Default: false."""
    splits: NotRequired[Mapping[str, SplitsDescribed]]
    """By subject."""


class ProgramSent(TypedDict):
    """The arguments of `run_program`, which a worker may ask for: a program, or commands over files."""

    language: str
    files: Mapping[str, str]
    """Base64 of their contents, by path."""
    packages: Sequence[str]
    """Packages that the program's container would have; `codebench` for those of BigCodeBench."""
    code: NotRequired[str]
    timeout_s: NotRequired[float]
    commands: NotRequired[Sequence[str]]
    """The last one is wanted; the others ran before it."""


class ProgramEnded(TypedDict):
    """The result of `run_program`."""

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool


class EvalListed(TypedDict):
    """An eval of the suite that `suite` gives: its keys in evals.yaml."""

    task: str
    num_fewshot: NotRequired[object]


class SplitRows(TypedDict):
    """An argument of `rows`: the rows of a split."""

    split: str
    rows: Sequence[Row]


class RowsMade(TypedDict):
    """The result of `rows`."""

    evaluated: Sequence[Row]
    examples: NotRequired[Sequence[Row]]


class SettingsSent(TypedDict):
    """The settings of `render`."""

    num_fewshot: int
    seed: int
    examples_per_sample: bool
    format: str
    """The name of the format of prompts; `plain` or `identity` without a chat."""


class QuestionSent(TypedDict, total=False):
    """An item of what `render` gives for a row: a question with a prompt, or with messages that are written as the model's chat."""

    prompt: str
    messages: Sequence[Sequence[str]]
    """Pairs of role and text. With a prompt, they are for people and checks."""
    response_type: str
    """The benchmark's if not given."""
    choices: Sequence[str] | None
    gold_indices: Sequence[int] | None
    ground_truth: str | Sequence[str] | None
    context: Mapping[str, object] | None
    """Comes back with the answer."""
    max_tokens: int | None
    stop_sequences: Sequence[str] | None
    num_samples: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None


class AnswerSent(TypedDict):
    """An item of the answers of `score`: the fields of `Answer`."""

    prompt: str
    choices: Sequence[str]
    loglikelihoods: Sequence[float]
    is_greedy: Sequence[bool]
    texts: Sequence[str]
    tokens: Sequence[Sequence[int]]
    context: Mapping[str, object]


class CallSent(TypedDict):
    """A call of a tool in the world of an episode."""

    by: str
    """`assistant` or `user`."""
    name: str
    arguments: str
    """As the model wrote them."""


class WorldCalled(TypedDict):
    """The result of a tool."""

    result: str
    error: str | None
    """The message of the error that the tool raised, or of a call that is wrong."""


class SpokenSent(TypedDict):
    """A message of one side of a conversation."""

    is_own: bool
    """Whether this side said it; else it was told."""
    text: str
    calls: Sequence[CallSent]


class RewardSent(TypedDict):
    """The value of an episode."""

    reward: float
    reason: str


class WorldDescribed(TypedDict):
    """The result of `describe` for tasks whose episodes have a world."""

    policy: str
    """The system message of the evaluated model."""
    tools: Mapping[str, Mapping[str, str]]
    """For `assistant` and `user`: definitions in the form of OpenAI by name."""
    version: object
