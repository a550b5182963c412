"""Takes a prompt apart: its examples and its question, also if it is one text of another package."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from eval_dagster.records import Message, Role
from eval_dagster.records.rendered_prompt import RenderedPrompt

_LONGEST_CUE = 60
"""Characters of the end of a question that its examples have as well."""
_SPECIAL = re.compile(r"<\|[^|<>]*\|>|</?s>|\[/?INST\]")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A prompt, taken apart."""

    prompt: RenderedPrompt
    shots: int
    """Examples before the question."""

    @cached_property
    def choices(self) -> Sequence[str]:
        """The texts that are scored; empty if a text is written."""
        return self.prompt.request.choices or ()

    @cached_property
    def gold(self) -> frozenset[str]:
        """The correct answers, folded; empty if the task does not tell."""
        if self.choices and self.prompt.gold_indices:
            return frozenset(folded(self.choices[index]) for index in self.prompt.gold_indices)
        return frozenset(map(folded, self.prompt.ground_truths))

    @cached_property
    def position(self) -> int | None:
        """That of the only correct one of several choices."""
        return self.prompt.gold_indices[0] if len(self.choices) > 1 and len(self.prompt.gold_indices) == 1 else None

    @cached_property
    def parts(self) -> "_Parts | None":
        """None if the examples cannot be told from the question."""
        return self._turns if self._turns.examples or not self.shots else _split(self.prompt.request.prompt, self.shots)

    @cached_property
    def has_turns(self) -> bool:
        """Whether the examples are messages of their own."""
        return bool(self._turns.examples)

    @cached_property
    def _turns(self) -> "_Parts":
        return _turns([message for message in self.prompt.messages if message.role is not Role.SYSTEM])

    @property
    def examples(self) -> Sequence[tuple[str, str]]:
        """Pairs of question and answer, both folded. If the answer is empty, it stands at the end of the question."""
        return self.parts.examples if self.parts else ()

    @cached_property
    def question(self) -> str | None:
        """The question with its cue, folded; None if it cannot be told from the examples."""
        return folded(f"{self.parts.question}\n{self.parts.cue}") if self.parts else None


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The parts of a prompt."""

    examples: Sequence[tuple[str, str]]
    question: str
    cue: str
    """The beginning of the answer, or the end of the question that the examples have as well."""


def asked_prompts(prompts: Sequence[RenderedPrompt], num_fewshot: int) -> list[Asked]:
    """Prompts taken apart. If some show their examples as messages, the others of the eval have none."""
    asked = [Asked(prompt=prompt, shots=num_fewshot) for prompt in prompts]
    if any(each.has_turns for each in asked):
        asked = [each if each.has_turns else Asked(prompt=each.prompt, shots=0) for each in asked]
    return asked


def folded(text: str) -> str:
    """A text without the differences of white space and case."""
    return " ".join(text.split()).casefold()


def _turns(messages: Sequence[Message]) -> _Parts:
    """The parts of a conversation."""
    pairs: list[tuple[str, str]] = []
    asked: list[str] = []
    cue = messages[-1].content if messages and messages[-1].role is Role.ASSISTANT else ""
    for message in messages[:-1] if cue else messages:
        if message.role is Role.ASSISTANT:
            pairs.append((folded("\n".join(asked)), folded(message.content.removeprefix(cue))))
            asked = []
        else:
            asked.append(message.content)
    return _Parts(examples=pairs, question="\n".join(asked), cue=cue)


def _split(text: str, shots: int) -> _Parts | None:
    """The parts of a prompt that is one text: its end, such as `Answer:`, stands after each example's question as well."""
    for cue in _cues(text):
        pieces = text.split(cue)
        if len(pieces) != shots + 2:
            continue
        questions, targets = [pieces[0]], []
        for piece in pieces[1:-1]:
            target, gap, question = piece.partition("\n\n") if "\n\n" in piece.strip("\n") else piece.partition("\n")
            if gap:
                targets.append(folded(_SPECIAL.sub("", target)))
                questions.append(question)
        if len(targets) == shots:
            return _Parts(examples=list(zip(map(folded, questions[:-1]), targets, strict=True)), question=questions[-1], cue=cue)
    # Blank lines part the examples, and perhaps an introduction before them.
    *blocks, question = text.strip("\n").split("\n\n")
    if len(blocks) - shots in (0, 1):
        return _Parts(examples=[(folded(block), "") for block in blocks[-shots:]], question=question, cue="")
    return None


def _cues(text: str) -> Iterator[str]:
    """Possible ends of a question: the last line, then its last words."""
    line = text[text.rstrip().rfind("\n") + 1 :]
    words = list(re.finditer(r"\S+", line))
    for start in (0, *(word.start() for word in words[-2:])):
        if line[start:].strip() and len(line) - start <= _LONGEST_CUE:
            yield line[start:]
