"""Hostile texts as prompts and choices of a real network with a real tokenizer: one that cannot be read is its request's error alone."""

from pathlib import Path

import pytest
from hostile_texts import HALVES, STORABLE

from eval_dagster.config.models import TransformersModel
from eval_dagster.models.base import Model
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.records import GenerationSettings, Request


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    config = TransformersModel.model_validate({"backend": "transformers", "source": {"folder": str(tiny_model)}, "device": "cpu"})
    return TransformersHandle("tiny", config, folder=tiny_model, home=tiny_model).load()


@pytest.mark.parametrize("kind", ["generation", "choices", "perplexity"])
def test_half_a_character_is_the_error_of_its_request_alone(model: Model, kind: str) -> None:
    texts = [*(text or "nothing" for text in STORABLE), *HALVES]
    requests = [request(number, f"Say: {text}", kind, f" {text}.") for number, text in enumerate(texts)]
    answers = {asked.request_id: response for asked, response in model.respond(requests)}
    assert len(answers) == len(texts)
    failed = [texts[int(name)] for name, response in answers.items() if response.error is not None]
    assert sorted(failed, key=ascii) == sorted(HALVES, key=ascii)


def request(number: int, prompt: str, kind: str, choice: str) -> Request:
    if kind == "generation":
        return Request(request_id=str(number), prompt=prompt, generation=GenerationSettings(max_tokens=3))
    if kind == "choices":
        return Request(request_id=str(number), prompt=prompt, choices=(choice, " other"))
    return Request(request_id=str(number), prompt=prompt, perplexity=True)
