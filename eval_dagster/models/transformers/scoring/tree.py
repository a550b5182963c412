"""Scoring over a prefix tree: shared prefixes are computed once, and many branches share one sequence."""

import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import DynamicCache

from eval_dagster.models.transformers.network.architecture import logits_at
from eval_dagster.models.transformers.network.batching import Failure, Outcome, check_device, is_out_of_memory
from eval_dagster.models.transformers.network.resources import release_memory
from eval_dagster.models.transformers.scoring.prefix_tree import Piece, PieceLimits, PrefixTree
from eval_dagster.models.transformers.scoring.spans import InputScore, Outcomes, ScoredInput, TokenScore, score_tokens, span_score
from eval_dagster.models.transformers.scoring.tree_attention import TreeAttention
from eval_dagster.models.usage import ScoringUsage

_LOG = logging.getLogger(__name__)

_Demand = tuple[int, int, int]
"""A token to score: the indices of its input, of its span in the input, and of the token in the span."""

Fallback = Callable[[Sequence[ScoredInput], Exception | None], Outcomes]
"""Scores, by another way, inputs of which one raised an exception or was given a value that is no finite number."""


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
