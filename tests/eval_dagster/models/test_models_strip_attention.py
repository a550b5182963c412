"""Attention in strips: it leaves out what is not seen, and nothing else."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tiny_architectures
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_architectures import CONTEXT, VOCABULARY
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache

from eval_dagster.models.transformers.network.architecture import layer_windows
from eval_dagster.models.transformers.network.batching import BatchRunner
from eval_dagster.models.transformers.scoring import tree
from eval_dagster.models.transformers.scoring.engine import ScoringEngine, check_tree
from eval_dagster.models.transformers.scoring.prefix_tree import Piece, PieceLimits, PrefixTree
from eval_dagster.models.transformers.scoring.tree import StripPlan, TreeAttention, cut_strips


def piece_of(sequences: set[tuple[int, ...]], base: int = 0) -> Piece:
    ordered = sorted(sequences)
    return PrefixTree(ordered).piece(0, base, PieceLimits(tokens=10_000, chain=10_000, scored=10_000), [1] * len(ordered))


def questions(count: int, *, stem: int, question: int, choices: int) -> set[tuple[int, ...]]:
    """Token sequences as benchmarks have them: a common stem, questions, and choices after each."""
    draw = random.Random(0)

    def some(length: int) -> tuple[int, ...]:
        return tuple(draw.choices(range(5, VOCABULARY), k=length))

    trunk = some(stem)
    asked = [trunk + some(question) for _ in range(count)]
    return {each + some(choices) for each in asked for _ in range(4)}


def sees(piece: Piece, token: int) -> set[int]:
    return {index for index in range(token + 1) if piece.ends[index] > token}


@given(st.sets(st.lists(st.integers(0, 2), min_size=1, max_size=90).map(tuple), min_size=1, max_size=12))
@settings(deadline=None)
def test_strips_hold_each_token_once_and_all_that_one_of_theirs_sees(sequences: set[tuple[int, ...]]) -> None:
    piece = piece_of(sequences)
    strips = cut_strips(piece)
    assert [index for strip in strips for index in range(strip.start, strip.stop)] == list(range(len(piece.tokens)))
    for strip in strips:
        assert list(strip.keys) == sorted(set().union(*(sees(piece, token) for token in range(strip.start, strip.stop))))


def test_questions_that_share_nothing_are_cut_apart() -> None:
    piece = piece_of(questions(4, stem=0, question=60, choices=15))
    pairs = sum((strip.stop - strip.start) * len(strip.keys) for strip in cut_strips(piece))
    assert pairs < 0.35 * len(piece.tokens) ** 2


def test_a_long_cache_is_not_picked_from_again_for_few_tokens() -> None:
    sequences = questions(2, stem=3000, question=20, choices=5)
    assert len(cut_strips(piece_of(sequences, base=3000))) == 1


def logits(network: Any, piece: Piece, path: list[int], *, in_strips: bool) -> torch.Tensor:
    windows = layer_windows(network.config)
    assert windows is not None
    attention = TreeAttention(windows, dtype=torch.float32, device="cpu")
    cache = DynamicCache()
    with torch.inference_mode():
        if path:
            network(input_ids=torch.tensor([path]), past_key_values=cache, use_cache=True)
        arguments = {"input_ids": torch.tensor([piece.tokens]), "past_key_values": cache, "use_cache": True, **attention.arguments(piece)}
        if not in_strips:
            return network(**arguments).logits[0]
        with attention.computed(piece):
            return network(**arguments).logits[0]


@pytest.mark.parametrize("base", [0, 40], ids=["from the start", "after a cache"])
@pytest.mark.parametrize("name", tiny_architectures.TREE)
def test_the_logits_are_those_of_the_whole_mask(name: str, base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network(name)
    sequences = questions(4, stem=40, question=40, choices=12)
    piece = piece_of(sequences, base)
    assert len(cut_strips(piece)) > 1
    calls = []
    attend = StripPlan.attend
    monkeypatch.setattr(StripPlan, "attend", lambda *arguments: calls.append(1) or attend(*arguments))
    path = list(min(sequences)[:base])
    whole = logits(network, piece, path, in_strips=False)
    assert not calls
    torch.testing.assert_close(logits(network, piece, path, in_strips=True), whole, atol=1e-4, rtol=0)
    assert len(calls) == network.config.num_hidden_layers


def test_strips_that_lack_a_token_are_found_out_when_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    attention = TreeAttention({"full_attention": None}, dtype=torch.float32, device="cpu")

    def verdict() -> bool:
        return check_tree(network, attention, device="cpu", tokens=range(5, 200), stems=(24,), longest=CONTEXT).is_exact

    assert verdict()
    attend = StripPlan.attend

    def forgetful(plan: StripPlan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> torch.Tensor:
        return attend(plan, query, key, torch.cat([torch.zeros_like(value[:, :, :1]), value[:, :, 1:]], dim=2), *rest)

    monkeypatch.setattr(StripPlan, "attend", forgetful)
    assert not verdict()


def test_a_window_is_checked_with_strips_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a long window the strips take all that is cached: it is before the window that they pick."""
    picked = []
    indices = StripPlan._indices
    monkeypatch.setattr(StripPlan, "_indices", lambda plan, strip: picked.append(indices(plan, strip)) or picked[-1])
    network = tiny_architectures.network("mistral with a window")
    network.config.sliding_window = 200
    engine = ScoringEngine(network, BatchRunner(rows=4, tokens=None), device="cpu", pad_token=0, tokens=range(5, 200), longest=CONTEXT)
    assert engine.usage.path == "tree"
    assert any(isinstance(keys, torch.Tensor) for keys in picked)


def test_threads_and_failures_leave_no_plan_behind() -> None:
    network = tiny_architectures.network("llama")
    piece = piece_of(questions(4, stem=40, question=40, choices=12))
    attention = TreeAttention({"full_attention": None}, dtype=torch.float32, device="cpu")

    def fail() -> None:
        with ThreadPoolExecutor(1) as pool, attention.computed(piece):
            assert tree._PLAN.get() is not None
            assert pool.submit(tree._PLAN.get).result() is None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert tree._PLAN.get() is None
    whole = logits(network, piece, [], in_strips=False)
    torch.testing.assert_close(logits(network, piece, [], in_strips=True), whole, atol=1e-4, rtol=0)


def test_values_may_be_wider_than_keys_and_coarser_than_float32() -> None:
    piece = piece_of(questions(4, stem=40, question=40, choices=12))
    plan = StripPlan(piece, cut_strips(piece))
    count = len(piece.tokens)
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, count, width, generator=draw).bfloat16() for heads, width in ((4, 8), (2, 8), (2, 16)))
    mask = TreeAttention({"full_attention": None}, dtype=torch.bfloat16, device="cpu").arguments(piece)["attention_mask"]
    assert plan.fits(query, key, mask)
    whole = scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(plan.attend(query, key, value, mask, None), whole, atol=0.02, rtol=0)
