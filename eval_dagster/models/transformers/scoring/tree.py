"""Scoring over a prefix tree: shared prefixes are computed once, and many branches share one sequence.

The input of a network for a piece of the tree is its positions, and a mask that lets each token see its ancestors alone. On a CPU the
attention is computed one strip of tokens at a time, and keys that no token of a strip sees are left out. A CPU computes masked entries,
too. In a piece with many branches most entries are masked, and in a chain nearly half. The other layers still compute the whole piece at
once, because more tokens together are faster there.
"""

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from eval_dagster.models.transformers.network.architecture import logits_at
from eval_dagster.models.transformers.network.batching import Failure, Outcome, check_device, is_out_of_memory
from eval_dagster.models.transformers.network.resources import release_memory
from eval_dagster.models.transformers.scoring.prefix_tree import Piece, PieceLimits, PrefixTree
from eval_dagster.models.transformers.scoring.spans import InputScore, Outcomes, ScoredInput, TokenScore, score_tokens, span_score
from eval_dagster.models.usage import ScoringUsage

_STEP = 16
"""One border between strips is chosen among this many tokens."""

_ROWS = 16
"""Cost of picking a key for a strip, in tokens that see the key. Measured on two cores, like the next constant."""

_CALL = 1000
"""Cost of one more strip, in pairs of a token and a key."""

