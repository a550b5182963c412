"""Keys and values of texts that are over, kept for prompts that continue them, as the next turn of a conversation does.

The kept tokens form a tree: what texts have in common at their beginning is kept once. A prompt is matched token by token. So it does not
matter if a chat template writes an answer in another way than the model did, or leaves some of it out: the prompt shares what it shares.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from eval_dagster.models.transformers.encoding.tokenization import common_prefix
from eval_dagster.models.transformers.network.resources import free_memory

Columns = Sequence[torch.Tensor]
"""The keys and the values of each layer for some tokens of one text: heads, tokens, features."""

_MEMORY_SHARE = 0.5
"""Share of the memory that all kept columns may take; the rows of a batch need the rest. It is of the memory that is free without them."""
_ROOM = 16
"""If there is too little memory, this part of the share is freed at once, so that not every text has to look for room."""


@dataclass(eq=False, kw_only=True)
class _Branch:
    """Tokens of a text behind a text that is kept already."""

    parent: "_Branch | None"
    """The text that it continues. Null for the root, which has no tokens."""
    start: int
    """Tokens before it, of its parent and the parent's parents."""
    tail: int
    """Place of the first of its tokens that no kept text continues."""
    tokens: tuple[int, ...]
    columns: Columns
    used: int = 0
    """The last pass with a prompt that had tokens of its tail."""
    awaited: int = 0
    """Place up to which a prompt of this pass that has not been read yet has its tokens. 0 if there is none."""
    children: dict[tuple[int, int], "_Branch"] = field(default_factory=dict)
    """By their start and first token."""

    @property
    def end(self) -> int:
        """Place after its last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Kept columns of a part of a prompt."""

    start: int
    """Place of their first token in the prompt."""
    end: int
    columns: Columns


class TurnStore:
    """Columns of texts that are over, within a share of the memory.

    A part that no other text continues can be given up. The first one is that which saves the least: its number of tokens, divided by the
    passes since a prompt had them. Parts that a prompt of the current pass will need stay until it is read.
    """

    def __init__(self, device: str):
        self.bytes = 0
        """Memory of the kept columns."""
        self.given_up = 0
        """Tokens that were given up or not kept, for want of memory."""
        self._device = device
        self._pass = 0
        self._token_bytes = 0
        self.clear()

    def clear(self) -> bool:
        """Forget everything. Returns whether there was something."""
        held = self.bytes
        self.given_up += held // max(1, self._token_bytes)
        self.bytes = 0
        self._root = _Branch(parent=None, start=0, tail=0, tokens=(), columns=())
        self._branches: dict[int, _Branch] = {}
        return held > 0

    def begin(self, prompts: Iterable[tuple[int, ...]]) -> None:
        """Begin a pass, in which these prompts will be read."""
        self._pass += 1
        for branch in self._branches.values():
            branch.awaited = 0
        for prompt in prompts:
            for branch, end in self._path(prompt):
                branch.awaited = max(branch.awaited, end)
                if end > branch.tail:
                    branch.used = self._pass
        self._has_room(0, worth=float("inf"), spared=self._root)

    def find(self, prompt: tuple[int, ...]) -> list[Piece]:
        """The kept columns of the longest beginning of a prompt, in order. From now on the prompt does not wait for them."""
        path = self._path(prompt)
        for branch, _ in path:
            branch.awaited = 0
        return [Piece(start=branch.start, end=end, columns=branch.columns) for branch, end in path]

    def keep(self, tokens: tuple[int, ...], columns: Callable[[int], Columns]) -> None:
        """Keep a text, if there is memory for it.

        Args:
            tokens: Its tokens that have columns.
            columns: Gives its columns from a place on, of which copies are kept.
        """
        path = self._path(tokens)
        parent, start = path[-1] if path else (self._root, 0)
        if start == len(tokens):
            return
        found = columns(start)
        need, own = sum(each.numel() * each.element_size() for each in found), tokens[start:]
        self._token_bytes = need // len(own)
        if not self._has_room(need, worth=len(own), spared=parent):
            self.given_up += len(own)
            return
        branch = _Branch(parent=parent, start=start, tail=start, tokens=own, columns=_copied(found), used=self._pass)
        parent.children[start, own[0]], parent.tail = branch, max(parent.tail, start)
        self._branches[id(branch)] = branch
        self.bytes += need

    def _path(self, tokens: tuple[int, ...]) -> list[tuple[_Branch, int]]:
        """The branches that have the longest beginning of some tokens, each with the place where they leave it."""
        path, branch, place = list[tuple[_Branch, int]](), self._root, 0
        while place < len(tokens) and (child := branch.children.get((place, tokens[place]))) is not None:
            place += common_prefix(child.tokens, tokens[place:])
            path.append((child, place))
            branch = child
        return path

    def _has_room(self, need: int, *, worth: float, spared: _Branch) -> bool:
        """Whether so many more bytes may be kept. For this, parts that are worth less may be given up, but for a part of `spared`."""
        most = int((free_memory(self._device) + self.bytes) * _MEMORY_SHARE)
        if self.bytes + need <= most:
            return True
        others = [branch for branch in self._branches.values() if branch is not spared and self._worth(branch) < worth]
        # With the places from which on they are given up: a tail grows when the last text that continues the branch is given up.
        ends = ((branch, max(branch.tail, branch.awaited)) for branch in sorted(others, key=self._worth))
        tails = [(branch, tail) for branch, tail in ends if tail < branch.end]
        if need and self.bytes + need - self._token_bytes * sum(branch.end - tail for branch, tail in tails) > most:
            return False
        for branch, tail in tails:
            if self.bytes + need <= most - most // _ROOM:
                break
            self._give_up(branch, tail)
        return True

    def _worth(self, branch: _Branch) -> float:
        """Tokens that the tail of a branch saves, fewer if no prompt has had them for some passes."""
        return (branch.end - branch.tail) / (1 + self._pass - branch.used)

    def _give_up(self, branch: _Branch, tail: int) -> None:
        """Forget the tokens of a branch from a place on, of which no text continues any."""
        kept, parent, lost = tail - branch.start, branch.parent, branch.end - tail
        self.given_up += lost
        self.bytes -= lost * self._token_bytes
        if kept:
            branch.tokens = branch.tokens[:kept]
            branch.columns = _copied([each[:, :kept] for each in branch.columns])
        elif parent is not None:
            del parent.children[branch.start, branch.tokens[0]]
            parent.tail = max((start for start, _ in parent.children), default=parent.start)
            del self._branches[id(branch)]


def _copied(columns: Columns) -> Columns:
    """Copies that lie together, because many small pieces of memory are not given back when they are freed."""
    sizes = [each.numel() for each in columns]
    pieces = torch.split(columns[0].new_empty(sum(sizes)), sizes)
    copies = [piece.view(each.shape) for piece, each in zip(pieces, columns, strict=True)]
    for copy, column in zip(copies, columns, strict=True):
        copy.copy_(column)
    return copies
