"""`Doc`: one item of a benchmark, with the names of Hugging Face lighteval."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from eval_dagster.errors import DataError
from eval_dagster.records import Grammar


class SamplingMethod(StrEnum):
    """The kind of answer to a `Doc`."""

    GENERATIVE = "GENERATIVE"
    """Text."""
    LOGPROBS = "LOGPROBS"
    """The log-probability of each choice."""
    PERPLEXITY = "PERPLEXITY"
    """The log-probability of every token of the query."""


@dataclass
class Doc:
    """One item of a benchmark, made from a dataset row. It is mutable, because lighteval's tasks change it before they return it.

    Raises:
        DataError: A field is of the wrong type, or `gold_index` is not a position of `choices`.
    """

    query: str
    """The question as the user asks it."""
    choices: list[str]
    """The possible answers. For a generated text they are empty, or the reference answers."""
    gold_index: int | list[int]
    """Position of the correct choice, or of each of several; not used without choices."""
    instruction: str | None = None
    """The beginning of the first user turn, before all examples, followed by a blank line. As in lighteval, it is not a system message."""
    images: list[Any] | None = None
    """PIL images that belong to the query."""
    specific: dict[str, Any] | None = None
    """Values that a metric needs beside the gold answer; of JSON types."""
    unconditioned_query: str | None = None
    """A query without the question. The pointwise mutual information of a choice is
    log P(choice | query) - log P(choice | unconditioned query)."""
    original_query: str | None = None
    """The query before any preprocessing."""
    id: str = ""
    """The item's own name, shown as `sample_name` and kept in `given_id`. The pipeline then sets the id of the sample here."""
    task_name: str = ""
    """Set by the pipeline: the task's name."""
    fewshot_samples: list["Doc"] = field(default_factory=list)
    """The examples before the query. If empty, the eval draws them."""
    sampling_methods: list[SamplingMethod] = field(default_factory=list)
    """The kinds of answers. Default: the kinds that the task's metrics need."""
    fewshot_sorting_class: str | None = None
    """Class by which balanced few-shot examples are drawn. Default: the gold answer."""
    generation_size: int | None = None
    """Most tokens to generate."""
    stop_sequences: list[str] | None = None
    """End a generated text; not part of it."""
    use_logits: bool = False
    """Whether the logit of every output token is kept."""
    num_samples: int = 1
    """Texts to generate; more than one needs a temperature above 0."""
    generation_grammar: Any = None
    """The form of a generated text: `{"type": "json", "value": <schema>}` or `{"type": "regex", "value": <expression>}`."""
    given_id: str = ""
    """Set by the pipeline: the `id` that the task gave."""

    def __post_init__(self) -> None:
        if not isinstance(self.query, str) or not all(isinstance(choice, str) for choice in self.choices):
            raise DataError(f"a Doc has the query {self.query!r} and the choices {self.choices!r}; expected a text and a list of texts")
        for index in self.gold_indices if self.choices else ():
            if not isinstance(index, int) or not 0 <= index < len(self.choices):
                raise DataError(
                    f"a Doc has the gold_index {self.gold_index!r}; expected positions of its {len(self.choices)} choices, from 0"
                )
        if self.num_samples < 1:
            raise DataError(f"a Doc has num_samples {self.num_samples}; expected 1 at least")
        self.sampling_methods = [SamplingMethod(method) for method in self.sampling_methods]

    @property
    def gold_indices(self) -> list[int]:
        """`gold_index` as a list."""
        return list(self.gold_index) if isinstance(self.gold_index, Sequence) else [self.gold_index]

    def get_golds(self, gold_index: int | list[int] | None = None) -> list[str]:
        """The correct answers' texts; empty without choices.

        Args:
            gold_index: Other positions than the Doc's own.
        """
        indices = self.gold_indices if gold_index is None else [gold_index] if isinstance(gold_index, int) else gold_index
        return [self.choices[index] for index in indices] if self.choices else []


def grammar_of(given: Any) -> Grammar | None:
    """The grammar that a Doc or a task names.

    Args:
        given: None, a `Grammar`, a mapping with `type` (`json` or `regex`) and `value`, or an object with these attributes.

    Raises:
        DataError: It is something else.
    """
    if given is None or isinstance(given, Grammar):
        return given
    kind, value = (given.get(name) if isinstance(given, Mapping) else getattr(given, name, None) for name in ("type", "value"))
    kind = str(getattr(kind, "value", kind))
    if kind in ("json", "json_schema") and isinstance(value, str | Mapping):
        return Grammar(kind="json_schema", value=value if isinstance(value, str) else json.dumps(value, sort_keys=True))
    if kind == "regex" and isinstance(value, str):
        return Grammar(kind="regex", value=value)
    raise DataError(
        f"the generation grammar {given!r} is not understood; expected {{'type': 'json', 'value': <schema>}} or "
        "{'type': 'regex', 'value': <expression>}"
    )
