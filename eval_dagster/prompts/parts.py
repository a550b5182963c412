"""Takes a prompt apart, also if it is one text of another package: its examples, its question, and the places of answers in it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from eval_dagster.records import Message, Role
from eval_dagster.records.rendered_prompt import RenderedPrompt

_LONGEST_CUE = 60
"""Characters of the end of a question that its examples have as well."""
_SPECIAL = re.compile(r"<\|[^|<>]*\|>|</?s>|\[/?INST\]")
_AROUND = 3
"""Characters before, or after, an answer that are compared."""
_LONGEST_ANSWER = 200
"""Characters. Longer texts are no answers that a prompt gives away by chance."""
Place = tuple[str, str]
"""The characters before and after an answer; one of them can be empty."""
_START, _END = "\x02", "\x03"
"""Stand before the first and after the last character of a question."""


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
    line = text[text.rstrip().rfind("\n") + 1 :]
    words = list(re.finditer(r"\S+", line))
    for start in (0, *(word.start() for word in words[-2:])):  # the last line, then its last words
        cue = line[start:]
        pieces = text.split(cue) if cue.strip() and len(cue) <= _LONGEST_CUE else []
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


def stands_in(question: str, answer: str) -> bool:
    """Whether an answer stands in a question, as a word."""
    return next(_found_in(question, answer), None) is not None


def stands_at(place: Place, question: str, answer: str) -> bool:
    """Whether an answer stands at a place of a question."""
    return place in places_of(question, answer)


def places_of(question: str, answer: str) -> Iterator[Place]:
    """Each place of an answer in a question; both are folded. A sign before and one after it are a place as well: `[...]`."""
    text = _START + question + _END
    for found in _found_in(text, answer):
        start, end = found.span()
        before, after = text[max(start - _AROUND, 0) : start], text[end : end + _AROUND]
        yield before, ""
        yield "", after
        if not (before[-1:].isalnum() or before[-1:].isspace() or after[:1].isalnum() or after[:1].isspace()):
            yield before[-1:], after[:1]


def shown_place(before: str, after: str) -> str:
    """A place in words."""
    if (before, after) in ((_START, ""), ("", _END)):
        return f"each time at its {'start' if before else 'end'}"
    before, after = before.lstrip(_START), after.rstrip(_END)
    if before and after:
        return f"each time between {before!r} and {after!r}"
    return f"each time after {before!r}" if before else f"each time before {after!r}"


def _found_in(text: str, answer: str) -> Iterator[re.Match[str]]:
    """Each place at which an answer stands as a word. An underscore ends a word, and so does a digit after letters: `team_1`, `team1`."""
    if not answer or len(answer) > _LONGEST_ANSWER:
        return iter(())
    not_after = r"[^\W\d_]" if len(answer) > 1 and answer[-1].isalpha() else r"[^\W_]"
    return re.finditer(rf"(?<![^\W_]){re.escape(answer)}(?!{not_after})", text)
