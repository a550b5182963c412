"""Log-probabilities of choices, against a plain unbatched forward pass."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BloomForCausalLM, LlamaForCausalLM

from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.records import ModelResponse, Request

OpenTiny = Callable[..., TransformersHandle]

NETWORKS: dict[str, Any] = {"llama": LlamaForCausalLM, "bloom": BloomForCausalLM}
"""One that is scored over a tree of prefixes, and one by plain batches."""

REQUESTS = [
    Request(request_id="letters", prompt="the cat sat on the", choices=(" a", " b", " c", " d")),
    Request(request_id="endings", prompt="a dog ran", choices=(" over the hill", " down", " and sat on the mat, yes", " down")),
    Request(request_id="space", prompt="one two ", choices=("three", "four five")),
    Request(request_id="empty", prompt="", choices=("red green", "blue")),
    Request(request_id="chat", prompt="<s>yes no", choices=(" yes",), has_special_tokens=True),
]


def respond(model: LoadedModel, requests: Sequence[Request]) -> dict[str, ModelResponse]:
    answers = [(request.request_id, response) for request, response in model.respond(requests)]
    assert sorted(name for name, _ in answers) == sorted(request.request_id for request in requests)
    return dict(answers)


def plain_logprobs(folder: Path, context: Sequence[int], continuation: Sequence[int]) -> tuple[list[float], bool]:
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = network(torch.tensor([[*context, *continuation]])).logits[0, len(context) - 1 : -1].float()
    table = torch.log_softmax(logits, -1)
    return [float(table[index, token]) for index, token in enumerate(continuation)], logits.argmax(-1).tolist() == list(continuation)


def forward_sizes(monkeypatch: pytest.MonkeyPatch, limit: int | None = None, *, kind: str = "bloom", dimension: int = 0) -> list[int]:
    """Record the rows (dimension 0) or columns of each forward pass; above the limit, memory is short."""
    sizes: list[int] = []
    original = NETWORKS[kind].forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(kwargs["input_ids"].shape[dimension])
        if limit is not None and sizes[-1] > limit:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(NETWORKS[kind], "forward", forward)
    return sizes


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "gpt2", "bloom"])
def test_scores_equal_a_plain_unbatched_forward_pass(kind: str, tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folders[kind])
    responses = respond(open_tiny(kind).load(), REQUESTS)
    for request in REQUESTS:
        response = responses[request.request_id]
        context = request.prompt.rstrip()
        for index, choice in enumerate(request.choices or ()):
            continuation = request.prompt[len(context) :] + choice
            special = not request.has_special_tokens
            head = tokenizer.encode(context, add_special_tokens=special) if context else [tokenizer.bos_token_id]
            whole = tokenizer.encode(context + continuation, add_special_tokens=special)
            expected, is_greedy = plain_logprobs(tiny_folders[kind], head, whole[len(head) :])
            assert list(response.output_tokens[index]) == whole[len(head) :]
            assert response.token_logprobs[index] == pytest.approx(expected, abs=1e-5)
            assert response.logprobs[index] == pytest.approx(sum(expected), abs=1e-5)
            assert response.argmax_logits_eq_gold[index] is is_greedy


def test_the_greedy_continuation_is_greedy(tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    model = open_tiny().load()
    tokenizer = AutoTokenizer.from_pretrained(tiny_folders["llama"])
    network = AutoModelForCausalLM.from_pretrained(tiny_folders["llama"])
    for prompt in ("the cat", "one two three", "a dog ran over", "red", "seven", "blue, yes"):
        ids = tokenizer.encode(prompt)
        best = int(network(torch.tensor([ids])).logits[0, -1].argmax())
        text = tokenizer.decode([best])
        if tokenizer.encode(prompt + text) == [*ids, best] and text.strip():
            request = Request(request_id="r", prompt=prompt, choices=(text, " the" if text != " the" else " a"))
            assert respond(model, [request])["r"].argmax_logits_eq_gold == (True, False)
            return
    pytest.fail("no prompt whose best next token survives a round through text")


@pytest.mark.long
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
def test_scores_do_not_depend_on_the_batch_size(batch_size: int, kind: str, open_tiny: OpenTiny) -> None:
    reference = respond(open_tiny(kind, batch_size=5).load(), REQUESTS)
    for name, response in respond(open_tiny(kind, batch_size=batch_size).load(), REQUESTS).items():
        assert response.logprobs == pytest.approx(reference[name].logprobs, abs=1e-5)


@pytest.mark.parametrize("kind", NETWORKS)
def test_equal_inputs_are_run_once(kind: str, open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_tiny(kind, batch_size=1).load()
    sizes = forward_sizes(monkeypatch, kind=kind)
    twice = Request(request_id="again", prompt=REQUESTS[0].prompt, choices=(" a", " z"))
    responses = respond(model, [REQUESTS[0], twice])
    assert sizes == [1]
    assert len(set(responses["letters"].logprobs)) == 4
    assert responses["again"].logprobs[0] == responses["letters"].logprobs[0]


def test_choices_are_scored_after_the_unconditioned_prompt_as_after_any_other(open_tiny: OpenTiny) -> None:
    model = open_tiny().load()
    settings: dict[str, Any] = {"prompt": "the cat sat on the", "choices": (" mat", " hill and sat", " mat"), "has_special_tokens": False}
    for prior in ("Answer: ", "", "the cat sat on the"):
        separate = respond(model, [Request(request_id="r", **{**settings, "prompt": prior})])["r"]
        plain = respond(model, [Request(request_id="r", **settings)])["r"]
        response = respond(model, [Request(request_id="r", unconditioned_prompt=prior, **settings)])["r"]
        assert response.unconditioned_logprobs == pytest.approx(separate.logprobs, abs=1e-5)
        assert response.logprobs == pytest.approx(plain.logprobs, abs=1e-5)
        assert (response.input, response.output_tokens) == (plain.input, plain.output_tokens)
        assert plain.unconditioned_logprobs is None


@pytest.mark.parametrize("kind", NETWORKS)
def test_an_unconditioned_prompt_that_many_requests_share_is_run_once(
    kind: str, open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        Request(
            request_id=f"{index}", prompt=f"a dog ran {index} times", choices=(" yes", " over the hill"), unconditioned_prompt="Answer:"
        )
        for index in range(10)
    ]
    model = open_tiny(kind, batch_size=1).load()
    sizes = forward_sizes(monkeypatch, kind=kind)
    responses = respond(model, requests)
    # Over the tree the ten prompts are one piece, too.
    assert len(sizes) == (2 if kind == "llama" else 10 * 2 + 2)
    assert len({response.unconditioned_logprobs for response in responses.values()}) == 1


def test_an_unconditioned_prompt_that_is_too_long_is_an_error(open_tiny: OpenTiny) -> None:
    request = Request(request_id="r", prompt="a dog", choices=(" ran",), unconditioned_prompt=" cat" * 70)
    assert (respond(open_tiny().load(), [request])["r"].error or "").startswith("PromptTooLongError: ")


def test_logits_are_those_before_the_softmax(tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    model = open_tiny().load()
    request = Request(request_id="r", prompt="a dog ran", choices=(" over the hill", " down"), use_logits=True)
    response = respond(model, [request, *REQUESTS[:1]])["r"]
    network = AutoModelForCausalLM.from_pretrained(tiny_folders["llama"]).eval()
    assert response.logits is not None
    for tokens, logits in zip(response.output_tokens, response.logits, strict=True):
        with torch.no_grad():
            rows = network(torch.tensor([[*response.input_tokens, *tokens]])).logits[0, len(response.input_tokens) - 1 : -1]
        assert logits == pytest.approx(rows[range(len(tokens)), list(tokens)].tolist(), abs=1e-5)
        assert logits != pytest.approx(torch.log_softmax(rows, -1)[range(len(tokens)), list(tokens)].tolist(), abs=1e-2)
    assert respond(model, REQUESTS[:1])["letters"].logits is None


def test_padding_is_counted_once_an_input_and_nowhere_else(open_tiny: OpenTiny) -> None:
    requests = [
        # Four choices of one token: one input. Two choices of several tokens: two inputs.
        Request(request_id="short", prompt="the cat", choices=(" a", " b", " c", " d")),
        Request(request_id="long", prompt="the cat sat on the mat and the dog ran", choices=(" over the hill", " over the hill and down")),
    ]
    together = respond(open_tiny("bloom", batch_size=8).load(), requests)
    alone = {request.request_id: respond(open_tiny("bloom", batch_size=1).load(), [request])[request.request_id] for request in requests}
    lengths = {
        name: {len(response.input_tokens) + len(tokens) - 1 for tokens in response.output_tokens} for name, response in alone.items()
    }
    assert (len(lengths["short"]), len(lengths["long"])) == (1, 2)
    longest = max(lengths["long"])
    for name, response in together.items():
        assert response.padded_tokens_count == sum(longest - length for length in lengths[name]) > 0
        assert alone[name].padded_tokens_count == 0
        assert response.input_tokens == alone[name].input_tokens
        assert response.output_tokens == alone[name].output_tokens
        assert [len(logprobs) for logprobs in response.token_logprobs] == [len(tokens) for tokens in response.output_tokens]
        assert response.logprobs == pytest.approx(alone[name].logprobs, abs=1e-5)


def test_a_padding_token_that_the_network_does_not_know_is_not_used(
    tmp_path: Path, tiny_folders: dict[str, Path], open_tiny: OpenTiny, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "padding"
    shutil.copytree(tiny_folders["bloom"], folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert tokenizer.pad_token_id >= network.get_input_embeddings().num_embeddings
    tokenizer.save_pretrained(folder)
    asked = [*REQUESTS, Request(request_id="text", prompt="the cat"), Request(request_id="long text", prompt="the cat sat on the mat")]
    found = respond(open_tiny(folder=folder, batch_size=8).load(), asked)
    right = respond(open_tiny("bloom", batch_size=8).load(), asked)
    assert "IndexError" not in caplog.text
    for name, response in right.items():
        assert found[name].error is None
        assert replace(found[name], latency_s=0.0) == replace(response, latency_s=0.0)
    assert sum(response.padded_tokens_count for response in found.values()) > 0


def test_duplicate_choices_keep_a_score_each(open_tiny: OpenTiny) -> None:
    response = respond(open_tiny().load(), REQUESTS)["endings"]
    assert len(response.logprobs) == 4
    assert response.logprobs[1] == response.logprobs[3]


def test_answers_come_before_all_batches_are_done(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_tiny("bloom", batch_size=1).load()
    sizes = forward_sizes(monkeypatch)
    next(iter(model.respond(REQUESTS)))
    assert len(sizes) < 5


@pytest.mark.parametrize("limit", [1, 3])
def test_running_out_of_memory_halves_the_batch_and_changes_no_score(
    limit: int, open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = respond(open_tiny("bloom").load(), REQUESTS)
    model = open_tiny("bloom", batch_size=8).load()
    sizes = forward_sizes(monkeypatch, limit)
    for name, response in respond(model, REQUESTS).items():
        assert response.error is None
        assert response.logprobs == pytest.approx(expected[name].logprobs, abs=1e-5)
    failed = [size for size in sizes if size > limit]
    assert len(failed) <= 3, "the smaller size is kept"


@pytest.mark.parametrize("kind", NETWORKS)
def test_out_of_memory_with_a_single_row_is_an_error_to_retry(kind: str, open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_tiny(kind, batch_size=4).load()
    forward_sizes(monkeypatch, 0, kind=kind)
    for response in respond(model, REQUESTS).values():
        assert response.error is not None
        assert response.error.startswith("OutOfMemoryError: ")
        assert response.retryable
        assert response.logprobs == ()


@pytest.mark.parametrize("kind", NETWORKS)
def test_another_exception_fails_its_request_alone(
    kind: str, tiny_folders: dict[str, Path], open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_tiny(kind, batch_size=16).load()
    original = NETWORKS[kind].forward
    (poison,) = AutoTokenizer.from_pretrained(tiny_folders[kind]).encode("Z", add_special_tokens=False)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (kwargs["input_ids"] == poison).any():
            raise IndexError("an id is out of range (simulated)")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(NETWORKS[kind], "forward", forward)
    culprit = Request(request_id="culprit", prompt="the cat Z", choices=(" x",))
    responses = respond(model, [*REQUESTS, culprit])
    assert responses.pop("culprit") == ModelResponse(error="IndexError: an id is out of range (simulated)", retryable=True)
    assert all(response.error is None for response in responses.values())


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_give_no_number_are_an_error_and_no_score(
    value: str, tmp_path: Path, tiny_folders: dict[str, Path], open_tiny: OpenTiny
) -> None:
    network = AutoModelForCausalLM.from_pretrained(tiny_folders["llama"])
    with torch.no_grad():
        network.model.norm.weight[3] = float(value)
    network.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(tiny_folders["llama"]).save_pretrained(tmp_path / "broken")
    for response in respond(open_tiny(folder=tmp_path / "broken").load(), REQUESTS).values():
        assert response.error == "ModelError: The model gave a log-probability that is no finite number."
        assert (response.logprobs, response.retryable) == ((), False)


@pytest.mark.parametrize("choices", [("",), (" a", ""), ()])
def test_a_choice_without_tokens_is_an_error_of_its_request(choices: tuple[str, ...], open_tiny: OpenTiny) -> None:
    responses = respond(open_tiny().load(), [Request(request_id="bad", prompt="the cat", choices=choices), REQUESTS[0]])
    assert responses["bad"].error is not None
    assert responses["bad"].error.startswith("ModelError: ")
    assert not responses["bad"].retryable
    assert responses["letters"].error is None


LONG = Request(request_id="long", prompt=" cat" * 70, choices=(" mat", " on the hill"))


def test_what_is_longer_than_the_context_is_an_error_with_counts(open_tiny: OpenTiny) -> None:
    response = respond(open_tiny().load(), [LONG])["long"]
    assert response.error is not None
    assert response.error.startswith("PromptTooLongError: ")
    assert "the model's context holds 64" in response.error
    assert not response.retryable


def test_what_fills_the_context_exactly_is_scored(tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    tokens = len(AutoTokenizer.from_pretrained(tiny_folders["llama"]).encode("the cat sat"))
    request = Request(request_id="r", prompt="the cat", choices=(" sat",))
    assert respond(open_tiny(max_length=tokens - 1).load(), [request])["r"].error is None
    assert respond(open_tiny(max_length=tokens - 2).load(), [request])["r"].error is not None


def test_truncation_cuts_all_choices_alike_on_the_left_and_says_so(tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folders["llama"])
    response = respond(open_tiny(truncate=True).load(), [LONG])["long"]
    tokens = tokenizer.encode(LONG.prompt)
    longest = len(response.output_tokens[1])
    assert response.truncated_tokens_count == len(tokens) + longest - 1 - 64
    assert list(response.input_tokens) == tokens[response.truncated_tokens_count :]
    for index in range(2):
        expected, _ = plain_logprobs(tiny_folders["llama"], response.input_tokens, response.output_tokens[index])
        assert response.token_logprobs[index] == pytest.approx(expected, abs=1e-5)


def test_truncation_leaves_one_token_of_the_prompt(open_tiny: OpenTiny) -> None:
    request = Request(request_id="r", prompt="the cat", choices=(" cat" * 70,))
    response = respond(open_tiny(truncate=True).load(), [request])["r"]
    assert response.error is not None
    assert response.error.startswith("PromptTooLongError: ")
