"""`Doc` as lighteval's files write it: without choices, or with a list of texts in the place of a choice."""

from dataclasses import dataclass
from typing import Any

from eval_dagster.peers.lighteval.values import as_list
from eval_dagster.tasks import doc


@dataclass(eq=False)
class Doc(doc.Doc):
    """A `Doc` whose `choices` may be None or contain lists of equally correct texts.

    Each text of such a list becomes a choice. All of them are correct if the list is.
    """

    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, doc.Doc) and vars(self) == vars(other)

    def __post_init__(self) -> None:
        choices: Any = [] if self.choices is None else self.choices
        golds: Any = [] if self.gold_index is None else self.gold_index
        if any(isinstance(each, list | tuple) for each in choices):
            starts: list[int] = []
            flat: list[str] = []
            for each in choices:
                starts.append(len(flat))
                flat += as_list(each)
            golds = [starts[gold] + more for gold in as_list(golds) for more in range(len(as_list(choices[gold])))]
            choices = flat
        self.choices, self.gold_index = choices, golds
        super().__post_init__()
