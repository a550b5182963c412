"""A prompt as the stages hand it on: what is asked of a model about one sample, and the correct answer."""

from dataclasses import dataclass

from eval_dagster.records import Message, MetricContext, Request, ResponseType


@dataclass(frozen=True, kw_only=True)
class RenderedPrompt:
    """The question to a model about one sample, and the correct answer."""

    sample_id: str
    """The row's sample id. If a task asks several questions about one row, the second and later ones have a suffix `.1`, `.2`, ... A
    variant other than the default adds `~` and its name."""
    source_id: str
    """The row's sample id."""
    subject: str
    sample_name: str | None = None
    """The sample's own name: the value of the task's `ID_FIELD`, or the `id` of its `Doc`. Null without one."""
    response_type: ResponseType
    messages: tuple[Message, ...]
    request: Request
    ground_truths: tuple[str, ...]
    """Every text that counts as correct."""
    truth_is_list: bool | None = None
    """Whether the task gave these as a list; null if it gave none of them."""
    gold_indices: tuple[int, ...] = ()
    """Positions of the correct choices; several where choices are repeated or more than one is correct. Empty for completions."""
    fewshot_ids: tuple[str, ...] = ()
    """Sample ids of the examples, in the order of the prompt. An example that is no row of the dataset has the hash of its content."""
    fewshot_set: int | None = None
    """The number of the set of the examples. Null without examples, if each sample has a set of its own, and where a task itself draws
    the examples from rows among which the sample is."""
    variant: str | None = None
    """The variant of the eval. Null without variants."""
    context: tuple[MetricContext, ...] = ()
    """What the task gives the metrics beside the gold answer."""
    is_system_merged: bool = False
    """Whether the system message stands at the beginning of the first user turn, since the chat template has no turn for it."""
    error: str | None = None
    """Why it cannot be sent to a model."""
    is_retryable: bool = False
    """Whether the next run makes it again, since code of the task raised an exception, which may not come again."""

    @property
    def ground_truth(self) -> str | list[str] | None:
        """The correct answer as the task gave it: one text, a list of texts, or none."""
        if self.truth_is_list is None:
            return None
        return list(self.ground_truths) if self.truth_is_list else self.ground_truths[0]
