"""The task that a `LightevalTaskConfig` describes."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from eval_dagster.errors import DataError
from eval_dagster.peers.lighteval.metric_classes import DOC_INDEX
from eval_dagster.peers.lighteval.prompts import chat_messages, plain_prompt
from eval_dagster.records import Message, MetricContext, Row, TaskSample
from eval_dagster.tasks.doc import Doc, DocFunction, Docs, DocTask, SamplingMethod, with_task_name
from eval_dagster.tasks.samples import row_name


@dataclass(frozen=True)
class DocMaker:
    """Makes the `Doc`s of rows, always the same for a row."""

    name: str
    """The task's name, which the function gets."""
    function: DocFunction
    filter: Callable[[Row], bool] | None = None
    """Rows for which it is false are left out."""

    def made_of(self, row: Row, *, is_example: bool = False) -> Docs:
        """The function's result for a row.

        The function gets a copy, in which nulls are None, with lighteval's field `__few_shots`. Meanwhile the random generators of Python
        and NumPy depend on the row alone.
        """
        own = deepcopy(dict(row.items()))
        if self.filter is not None and not self.filter(own):
            return None
        with _seeded(row_name(row)):
            return with_task_name(self.function)({**own, "__few_shots": is_example}, self.name)

    def docs_of(self, row: Row) -> list[Doc]:
        """The `Doc`s of a row, for metrics."""
        made = self.made_of(row)
        docs = [] if made is None else [made] if isinstance(made, Doc) else made
        return [replace(doc, task_name=self.name) for doc in docs]


class LightevalTask(DocTask):
    """The task that a `LightevalTaskConfig` describes, with lighteval's prompts."""

    DOCS: ClassVar[DocMaker]
    """Makes the `Doc`s of the rows."""

    def doc(self, row: Row) -> Docs:
        """The prompt function's result for a row; None if the filter excludes the row."""
        return self.DOCS.made_of(row, is_example=self._is_example)

    _is_example = False
    """Whether rows become examples, which some prompt functions write differently."""

    def _folded_question(self, item: Row) -> str:
        return super()._folded_question(item) or row_name(item)  # questions without a text are not duplicates

    def _examples(self, item: Row) -> Sequence[Row]:
        self._is_example = True
        try:
            return super()._examples(item)
        finally:
            self._is_example = False

    def _get_messages(self, item: Row) -> list[Message]:
        return chat_messages(self._doc_of(item), self._example_docs(item))

    def _example_docs(self, item: Row) -> list[Doc]:
        own, self.rnd = self.rnd, self.examples_rnd
        examples = [self._doc_of(each) for each in self._examples(item)]
        self.rnd = own
        for doc in examples:
            if not doc.get_golds() or doc.images:
                raise DataError(
                    f"task {self.NAME} made {doc!r} of a few-shot example; expected a Doc with choices and gold_index, and without "
                    "images: only the question itself may have some"
                )
        self._shown = examples
        return examples

    _shown: Sequence[Doc] = ()
    """The examples of the latest prompt."""

    def _get_context(self, item: Row) -> MetricContext | None:
        context, index = super()._get_context(item), self._doc_of(item).id.partition(".")[2]
        if not index:  # the only Doc of its row, or the first
            return context
        return MetricContext(**{**(dict(context) if context else {}), DOC_INDEX: int(index)})

    def _sample(self, item: Any, doc: Doc, method: SamplingMethod, index: int, subject: str) -> TaskSample:
        sample = super()._sample(item, doc, method, index, subject)
        if method is SamplingMethod.PERPLEXITY or self.formatter is None:
            return sample
        if self.formatter.name == "plain" and not sample.images:
            return replace(sample, prompt=plain_prompt(doc, self._shown))
        return replace(sample, prompt=self.formatter.format(sample.messages, images=len(sample.images)))


@contextmanager
def _seeded(seed: str) -> Iterator[None]:
    state, of_arrays = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(random.getrandbits(32))
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(of_arrays)
