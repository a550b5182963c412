"""Chooses the examples before a question."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from eval_dagster.config.schema import FewshotSets
from eval_dagster.errors import WholeEvalError
from eval_dagster.records import Sample
from eval_dagster.tasks.base import FewshotStrategy
from eval_dagster.versions.hashes import stable_hash

_WORD = re.compile(r"\w+")
_NEAR = 0.9
"""Rows whose words have this similarity (Jaccard) ask the same in other words."""


@dataclass(frozen=True)
class _Content:
    """The content by which duplicates are found."""

    content_id: str
    question: str
    words: frozenset[str]

    def is_same(self, other: "_Content") -> bool:
        return self.content_id == other.content_id or (bool(self.question) and self.question == other.question)

    def is_near(self, other: "_Content") -> bool:
        union = len(self.words | other.words)
        return union > 0 and len(self.words & other.words) >= _NEAR * union


def fewshot_set(sample_id: str, sets: FewshotSets) -> int | None:
    """The number of the set of a sample's examples, from 1; None if each sample has a set of its own."""
    return None if sets == "per_sample" else 1 + int(stable_hash(["fewshot_set", sample_id]), 16) % sets


def draw_seed(sample: Sample, seed: int, sets: FewshotSets) -> str:
    """The seed of a sample's examples: equal for all samples of a subject that share a set."""
    number = fewshot_set(sample.sample_id, sets)
    return f"{seed}/{sample.sample_id}" if number is None else f"{seed}/{sample.subject}/{number}"


