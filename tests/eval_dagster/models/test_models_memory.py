"""How large pieces may be: as the device's free memory allows."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_architectures
from transformers import LlamaConfig

from eval_dagster.models.transformers.network import control_groups
from eval_dagster.models.transformers.network.free_memory import free_memory
from eval_dagster.models.transformers.scoring import piece_limits as memory
from eval_dagster.models.transformers.scoring.piece_limits import piece_limits, token_bytes

GIB = 2**30


def test_a_token_takes_its_keys_and_values_and_one_layer_of_work() -> None:
    # Llama 2 7B: 512 KiB of keys and values a token in 16 bits, as its paper's successors count it.
    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32)
    assert token_bytes(config, 2) == 512 * 1024 + (8 * 4096 + 3 * 11008) * 2


def test_plenty_of_memory_gives_the_most_useful_size_and_little_gives_less(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    found = []
    for free in (64 * GIB, 2**21, 2**20, 2**10):
        monkeypatch.setattr(memory, "free_memory", lambda device, free=free: free)
        found.append(piece_limits(network, "cpu"))
    assert (found[0].tokens, found[0].chain) == (512, 1024)
    assert [limits.tokens for limits in found[1:]] == [limits.chain for limits in found[1:]]
    assert found[0].tokens > found[1].tokens > found[2].tokens > found[3].tokens == found[3].scored == 64
    assert found[0].scored > found[1].scored > found[2].scored
    assert found[0].scored * network.config.vocab_size * 4 <= 2**28


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
