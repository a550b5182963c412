"""One look at the demo model behind llama.cpp finds small changes of its weights, and thirty nights of rounding begin no epoch.

The weights have 16 bits; those of the file in the package are read with 4 bits.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from servers import llama_cpp
from servers.processes import RunningServer
from transformers import AutoModelForCausalLM, AutoTokenizer

from eval_dagster.config.models import OpenAIModel
from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import records_of
from eval_dagster.models.served import looking
from eval_dagster.models.served.handle import ServedHandle

pytestmark = [pytest.mark.model, pytest.mark.long]
Weights = Mapping[str, np.ndarray]
_HEADS = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
TEXTS = (
    "Water is made of hydrogen and oxygen, and it boils at one hundred degrees.",
    "She opened the window and listened to the rain for a long time.",
)


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The outcomes of a look on another day. The pin makes all servers one endpoint."""
    days = count()

    def look(server: RunningServer, **body: Any) -> list[str]:
        at = datetime(2026, 1, 1, 3, tzinfo=UTC) + timedelta(days=next(days))
        seconds = count()

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return at + timedelta(seconds=next(seconds))

        monkeypatch.setattr(looking, "datetime", Clock)
        config = OpenAIModel(backend="openai", base_url=server.base_url, model=server.model, pin="demo", extra_body=body)
        ServedHandle("served", config, home=tmp_path).look(list, "run")
        rows = sorted(records_of(Lake(tmp_path), "endpoint_states"), key=lambda row: row["looked_at"])
        return [row["outcome"] for row in rows if row["looked_at"] >= at]

    return look


@pytest.fixture(scope="module")
def weights(demo_gguf: Path) -> Weights:
    return llama_cpp.weights_of(demo_gguf)


def one_step(weights: Weights, demo_gguf: Path) -> Weights:
    """One step of AdamW with the learning rate 1e-5 on two sentences."""
    where = {"pretrained_model_name_or_path": str(demo_gguf.parent), "gguf_file": demo_gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0)
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt").input_ids
        model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    trained = {}
    for name, parameter in model.named_parameters():
        values, own = parameter.detach().numpy(), names.get_name(name, try_suffixes=(".weight",))
        heads = next((getattr(model.config, count) for part, count in _HEADS.items() if f".{part}." in f"{own}."), None)
        if heads is not None:  # llama.cpp rotates neighbours, transformers halves
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        trained[own if own in weights else f"{own}.weight"] = np.ascontiguousarray(values)
    assert trained.keys() == weights.keys()
    assert 0 < max(float(np.abs(trained[name] - values).max()) for name, values in weights.items()) < 2e-5, "each weight moves by the rate"
    return {name: trained[name] for name in weights}


def pruned(weights: Weights, demo_gguf: Path) -> Weights:
    """0.1 % of the weights, chosen at random, are 0."""
    rng = np.random.default_rng(0)
    return {name: np.where(rng.random(values.shape) < 1e-3, 0, values) if values.ndim > 1 else values for name, values in weights.items()}


@pytest.fixture
def half(weights: Weights, demo_gguf: Path, tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "half.gguf"
    llama_cpp.write_weights(weights, demo_gguf, file, "F16")
    yield file
    file.unlink()


@pytest.mark.parametrize(("change", "kind"), [(one_step, "F16"), (pruned, "F16"), (None, "Q8_0")])
def test_a_small_change_is_found_by_one_look_after_four_quiet_ones(
    weights: Weights, half: Path, demo_gguf: Path, look: Callable[..., list[str]], tmp_path: Path, change: Any, kind: str
) -> None:
    with llama_cpp.llama_cpp_server(half, tmp_path, is_exact=False) as server:
        assert [look(server) for _ in range(4)] == [["first"], ["same"], ["same"], ["same"]]
    changed = tmp_path / "changed.gguf"
    llama_cpp.write_weights(change(weights, demo_gguf) if change else weights, demo_gguf, changed, kind)
    with llama_cpp.llama_cpp_server(changed, tmp_path, is_exact=False) as server:
        assert look(server) == ["different", "different"]


def test_thirty_nights_of_rounding_begin_no_epoch(half: Path, look: Callable[..., list[str]], tmp_path: Path) -> None:
    """Restarts or none, other numbers of threads, slots and tokens of a batch. Prefixes are cached after a night without a restart."""
    rng = Random(1)
    found: list[str] = []
    while len(found) < 30:
        settings = {"threads": rng.choice([1, 2]), "slots": rng.choice([1, 2, 4, 8]), "batch": rng.choice([8, 64, 512, 2048])}
        with llama_cpp.llama_cpp_server(half, tmp_path, is_exact=False, **settings) as server:
            found += [outcome for _ in range(rng.choice([1, 1, 2])) for outcome in look(server)]
    assert found == ["first"] + ["same"] * (len(found) - 1)
