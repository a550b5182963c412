"""Grammars: every text matches its own from the first character to the last, greedy or sampled, alone or in a batch."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from transformers import AutoModelForCausalLM, AutoTokenizer

from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.records import GenerationSettings, Grammar, ModelResponse, Request

OpenTiny = Callable[..., TransformersHandle]

SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["cat", "dog"]}, "legs": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["animal", "legs"],
    "additionalProperties": False,
}
JSON = Grammar(kind="json_schema", value=json.dumps(SCHEMA))
DATE = Grammar(kind="regex", value=r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
WORDS = Grammar(kind="regex", value=r"(cat|dog)( and (cat|dog))*\.?")
PROMPTS = ("the cat sat on the mat and", "a dog", "one two three", "")
SAMPLING: dict[str, Any] = {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "num_samples": 4}


def requests_with(grammar: Grammar | None, prompts: Sequence[str] = PROMPTS, **settings: Any) -> list[Request]:
    generation = GenerationSettings(**{"max_tokens": 40, "grammar": grammar, **settings})
    return [Request(request_id=f"r{index}", prompt=prompt, generation=generation) for index, prompt in enumerate(prompts)]


def respond(model: LoadedModel, requests: Sequence[Request]) -> list[ModelResponse]:
    answers = {request.request_id: response for request, response in model.respond(requests)}
    return [answers[request.request_id] for request in requests]


def fits_schema(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict) and list(value) == ["animal", "legs"] and value["animal"] in ("cat", "dog") and value["legs"] in range(10)
    )


def matches(grammar: Grammar, text: str) -> bool:
    return fits_schema(text) if grammar.kind == "json_schema" else re.fullmatch(grammar.value, text) is not None


@pytest.mark.long
@pytest.mark.parametrize("grammar", [JSON, DATE, WORDS], ids=["json", "date", "words"])
@pytest.mark.parametrize("settings", [{}, SAMPLING], ids=["greedy", "sampled"])
@few("batch_size", [16, 1], kept=1)
def test_texts_match_their_grammar(grammar: Grammar, settings: dict[str, Any], batch_size: int, open_tiny: OpenTiny) -> None:
    model = open_tiny(batch_size=batch_size).load()
    free = respond(model, requests_with(None, **settings))
    assert not any(matches(grammar, text) for response in free for text in response.text)
    for response in respond(model, requests_with(grammar, **settings)):
        assert response.error is None
        for text, reason in zip(response.text, response.finish_reason, strict=True):
            assert (reason, matches(grammar, text)) == ("stop", True), text


def test_rows_end_separately_and_do_not_depend_on_their_neighbours(open_tiny: OpenTiny) -> None:
    requests = requests_with(WORDS, **SAMPLING)
    together = respond(open_tiny(batch_size=16).load(), requests)
    assert len({len(tokens) for response in together for tokens in response.output_tokens}) > 1
    model = open_tiny(batch_size=1).load()
    for request, response in zip(requests, together, strict=True):
        assert respond(model, [request])[0].text == response.text


def test_requests_with_and_without_a_grammar_are_answered_together(open_tiny: OpenTiny) -> None:
    model = open_tiny().load()
    free = Request(request_id="free", prompt="a dog", generation=GenerationSettings(max_tokens=12))
    constrained = Request(request_id="constrained", prompt="a dog", generation=GenerationSettings(max_tokens=40, grammar=DATE))
    one, other = respond(model, [free, constrained])
    assert one.text == respond(model, [free])[0].text
    assert matches(DATE, other.text[0])


def test_the_best_allowed_token_is_taken_and_its_logit_is_the_models_own(tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folders["llama"])
    generation = GenerationSettings(max_tokens=8, grammar=Grammar(kind="regex", value="[a-e]"))
    (response,) = respond(open_tiny().load(), [Request(request_id="r", prompt="the cat", generation=generation, use_logits=True)])
    with torch.no_grad():
        ids = torch.tensor([tokenizer.encode("the cat")])
        logits = AutoModelForCausalLM.from_pretrained(tiny_folders["llama"]).eval()(ids).logits[0, -1]
    letters = tokenizer.convert_tokens_to_ids(list("abcde"))
    best = letters[int(logits[letters].argmax())]
    assert response.output_tokens == ((best,),)
    assert response.logits is not None
    assert response.logits[0] == pytest.approx([float(logits[best])], abs=1e-5)


def test_a_text_cut_at_its_length_says_so(open_tiny: OpenTiny) -> None:
    for response in respond(open_tiny().load(), requests_with(DATE, max_tokens=5)):
        assert response.finish_reason == ("length",)
        assert re.fullmatch(r"[0-9]{4}-", response.text[0])


def test_white_space_in_json_comes_to_an_end(open_tiny: OpenTiny) -> None:
    """A model that loves white space is held to some of it."""
    model = open_tiny().load()
    spaces = model._codec.tokenizer.encode(" \n\t", add_special_tokens=False)
    bias = torch.nn.Linear(32, model._codec.tokenizer.vocab_size, bias=True)
    network = model._generator._network
    torch.nn.init.zeros_(bias.bias)
    with torch.no_grad():
        bias.bias[spaces] = 1e4
    network.lm_head = bias
    (response,) = respond(model, requests_with(Grammar(kind="json_schema", value='{"type": "array", "maxItems": 0}'), ["a"]))
    assert len(response.text[0]) > 2
    assert (json.loads(response.text[0]), response.finish_reason) == ([], ("stop",))


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar(kind="regex", value="(a"), "ModelError: The grammar is no valid regular expression"),
        (Grammar(kind="regex", value="(?=a)b"), "look-around, including look-ahead and look-behind, is not supported"),
        (Grammar(kind="json_schema", value='{"type":'), "ModelError: The grammar is no valid JSON schema"),
        (Grammar(kind="json_schema", value='{"type": "banana"}'), "Invalid type: banana"),
        (Grammar(kind="json_schema", value="[1]"), "ModelError: The grammar is no valid JSON schema: Expecting object schema"),
    ],
)
def test_a_grammar_that_is_not_valid_is_an_error_of_its_requests(grammar: Grammar, message: str, open_tiny: OpenTiny) -> None:
    bad = requests_with(grammar, ["a"])[0]
    good = Request(request_id="good", prompt="a", generation=GenerationSettings(max_tokens=20, grammar=DATE))
    refused, answered = respond(open_tiny().load(), [bad, good])
    assert refused.error is not None
    assert message in refused.error
    assert "\n" not in refused.error
    assert (refused.text, refused.retryable, answered.error) == ((), False, None)


def test_without_the_package_only_requests_with_a_grammar_fail(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    model = open_tiny().load()
    assert all(response.error is None for response in respond(model, requests_with(None)))
    for response in respond(model, requests_with(DATE)):
        assert response.error is not None
        assert response.error.startswith("ModelError: The request has a grammar")
        assert "pip install 'eval_dagster[grammar]'" in response.error
        assert response.retryable, "once it is installed, the request can be answered"
