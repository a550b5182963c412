"""The table of engines: made models have the stated size, goals are judged by what was measured, and a side that fails is a line."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The scripts of the benchmarks, which import each other by their names."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    import engine_table
    import engines
    import random_model
    import works

    found = {"engine_table": engine_table, "engines": engines, "random_model": random_model, "works": works}
    yield found
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


@pytest.mark.parametrize(("shape", "billions"), [("1b", 1.07), ("3b", 2.97), ("8b", 7.39)])
def test_shapes_have_the_stated_size(shape: str, billions: float, modules: dict[str, Any]) -> None:
    assert modules["random_model"].parameters_of(shape, 49_152) / 1e9 == pytest.approx(billions, abs=0.01)


def test_a_model_of_random_weights_loads_and_is_made_once(tiny_model: Path, tmp_path: Path, modules: dict[str, Any]) -> None:
    make = modules["random_model"].random_model
    folder = make("tiny", "bfloat16", tiny_model, tmp_path)
    network = AutoModelForCausalLM.from_pretrained(folder)
    assert network.dtype == torch.bfloat16
    vocabulary = len(AutoTokenizer.from_pretrained(folder))
    assert sum(weights.numel() for weights in network.parameters()) == modules["random_model"].parameters_of("tiny", vocabulary)
    changed = (folder / "model.safetensors").stat().st_mtime_ns
    assert make("tiny", "bfloat16", tiny_model, tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == changed
    assert make("tiny", "float32", tiny_model, tmp_path) != folder


def table(
    modules: dict[str, Any],
    work: str,
    seconds: dict[str, float | str],
    *,
    tokens: int = 100,
    off: Sequence[float] = (0, 0),
    dtype: str = "float32",
) -> Any:
    """A table in which the sides took so many seconds, or failed for a reason.

    `off` is how far a log-probability is from that of the plain forward, for this engine and for the other sides.
    """
    engine_table, engines, works = (modules[name] for name in ("engine_table", "engines", "works"))
    found = engine_table.Table(
        work=next(each for each in works.GPU_WORKS if each.name == work),
        model="demo",
        dtype=dtype,
        scale=1.0,
        nodes=100,
        profile={"seconds": 2.0, "in_operators_s": 1.0, "operators": {"aten::mm": 0.75}},
    )
    if work == "gsm8k":
        found.asked = {"kind": "text", "items": [{"context": "q"}]}
        answers: list[Any] = [{"text": "a", "output_tokens": [1], "input_tokens": [2]}]
    else:
        found.asked = {"kind": "choices", "items": [{"context": "q", "continuations": ["a", "b"], "gold": [0]}]}
        answers, found.plain = [], [[-1.0, -2.0]]
    for name, taken in seconds.items():
        side = engines.Side(name=name, python=Path("python"), script="side.py", arguments=[])
        if isinstance(taken, str):
            side.error = taken
        else:
            run = {"tokens": tokens, "peak_bytes": 2**20, "loading_s": 1.0, "versions": {"torch": "2"}, "ways": {"scoring": "tree: exact"}}
            difference = off[name != OURS]
            side.runs = [{**run, "seconds": taken, "answers": answers or [[-1.0 - difference, -2.0]]}]
        found.sides.append(side)
    return found


PEER, SERVED, OURS = "lm-eval, transformers (batch 64)", "lm-eval, vLLM", "this engine"


@pytest.mark.parametrize(
    ("work", "seconds", "more", "missed"),
    [
        ("mmlu", {PEER: 40.0, SERVED: 10.0, OURS: 10.0}, {}, []),
        (
            "mmlu",
            {PEER: 39.0, SERVED: 9.0, OURS: 10.0},
            {},
            ["4 times as fast as lm-eval with transformers", "as fast as lm-eval with vLLM"],
        ),
        ("hellaswag", {PEER: 20.0, SERVED: "no vLLM", OURS: 10.0}, {}, ["as fast as lm-eval with vLLM"]),
        ("gsm8k", {PEER: 20.0, SERVED: 10.0, OURS: 15.0}, {}, []),
        ("gsm8k", {PEER: 20.0, SERVED: 10.0, OURS: 15.1}, {}, ["texts within 1.5 times of vLLM"]),
        ("mmlu", {PEER: 40.0, SERVED: 10.0, OURS: 10.0}, {"tokens": 106}, ["tokens at most 1.05 of the tree"]),
        ("mmlu", {PEER: 40.0, SERVED: 10.0, OURS: 10.0}, {"off": (2e-3, 0.1)}, ["log-probabilities to 0.001"]),
        ("mmlu", {PEER: 40.0, SERVED: 10.0, OURS: 10.0}, {"off": (0.14, 0.1), "dtype": "bfloat16"}, []),
        ("mmlu", {PEER: 40.0, SERVED: 10.0, OURS: 10.0}, {"off": (0.16, 0.1), "dtype": "bfloat16"}, ["log-probabilities to 0.15"]),
        ("mmlu", {PEER: 40.0, SERVED: 10.0, OURS: "out of memory"}, {}, ["no measurement of this engine"]),
    ],
)
def test_goals_are_judged_by_what_was_measured(
    work: str, seconds: dict[str, float | str], more: dict[str, Any], missed: list[str], modules: dict[str, Any]
) -> None:
    assert modules["engine_table"].missed(table(modules, work, seconds, **more)) == missed


def test_a_side_that_fails_is_a_line_and_the_others_go_on(tmp_path: Path, modules: dict[str, Any]) -> None:
    side = modules["engines"].Side(name=SERVED, python=Path(sys.executable), script="no_such_side.py", arguments=[])
    assert side.measure(tmp_path / "work.json", tmp_path, tmp_path) is None
    assert "no_such_side.py" in side.error
    assert f"== {SERVED}\nno_such_side.py ended with status 2:\n" in (tmp_path / modules["engines"].ERRORS).read_text("utf-8")
    found = table(modules, "mmlu", {PEER: 40.0, SERVED: "no | vLLM\nhere", OURS: 8.0})
    text = "\n".join(modules["engine_table"].markdown(found))
    assert "| lm-eval, vLLM | failed: no / vLLM here |" in text
    assert "| lm-eval, transformers (batch 64) | 40.00 | 5.00 | 1.0 s | 100 | 1.000 | 1 MiB | accuracy 1.000" in text
    assert "operators 1.00 s of 2.00 s; of these `aten::mm` 75%" in text
    assert "Goals missed: as fast as lm-eval with vLLM." in text
