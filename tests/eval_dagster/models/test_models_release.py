"""The weights of a model are freed before the next model is loaded."""

import gc
import json
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from tiny_models import OpenTiny, tiny_tokenizer
from tiny_vision import png
from transformers import LlamaConfig, LlamaForCausalLM

from eval_dagster.models.transformers import model as transformers_model
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records import GenerationSettings, Request
from eval_dagster.stages.partition import STAGES, StageFailure

REQUESTS = (
    Request(request_id="choices", prompt="the cat", choices=(" sat", " ran")),
    Request(request_id="perplexity", prompt="a dog ran over the hill", perplexity=True),
    Request(request_id="greedy", prompt="one two", generation=GenerationSettings(max_tokens=4)),
    Request(request_id="sampled", prompt="one two", generation=GenerationSettings(max_tokens=4, temperature=1.0, num_samples=2)),
    Request(request_id="too long", prompt="one two " * 99, choices=(" three",)),
)


@pytest.fixture
def without_collection() -> Iterator[None]:
    """Reference counts alone free memory, as they do until the collector happens to run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def weights_of(model: LoadedModel) -> list[weakref.ref[Any]]:
    return [weakref.ref(weights) for weights in model._generator._network.parameters()]


@pytest.mark.usefixtures("without_collection")
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_no_cycle_keeps_the_weights(open_tiny: OpenTiny, kind: str) -> None:
    model = open_tiny(kind).load()
    weights = weights_of(model)
    assert len(list(model.respond(REQUESTS))) == len(REQUESTS)
    del model
    assert not [reference for reference in weights if reference() is not None]


@pytest.mark.usefixtures("without_collection")
def test_no_image_keeps_the_weights(open_tiny: OpenTiny, vision_folders: dict[str, Path]) -> None:
    handle = open_tiny(folder=vision_folders["gemma3"])
    model = handle.load()
    weights = weights_of(model)
    ((_, response),) = model.respond(
        [Request(request_id="image", prompt=f"{handle.image_mark()} the cat", choices=(" sat", " ran"), images=(png("red"),))]
    )
    assert response.error is None
    del model
    assert not [reference for reference in weights if reference() is not None]


CONFIG = """
models:
  first: {backend: transformers, device: cpu, source: {folder: %s}}
  second: {backend: transformers, device: cpu, source: {folder: %s}}
  third: {backend: transformers, device: cpu, source: {folder: %s}}
evals:
  capitals: {task: capitals, limit: 2}
  arithmetic: {task: arithmetic, limit: 2}
"""


@pytest.mark.long
@pytest.mark.usefixtures("without_collection")
@few("kind", ["llama", "bloom"], kept=1)
def test_the_first_model_is_gone_when_the_second_is_loaded(
    kind: str, tiny_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bloom's network in transformers refers to itself."""
    config = tmp_path / "evals.yaml"
    config.write_text(CONFIG % (tiny_folders[kind], tiny_folders["gpt2"], tiny_folders["gpt2"]))
    project = Project.open(config_path=config, home=tmp_path / "home")
    load, seen, alive = transformers_model.load_network, [], []

    def watched(*arguments: Any) -> Any:
        alive.append(sum(reference() is not None for reference in seen))
        network, ends = load(*arguments)
        seen.extend(weakref.ref(weights) for weights in network.parameters())
        return network, ends

    monkeypatch.setattr(transformers_model, "load_network", watched)
    partitions = [(name, model) for model in ("first", "second") for name in ("capitals", "arithmetic")]
    outcomes = list(evaluate(project, partitions, stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert not [outcome for outcome in outcomes if isinstance(outcome, StageFailure)]
    assert alive == [0, 0]
    assert len(seen) > 40


MEASURE = """
    import gc, json, sys
    from pathlib import Path
    from eval_dagster.pipeline import evaluate
    from eval_dagster.progress.reporting import SilentReporter
    from eval_dagster.project import Project
    from eval_dagster.stages.partition import STAGES, StageFailure

    gc.disable()
    project = Project.open(config_path=Path(sys.argv[1]), home=Path(sys.argv[2]))
    peaks = []
    for model in ("first", "second", "third"):
        outcomes = list(evaluate(project, [("capitals", model)], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
        assert not [outcome for outcome in outcomes if isinstance(outcome, StageFailure)], outcomes
        # Not `ru_maxrss`, which begins at that of the process which started this one.
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        peaks.append(int(status["VmHWM"].split()[0]) * 1024)
    print(json.dumps(peaks))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_models_one_after_another_need_the_memory_of_one(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2, "num_attention_heads": 8}
    config = LlamaConfig(**sizes, vocab_size=len(tokenizer), max_position_embeddings=512, bos_token_id=0, eos_token_id=1)
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        # Of other random weights each: the answers of one are not those of the other.
        network = LlamaForCausalLM(config)
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    size = sum(weights.numel() for weights in network.parameters()) * torch.float32.itemsize
    (tmp_path / "evals.yaml").write_text(CONFIG % tuple(folders))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE), str(tmp_path / "evals.yaml"), str(tmp_path / "home")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout.splitlines()[-1])
    assert size > 80 * 2**20
    # Not from the first to the second: memory that the first frees is not all of a size which the second can use.
    assert peaks[2] - peaks[1] < 0.5 * size, (peaks, size)
