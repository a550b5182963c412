"""What a network is told of a piece of the tree, and what its configuration says of masks and positions."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from eval_dagster.models.transformers.network.architecture import constant_length, layer_windows
from eval_dagster.models.transformers.scoring.prefix_tree import PieceLimits, PrefixTree
from eval_dagster.models.transformers.scoring.tree import TreeAttention

FULL, SLIDING = "full_attention", "sliding_attention"
LIMITS = PieceLimits(tokens=100, chain=100, scored=100)


def visible(arguments: dict[str, Any], kind: str | None = None) -> list[list[int]]:
    mask = arguments["attention_mask"] if kind is None else arguments["attention_mask"][kind]
    assert mask.dtype == torch.float32
    assert set(mask.unique().tolist()) <= {0.0, torch.finfo(torch.float32).min}
    return [[column for column, value in enumerate(row) if value == 0] for row in mask[0, 0].tolist()]


def test_branches_see_the_cached_path_their_stem_and_themselves() -> None:
    tree = PrefixTree([(1, 2, 3, 4), (1, 2, 3, 5, 6), (1, 2, 7)])
    piece = tree.piece(0, 2, LIMITS, [1, 1, 1])
    assert piece.tokens == [3, 4, 5, 6, 7]
    arguments = TreeAttention({FULL: None}, dtype=torch.float32, device="cpu").arguments(piece)
    assert arguments["position_ids"].tolist() == [[2, 3, 3, 4, 2]]
    assert visible(arguments) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 4, 5], [0, 1, 6]]


def test_a_window_counts_positions_and_not_places() -> None:
    tree = PrefixTree([(1, 2, 3, 4), (1, 2, 3, 5, 6), (1, 2, 7)])
    piece = tree.piece(0, 2, LIMITS, [1, 1, 1])
    arguments = TreeAttention({FULL: None, SLIDING: 2}, dtype=torch.float32, device="cpu").arguments(piece)
    assert visible(arguments, FULL)[3] == [0, 1, 2, 4, 5]
    assert visible(arguments, SLIDING) == [[1, 2], [2, 3], [2, 4], [4, 5], [1, 6]]


def test_a_chain_from_the_start_needs_no_mask() -> None:
    piece = PrefixTree([(1,), (1, 2, 3)]).piece(0, 0, LIMITS, [1, 1])
    arguments = TreeAttention({FULL: None}, dtype=torch.float32, device="cpu").arguments(piece)
    assert arguments["attention_mask"] is None
    assert arguments["position_ids"].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("llama", {}, {FULL: None}),
        ("gpt2", {}, {FULL: None}),
        ("mistral", {"sliding_window": 99}, 99),
        ("mistral", {"sliding_window": None}, {FULL: None}),
        ("qwen2", {"sliding_window": 99, "use_sliding_window": False}, {FULL: None}),
        (
            "gemma3_text",
            {"sliding_window": 7, "num_hidden_layers": 2, "layer_types": [SLIDING, FULL]},
            {FULL: None, SLIDING: 7},
        ),
        ("gpt_neo", {}, None),
        ("mamba", {}, None),
        ("llama4_text", {}, None),
    ],
)
def test_windows_of_the_layers(kind: str, settings: dict[str, Any], expected: Any) -> None:
    windows = layer_windows(AutoConfig.for_model(kind, **settings))
    assert list((windows or {}).values()) == [expected] if isinstance(expected, int) else windows == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, None),
        ({"rope_parameters": {"rope_type": "llama3", "original_max_position_embeddings": 8192}}, None),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 4096}}, 4096),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, 4096),
        ({"rope_parameters": {FULL: {"rope_type": "dynamic"}, SLIDING: {"rope_type": "default"}}, "max_position_embeddings": 2048}, 2048),
    ],
)
def test_rotations_that_depend_on_the_length_bound_what_is_shared(config: dict[str, Any], expected: int | None) -> None:
    assert constant_length(SimpleNamespace(**config)) == expected
