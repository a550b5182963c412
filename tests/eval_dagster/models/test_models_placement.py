"""Tensors are on the device of the network: torch's `meta` device computes shapes alone, and refuses tensors of the CPU as a GPU does."""

from typing import Any

import pytest
import tiny_architectures
import torch
from few import few
from transformers import DynamicCache, masking_utils

from eval_dagster.models.transformers.generation import row_network
from eval_dagster.models.transformers.generation.logits_processors import GumbelNoise
from eval_dagster.models.transformers.generation.row_network import RowNetwork
from eval_dagster.models.transformers.network.architecture import layer_windows, logits_at
from eval_dagster.models.transformers.scoring.plain import PlainScorer
from eval_dagster.models.transformers.scoring.prefix_tree import PieceLimits, PrefixTree
from eval_dagster.models.transformers.scoring.spans import ScoredInput
from eval_dagster.models.transformers.scoring.tree import TreeAttention
from eval_dagster.models.usage import GenerationUsage, ScoringUsage

META = "meta"


def network_elsewhere(name: str) -> Any:
    return tiny_architectures.network(name).to(META)


def test_tensors_of_the_cpu_are_refused_there() -> None:
    """Or the tests below would show nothing."""
    network = network_elsewhere("llama")
    with pytest.raises(RuntimeError):
        network(input_ids=torch.tensor([[1, 2]], device=META), attention_mask=torch.zeros(1, 1, 2, 2))


@pytest.mark.parametrize("name", tiny_architectures.TREE)
@torch.inference_mode()
def test_pieces_are_where_the_network_is(name: str) -> None:
    network = network_elsewhere(name)
    windows = layer_windows(network.config)
    assert windows is not None
    attention = TreeAttention(windows, dtype=network.dtype, device=META)
    sequences = sorted({(*range(30), index, 5) for index in range(20)})
    for base in (0, 30):
        piece = PrefixTree(sequences).piece(0, base, PieceLimits(tokens=300, chain=300, scored=300), [1] * 20)
        cache = DynamicCache()
        if base:
            network(input_ids=torch.tensor([[*range(base)]], device=META), past_key_values=cache, use_cache=True)
        kept = torch.tensor([3, 4], device=META)
        ids = torch.tensor([piece.tokens], device=META)
        with attention.computed(piece):
            found = logits_at(network, kept, input_ids=ids, past_key_values=cache, use_cache=True, **attention.arguments(piece))
        assert (found.device.type, found.shape[1]) == (META, 2)


@torch.inference_mode()
def test_plain_rows_are_where_the_network_is() -> None:
    scorer = PlainScorer(network_elsewhere("bloom"), device=META, pad_token=0, usage=ScoringUsage())
    inputs = [ScoredInput(tokens=(1, 2, 3), spans=[(4,)]), ScoredInput(tokens=(1, 2), spans=[(3, 4)])]
    assert scorer._logits(inputs, [0, 1, 2]).device.type == META


@pytest.mark.long
@few("name", ["llama", "gpt2", "gemma3"], kept=1)
def test_rows_are_where_the_network_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_network, "free_memory", lambda device: 2**30)
    # It reads the mask, which has no values here.
    monkeypatch.setattr(masking_utils, "_ignore_causal_mask_sdpa", lambda *_, **__: False)
    rows = RowNetwork(network_elsewhere(name), GenerationUsage(), device=META)
    rows.clear(rows=3, longest=20, ahead=200)
    for tokens in ([1, 2, 3, 4], [1, 2, 5], [1, 2, 5, 6, 7]):
        assert rows.prefill(tokens, 2).device.type == META
        rows.join()
    for _ in range(150):
        assert rows.step([4, 5, 6]).shape == (3, tiny_architectures.VOCABULARY)
    rows.leave(0)
    assert rows.step([4, 5]).device.type == META


def test_noise_is_where_the_scores_are() -> None:
    scores = torch.zeros((2, 50), device=META)
    generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
    assert GumbelNoise(generators)(torch.empty((0, 0)), scores).device.type == META
