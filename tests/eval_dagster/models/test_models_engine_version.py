"""The version of an engine is raised wherever its answers change: golden answers hold it to that."""

import json
from pathlib import Path
from typing import Any

import pytest
from engine_goldens import FILE, ROUNDING, answers_of, problem_of
from few import few
from tiny_architectures import network
from tiny_vision import png
from transformers import PreTrainedTokenizerFast

from eval_dagster.config.models import TransformersModel
from eval_dagster.models import scripted
from eval_dagster.models.registry import open_model
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.models.transformers import handle as transformers_handle
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.records import GenerationSettings, Grammar, Request
from eval_dagster.versions.hashes import package_versions

SHARED = "Question: which of these animals barks, and which of them says nothing at all?\nAnswer:"
LONG = "A ship set out at dawn. Its crew of nine had food for a week. " * 12


def text(name: str, prompt: str, **settings: Any) -> Request:
    return Request(request_id=name, prompt=prompt, generation=GenerationSettings(**{"max_tokens": 12, **settings}), use_logits=True)


SCORED = [
    Request(request_id="choices", prompt=SHARED, choices=(" the dog", " the dogfish", " a cat")),
    Request(request_id="choices with a prior", prompt=SHARED, choices=(" no", " yes"), unconditioned_prompt="Answer:", use_logits=True),
    Request(request_id="choices without context", prompt="", choices=("One", "Two")),
    Request(request_id="perplexity", prompt="Rain fell on the hills for 3 days.", perplexity=True),
    Request(request_id="perplexity beyond the context", prompt=LONG, perplexity=True),
]
WRITTEN = [
    text("greedy", SHARED),
    text("greedy, same beginning", SHARED + " the"),
    text("greedy, stopped", "one two", stop_sequences=("e", "t")),
    text("sampled", SHARED, temperature=1.0, num_samples=2, seed=5),
    text("sampled of few", "one two", temperature=1.5, top_k=5, top_p=0.9),
    text("grammar", "2 +", grammar=Grammar(kind="regex", value="[0-9]{3}(cat|dog)")),
]
TOO_LONG = [Request(request_id="too long", prompt=LONG, choices=(" end",)), text("text after too long a prompt", LONG)]

KINDS = (
    "llama",
    "qwen3",
    "gemma3",
    "mistral with a window",
    "gpt2",
    "gpt_neox",
    "phi3 of two rotations",
    "olmo2",
    "bloom",
    "gpt_neo",
    "mamba",
)


def check(name: str, model: LoadedModel, requests: list[Request], config: pytest.Config, dtype: str = "float32") -> None:
    problem = problem_of(
        name,
        answers_of(model, requests),
        engine="ENGINE_VERSION in eval_dagster/models/transformers/handle.py",
        version=transformers_handle.ENGINE_VERSION,
        packages=package_versions(transformers_handle.PACKAGES),
        tolerance=ROUNDING[dtype],
        update=config.getoption("--update-goldens"),
        file=FILE,
    )
    assert problem is None, problem


def handle_of(folder: Path, **settings: Any) -> TransformersHandle:
    section = {"backend": "transformers", "device": "cpu", "source": {"folder": str(folder)}, **settings}
    handle = open_model("golden", TransformersModel.model_validate(section), folder=folder, home=folder / "home")
    assert isinstance(handle, TransformersHandle)
    return handle


def saved(kind: str, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    network(kind).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.long
@few("kind", KINDS, kept=3)
def test_answers_of_an_architecture(kind: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    model = handle_of(saved(kind, tokenizer, tmp_path)).load()
    check(kind, model, [*SCORED, *WRITTEN, *TOO_LONG], pytestconfig)


def test_answers_of_a_truncating_model(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    model = handle_of(saved("llama", tokenizer, tmp_path), truncate=True, max_length=48).load()
    check("llama, truncating", model, [*SCORED, *TOO_LONG], pytestconfig)


def test_answers_in_bfloat16(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    model = handle_of(saved("llama", tokenizer, tmp_path), dtype="bfloat16").load()
    # What is greedy, or written, may be a matter of rounding here.
    check("llama, bfloat16", model, [SCORED[1]], pytestconfig, "bfloat16")


@pytest.mark.parametrize("kind", ["gemma3", "idefics3"])
def test_answers_about_images(kind: str, vision_folders: dict[str, Path], pytestconfig: pytest.Config) -> None:
    handle = handle_of(vision_folders[kind])
    prompt = f"{handle.image_mark()} the cat"
    requests = [
        Request(request_id="choices", prompt=prompt, choices=(" sat", " ran"), images=(png("red"),)),
        Request(
            request_id="text", prompt=prompt, generation=GenerationSettings(max_tokens=6), images=(png("blue", (8, 30)),), use_logits=True
        ),
    ]
    check(f"{kind} with images", handle.load(), requests, pytestconfig)


@pytest.mark.long
@pytest.mark.model
def test_answers_of_the_demo_model(demo_model: LoadedModel, pytestconfig: pytest.Config) -> None:
    requests = [*SCORED[:2], *WRITTEN[:1], WRITTEN[3]]
    check("SmolLM2-135M-Instruct", demo_model, requests, pytestconfig)


def test_answers_of_the_scripted_engine(pytestconfig: pytest.Config) -> None:
    table = ScriptedHandle("table", answers={"barks": "the dog", "two": "three e"}, default="none").load()
    problem = problem_of(
        "scripted",
        answers_of(table, [*SCORED[:4], *WRITTEN[:3]]),
        engine="ENGINE_VERSION in eval_dagster/models/scripted.py",
        version=scripted.ENGINE_VERSION,
        packages={},
        tolerance=1e-9,
        update=pytestconfig.getoption("--update-goldens"),
        file=FILE,
    )
    assert problem is None, problem


def of(seen: dict[str, Any], file: Path, *, version: int = 1, packages: str = "1", update: bool = False) -> str | None:
    return problem_of(
        "m", seen, engine="THE_VERSION", version=version, packages={"torch": packages}, tolerance=1e-3, update=update, file=file
    )


def test_numbers_that_move_need_another_version(tmp_path: Path) -> None:
    file = tmp_path / "goldens.json"
    first = {"r": {"logprobs": [-1.0, -2.5], "text": ["a"]}}
    assert "there is no golden answer" in str(of(first, file))
    assert of(first, file, update=True) is None
    assert of({"r": {"logprobs": [-1.0005, -2.5], "text": ["a"]}}, file) is None
    written = file.read_text()
    for moved in (
        {"r": {"logprobs": [-1.01, -2.5], "text": ["a"]}},
        {"r": {"logprobs": [-1.0, -2.5], "text": ["b"]}},
        {"r": {"logprobs": [-1.0], "text": ["a"]}},
        {"r": {"logprobs": [-1.0, float("nan")], "text": ["a"]}},
        {},
    ):
        for update in (False, True):
            assert "answers moved and the version of the engine did not" in str(of(moved, file, update=update))
            assert "raise THE_VERSION" in str(of(moved, file, update=update))
        assert file.read_text() == written
        assert "run `make goldens`" in str(of(moved, file, version=2))
        assert "run `make goldens`" in str(of(moved, file, packages="2"))
    assert "no number moved" in str(of(first, file, version=2))
    assert of(moved, file, version=2, update=True) is None
    assert json.loads(file.read_text())["m"]["made_by"] == {"engine": 2, "packages": {"torch": "1"}}