_MASKS = 2
"""Masks whose parts are kept. A pass has one for layers that see all tokens and one for layers with a window."""
_ALIGNED = 8
_LOG = logging.getLogger(__name__)
_Demand = tuple[int, int, int]
"""A token to score: the indices of its input, of its span in the input, and of the token in the span."""
Fallback = Callable[[Sequence[ScoredInput], Exception | None], Outcomes]
"""Scores, by another way, inputs of which one raised an exception or was given a value that is no finite number."""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Neighbouring tokens of a piece, with all tokens that any of them sees."""

    start: int
    stop: int
    keys: Sequence[int]
    """Indices of tokens of the piece. All tokens see what is cached before it."""


def cut_strips(piece: Piece) -> list[Strip]:
    """Cut a piece so that the least is computed. That may be a single strip."""
    count = len(piece.tokens)
    # For each token, and for the end: the number of earlier tokens that have descendants there or later.
    changes = [0] * (count + 1)
    for index, end in enumerate(piece.ends):
        if index + 1 < end:
            changes[index + 1] += 1
            changes[end] -= 1
    going_on = list(accumulate(changes))
    steps = [range(start, min(start + _STEP, count)) for start in range(_STEP, count, _STEP)]
    borders = [0, *(min(step, key=going_on.__getitem__) for step in steps), count]
    costs, before = [0.0], [0]
    for index, stop in enumerate(borders[1:], 1):
        ways = [
            costs[place] + (stop - start + _ROWS) * (piece.base + going_on[start] + stop - start) + _CALL
            for place, start in enumerate(borders[:index])
        ]
        costs.append(min(ways))
        before.append(ways.index(costs[-1]))
    strips: list[Strip] = []
    place = len(borders) - 1
    while place:
        start, stop = borders[before[place]], borders[place]
        seen = (index for index in range(start) if piece.ends[index] > start)
        strips.append(Strip(start=start, stop=stop, keys=[*seen, *range(start, stop)]))
        place = before[place]
    return strips[::-1]


class StripPlan:
    """How the attention of one forward pass is cut."""

    def __init__(self, piece: Piece, strips: Sequence[Strip]):
        self._queries = len(piece.tokens)
        self._base = piece.base
        self._strips = strips
        self._keys = [self._indices(strip) for strip in strips]
        self._masks: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def fits(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor) -> bool:
        """Whether the attention of a layer matches the plan: one sequence over all cached tokens, with one mask for all heads."""
        keys = self._base + self._queries
        shapes = query.shape[0] == 1 and query.shape[2] == self._queries and key.shape[2] == keys
        return shapes and mask.shape == (1, 1, self._queries, keys)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float | None) -> torch.Tensor:
        """The output of the attention for the tokens of the piece: 1 by heads by tokens by width."""
        # Many layers have the same mask, so its parts are cut once. It is kept with them: then no other mask can have its `id`.
        if id(mask) not in self._masks:
            while len(self._masks) >= _MASKS:
                del self._masks[next(iter(self._masks))]
            pairs = zip(self._strips, self._keys, strict=True)
            self._masks[id(mask)] = mask, [mask[:, :, strip.start : strip.stop][..., keys].contiguous() for strip, keys in pairs]
        parts = []
        for strip, keys, part in zip(self._strips, self._keys, self._masks[id(mask)][1], strict=True):
            queries = query[:, :, strip.start : strip.stop]
            seen, values = (each[:, :, keys] if isinstance(keys, slice) else each.index_select(2, keys) for each in (key, value))
            is_grouped = query.shape[1] != key.shape[1]
            parts.append(scaled_dot_product_attention(queries, seen, values, attn_mask=part, scale=scale, enable_gqa=is_grouped))
        return torch.cat(parts, dim=2)

    def _indices(self, strip: Strip) -> slice | torch.Tensor:
        if len(strip.keys) == strip.stop:
            return slice(0, self._base + strip.stop)
        return torch.tensor([*range(self._base), *(self._base + index for index in strip.keys)])


_PLAN: ContextVar[StripPlan | None] = ContextVar("strip plan", default=None)


@contextmanager
def in_strips(piece: Piece) -> Iterator[None]:
    """Cut the attention of the forward pass over a piece, in networks that attend by transformers' `sdpa`, if a cut saves work."""
    strips = cut_strips(piece)
    # Models look up their attention by name. Without a plan, the function that is registered here calls the original one.
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward:
        ALL_ATTENTION_FUNCTIONS.register("sdpa", _attention)
    token = _PLAN.set(StripPlan(piece, strips) if len(strips) > 1 else None)
    try:
        yield
    finally:
        _PLAN.reset(token)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, Any]:
    plan = _PLAN.get()
    is_plain = dropout == 0.0 and arguments.get("position_bias") is None and arguments.get("softcap") is None
    if plan is None or attention_mask is None or not is_plain or not plan.fits(query, key, attention_mask):
        found: tuple[torch.Tensor, Any] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **arguments
        )
        return found
    return plan.attend(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None


class TreeAttention:
    """Describes pieces to one network."""

    def __init__(self, windows: Mapping[str, int | None], *, dtype: torch.dtype, device: str):
        """`windows` is the result of `layer_windows` for the network."""
        self._windows = windows
        self._dtype = dtype
        self._device = device

    def arguments(self, piece: Piece) -> dict[str, object]:
        """The arguments of the forward pass with the positions of a piece's tokens and the mask of what they see."""
        positions = torch.tensor(piece.positions, device=self._device)
        if piece.is_plain():
            return {"position_ids": positions[None], "attention_mask": None}
        index = torch.arange(len(piece.tokens), device=self._device)
        ends = torch.tensor(piece.ends, device=self._device)
        descends = (index[None] <= index[:, None]) & (index[:, None] < ends[None])
        visible = torch.cat([descends.new_ones(len(index), piece.base), descends], dim=1)
        seen = torch.cat([torch.arange(piece.base, device=self._device), positions])
        masks = {}
        for kind, window in self._windows.items():
            shown = visible if window is None else visible & (positions[:, None] < seen[None] + window)
            # GPUs read rows that begin at multiples of so many numbers. Torch would copy any other mask in each layer.
            rows, columns = shown.shape
            mask = torch.zeros((rows, -(-columns // _ALIGNED) * _ALIGNED), dtype=self._dtype, device=self._device)[:, :columns]
            # Added to the scores of attention.
            masks[kind] = mask.masked_fill_(~shown, torch.finfo(self._dtype).min)[None, None]
        return {"position_ids": positions[None], "attention_mask": masks if len(masks) > 1 else next(iter(masks.values()))}

    def computed(self, piece: Piece) -> AbstractContextManager[None]:
        """The context of the forward pass over a piece. On a CPU, its attention leaves out keys that no token sees."""
        return in_strips(piece) if self._device == "cpu" and not piece.is_plain() else nullcontext()

    def cell_bytes(self) -> int:
        """The bytes that an entry of the mask takes: a number for each kind of layers, and four booleans of which they are made."""
        return len(self._windows) * self._dtype.itemsize + 4


class _Work:
    """Inputs on their way through the tree."""

    def __init__(self, inputs: Sequence[ScoredInput]):
        self.inputs = sorted(inputs, key=lambda item: item.tokens)
        self.tree = PrefixTree([item.tokens for item in self.inputs])
        self.scores: list[list[dict[int, TokenScore]]] = [[{} for _ in item.spans] for item in self.inputs]
        self.demands: list[dict[int, list[_Demand]]] = [{} for _ in self.inputs]
        # For each depth, the first sequence with the same tokens up to there.
        owner_of: list[int] = []
        for index, item in enumerate(self.inputs):
            shared = self.tree.shared[index]
            owner_of[shared:] = [index] * (len(item.tokens) - shared)
            for number, span in enumerate(item.spans):
                start = len(item.tokens) - len(span)
                for offset in range(len(span)):
                    self.demands[owner_of[start + offset]].setdefault(start + offset, []).append((index, number, offset))
        self.counts = [len(demands) for demands in self.demands]

    def scored(self, piece: Piece) -> list[tuple[int, list[_Demand]]]:
        """The tokens of a piece that are scored, by their index in it, each with all that want it."""
        found = []
        bounds = [*(block.offset for block in piece.blocks[1:]), len(piece.tokens)]
        for block, bound in zip(piece.blocks, bounds, strict=True):
            for depth, demands in sorted(self.demands[block.sequence].items()):
                index = depth - block.start + block.offset
                if block.offset <= index < bound:
                    found.append((index, demands))
        return found

    def settle(self, index: int) -> InputScore | None:
        """The outcome of an input; None if a token has no score that is a number."""
        parts = []
        for span, scores in zip(self.inputs[index].spans, self.scores[index], strict=True):
            if len(scores) < len(span):
                return None
            parts.append(span_score([scores[offset] for offset in range(len(span))]))
        return None if any(isinstance(part, Failure) for part in parts) else InputScore(scores=parts)


class TreeScorer:
    """Scores inputs with one network that honours masks and positions."""

    def __init__(self, network: Any, attention: TreeAttention, *, limits: Callable[[], PieceLimits], device: str, usage: ScoringUsage):
        """`attention` describes pieces to the network. `limits` gives the limits of a piece now; it is asked when a run begins."""
        self._network = network
        self._attention = attention
        self._measure = limits
        self._ceiling = PieceLimits(tokens=2**62, chain=2**62, scored=2**62)
        """The most of a piece after memory ran out."""
        self._device = device
        self._usage = usage

    def run(self, inputs: Sequence[ScoredInput], fallback: Fallback) -> Outcomes:
        """Yield the outcomes piece by piece, in lexicographic order."""
        work = _Work(inputs)
        self._usage.tokens_needed += work.tree.nodes()
        cache, first, base, owed = DynamicCache(), 0, 0, 0.0
        limits = self._measure().within(self._ceiling)
        whole, before, suspects = replace(limits), self._ceiling, 0
        while first < len(work.inputs):
            started = time.perf_counter()
            piece = work.tree.piece(first, base, limits, work.counts)
            error = self._attempt(work, piece, cache)
            if error is not None:
                cache, base = DynamicCache(), 0
                release_memory()
                if first >= suspects:
                    whole, before, suspects = replace(limits), self._ceiling, max(piece.last, first + 1)
                if is_out_of_memory(error) and limits.halve():
                    _LOG.warning("out of memory with %d tokens: going on with %d at a time", len(piece.tokens), limits.tokens)
                    self._ceiling = replace(limits)
                    continue
                last = max(piece.last, first + 1)
                # This input is too large even for the smallest piece. Other inputs get back the limits from before it.
                limits, self._ceiling, suspects = replace(whole), before, 0
                yield from fallback(work.inputs[first:last], error)
                first = last
                continue
            # The next piece uses these tokens alone.
            surplus = piece.base + len(piece.tokens) - piece.keep
            if not piece.keep:
                cache = DynamicCache()
            elif surplus:
                cache.crop(-surplus)
            base = piece.keep
            owed += time.perf_counter() - started
            if piece.last > first:
                is_sound = yield from _settle(work, range(first, piece.last), owed, fallback)
                if not is_sound:
                    # Masks are added to attention scores, so NaN reaches tokens that do not see it, and the cache.
                    cache, base = DynamicCache(), 0
                first, owed = piece.last, 0.0

    def _attempt(self, work: _Work, piece: Piece, cache: DynamicCache) -> Exception | None:
        """Compute a piece and store its scores. Returns the error, without the frames that hold tensors."""
        try:
            self._compute(work, piece, cache)
        except Exception as error:
            check_device(error)
            return error.with_traceback(None)
        return None

    @torch.inference_mode()
    def _compute(self, work: _Work, piece: Piece, cache: DynamicCache) -> None:
        wanted = work.scored(piece)
        self._usage.count_pass(len(piece.tokens))
        # A prefix without a scored token passes the head once, because networks expect one position at least.
        kept = torch.tensor([index for index, _ in wanted] or [0], device=self._device)
        with self._attention.computed(piece):
            (logits,) = logits_at(
                self._network,
                kept,
                input_ids=torch.tensor([piece.tokens], device=self._device),
                **self._attention.arguments(piece),
                past_key_values=cache if piece.base or piece.keep else None,
                use_cache=bool(piece.base or piece.keep),
            )
        owners = [(row, *demand) for row, (_, demands) in enumerate(wanted) for demand in demands]
        if not owners:
            return
        golds = [work.inputs[index].spans[span][offset] for _, index, span, offset in owners]
        scores = score_tokens(logits, [row for row, *_ in owners], golds)
        for (_, index, span, offset), score in zip(owners, scores, strict=True):
            work.scores[index][span][offset] = score


def _settle(work: _Work, done: range, seconds: float, fallback: Fallback) -> Generator[list[Outcome[ScoredInput, InputScore]], None, bool]:
    """Yield the outcomes of inputs. Returns whether all have their scores."""
    results = [(work.inputs[index], work.settle(index)) for index in done]
    share = seconds / len(results)
    good = [Outcome[ScoredInput, InputScore](item=item, result=result, seconds=share) for item, result in results if result is not None]
    if good:
        yield good
    bad = [item for item, result in results if result is None]
    if bad:
        # A value that is no number spreads to all tokens of its piece, masked or not. Scored alone, only its own input keeps it.
        yield from fallback(bad, None)
    return not bad
