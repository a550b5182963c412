"""Checks on load that a faster way of scoring gives the plain scores of this network. Only then is it used."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from eval_dagster.errors import ModelError
from eval_dagster.models.transformers.network.architecture import rounding_tolerance
from eval_dagster.models.transformers.network.batching import BatchRunner, Failure, failure_of, with_memory
from eval_dagster.models.transformers.scoring.plain import PlainScorer, PrefixScorer
from eval_dagster.models.transformers.scoring.prefix_tree import PieceLimits
from eval_dagster.models.transformers.scoring.spans import Outcomes, ScoredInput, SpanScore
from eval_dagster.models.transformers.scoring.tree import TreeScorer
from eval_dagster.models.transformers.scoring.tree_attention import TreeAttention
from eval_dagster.models.usage import ScoringUsage

_FORKS = 10
_LEAVES = 3
_SCORED = 3
"""Tokens that are scored at the end of each sequence."""

_VARIETY = 8
"""Fewest different tokens for the sequences. With fewer, the sequences could be alike."""

_LIMITS = {"tokens": 160, "chain": 160, "scored": 4096}
"""Limits of a piece of the check. The check takes several pieces, so that later ones use a cache. Each sequence fits one piece."""

_ROWS = 6
"""Rows of a batch of the check. Some batches begin with a prefix of an earlier batch."""

_CONTRAST = 4
"""A network that sees a neighbouring branch must differ by this multiple, or the check could not detect the fault."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a way of scoring may be used, and why."""

    is_exact: bool
    reason: str


def check_tree(
    network: Any, attention: TreeAttention, *, device: str, tokens: Sequence[int], stems: Sequence[int], longest: int
) -> Verdict:
    """Compare scores over trees with plain ones: a tree with each of the stems. `attention` describes pieces to the network.

    The other arguments as of `check`. The verdict is about the first stem whose scores are not exact, else about the last.
    """
    for stem in stems:
        tree = TreeScorer(network, attention, limits=lambda: PieceLimits(**_LIMITS), device=device, usage=ScoringUsage())
        score = partial(tree.run, fallback=_refuse)
        verdict = check(network, score, device=device, tokens=tokens, stem=stem, longest=longest)
        if not verdict.is_exact:
            break
    return verdict


def check_prefix(network: Any, *, device: str, tokens: Sequence[int], stem: int, longest: int) -> Verdict:
    """Compare scores by batches with a common prefix with plain ones; arguments as in `check`."""
    prefix = PrefixScorer(network, device=device, pad_token=0, usage=ScoringUsage())
    runner = BatchRunner(rows=_ROWS, tokens=None)
    return check(network, lambda inputs: prefix.run(inputs, runner), device=device, tokens=tokens, stem=stem, longest=longest)


def check(
    network: Any,
    score: Callable[[Sequence[ScoredInput]], Outcomes],
    *,
    device: str,
    tokens: Sequence[int],
    stem: int,
    longest: int,
) -> Verdict:
    """Compare a way of scoring with plain rows.

    The sequences consist of `tokens`, which are tokens of ordinary text. Most of them begin with the same `stem` tokens, or with fewer if
    the sequences would otherwise have more than `longest` tokens.
    """
    fork, leaf = min(8, longest // 4), min(6, longest // 4)
    if leaf <= _SCORED:
        return Verdict(is_exact=False, reason=f"a context of {longest} tokens is too short to be checked")
    if len(set(tokens)) < _VARIETY:
        return Verdict(is_exact=False, reason=f"{len(set(tokens))} different tokens are too few to be checked with")
    leaves, neighboured = _sequences(tokens, min(stem, longest - fork - 2 * leaf), fork, leaf)
    plain = PlainScorer(network, device=device, pad_token=0, usage=ScoringUsage())
    few = [leaves[index] for index in (0, 1, len(leaves) // 2, -2, -1)]
    try:
        found = with_memory(lambda: _scores(score(leaves)))
        right = with_memory(lambda: _scores(plain.run([*few, neighboured], BatchRunner(rows=1, tokens=None))))
    except Exception as error:
        return Verdict(is_exact=False, reason=f"the network refuses it ({failure_of(error, retryable=False).error})")
    off = max(_distance(found[item.tokens], right[item.tokens]) for item in few)
    contrast = _distance(right[few[1].tokens], right[neighboured.tokens])
    greatest = max(abs(logit) for score in right.values() for logit in score.logits)
    tolerance = rounding_tolerance(network.dtype, greatest)
    if off > tolerance:
        return Verdict(
            is_exact=False, reason=f"log-probabilities differ by {off:.1e} from plain ones, more than the {tolerance:.1e} of rounding"
        )
    if contrast < _CONTRAST * off:
        return Verdict(
            is_exact=False, reason=f"a difference of {off:.1e} could be an error: seeing a neighbour makes one of {contrast:.1e}"
        )
    return Verdict(is_exact=True, reason=f"checked on load: log-probabilities differ by {off:.1e} from plain ones")


def _sequences(tokens: Sequence[int], stem: int, fork: int, leaf: int) -> tuple[list[ScoredInput], ScoredInput]:
    """Sequences in order, and the second of them with the first one's end before its own."""
    draw = random.Random(0)  # noqa: S311
    trunk = tuple(draw.choices(tokens, k=stem))
    forks = [trunk + tuple(draw.choices(tokens, k=fork)) for _ in range(_FORKS)]
    wholes = {path + tuple(draw.choices(tokens, k=draw.randint(_SCORED + 1, leaf))) for path in forks for _ in range(_LEAVES)}
    wholes.add(tuple(draw.choices(tokens, k=fork + leaf)))
    ordered = sorted(wholes)
    misled = ordered[0] + ordered[1][-_SCORED - 1 :]
    inputs = {whole[:-1]: ScoredInput(tokens=whole[:-1], spans=[whole[-_SCORED:]]) for whole in ordered}
    return list(inputs.values()), ScoredInput(tokens=misled[:-1], spans=[misled[-_SCORED:]])


def _refuse(_: Sequence[ScoredInput], error: Exception | None) -> Outcomes:
    raise error or ModelError("it gives values that are no finite numbers")


def _scores(batches: Outcomes) -> dict[tuple[int, ...], SpanScore]:
    found = {}
    for batch in batches:
        for outcome in batch:
            score = outcome.result if isinstance(outcome.result, Failure) else outcome.result.scores[0]
            if isinstance(score, Failure):
                raise ModelError(score.error)
            found[outcome.item.tokens] = score
    return found


def _distance(one: SpanScore, other: SpanScore) -> float:
    return max(abs(left - right) for left, right in zip(one.logprobs, other.logprobs, strict=True))
