"""Border inputs of the demo model behind llama.cpp, without log-probabilities: thirty nights of rounding, then 8 bits or pruned weights."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from servers import llama_cpp
from servers.processes import RunningServer

from eval_dagster.config.models import OpenAIModel
from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import records_of
from eval_dagster.lake.tables.events import EndpointStateRow
from eval_dagster.models.served import looking
from eval_dagster.models.served.handle import ServedHandle

pytestmark = [pytest.mark.model, pytest.mark.long]
Looked = Callable[[RunningServer, Path], list[EndpointStateRow]]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Looked:
    """The rows of a look on another day. The pin makes all servers one endpoint; `extra_body` asks for no log-probabilities."""
    days = count()

    def look(server: RunningServer, home: Path) -> list[EndpointStateRow]:
        at = datetime(2026, 1, 1, 3, tzinfo=UTC) + timedelta(days=next(days))
        seconds = count()

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return at + timedelta(seconds=next(seconds))

        monkeypatch.setattr(looking, "datetime", Clock)
        config = OpenAIModel(
            backend="openai",
            base_url=server.base_url,
            model=server.model,
            pin="demo",
            canaries=10,
            border_canaries=True,
            extra_body={"logprobs": None},
        )
        ServedHandle("served", config, home=home).look(list, "run")
        rows: Any = sorted(records_of(Lake(home), "endpoint_states"), key=lambda row: row["looked_at"])
        return [row for row in rows if row["looked_at"] >= at]

    return look


@pytest.mark.timeout(3600)
def test_thirty_nights_of_rounding_begin_no_epoch_and_small_changes_do(demo_gguf: Path, look: Looked, tmp_path: Path) -> None:
    """Restarts or none, other numbers of threads, slots and tokens of a batch. Changes come after thirty nights."""
    weights, rng = llama_cpp.weights_of(demo_gguf), Random(1)
    chance = np.random.default_rng(0)
    pruned = {name: np.where(chance.random(each.shape) < 1e-3, 0, each) if each.ndim > 1 else each for name, each in weights.items()}
    files = {name: tmp_path / f"{name}.gguf" for name in ("half", "8 bits", "pruned")}
    for name, values, kind in (("half", weights, "F16"), ("8 bits", weights, "Q8_0"), ("pruned", pruned, "F16")):
        llama_cpp.write_weights(values, demo_gguf, files[name], kind)
    rows: list[EndpointStateRow] = []
    home = tmp_path / "home"
    while len({row["looked_at"].date() for row in rows}) < 31:
        settings = {"threads": rng.choice([1, 2]), "slots": rng.choice([1, 2, 4, 8]), "batch": rng.choice([8, 64, 512, 2048])}
        with llama_cpp.llama_cpp_server(files["half"], tmp_path, is_exact=False, **settings) as server:
            for _ in range(rng.choice([1, 1, 2])):
                rows += look(server, home)
    for name in ("8 bits", "pruned"):
        copy = tmp_path / name
        shutil.copytree(home, copy)
        with llama_cpp.llama_cpp_server(files[name], tmp_path, is_exact=False) as server:
            found = [look(server, copy) for _ in range(2)]
        assert found[-1][-1]["outcome"] == "different", [(row["outcome"], row["message"]) for each in found for row in each]
        p_value = found[-1][-1]["p_border"]
        assert p_value is not None
        assert p_value < 1e-4, "not by texts alone"
    assert not {row["outcome"] for row in rows} & {"different", "suspected"}
    assert rows[-1]["p_border"] is not None, "border inputs decide"
