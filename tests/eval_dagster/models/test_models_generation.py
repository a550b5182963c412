"""Generated texts of tiny models: padding, stop sequences, sampling, errors."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.records import GenerationSettings, ModelResponse, Request

OpenTiny = Callable[..., TransformersHandle]

CONTEXT = 64
PROMPTS = ("the cat sat on the mat and", "a dog", "one two three", "red green blue, yes no the hill", "")


def requests_with(prompts: Sequence[str] = PROMPTS, **settings: Any) -> list[Request]:
    generation = GenerationSettings(**{"max_tokens": 12, **settings})
    return [Request(request_id=f"r{index}", prompt=prompt, generation=generation) for index, prompt in enumerate(prompts)]


def respond(model: LoadedModel, requests: Sequence[Request]) -> dict[str, ModelResponse]:
    answers = [(request.request_id, response) for request, response in model.respond(requests)]
    assert sorted(name for name, _ in answers) == sorted(request.request_id for request in requests)
    return dict(answers)


def greedy_tokens(folder: Path, prompt: str, count: int) -> list[int]:
    """The best next token, again and again, without padding, cache or `generate`."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = tokenizer.encode(prompt)
    start = len(ids)
    with torch.no_grad():
        while len(ids) < start + count and (len(ids) == start or ids[-1] != tokenizer.eos_token_id):
            ids.append(int(network(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[start:]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("batch_size", [1, 16])
def test_greedy_texts_equal_a_plain_loop(kind: str, batch_size: int, tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folders[kind])
    responses = respond(open_tiny(kind, batch_size=batch_size).load(), requests_with())
    for index, prompt in enumerate(PROMPTS):
        response = responses[f"r{index}"]
        expected = greedy_tokens(tiny_folders[kind], prompt, 12)
        assert [list(tokens) for tokens in response.output_tokens] == [expected]
        assert response.text == (tokenizer.decode(expected, skip_special_tokens=True),)
        assert response.finish_reason == ("stop" if expected[-1] == tokenizer.eos_token_id else "length",)
        assert list(response.input_tokens) == tokenizer.encode(prompt)
        assert response.latency_s > 0


def test_a_stop_sequence_across_token_borders_ends_the_text(tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folders["llama"])
    model = open_tiny().load()
    full = respond(model, requests_with())["r0"]
    pieces = [tokenizer.decode([token]) for token in full.output_tokens[0]]
    text = "".join(pieces)
    border = len("".join(pieces[:4]))
    stop = text[border - 1 : border + 1]
    assert stop not in pieces
    stopped = respond(model, requests_with(stop_sequences=("absent", stop)))["r0"]
    assert stopped.text == (text[: text.index(stop)],)
    assert stopped.finish_reason == ("stop",)
    assert len(stopped.output_tokens[0]) < len(full.output_tokens[0])


def test_rows_stop_separately(open_tiny: OpenTiny) -> None:
    model = open_tiny().load()
    full = respond(model, requests_with())
    stop = full["r1"].text[0][3:5]
    together = respond(model, requests_with(stop_sequences=(stop,)))
    for index, prompt in enumerate(PROMPTS):
        name = f"r{index}"
        assert together[name].text == (full[name].text[0].split(stop)[0],), prompt


def test_an_added_token_can_be_a_stop_sequence(tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    tokens = greedy_tokens(tiny_folders["llama"], PROMPTS[0], 12)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folders["llama"])
    handle = open_tiny()
    model = handle.load()
    special = tokenizer.convert_ids_to_tokens(tokens[5])
    handle._tokenizer.add_special_tokens({"additional_special_tokens": [special]})
    response = respond(model, requests_with(stop_sequences=(special,)))["r0"]
    first = tokens.index(tokens[5])
    assert list(response.output_tokens[0]) == tokens[: first + 1]
    assert response.text == (tokenizer.decode(tokens[:first], skip_special_tokens=True),)
    assert response.finish_reason == ("stop",)


SAMPLING: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "num_samples": 3, "seed": 11}


def test_samples_do_not_depend_on_their_neighbours(open_tiny: OpenTiny) -> None:
    requests = requests_with(**SAMPLING)
    together = respond(open_tiny(batch_size=16).load(), requests)
    model = open_tiny(batch_size=2).load()
    for request in reversed(requests):
        assert respond(model, [request])[request.request_id].text == together[request.request_id].text


def test_texts_are_generated_from_a_place_on(open_tiny: OpenTiny) -> None:
    model, requests = open_tiny().load(), requests_with(**SAMPLING)
    whole = respond(model, requests)
    rest = respond(model, [replace(request, first_text=1) for request in requests])
    for name, response in whole.items():
        assert rest[name].text == response.text[1:], "each text has its own seed"
        assert rest[name].finish_reason == response.finish_reason[1:]


def test_samples_differ_by_index_seed_and_request(open_tiny: OpenTiny) -> None:
    model = open_tiny().load()
    texts = respond(model, requests_with(**SAMPLING))["r0"].text
    assert len(texts) == len(set(texts)) == 3
    assert respond(model, requests_with(**{**SAMPLING, "seed": 12}))["r0"].text != texts
    same_prompt = respond(model, requests_with([PROMPTS[0]] * 2, **SAMPLING))
    assert same_prompt["r0"].text == texts
    assert same_prompt["r1"].text != texts


@pytest.mark.long
def test_three_samples_differ_and_repeat_exactly_whatever_is_beside_them(open_tiny: OpenTiny) -> None:
    request = requests_with(**SAMPLING)[1]
    first = respond(open_tiny().load(), [request])["r1"]
    assert len(set(first.output_tokens)) == 3
    for beside in ([], requests_with([" hill"], temperature=0.3, max_tokens=7)):
        for batch_size in (1, 2, 16):
            answers = respond(open_tiny(batch_size=batch_size).load(), [*beside, request])
            assert answers["r1"].output_tokens == first.output_tokens


@pytest.mark.parametrize("settings", [{}, SAMPLING])
def test_logits_are_the_models_own_and_one_a_token(settings: dict[str, Any], tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    requests = [replace(request, use_logits=request.request_id != "r2") for request in requests_with(**settings)]
    network = AutoModelForCausalLM.from_pretrained(tiny_folders["llama"]).eval()
    for name, response in respond(open_tiny(batch_size=4).load(), requests).items():
        if name == "r2":
            assert response.logits is None
            continue
        assert response.logits is not None
        for tokens, logits in zip(response.output_tokens, response.logits, strict=True):
            with torch.no_grad():
                rows = network(torch.tensor([[*response.input_tokens, *tokens]])).logits[0, len(response.input_tokens) - 1 : -1]
            assert list(logits) == pytest.approx(rows[range(len(tokens)), list(tokens)].tolist(), abs=1e-4)


def test_no_token_is_padded_and_texts_are_those_of_each_alone(open_tiny: OpenTiny) -> None:
    requests = requests_with(["a dog", "the cat sat on the mat and"], temperature=1.0, num_samples=2)
    alone = respond(open_tiny(batch_size=1).load(), requests)
    together = respond(open_tiny(batch_size=4).load(), requests)
    for name, response in together.items():
        assert response.padded_tokens_count == 0
        assert (response.input_tokens, response.output_tokens) == (alone[name].input_tokens, alone[name].output_tokens)


def test_samples_follow_the_distribution_of_the_model(tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    settings = {"max_tokens": 1, "temperature": 2.0, "top_k": 3, "num_samples": 600}
    response = respond(open_tiny(batch_size=200).load(), requests_with(PROMPTS[:1], **settings))["r0"]
    ids = AutoTokenizer.from_pretrained(tiny_folders["llama"]).encode(PROMPTS[0])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tiny_folders["llama"])(torch.tensor([ids])).logits[0, -1]
    best = logits.topk(3)
    probabilities = torch.softmax(best.values / 2.0, -1).tolist()
    drawn = [tokens[0] for tokens in response.output_tokens]
    assert set(drawn) <= set(best.indices.tolist())
    for token, probability in zip(best.indices.tolist(), probabilities, strict=True):
        # Five standard errors of a share of 600 draws.
        assert drawn.count(token) / 600 == pytest.approx(probability, abs=0.1)


def test_the_checkpoints_sampling_defaults_are_ignored(tmp_path: Path, tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    network = AutoModelForCausalLM.from_pretrained(tiny_folders["llama"])
    network.generation_config.update(do_sample=True, temperature=5.0, repetition_penalty=3.0, eos_token_id=[1, 5])
    network.save_pretrained(tmp_path / "sampler")
    AutoTokenizer.from_pretrained(tiny_folders["llama"]).save_pretrained(tmp_path / "sampler")
    expected = respond(open_tiny().load(), requests_with())
    for name, response in respond(open_tiny(folder=tmp_path / "sampler").load(), requests_with()).items():
        tokens = list(expected[name].output_tokens[0])
        assert list(response.output_tokens[0]) == (tokens[: tokens.index(5) + 1] if 5 in tokens else tokens)


@pytest.mark.parametrize("settings", [{"num_samples": 2}, {"num_samples": 0}, {"max_tokens": 0}])
def test_settings_that_make_no_sense_are_an_error(settings: dict[str, Any], open_tiny: OpenTiny) -> None:
    for response in respond(open_tiny().load(), requests_with(**settings)).values():
        assert response.error is not None
        assert response.error.startswith("ModelError: num_samples is")
        assert not response.retryable


def test_a_prompt_that_leaves_no_room_is_an_error_or_truncated(tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    response = respond(open_tiny().load(), requests_with([" cat" * 63]))["r0"]
    assert response.error is not None
    assert response.error.startswith("PromptTooLongError: ")
    request = requests_with([" cat" * 58])[0]
    cut = respond(open_tiny(truncate=True).load(), [request])["r0"]
    tokens = AutoTokenizer.from_pretrained(tiny_folders["llama"]).encode(request.prompt)
    assert cut.truncated_tokens_count == len(tokens) + 12 - 64
    assert list(cut.input_tokens) == tokens[cut.truncated_tokens_count :]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "way"), [("llama", "rows"), ("gpt2", "rows"), ("gpt2", "padded")])
def test_more_tokens_than_the_context_leaves_are_an_upper_bound(
    kind: str, way: str, tiny_folders: dict[str, Path], open_tiny: OpenTiny, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = [prompt + " cat" * 40 for prompt in PROMPTS[:3]]
    settings: dict[str, Any] = {"temperature": 1.0, "num_samples": 2}
    model = open_tiny(kind, batch_size=16).load()
    if way == "padded":
        model._generator._is_checked, model._generator.usage.path = True, "padded"
    responses = respond(model, requests_with(prompts, max_tokens=32_768, **settings))
    for name, prompt in enumerate(prompts):
        request = requests_with(prompts, max_tokens=32_768, **settings)[name]
        response = responses[request.request_id]
        room = CONTEXT - len(AutoTokenizer.from_pretrained(tiny_folders[kind]).encode(prompt))
        assert response.error is None
        assert 1 < max(map(len, response.output_tokens)) <= room
        for tokens, reason in zip(response.output_tokens, response.finish_reason, strict=True):
            assert (reason == "length") == (len(tokens) == room and tokens[-1] != 1)
        fitting = replace(request, generation=replace(request.generation, max_tokens=room))
        assert respond(model, [fitting])[request.request_id].output_tokens == response.output_tokens, "the bound is the room"
    assert any("length" in response.finish_reason for response in responses.values())
    assert model.usage()[1].path == way
    assert "3 of 3 requests may have fewer than their max_tokens=32768: the context of 64 tokens" in caplog.text


@pytest.mark.long
@pytest.mark.parametrize(("kind", "way"), [("llama", "rows"), ("gpt2", "rows"), ("gpt2", "padded")])
def test_a_text_without_a_maximum_ends_by_itself_or_where_the_context_ends(
    kind: str, way: str, tiny_folders: dict[str, Path], open_tiny: OpenTiny, caplog: pytest.LogCaptureFixture
) -> None:
    model = open_tiny(kind, batch_size=16).load()
    if way == "padded":
        model._generator._is_checked, model._generator.usage.path = True, "padded"
    prompts = [*PROMPTS, *(prompt + " cat" * 40 for prompt in PROMPTS[:3])]
    tokenizer = AutoTokenizer.from_pretrained(tiny_folders[kind])
    reasons = set[str]()
    for each in ({}, {"temperature": 1.0, "num_samples": 4}):
        free = requests_with(prompts, max_tokens=None, **each)
        responses = respond(model, free)
        for request, prompt in zip(free, prompts, strict=True):
            room = CONTEXT - len(tokenizer.encode(prompt))
            capped = [replace(request, generation=replace(request.generation, max_tokens=room))]
            response = responses[request.request_id]
            assert respond(model, capped)[request.request_id].output_tokens == response.output_tokens
            for tokens, reason in zip(response.output_tokens, response.finish_reason, strict=True):
                assert (reason == "length") == (len(tokens) == room and tokens[-1] != 1)
                reasons.add(reason)
    assert reasons == {"stop", "length"}
    assert model.usage()[1].path == way
    assert "may have fewer than their max_tokens" not in caplog.text


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_give_no_number_are_an_error_and_no_text(
    value: str, tmp_path: Path, tiny_folders: dict[str, Path], open_tiny: OpenTiny
) -> None:
    network = AutoModelForCausalLM.from_pretrained(tiny_folders["llama"])
    with torch.no_grad():
        network.model.norm.weight[3] = float(value)
    network.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(tiny_folders["llama"]).save_pretrained(tmp_path / "broken")
    for response in respond(open_tiny(folder=tmp_path / "broken").load(), requests_with()).values():
        assert response == ModelResponse(error="ModelError: The model gave a logit that is no finite number.", latency_s=response.latency_s)


def test_running_out_of_memory_changes_no_text(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = respond(open_tiny().load(), requests_with(**SAMPLING))
    model = open_tiny(batch_size=16).load()
    original = LlamaForCausalLM.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(kwargs["input_ids"]) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory (simulated)")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", forward)
    for name, response in respond(model, requests_with(**SAMPLING)).items():
        assert response.text == expected[name].text


def test_loading_and_answering_say_nothing(open_tiny: OpenTiny, capfd: pytest.CaptureFixture[str]) -> None:
    respond(open_tiny().load(), [*requests_with(), *requests_with(["the mat"], temperature=1.0)[:0]])
    assert capfd.readouterr() == ("", "")
