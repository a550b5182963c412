"""Attention by block masks: the logits are those of whole masks, for every architecture and for pieces after a cache."""

import dataclasses
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tiny_architectures
import torch
from needs import needs
from tiny_architectures import CONTEXT, VOCABULARY
from transformers import DynamicCache

from eval_dagster.models.transformers.network.architecture import layer_windows
from eval_dagster.models.transformers.network.batching import BatchRunner
from eval_dagster.models.transformers.scoring import block_attention, fastest_attention
from eval_dagster.models.transformers.scoring import engine as scoring
from eval_dagster.models.transformers.scoring.block_attention import BlockAttention, BlockPlan, forget_shapes, padded_length
from eval_dagster.models.transformers.scoring.engine import ScoringEngine
from eval_dagster.models.transformers.scoring.prefix_tree import Piece, PieceLimits, PrefixTree
from eval_dagster.models.transformers.scoring.self_check import check_tree
from eval_dagster.models.transformers.scoring.tree_attention import TreeAttention

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile", "ignore::DeprecationWarning")

ORDINARY = range(5, 200)


def piece_after(base: int) -> tuple[Piece, list[int]]:
    """A piece with branches of branches, and the cached path before it."""
    draw = random.Random(0)

    def some(length: int) -> tuple[int, ...]:
        return tuple(draw.choices(range(5, VOCABULARY), k=length))

    trunk = some(40)
    asked = [trunk + some(40) for _ in range(4)]
    ordered = sorted(each + some(draw.randint(1, 12)) for each in asked for _ in range(4))
    piece = PrefixTree(ordered).piece(0, base, PieceLimits(tokens=10_000, chain=10_000, scored=10_000), [1] * len(ordered))
    return piece, list(ordered[0][:base])


def blocked(network: Any, *, compiled: bool = False, least: int = 0) -> BlockAttention:
    windows = layer_windows(network.config)
    assert windows is not None
    return BlockAttention(windows, dtype=network.dtype, device="cpu", least=least, compiled=compiled)


def logits(network: Any, attention: TreeAttention, piece: Piece, path: list[int]) -> torch.Tensor:
    cache = DynamicCache()
    with torch.inference_mode():
        if path:
            network(input_ids=torch.tensor([path]), past_key_values=cache, use_cache=True)
        with attention.computed(piece):
            found: torch.Tensor = network(
                input_ids=torch.tensor([piece.tokens]), past_key_values=cache, use_cache=True, **attention.arguments(piece)
            ).logits[0]
    return found


