"""Rows that come and go: the same texts as by `generate`, each prompt's tokens computed once, failures kept to their request."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import tiny_architectures
import torch
from tiny_models import tiny_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from eval_dagster.models.transformers.encoding.tokenization import Codec, by_prefix
from eval_dagster.models.transformers.generation import engine as generation
from eval_dagster.models.transformers.generation import row_network
from eval_dagster.models.transformers.generation.engine import GenerationEngine
from eval_dagster.models.transformers.generation.row_network import RowNetwork
from eval_dagster.models.transformers.network.batching import BatchRunner
from eval_dagster.records import GenerationSettings, ModelResponse, Request

TOKENIZER = tiny_tokenizer()
CONTEXT = 512
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
# Large initial weights: the texts then vary, and no two logits are nearly equal.
WILD = {"initializer_range": 0.3}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {**GROUPED, **WILD},
    "qwen3": {**GROUPED, **WILD},
    "mistral": {**GROUPED, **WILD, "sliding_window": 7},
    "gemma3_text": {**GROUPED, **WILD, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
    "phi3": {**GROUPED, **WILD, "pad_token_id": 1},
    "olmo2": {**GROUPED, **WILD, "pad_token_id": 1},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, **WILD},
    "gpt_neox": {**SIZES, **WILD},
    "opt": {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 32, "init_std": 0.3},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, **WILD},
    "mixtral": {**GROUPED, **WILD, "num_local_experts": 4, "num_experts_per_tok": 2},
}
OTHERS: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **WILD},
    "lfm2": {**GROUPED, **WILD, "layer_types": ["conv", "full_attention"]},
}
SHOTS = "one two three four five six seven\nred green blue, yes no\n"
PROMPTS = tuple(
    SHOTS + question
    for question in ("the cat sat on", "the cat sat on the mat and ran over the hill", "a dog", "one", "the cat", "blue blue yes", "a dog")
)


pytestmark = pytest.mark.usefixtures("one_thread")


def network_of(kind: str, **others: Any) -> Any:
    torch.manual_seed(7)
    lengths = "n_positions" if kind == "gpt2" else "max_position_embeddings"
    settings = {
        "vocab_size": len(TOKENIZER),
        "bos_token_id": 0,
        "eos_token_id": 1,
        lengths: CONTEXT,
        **KINDS.get(kind, {}),
        **OTHERS.get(kind, {}),
        **others,
    }
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings)).eval()


def engine_of(network: Any, *, rows: int = 3) -> GenerationEngine:
    codec = Codec(TOKENIZER, max_length=CONTEXT, truncate=False)
    return GenerationEngine(network, codec, BatchRunner(rows=rows, tokens=None), device="cpu", pad_token=1, end_tokens=[1])


def requests_with(prompts: Sequence[str] = PROMPTS, **settings: Any) -> list[Request]:
    how = GenerationSettings(**{"max_tokens": 20, **settings})
    return [Request(request_id=f"r{index}", prompt=prompt, generation=how) for index, prompt in enumerate(prompts)]


def respond(engine: GenerationEngine, requests: Sequence[Request]) -> list[ModelResponse]:
    answers = dict[str, ModelResponse]()
    for request, response in engine.respond(requests):
        assert request.request_id not in answers
        answers[request.request_id] = response
    return [answers[request.request_id] for request in requests]


def generated(network: Any, prompt: str, count: int) -> list[int]:
    """What transformers' own `generate` gives for a prompt by itself."""
    ids = torch.tensor([TOKENIZER.encode(prompt)])
    tokens = network.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=1, eos_token_id=1
    )
    return list(tokens[0, ids.shape[1] :].tolist())


def nodes(prompts: Sequence[Sequence[int]]) -> int:
    """Nodes of the tree of some prompts' tokens."""
    return len({tuple(prompt[:length]) for prompt in prompts for length in range(1, len(prompt) + 1)})


