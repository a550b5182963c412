"""How large pieces may be: as the device's free memory allows."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_architectures
import torch
from transformers import LlamaConfig

from eval_dagster import control_groups
from eval_dagster.models.transformers.network.resources import free_memory, release_memory
from eval_dagster.models.transformers.scoring import prefix_tree
from eval_dagster.models.transformers.scoring.prefix_tree import LEAST_TOKENS, PieceLimits, PrefixTree, piece_limits, token_bytes
from eval_dagster.models.transformers.scoring.tree import TreeAttention

GIB = 2**30


def test_a_token_takes_its_keys_and_values_and_one_layer_of_work() -> None:
    # Llama 2 7B: 512 KiB of keys and values a token in 16 bits, as its paper's successors count it.
    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32)
    assert token_bytes(config, 2) == 512 * 1024 + (8 * 4096 + 3 * 11008) * 2


def test_plenty_of_memory_gives_the_most_useful_size_and_little_gives_less(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    found = []
    for free in (64 * GIB, 2**21, 2**20, 2**10):
        monkeypatch.setattr(prefix_tree, "free_memory", lambda device, free=free: free)
        found.append(piece_limits(network, "cpu"))
    assert (found[0].tokens, found[0].chain) == (512, 1024)
    assert [limits.tokens for limits in found[1:]] == [limits.chain for limits in found[1:]]
    assert found[0].tokens > found[1].tokens > found[2].tokens > found[3].tokens == found[3].scored == 64
    assert found[0].scored > found[1].scored > found[2].scored
    assert found[0].scored * network.config.vocab_size * 4 <= 2**28


@pytest.mark.parametrize(("cell_bytes", "most"), [(8, 8192), (12, 4096)])
def test_on_a_gpu_the_mask_counts(cell_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    found = []
    for free in (64 * GIB, GIB, GIB // 4):
        monkeypatch.setattr(prefix_tree, "free_memory", lambda device, free=free: free)
        limits = piece_limits(network, "cuda", cell_bytes=cell_bytes, most=most)
        found.append(limits.wide(0))
        for base in (0, 1000, 100_000):
            tokens = limits.wide(base)
            assert tokens == LEAST_TOKENS or tokens * (base + tokens) * cell_bytes < free / 4
        assert limits.wide(100_000) < limits.wide(0)
    assert limits.tokens == limits.chain == most, "keys and values of a tiny network are no limit"
    assert found[0] > most > found[2], "with little memory the mask is"


def test_a_mask_takes_no_more_than_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = {"full_attention": None, "sliding_attention": 7}
    sequences = sorted({(1, 2, index, *range(9)) for index in range(40)})
    piece = PrefixTree(sequences).piece(0, 2, PieceLimits(tokens=300, chain=300, scored=300), [1] * len(sequences))
    attention = TreeAttention(windows, dtype=torch.bfloat16, device="cpu")
    masks = attention.arguments(piece)["attention_mask"]
    entries = len(piece.tokens) * (piece.base + len(piece.tokens))
    numbers = sum(mask.untyped_storage().nbytes() for mask in masks.values())
    assert numbers <= entries * attention.cell_bytes()
    assert all(mask.stride(2) % 8 == 0 for mask in masks.values()), "torch copies other masks in each layer of a GPU"


def test_a_piece_has_no_more_entries_of_the_mask_than_allowed() -> None:
    sequences = sorted({(*range(200), index, *range(index, index + 20)) for index in range(60)})
    tree = PrefixTree(sequences)
    limits = PieceLimits(tokens=10_000, chain=10_000, scored=10_000, cells=60_000)
    first, base, pieces = 0, 0, 0
    while first < len(sequences):
        piece = tree.piece(first, base, limits, [1] * len(sequences))
        assert len(piece.tokens) * (piece.base + len(piece.tokens)) <= 60_000 or len(piece.tokens) <= LEAST_TOKENS
        first, base, pieces = piece.last, piece.keep, pieces + 1
    assert pieces > 5


def test_what_the_allocator_of_a_gpu_keeps_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"memory_reserved": 50, "memory_allocated": 20}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert free_memory("cuda:1") == 100 + 50 - 20


def test_an_apple_gpu_has_a_part_of_the_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 2**20)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 2**18)
    assert free_memory("mps") == 2**20 - 2**18
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 2**60)
    assert free_memory("mps") < 2**50, "no more than the machine has"


def test_kept_memory_is_given_back_on_each_kind_of_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append("cuda"))
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: given.append("mps"))
    release_memory()
    assert torch.cuda.is_available() or not given
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    given.clear()
    release_memory()
    assert given == ["cuda", "mps"]


def test_the_memory_of_this_machine_is_read() -> None:
    assert 2**20 < free_memory("cpu") < 2**50


def test_of_layers_that_differ_the_widest_counts() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert token_bytes(SimpleNamespace(**sizes, intermediate_size=[32, 128]), 4) == token_bytes(
        SimpleNamespace(**sizes, intermediate_size=128), 4
    )


@pytest.mark.parametrize(
    ("line", "folder", "most", "used", "read_files", "unlimited"),
    [
        ("0::/pod/container", "", "memory.max", "memory.current", "inactive_file", "max"),
        ("4:memory:/pod/container", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", str(2**63 - 4096)),
    ],
)
def test_no_more_is_free_than_the_limit_of_a_container_leaves(
    line: str, folder: str, most: str, used: str, read_files: str, unlimited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(group: str, bytes_: str) -> None:
        place = tmp_path / folder / group
        place.mkdir(parents=True, exist_ok=True)
        (place / most).write_text(f"{bytes_}\n")
        (place / used).write_text("50000\n")
        (place / "memory.stat").write_text(f"anon 30000\n{read_files} 20000\n")

    (tmp_path / "own").write_text(f"7:pids:/\n{line}\n")
    monkeypatch.setattr(control_groups, "_GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "_OWN_GROUPS", tmp_path / "own")
    plenty = free_memory("cpu")
    limit("pod/container", unlimited)
    assert plenty > 2**20, "a group without a file says nothing"
    assert free_memory("cpu") > 2**20
    limit("pod", "90000")
    assert free_memory("cpu") == 90000 - 50000 + 20000
    limit("pod/container", "40000")
    assert free_memory("cpu") == 10000
    limit("pod/container", "1")
    assert free_memory("cpu") == 0