@pytest.mark.parametrize("base", [0, 40], ids=["from the start", "after a cache"])
@pytest.mark.parametrize("name", tiny_architectures.TREE)
def test_the_logits_are_those_of_the_whole_mask(name: str, base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network(name)
    windows = layer_windows(network.config)
    assert windows is not None
    piece, path = piece_after(base)
    whole = logits(network, TreeAttention(windows, dtype=torch.float32, device="cpu"), piece, path)
    calls = []
    attend = BlockPlan.attend
    monkeypatch.setattr(BlockPlan, "attend", lambda *arguments: calls.append(1) or attend(*arguments))
    torch.testing.assert_close(logits(network, blocked(network), piece, path), whole, atol=1e-4, rtol=0)
    assert len(calls) == network.config.num_hidden_layers


def test_blocks_that_nothing_sees_are_left_out() -> None:
    """Else the mask would be right and save nothing."""
    draw = random.Random(0)
    ordered = sorted(tuple(draw.choices(range(5, VOCABULARY), k=256)) for _ in range(8))
    piece = PrefixTree(ordered).piece(0, 0, PieceLimits(tokens=10_000, chain=10_000, scored=10_000), [1] * 8)
    assert len(piece.tokens) > 2000
    mask = BlockPlan(piece, {0: None}, device="cpu", attend=lambda: None)._block_mask(0)
    # Of 16 by 16 blocks, each sequence of two has three; the first token that sequences share reaches few more.
    assert mask.sparsity() > 80


def test_few_shapes_are_compiled() -> None:
    assert [padded_length(count) for count in (1, 128, 129, 1024, 5000, 8192)] == [128, 128, 256, 1024, 8192, 8192]
    shapes = {(padded_length(count), padded_length(base + count)) for count in range(1024, 8193, 61) for base in range(0, 32768, 97)}
    assert len(shapes) <= block_attention._SHAPES


class CountingCompiler:
    """Compiles nothing, and counts what it is given."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, _: Any) -> Any:
        self.count += 1
        return graph.forward


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingCompiler]:
    found, compile_ = CountingCompiler(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: compile_(function, **{"backend": found, **options}))
    block_attention._attention.cache_clear()
    forget_shapes()
    yield found
    block_attention._attention.cache_clear()
    forget_shapes()


@torch.inference_mode()
def attended(piece: Piece, *, heads: int = 2, window: int | None = None) -> None:
    """Attend over a piece by compiled blocks, as a layer does."""
    sign, count = torch.zeros(1), len(piece.tokens)
    plan = BlockPlan(piece, {sign.data_ptr(): window}, device="cpu", attend=block_attention._attention(compiled=True))
    query, key = torch.randn(1, heads, count, 16), torch.randn(1, heads, piece.base + count, 16)
    plan.attend(query, key, key, sign.expand(1, 1, count, piece.base + count), None)


def test_pieces_of_one_padded_shape_are_compiled_once(compiler: CountingCompiler) -> None:
    """Whatever their tokens, branches, lengths and windows."""
    for base, window in ((0, None), (3, None), (9, 16), (20, 5)):
        attended(piece_after(base)[0], window=window)
    assert compiler.count == 1
    attended(piece_after(0)[0], heads=3)
    assert compiler.count == 2, "another model is another shape"


def test_pieces_that_need_no_padding_are_laid_out_as_others() -> None:
    """A layer hands on views in which the heads of a token lie together."""
    seen = []
    piece = dataclasses.replace(piece_after(0)[0], tokens=[5] * 128, ends=[128] * 128, positions=[*range(128)])
    plan = BlockPlan(piece, {0: None}, device="cpu", attend=lambda query, key, value, **_: seen.extend([query, key, value]) or query)
    states, sign = torch.randn(1, 128, 2, 16).transpose(1, 2), torch.zeros(1)
    plan._windows = {sign.data_ptr(): None}
    plan.attend(states, states, states, sign.expand(1, 1, 128, 128), None)
    assert [each.shape for each in seen] == [(1, 2, 128, 16)] * 3
    assert all(each.is_contiguous() for each in seen)


def test_the_check_of_a_long_window_has_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    shapes: set[tuple[int, int]] = set()
    attend = BlockPlan.attend

    def watched(self: BlockPlan, *arguments: Any) -> torch.Tensor:
        shapes.add((self._padded_count, self._padded_keys))
        return attend(self, *arguments)

    monkeypatch.setattr(BlockPlan, "attend", watched)

    def shapes_with(least_keys: int) -> int:
        shapes.clear()
        windows: dict[str, int | None] = {"full_attention": None}
        attention = BlockAttention(windows, dtype=torch.float32, device="cpu", least=0, least_keys=least_keys, compiled=False)
        assert check_tree(network, attention, device="cpu", tokens=ORDINARY, stems=(24, 424), longest=CONTEXT).is_exact
        return len(shapes)

    few, many = shapes_with(400), shapes_with(0)
    assert few <= 4 < many, (few, many)


def test_the_shapes_of_an_earlier_model_do_not_count(compiler: CountingCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_attention, "_SHAPES", 0)
    most, piece = torch._dynamo.config.recompile_limit, piece_after(0)[0]
    for heads in range(1, most + 3):
        attended(piece, heads=heads)
    assert compiler.count == most, "beyond the limit torch does not compile any more"
    forget_shapes()
    attended(piece, heads=most + 3)
    assert compiler.count == most + 1


def test_each_thread_compiles_as_many_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: lambda: torch._dynamo.config.recompile_limit)
    attend = block_attention._attention.__wrapped__(compiled=True)
    with ThreadPoolExecutor(1) as thread:
        assert [attend(), thread.submit(attend).result()] == [64, 64]
    assert torch._dynamo.config.recompile_limit < 64, "other code keeps torch's own limit"


def test_small_pieces_and_chains_have_whole_masks() -> None:
    network = tiny_architectures.network("llama")
    piece, _ = piece_after(0)
    few = blocked(network, least=len(piece.tokens) + 1)
    torch.testing.assert_close(few.arguments(piece)["attention_mask"].unique().tolist(), [torch.finfo(torch.float32).min, 0.0])
    assert blocked(network).arguments(piece)["attention_mask"].unique().tolist() == [0.0], "it stands for a block mask"


def test_a_network_that_does_not_hand_the_mask_on_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask that stands for a block mask hides nothing: without the plan, each branch would see its neighbours."""
    network = tiny_architectures.network("llama")
    attention = blocked(network)
    assert check_tree(network, attention, device="cpu", tokens=ORDINARY, stems=(24,), longest=CONTEXT).is_exact
    monkeypatch.setattr(BlockPlan, "fits", lambda *_: False)
    assert not check_tree(network, attention, device="cpu", tokens=ORDINARY, stems=(24,), longest=CONTEXT).is_exact


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, rates: dict[tuple[type, int], float]) -> ScoringEngine:
    """An engine that takes the CPU for a GPU, on which passes have the given rates by attention and size."""
    network = tiny_architectures.network("llama")

    class Uncompiled(BlockAttention):
        def __init__(self, windows: Any, *, dtype: torch.dtype, device: str, least: int = 40, least_keys: int = 0):
            super().__init__(windows, dtype=dtype, device="cpu", least=least, least_keys=least_keys, compiled=False)

    def rate(_: Any, attention: TreeAttention, piece: int, __: str) -> float:
        found = rates[TreeAttention if type(attention) is TreeAttention else BlockAttention, piece]
        if not found:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return found

    monkeypatch.setattr(fastest_attention, "BlockAttention", Uncompiled)
    monkeypatch.setattr(fastest_attention, "_piece", lambda size, *_: size)
    monkeypatch.setattr(fastest_attention, "_rate", rate)
    choose = fastest_attention.fastest_attention
    monkeypatch.setattr(scoring, "fastest_attention", lambda *arguments, **named: choose(*arguments, **{**named, "device": "cuda"}))
    monkeypatch.setattr(scoring, "_GPU_WINDOW", 1024)

    class Device(str):
        """Torch takes it for the CPU, and the engine does not."""

        __hash__ = str.__hash__

        def __eq__(self, _: object) -> bool:
            return False

        def __ne__(self, _: object) -> bool:
            return True

    return ScoringEngine(network, BatchRunner(rows=4, tokens=None), device=Device("cpu"), pad_token=0, tokens=ORDINARY, longest=CONTEXT)