class FewshotPool:
    """The samples that examples of one subject are drawn from.

    A draw depends on the content of the pool, the seed and the sample. It does not depend on earlier draws, the order of the pool, a limit
    or the choice of subjects.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        *,
        question: Callable[[Sample], str] | None = None,
        group: Callable[[Sample], str] | None = None,
        admits: Callable[[Sample], bool] | None = None,
    ) -> None:
        """Remember the samples.

        Args:
            samples: The few-shot split of one subject.
            question: The question of a sample. Samples with the same question (in lower case, white space folded) count as duplicates
                even if their rows differ, in an id for instance.
            group: The class of a sample, for the strategy `balanced`.
            admits: Whether a sample can be an example at all.
        """
        self._samples = sorted(samples, key=lambda sample: sample.sample_id)
        self._question = question
        self._group = group
        self._admits = admits
        self._contents: dict[str, _Content] = {}
        self._groups: dict[str, list[int]] | None = None
        self._shared: dict[tuple[str, int, FewshotStrategy], list[Sample]] = {}

    def __len__(self) -> int:
        """How many samples it holds."""
        return len(self._samples)

    def draw(self, sample: Sample, *, count: int, seed: int, strategy: FewshotStrategy = "random", sets: FewshotSets = 1) -> list[Sample]:
        """Draw examples for a sample: never the sample itself, one that asks the same, or two that ask the same.

        Samples with the same set have the same examples in the order in which they are drawn. So the beginning of their prompts is the
        same, and a model computes it once. If the set holds the sample itself, or one that asks the same, the next candidate
        replaces it, and the examples before it stay the same. Rows that ask nearly the same are taken only if the pool has too few
        others.

        Args:
            sample: The sample that is asked about.
            count: How many examples.
            seed: The eval's seed.
            strategy: `random`, `first` of the split, or `balanced`: the classes in turn.
            sets: How many sets the samples of a subject have between them, or `per_sample`: one each, in the order of the split.

        Raises:
            WholeEvalError: The pool has too few samples that may be drawn.
        """
        by = draw_seed(sample, seed, sets)
        if sets == "per_sample":
            examples = sorted(self._take([sample], by, count, strategy), key=_place)
        else:
            key = (by, count, strategy)
            if key not in self._shared:
                self._shared[key] = self._take([], by, count, strategy)
            examples = self._shared[key]
            content = self._content(sample)
            if any(content.is_same(other) or content.is_near(other) for other in map(self._content, examples)):
                examples = self._take([sample], by, count, strategy)
        if len(examples) < count:
            found, splits = len(examples), sorted({each.split for each in self._samples})
            raise WholeEvalError(
                f"subject {sample.subject!r} has {found} distinct few-shot examples for row {sample.row_index} of split {sample.split!r}, "
                f"expected {count}: its pool (split {', '.join(map(repr, splits)) or 'none'}) holds {len(self._samples)} rows, and neither "
                f"the row itself nor a duplicate may be drawn; set num_fewshot to {found} or less"
            )
        return list(examples)

    def _take(self, asked: Sequence[Sample], by: str, count: int, strategy: FewshotStrategy) -> list[Sample]:
        """The first candidates that do not repeat the question or each other; fewer than `count` if the pool has no more."""
        taken = [self._content(sample) for sample in asked]
        examples: list[Sample] = []
        spare: list[Sample] = []
        random = Random(by)  # noqa: S311
        if strategy == "first":
            order = iter(sorted(range(len(self._samples)), key=lambda index: _place(self._samples[index])))
        elif strategy == "balanced":
            order = self._in_turn(random, examples, count)
        else:
            order = _shuffled(len(self._samples), random)
        for index in order:
            if len(examples) == count:
                break
            candidate = self._samples[index]
            if self._admits is not None and not self._admits(candidate):
                continue
            content = self._content(candidate)
            if any(content.is_same(other) for other in taken):
                continue
            if any(content.is_near(other) for other in taken):
                spare.append(candidate)
                continue
            taken.append(content)
            examples.append(candidate)
        for candidate in spare:
            if len(examples) < count and not any(self._content(candidate).is_same(other) for other in taken):
                taken.append(self._content(candidate))
                examples.append(candidate)
        return examples

    def without(self, sample: Sample) -> list[Sample]:
        """All samples except this one and those that ask the same, in the order of their split."""
        content = self._content(sample)
        return sorted((each for each in self._samples if not self._content(each).is_same(content)), key=_place)

    def _in_turn(self, random: Random, examples: Sequence[Sample], count: int) -> Iterator[int]:
        """Positions of one sample of each class in turn, and of the next one of its class until the caller adds one to `examples`."""
        if self._groups is None:
            groups: dict[str, list[int]] = defaultdict(list)
            for index, sample in enumerate(self._samples):
                groups["" if self._group is None else self._group(sample)].append(index)
            self._groups = dict(sorted(groups.items()))
        names = list(self._groups)
        random.shuffle(names)
        rest = {name: map(self._groups[name].__getitem__, _shuffled(len(self._groups[name]), random)) for name in names}
        while rest and len(examples) < count:
            for name in list(rest):
                before = len(examples)
                while len(examples) == before:
                    candidate = next(rest[name], None)
                    if candidate is None:
                        del rest[name]
                        break
                    yield candidate

    def _content(self, sample: Sample) -> _Content:
        key = f"{sample.split}/{sample.sample_id}"
        if key not in self._contents:
            question = " ".join(self._question(sample).casefold().split()) if self._question else ""
            words = frozenset(_WORD.findall(" ".join(_texts(sample.row)).casefold()))
            self._contents[key] = _Content(sample.content_id, question, words)
        return self._contents[key]


def _place(sample: Sample) -> tuple[str, int]:
    return sample.split, sample.row_index


def _texts(value: Any) -> Iterator[str]:
    """Every text and number in a row."""
    if isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str | int | float):
        yield str(value)


def _shuffled(size: int, random: Random) -> Iterator[int]:
    """Yield 0 to size - 1 in random order, at a cost that grows with what is taken and not with the size (Fisher-Yates)."""
    moved: dict[int, int] = {}
    for index in range(size):
        other = random.randrange(index, size)
        yield moved.get(other, other)
        moved[other] = moved.get(index, index)