def computed(engine: GenerationEngine) -> tuple[int, int]:
    """Tokens of prompts and of texts that went through the network."""
    return engine.usage.prompt_tokens_computed, engine.usage.tokens_decoded


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_texts_equal_those_of_generate(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    network = network_of(kind)
    engine = engine_of(network)
    responses = respond(engine, requests_with())
    assert not caplog.records, "the rows of this architecture come and go"
    assert [list(response.output_tokens[0]) for response in responses] == [generated(network, prompt, 20) for prompt in PROMPTS]
    assert len({response.text for response in responses}) > 2


@pytest.mark.long
@pytest.mark.parametrize("kind", OTHERS)
def test_models_with_another_memory_generate_in_padded_batches_and_say_so(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    network = network_of(kind)
    engine = engine_of(network, rows=1)
    with caplog.at_level(logging.WARNING):
        responses = [*respond(engine, requests_with(PROMPTS[:2])), *respond(engine, requests_with(PROMPTS[2:]))]
    assert [list(response.output_tokens[0]) for response in responses] == [generated(network, prompt, 20) for prompt in PROMPTS]
    (message,) = [record.getMessage() for record in caplog.records if record.name == generation.__name__]
    assert "rows of this model cannot come and go, for it" in message
    assert type(network).__name__ in message


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_of_few_digits_is_no_reason_to_do_without(dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    # Of a depth at which bfloat16 is far off by rounding alone.
    network = network_of("llama", num_hidden_layers=24).to(dtype)
    responses = respond(engine_of(network), requests_with())
    assert not caplog.records
    assert all(response.error is None and len(response.output_tokens[0]) == 20 for response in responses)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids", "past_key_values"])
def test_a_network_that_does_not_honour_what_rows_need_is_found_out(
    ignored: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    network = network_of("llama").to(dtype)
    right = [generated(network, prompt, 20) for prompt in PROMPTS]
    forward = network.forward

    def forgetful(
        input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, past_key_values: Any = None, **others: Any
    ) -> Any:
        arguments = {"attention_mask": attention_mask, "position_ids": position_ids, "past_key_values": past_key_values}
        if hasattr(past_key_values, "reserve"):  # not the cache of `generate`
            arguments[ignored] = None
        return forward(input_ids=input_ids, **arguments, **others)

    network.forward = forgetful
    engine = engine_of(network, rows=1)
    responses = respond(engine, requests_with())
    assert "its logits are then off by" in caplog.text
    network.forward = forward
    assert [list(response.output_tokens[0]) for response in responses] == right


def test_rotations_that_depend_on_the_length_depend_on_no_neighbour(caplog: pytest.LogCaptureFixture) -> None:
    """A text that may outgrow the first rotation is computed by itself, as `generate` does it: with the other one from there on."""
    network = network_of("phi3", **tiny_architectures.LONG_ROPE)
    long = " ".join(f"{word} {PROMPTS[0]}" for word in ("red", "blue", "yes"))
    prompts = ("one two three", "the cat sat", PROMPTS[2], PROMPTS[1], long)
    lengths = [len(TOKENIZER.encode(prompt)) for prompt in prompts]
    original = tiny_architectures.ORIGINAL
    assert lengths[2] + 30 == original < lengths[3] + 30
    assert lengths[3] < original < lengths[4]
    engine = engine_of(network, rows=4)
    responses = respond(engine, requests_with(prompts, max_tokens=30))
    assert [list(response.output_tokens[0]) for response in responses] == [generated(network, prompt, 30) for prompt in prompts]
    assert (engine.usage.path, engine.usage.elsewhere) == ("rows", 2)
    assert f"2 of 5 texts are generated by themselves: beyond {original} tokens" in caplog.text
    before = engine.usage.prompt_tokens_computed
    engine._is_checked = False
    respond(engine, requests_with(prompts[:2]))
    assert engine.usage.prompt_tokens_computed > before, "the check takes nothing away from what was counted"


def test_each_token_is_computed_once() -> None:
    engine = engine_of(network_of("llama"))
    respond(engine, requests_with(PROMPTS[:1]))
    before = computed(engine)
    responses = respond(engine, requests_with(stop_sequences=("e", "o")))
    prompts = [TOKENIZER.encode(prompt) for prompt in PROMPTS]
    lengths = [len(response.output_tokens[0]) for response in responses]
    assert len(set(lengths)) > 1, "rows leave at different times"
    after = computed(engine)
    assert after[0] - before[0] == nodes(prompts) < sum(map(len, prompts)) / 2
    # The last token of a text is never fed, and no row stays after its own.
    assert after[1] - before[1] == sum(lengths) - len(lengths)


def test_what_it_took_is_counted() -> None:
    engine = engine_of(network_of("llama"), rows=7)
    assert (engine.usage.path, engine.usage.reuse()) == ("rows", None)
    responses = respond(engine, requests_with(num_samples=2, temperature=1.0))
    usage = engine.usage
    assert usage.requests == len(PROMPTS)
    assert usage.prompt_tokens_asked == 2 * sum(len(response.input_tokens) for response in responses)
    assert usage.reuse() == usage.prompt_tokens_asked / nodes([response.input_tokens for response in responses])
    assert usage.passes < usage.tokens_decoded
    assert usage.reason.startswith("checked: ")


def test_texts_and_samples_are_those_of_padded_batches() -> None:
    requests = [*requests_with(), *requests_with(temperature=0.9, top_k=30, top_p=0.9, num_samples=3, seed=5)]
    requests = [replace(request, request_id=f"{place}") for place, request in enumerate(requests)]
    engine, padded = engine_of(network_of("llama")), engine_of(network_of("llama"))
    padded._is_checked, padded.usage.path = True, "padded"
    for mine, theirs in zip(respond(engine, requests), respond(padded, requests), strict=True):
        assert mine.output_tokens == theirs.output_tokens
        assert (mine.text, mine.finish_reason) == (theirs.text, theirs.finish_reason)
    assert engine.usage.prompt_tokens_computed < engine.usage.prompt_tokens_asked <= padded.usage.prompt_tokens_computed


def test_the_samples_of_a_prompt_share_its_computation() -> None:
    engine = engine_of(network_of("llama"))
    respond(engine, requests_with(PROMPTS[:1]))
    before = computed(engine)[0]
    (response,) = respond(engine, requests_with(PROMPTS[:1], num_samples=5, temperature=1.0))
    assert len(set(response.text)) == 5
    assert computed(engine)[0] - before == len(response.input_tokens)


@pytest.mark.long
def test_many_texts_longer_than_the_room_made_at_a_time() -> None:
    network = network_of("mistral")
    # Nothing ends but by its length.
    engine = GenerationEngine(
        network,
        Codec(TOKENIZER, max_length=CONTEXT, truncate=False),
        BatchRunner(rows=2, tokens=None),
        device="cpu",
        pad_token=1,
        end_tokens=[],
    )
    ids = [torch.tensor([TOKENIZER.encode(prompt)]) for prompt in PROMPTS[:4]]
    for response, prompt in zip(respond(engine, requests_with(PROMPTS[:4], max_tokens=300)), ids, strict=True):
        expected = network.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=300, do_sample=False, eos_token_id=None, pad_token_id=1
        )
        assert list(response.output_tokens[0]) == expected[0, prompt.shape[1] :].tolist()


def test_a_long_prompt_is_computed_in_parts() -> None:
    network = network_of("gemma3_text")
    engine = engine_of(network)
    engine._decoder.chunk = 5
    assert [list(response.output_tokens[0]) for response in respond(engine, requests_with())] == [
        generated(network, prompt, 20) for prompt in PROMPTS
    ]


@pytest.mark.parametrize("seed", range(20))
def test_prompts_in_order_share_all_that_they_can(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    prompts = [
        tuple(torch.randint(2 + seed % 3, (int(length),), generator=draw).tolist()) for length in torch.randint(1, 9, (40,), generator=draw)
    ]
    ordered = by_prefix(prompts, tuple)
    assert sorted(ordered) == sorted(prompts)
    total, before = 0, tuple[int, ...]()
    for prompt in ordered:
        shared = next(
            (place for place, (one, other) in enumerate(zip(before, prompt, strict=False)) if one != other), min(len(before), len(prompt))
        )
        assert shared < len(prompt) or before == prompt, "the last token must be computed, for what comes after it"
        total += len(prompt) - shared
        before = prompt
    assert total == nodes(prompts)


def test_prompts_that_share_nothing_come_longest_first_and_equal_ones_in_their_order() -> None:
    items = [("a", (1,)), ("b", (2, 3)), ("c", (4, 5, 6)), ("d", (2, 3))]
    assert [name for name, _ in by_prefix(items, lambda item: item[1])] == ["c", "b", "d", "a"]
    assert by_prefix([], tuple) == []


def test_rows_are_no_more_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = respond(engine_of(network_of("llama"), rows=7), requests_with())
    network = network_of("llama")
    engine = engine_of(network, rows=7)
    assert engine._can_decode()
    # Keys and values of 2 layers, 2 heads, 8 features and 4 bytes; half the memory is left alone.
    longest = max(len(TOKENIZER.encode(prompt)) for prompt in PROMPTS)
    monkeypatch.setattr(row_network, "free_memory", lambda device: 2 * 3 * (longest + 20) * 2 * 2 * 2 * 8 * 4)
    rows = set[int]()
    failing(network, lambda arguments: rows.add(len(arguments["input_ids"])))
    responses = respond(engine, requests_with())
    assert max(rows) == 3
    assert [response.output_tokens for response in responses] == [response.output_tokens for response in expected]


def test_a_long_prompt_takes_no_memory_from_the_rows_of_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [PROMPTS[0] + " cat" * 300, *("a dog" + " hill" * count for count in range(6))]
    expected = respond(engine_of(network_of("llama"), rows=7), requests_with(prompts))
    network = network_of("llama")
    engine = engine_of(network, rows=7)
    assert engine._can_decode()
    longest = max(len(TOKENIZER.encode(prompt)) for prompt in prompts)
    monkeypatch.setattr(row_network, "free_memory", lambda device: 2 * (longest + 20) * 2 * 2 * 2 * 8 * 4)
    rows = set[int]()
    failing(network, lambda arguments: rows.add(len(arguments["input_ids"])))
    responses = respond(engine, requests_with(prompts))
    assert max(rows) == 6
    assert [response.output_tokens for response in responses] == [response.output_tokens for response in expected]


def test_a_text_without_a_maximum_takes_the_memory_of_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of("llama", max_position_embeddings=100_000)
    columns = list[int]()
    step = RowNetwork.step

    def watched(self: RowNetwork, tokens: Sequence[int]) -> torch.Tensor:
        logits = step(self, tokens)
        columns.append(self._batch.layers[0].keys.shape[2])
        return logits

    monkeypatch.setattr(RowNetwork, "step", watched)
    codec = Codec(TOKENIZER, max_length=100_000, truncate=False)
    runner = BatchRunner(rows=3, tokens=None)
    engine = GenerationEngine(network, codec, runner, device="cpu", pad_token=1, end_tokens=[1])
    assert engine._can_decode()
    columns.clear()
    prompts = PROMPTS[:4]
    free = respond(engine, requests_with(prompts, max_tokens=None, stop_sequences=("a", "e")))
    assert all(response.finish_reason == ("stop",) for response in free)
    longest = max(len(tokens) for response in free for tokens in response.output_tokens)
    widest = max(len(TOKENIZER.encode(prompt)) for prompt in prompts)
    assert max(columns) <= widest + longest + 2 * 128


@pytest.mark.long
def test_rows_that_outgrow_the_memory_go_on_with_fewer(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    expected = respond(engine_of(network_of("llama"), rows=4), requests_with(PROMPTS[:4], max_tokens=None))
    assert max(len(tokens) for response in expected for tokens in response.output_tokens) > 300, "the rows have to grow"
    engine = engine_of(network_of("llama"), rows=4)
    assert engine._can_decode()
    network = engine._decoder.network

    def free(device: str) -> int:
        held = network._batch.layers[0].keys if network._batch.layers else torch.empty(0, 0, 0)
        # Of a token: keys and values of 2 layers, 2 heads, 8 features and 4 bytes. Four rows have room for 418 columns, two for all.
        return 800_000 - held.shape[0] * held.shape[2] * 2 * 2 * 2 * 8 * 4

    monkeypatch.setattr(row_network, "free_memory", free)
    responses = respond(engine, requests_with(PROMPTS[:4], max_tokens=None))
    assert "out of memory with" in caplog.text
    assert [response.output_tokens for response in responses] == [response.output_tokens for response in expected]


Fail = Callable[[dict[str, Any]], Exception | None]


def failing(network: Any, fail: Fail) -> Any:
    """The network, raising what `fail` makes of its arguments."""
    forward = network.forward

    def attempt(
        input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, past_key_values: Any = None, **others: Any
    ) -> Any:
        arguments = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids, **others}
        error = fail(arguments)
        if error is not None:
            raise error
        return forward(**arguments, past_key_values=past_key_values)

    network.forward = attempt
    return network


def memory_for(most: int, count: Callable[[dict[str, Any]], int]) -> Fail:
    return lambda arguments: RuntimeError("not enough memory (simulated)") if count(arguments) > most else None


def test_running_out_of_memory_halves_the_rows_and_loses_nothing() -> None:
    expected = respond(engine_of(network_of("llama")), requests_with())
    engine = engine_of(network_of("llama"), rows=7)
    assert engine._can_decode()
    failing(engine._network, memory_for(2, lambda arguments: len(arguments["input_ids"])))
    responses = respond(engine, requests_with())
    assert [response.output_tokens for response in responses] == [response.output_tokens for response in expected]
    assert engine._decoder.rows == 1


def test_running_out_of_memory_in_a_prompt_computes_it_in_smaller_parts() -> None:
    prompts = [prompt + " cat" * 150 for prompt in PROMPTS[:2]]
    expected = respond(engine_of(network_of("llama")), requests_with(prompts))
    engine = engine_of(network_of("llama"))
    assert engine._can_decode()
    failing(engine._network, memory_for(100, lambda arguments: arguments["input_ids"].shape[1]))
    responses = respond(engine, requests_with(prompts))
    assert [response.output_tokens for response in responses] == [response.output_tokens for response in expected]
    assert engine._decoder.chunk == 64


def test_what_finds_no_memory_even_alone_is_an_error_of_its_request() -> None:
    prompts = [PROMPTS[0], PROMPTS[1] + " cat" * 200, PROMPTS[2]]
    engine = engine_of(network_of("llama"))
    assert engine._can_decode()
    failing(engine._network, memory_for(150, lambda arguments: arguments["attention_mask"].shape[1]))
    one, long, other = respond(engine, requests_with(prompts))
    assert long.error == "RuntimeError: not enough memory (simulated)"
    assert long.retryable
    assert (one.error, other.error) == (None, None)


@pytest.mark.parametrize("where", ["prompt", "text"])
def test_a_request_that_fails_fails_alone(where: str) -> None:
    expected = respond(engine_of(network_of("llama")), requests_with())
    token = TOKENIZER.encode(" dog", add_special_tokens=False)[-1] if where == "prompt" else expected[0].output_tokens[0][3]
    culprits = [token in (response.input_tokens if where == "prompt" else response.output_tokens[0][:-1]) for response in expected]
    assert len(set(culprits)) == 2, "some fail, some do not"
    engine = engine_of(network_of("llama"))
    assert engine._can_decode()

    def fail(arguments: dict[str, Any]) -> Exception | None:
        is_prompt = arguments["input_ids"].shape[1] > 1
        hit = is_prompt == (where == "prompt") and bool((arguments["input_ids"] == token).any())
        return ValueError("no such token (simulated)") if hit else None

    failing(engine._network, fail)
    for response, right, is_culprit in zip(respond(engine, requests_with()), expected, culprits, strict=True):
        if is_culprit:
            assert (response.error, response.retryable) == ("ValueError: no such token (simulated)", True)
        else:
            assert response.output_tokens == right.output_tokens


@pytest.mark.long
def test_no_text_is_lost_or_given_twice_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    how = {"stop_sequences": ("e", "o"), "temperature": 0.9, "num_samples": 2}
    expected = respond(engine_of(network_of("llama")), requests_with(**how))
    for name in ("prefill", "join", "step", "leave"):
        for error in (ValueError("(simulated)"), MemoryError("(simulated)")):
            engine = engine_of(network_of("llama"), rows=5)
            assert engine._can_decode()
            whole, calls = getattr(engine._decoder.network, name), iter(range(1000))

            def sometimes(*arguments: Any, whole: Any = whole, calls: Any = calls, error: Exception = error) -> Any:
                result = whole(*arguments)
                if next(calls) in (1, 3):
                    raise error
                return result

            monkeypatch.setattr(engine._decoder.network, name, sometimes)
            responses = respond(engine, requests_with(**how))
            assert next(calls) > 3, "both failures came"
            assert [response.output_tokens for response in responses] == [response.output_tokens for response in expected], name


def test_a_row_without_a_finite_logit_fails_alone() -> None:
    expected = respond(engine_of(network_of("llama")), requests_with())
    engine = engine_of(network_of("llama"))
    assert engine._can_decode()
    token = TOKENIZER.encode(" mat", add_special_tokens=False)[-1]
    with torch.no_grad():
        engine._network.get_input_embeddings().weight[token] = float("nan")
    culprits = [token in (*response.input_tokens, *response.output_tokens[0][:-1]) for response in expected]
    assert len(set(culprits)) == 2, "some fail, some do not"
    for response, right, is_culprit in zip(respond(engine, requests_with()), expected, culprits, strict=True):
        assert response.error == ("ModelError: The model gave a logit that is no finite number." if is_culprit else None)
        assert is_culprit or response.output_tokens == right.output_tokens