def test_what_is_fastest_is_taken_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: dict[tuple[type, int], float] = {(TreeAttention, 8192): 100, (TreeAttention, 4096): 104, (TreeAttention, 2048): 90}
    engine = on_a_gpu(monkeypatch, rates | {(BlockAttention, size): speed for size, speed in ((8192, 0), (4096, 300), (2048, 310))})
    assert engine._tree is not None
    assert isinstance(engine._tree._attention, BlockAttention)
    assert engine._tree._measure().tokens == 4096, "a gain of 3 in 100 is noise"
    assert "attends by FlexAttention, in pieces of 4096 tokens" in engine.usage.reason
    assert "whole masks in pieces of 8192: 100" in engine.usage.reason
    assert "FlexAttention failed with 8192 tokens (OutOfMemoryError)" in engine.usage.reason


def test_blocks_that_cannot_be_compiled_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(BlockPlan, "attend", fail)
    engine = on_a_gpu(monkeypatch, {(TreeAttention, 8192): 100, (TreeAttention, 4096): 50, (TreeAttention, 2048): 120})
    assert engine._tree is not None
    assert type(engine._tree._attention) is TreeAttention
    assert engine._tree._measure().tokens == 2048
    assert "not by FlexAttention" in engine.usage.reason
    assert "no compiler" in engine.usage.reason


def test_passes_are_measured_over_a_tree_of_about_the_size() -> None:
    network = tiny_architectures.network("llama")
    piece = fastest_attention._piece(2048, ORDINARY, CONTEXT)
    assert 0.8 * 2048 < len(piece.tokens) <= 2048
    assert max(piece.positions) < CONTEXT
    assert not piece.is_plain()
    for attention in (TreeAttention({"full_attention": None}, dtype=torch.float32, device="cpu"), blocked(network)):
        assert fastest_attention._rate(network, attention, piece, "cpu") > 0


@pytest.mark.long
@needs("a C++ compiler")
def test_compiled_blocks_give_the_same_logits() -> None:
    """The very calls of a GPU, compiled for the CPU."""
    network = tiny_architectures.network("gemma3")
    windows = layer_windows(network.config)
    assert windows is not None
    for base in (0, 40):
        piece, path = piece_after(base)
        whole = logits(network, TreeAttention(windows, dtype=torch.float32, device="cpu"), piece, path)
        torch.testing.assert_close(logits(network, blocked(network, compiled=True), piece, path), whole, atol=1e-4, rtol=0)
