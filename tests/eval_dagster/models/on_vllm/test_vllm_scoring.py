"""Scores by an engine that answers as vLLM does, its prefix cache included; the numbers are a function of the tokens alone."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_models import tiny_tokenizer

from eval_dagster.errors import ModelError
from eval_dagster.models.transformers.encoding.tokenization import Codec
from eval_dagster.models.vllm.engine import Call
from eval_dagster.models.vllm.model import LoadedVllmModel
from eval_dagster.records import GenerationSettings, ModelResponse, Request

BLOCK = 4
"""Tokens of a block of the cache: a small one, so that it holds scored tokens too."""
BEST = 42
LONG = "the cat sat on the mat and a dog ran over the hill and sat down one two three four five six seven"


def logprob(before: tuple[int, ...], token: int) -> float:
    return -1.0 - (hash((before, token)) % 1000) / 100


class SimulatedEngine:
    """Answers with vLLM's records. What it reads from its cache has other tokens and numbers in its place, as in vLLM."""

    leaves_out = False
    """Whether places that it reads from its cache are left out, as by vLLM on a GPU."""

    def __init__(self, *, forgets: int | None = None):
        self.cached: set[tuple[int, ...]] = set()
        self.sent: list[tuple[tuple[int, ...], Mapping[str, Any]]] = []
        self.forgets = forgets

    def run(self, calls: Iterable[Call[Any]]) -> Iterator[tuple[Call[Any], Any]]:
        for call in reversed(list(calls)):
            if 9 in call.tokens:
                yield call, ValueError("token 9 is refused")
            else:
                yield call, self._answer(call.tokens, call.arguments)

    def _answer(self, tokens: tuple[int, ...], params: Mapping[str, Any]) -> Any:
        self.sent.append((tokens, params))
        reads = not params.get("skip_reading_prefix_cache", params.get("prompt_logprobs") is not None)
        blocks = [tokens[:end] for end in range(BLOCK, len(tokens), BLOCK)]
        cached = max((len(block) for block in blocks if block in self.cached), default=0) if reads else 0
        self.cached.update(blocks)
        scores = None
        if "prompt_logprobs" in params:
            scores = [
                None,
                *({token: _Found(logprob(tokens[:place], token)) for token in [tokens[place]]} for place in range(1, len(tokens))),
            ]
            for place in range(1, cached + 1):
                scores[place] = {-77: _Found(-1e-35)}
            if self.forgets is not None and len(tokens) > self.forgets and reads:
                scores[self.forgets] = {-77: _Found(0.0)}
            if self.leaves_out:
                scores = [None, *scores[cached + 1 :]]
        last = {token: _Found(logprob(tokens, token)) for token in params.get("logprob_token_ids", ())}
        written = SimpleNamespace(token_ids=[BEST], logprobs=[last], finish_reason="length")
        return SimpleNamespace(prompt_logprobs=scores, outputs=[written], num_cached_tokens=cached)


class _Found:
    def __init__(self, value: float):
        self.logprob = value
        self.rank = 1 if value > -3 else 5


@pytest.fixture(autouse=True, params=[False, True], ids=["kept places", "left out places"])
def _places(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedEngine, "leaves_out", request.param)


@pytest.fixture
def codec() -> Codec:
    return Codec(tiny_tokenizer(), max_length=64, truncate=False)


def answers(engine: Any, codec: Codec, requests: list[Request], *, has_adapter: bool = False) -> dict[str, ModelResponse]:
    model = LoadedVllmModel(engine, codec, end_tokens=[1], gpus=0, has_adapter=has_adapter)
    return {request.request_id: response for request, response in model.respond(requests)}


def expected(codec: Codec, request: Request) -> list[list[float]]:
    _, spans = codec.encode_choices(request)
    wholes = [((*span.input, span.tokens[-1]), len(span.input) + 1 - len(span.tokens)) for span in spans]
    return [[logprob(whole[:place], whole[place]) for place in range(start, len(whole))] for whole, start in wholes]


CHOICES = (" yes", " the cat sat down", " the cat sat down on the mat", " the cat sat on a hill", " no")


@pytest.mark.parametrize("forgets", [None, 21])
def test_scores_are_those_of_each_choice_alone(codec: Codec, forgets: int | None) -> None:
    requests = [Request(request_id=str(index), prompt=f"{LONG}{' red' * index}", choices=CHOICES) for index in range(4)]
    engine = SimulatedEngine(forgets=forgets)
    # Twice: the second time the cache holds every choice.
    for _ in range(2):
        found = answers(engine, codec, requests)
        for request in requests:
            assert [list(each) for each in found[request.request_id].token_logprobs] == expected(codec, request)


def test_the_cache_is_read_where_it_holds_prompts_only(codec: Codec) -> None:
    engine = SimulatedEngine()
    request = Request(request_id="1", prompt=LONG, choices=CHOICES)
    answers(engine, codec, [request])
    once = len(engine.sent)
    answers(engine, codec, [request])
    again = [tokens for tokens, params in engine.sent[once:] if params.get("skip_reading_prefix_cache")]
    assert again
    assert set(again) < {tokens for tokens, _ in engine.sent}


def test_choices_of_one_token_are_one_request(codec: Codec) -> None:
    engine = SimulatedEngine()
    single = [word for word in LONG.split() if len(codec.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) == 1]
    request = Request(request_id="1", prompt=LONG, choices=tuple(f" {word}" for word in sorted(set(single))[:3]))
    found = answers(engine, codec, [request])["1"]
    ((_, params),) = engine.sent
    assert len(params["logprob_token_ids"]) == 3
    assert "prompt_logprobs" not in params
    assert [math.fsum(each) for each in expected(codec, request)] == list(found.logprobs)


def test_no_request_asks_for_more_next_tokens_than_vllm_gives(codec: Codec) -> None:
    engine = SimulatedEngine()
    letters = [chr(code) for code in range(33, 127)] + [chr(code) for code in range(0xC0, 0x180)]
    requests = [Request(request_id=letter, prompt=LONG, choices=(letter,)) for letter in letters]
    found = answers(engine, codec, requests)
    assert len({token for _, params in engine.sent for token in params["logprob_token_ids"]}) > 128
    assert max(len(params["logprob_token_ids"]) for _, params in engine.sent) <= 128
    for request in requests:
        assert [list(each) for each in found[request.request_id].token_logprobs] == expected(codec, request)


def test_a_text_is_scored_from_its_start(codec: Codec) -> None:
    engine = SimulatedEngine()
    request = Request(request_id="1", prompt=LONG, perplexity=True)
    prefix, tokens = codec.encode_text(LONG)
    right = [logprob((prefix, *tokens[:index]), token) for index, token in enumerate(tokens)]
    for _ in range(2):
        assert list(answers(engine, codec, [request])["1"].logprobs) == right


def test_a_refused_request_is_an_error_of_its_own(codec: Codec) -> None:
    bad = tiny_tokenizer().decode([9])
    requests = [
        Request(request_id="bad", prompt=f"{LONG}{bad}", choices=(" yes", " no")),
        Request(request_id="good", prompt=LONG, choices=(" yes", " no")),
        Request(request_id="long", prompt=LONG * 9, choices=(" yes",)),
        Request(request_id="logits", prompt=LONG, choices=(" yes",), use_logits=True),
        Request(request_id="samples", prompt=LONG, generation=GenerationSettings(num_samples=2)),
        Request(request_id="image", prompt=LONG, images=(b"png",), generation=GenerationSettings(max_tokens=3)),
    ]
    found = answers(SimulatedEngine(), codec, requests)
    assert len(found) == len(requests)
    assert found["good"].error is None
    assert "token 9 is refused" in (found["bad"].error or "")
    for name, words in (("long", "PromptTooLongError"), ("logits", "logits"), ("samples", "temperature"), ("image", "text alone")):
        assert words in (found[name].error or "")


def test_an_engine_that_fails_as_a_whole_ends_the_run(codec: Codec) -> None:
    class Dead(SimulatedEngine):
        def run(self, calls: Iterable[Call[Any]]) -> Iterator[tuple[Call[Any], Any]]:
            raise ModelError("the engine failed")
            yield

    with pytest.raises(ModelError, match="the engine failed"):
        answers(Dead(), codec, [Request(request_id="1", prompt=LONG, choices=(" a",))])


def test_a_text_ends_before_its_end_token_or_stop_sequence(codec: Codec) -> None:
    written = codec.tokenizer(" red green blue", add_special_tokens=False)["input_ids"]

    class Writer(SimulatedEngine):
        def _answer(self, tokens: tuple[int, ...], params: Mapping[str, Any]) -> Any:
            self.sent.append((tokens, params))
            ends = params["stop_token_ids"]
            output = SimpleNamespace(token_ids=[*written, ends[0]], logprobs=None, finish_reason="stop")
            return SimpleNamespace(prompt_logprobs=None, outputs=[output], num_cached_tokens=BLOCK)

    request = Request(request_id="1", prompt=LONG, generation=GenerationSettings(max_tokens=9, stop_sequences=(" blue",)))
    engine: Any = Writer()
    model = LoadedVllmModel(engine, codec, end_tokens=[1], gpus=2)
    ((_, found),) = model.respond([request])
    assert (found.text, found.finish_reason, found.output_tokens) == ((" red green",), ("stop",), ((*written, 1),))
    _, usage = model.usage()
    assert usage.prompt_tokens_computed == len(engine.sent[0][0]) - BLOCK
    assert model.gpus() == 2


def test_with_an_adapter_nothing_asks_for_log_probabilities_of_prompts(codec: Codec) -> None:
    requests = [
        Request(request_id="ends", prompt=LONG, choices=(" one two three", " one two", " red", " yes no"), unconditioned_prompt="a dog"),
        Request(request_id="text", prompt="a dog ran over the hill", perplexity=True),
        Request(request_id="again", prompt=LONG, choices=(" one two three", " blue")),
    ]
    engine = SimulatedEngine()
    found, right = answers(engine, codec, requests, has_adapter=True), answers(SimulatedEngine(), codec, requests)
    assert not any("prompt_logprobs" in params for _, params in engine.sent)
    assert len({tokens for tokens, _ in engine.sent}) == len(engine.sent), "each beginning is sent once"
    for name, answer in right.items():
        assert found[name].token_logprobs == answer.token_logprobs
        assert found[name].unconditioned_logprobs == answer.unconditioned_logprobs
        assert found[name].output_tokens == answer.output_tokens


def test_with_an_adapter_a_text_that_would_take_too_much_memory_is_an_error_of_its_own(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eval_dagster.models.vllm.model._ASKED_BY_ONE", 100)
    requests = [
        Request(request_id="long", prompt=LONG, perplexity=True),
        Request(request_id="short", prompt="a dog ran", perplexity=True),
    ]
    found = answers(SimulatedEngine(), codec, requests, has_adapter=True)
    assert re.search(r"scores (\d+) tokens\..* Set `max_length: \d+` or less in evals\.yaml", found["long"].error or "")
    assert found["short"].error is None
