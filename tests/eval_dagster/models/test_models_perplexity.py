"""Perplexities: every token of a text once, in windows as lm-evaluation-harness cuts them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import CORPUS
from transformers import AutoModelForCausalLM, AutoTokenizer

from eval_dagster.models.transformers.encoding.tokenization import rolling_windows
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.models.transformers.scoring import engine as scoring
from eval_dagster.models.transformers.scoring.prefix_tree import PieceLimits
from eval_dagster.records import ModelResponse, Request

OpenTiny = Callable[..., TransformersHandle]

SHORT = "the cat sat on the mat"
LONG = "a dog ran over the hill and sat down, " * 12


def text_request(text: str, name: str = "t", **fields: Any) -> Request:
    return Request(request_id=name, prompt=text, perplexity=True, **fields)


def respond(model: LoadedModel, *requests: Request) -> dict[str, ModelResponse]:
    answers = [(request.request_id, response) for request, response in model.respond(requests)]
    assert sorted(name for name, _ in answers) == sorted(request.request_id for request in requests)
    return dict(answers)


def plain_tokens(folder: Path, text: str) -> list[int]:
    return AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False)


def plain_logits(folder: Path, tokens: Sequence[int], windows: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Logits of each token, its predecessors from the given start on, by one unbatched forward pass a window.

    A window `(start, end)` gives the model `tokens[start:end]`; what a window before it scored is not scored again.
    """
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    rows: list[torch.Tensor] = []
    for start, end in windows:
        with torch.no_grad():
            logits = network(torch.tensor([tokens[start:end]])).logits[0].float()
        rows += list(logits[len(rows) - start :])
    return torch.stack(rows)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bloom"])
def test_a_short_text_equals_a_plain_forward_pass(kind: str, tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    response = respond(open_tiny(kind).load(), text_request(SHORT, use_logits=True))["t"]
    tokens = plain_tokens(tiny_folders[kind], SHORT)
    logits = plain_logits(tiny_folders[kind], [0, *tokens], [(0, len(tokens))])
    expected = torch.log_softmax(logits, -1)[range(len(tokens)), tokens].tolist()
    assert response.logprobs == pytest.approx(expected, abs=1e-5)
    assert response.token_logprobs == (response.logprobs,)
    assert list(response.input_tokens) == [tokens[0] for tokens in response.output_tokens] == tokens
    assert response.argmax_logits_eq_gold == ((logits.argmax(-1) == torch.tensor(tokens)).all().item(),)
    assert response.logits is not None
    (kept,) = response.logits
    assert kept == pytest.approx(logits[range(len(tokens)), tokens].tolist(), abs=1e-5)
    assert (response.input, response.text, response.truncated_tokens_count, response.error) == (SHORT, (), 0, None)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bloom"])
def test_a_long_text_is_scored_in_the_windows_of_lm_evaluation_harness(
    kind: str, tiny_folders: dict[str, Path], open_tiny: OpenTiny
) -> None:
    tokens = plain_tokens(tiny_folders[kind], LONG)
    assert 2 * 64 < len(tokens) < 3 * 64
    fed = [0, *tokens]
    # The last window is as long as the others, though it scores fewer tokens: the rest is context.
    logits = plain_logits(tiny_folders[kind], fed, [(0, 64), (64, 128), (len(tokens) - 64, len(tokens))])
    expected = torch.log_softmax(logits, -1)[range(len(tokens)), tokens].tolist()
    response = respond(open_tiny(kind, batch_size=2).load(), text_request(LONG))["t"]
    assert response.logprobs == pytest.approx(expected, abs=1e-4)
    assert list(response.input_tokens) == tokens
    assert response.logits is None


@pytest.mark.parametrize("count", range(1, 22))
def test_windows_score_each_token_once_after_as_much_context_as_fits(count: int) -> None:
    tokens = list(range(100, 100 + count))
    windows = rolling_windows(7, tokens, 5)
    assert [token for window in windows for token in window.tokens] == tokens
    fed = [7, *tokens]
    scored = 0
    for window in windows:
        scored += len(window.tokens)
        assert list(window.input) == fed[max(scored - 5, 0) : scored]
    assert [window.input.count(7) for window in windows] == [1, *[0] * (len(windows) - 1)]


@pytest.mark.parametrize("has_special_tokens", [False, True])
@pytest.mark.parametrize("text", [SHORT, "<s>" + SHORT])
def test_the_starting_token_is_never_doubled(has_special_tokens: bool, text: str, open_tiny: OpenTiny) -> None:
    model = open_tiny().load()
    expected = respond(model, text_request(SHORT))["t"]
    response = respond(model, text_request(text, has_special_tokens=has_special_tokens))["t"]
    assert response.logprobs == expected.logprobs
    assert response.input_tokens == expected.input_tokens


def test_without_a_bos_token_the_eos_token_starts_a_text(tmp_path: Path, tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folders["llama"])
    tokenizer.bos_token = None
    AutoModelForCausalLM.from_pretrained(tiny_folders["llama"]).save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    tokens = plain_tokens(tiny_folders["llama"], SHORT)
    logits = plain_logits(tiny_folders["llama"], [1, *tokens], [(0, len(tokens))])
    expected = torch.log_softmax(logits, -1)[range(len(tokens)), tokens].tolist()
    assert respond(open_tiny(folder=tmp_path / "m").load(), text_request(SHORT))["t"].logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "batch_size", "padding"), [("bloom", 1, 0), ("bloom", 16, 63), ("llama", 16, 0)])
def test_texts_share_batches_and_change_no_score(kind: str, batch_size: int, padding: int, open_tiny: OpenTiny) -> None:
    requests = [text_request(LONG, "long"), text_request(SHORT, "short"), text_request(LONG[:200], "middle"), text_request("a", "one")]
    alone = {request.request_id: respond(open_tiny(kind).load(), request)[request.request_id] for request in requests}
    choices = Request(request_id="choices", prompt="a dog", choices=(" ran",))
    together = respond(open_tiny(kind, batch_size=batch_size).load(), *requests, choices)
    assert together.pop("choices").error is None
    for name, response in together.items():
        assert response.logprobs == pytest.approx(alone[name].logprobs, abs=1e-5)
    assert together["one"].padded_tokens_count == padding


def test_no_text_waits_for_many_others(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a text are far from each other in the order of tokens: of all texts at once, the first would be whole near the end."""
    monkeypatch.setattr(scoring, "_WINDOW_TEXT", 2000)
    model = open_tiny().load()
    draw = random.Random(0)
    words = [word.strip(",") for line in CORPUS for word in line.split()]
    texts = {f"t{number}": " ".join(draw.choices(words, k=150)) for number in range(24)}
    computed, names = [], []
    for request, response in model.respond([text_request(text, name) for name, text in texts.items()]):
        assert response.error is None
        computed.append(model.usage()[0].tokens_computed)
        names.append(request.request_id)
    assert sorted(names) == sorted(texts)
    for part in range(4, 25, 4):
        assert computed[part - 1] <= (part + 4) / 24 * computed[-1]


@pytest.mark.parametrize("limits", [PieceLimits(tokens=20, chain=20, scored=20), PieceLimits(tokens=40, chain=40, scored=7)])
def test_windows_longer_than_a_piece_are_scored_in_parts(limits: PieceLimits, open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [text_request(LONG, "long"), text_request(LONG[:200] + SHORT, "branch"), text_request(SHORT, "short")]
    whole = respond(open_tiny().load(), *requests)
    monkeypatch.setattr(scoring, "piece_limits", lambda network, device, **_: replace(limits))
    model = open_tiny().load()
    parts = respond(model, *requests)
    for name, response in parts.items():
        assert response.logprobs == pytest.approx(whole[name].logprobs, abs=1e-5)
        assert response.argmax_logits_eq_gold == whole[name].argmax_logits_eq_gold
    usage = model.usage()[0]
    assert usage.path == "tree"
    assert usage.passes >= usage.tokens_computed / limits.tokens
    # The two long texts begin alike, and nothing is computed twice.
    assert usage.tokens_needed == usage.tokens_computed < usage.tokens_asked - 50


@pytest.mark.parametrize("text", ["", "<s>"])
def test_an_empty_text_is_an_error(text: str, open_tiny: OpenTiny) -> None:
    responses = respond(open_tiny().load(), text_request(text), text_request(SHORT, "other"))
    assert responses["t"] == ModelResponse(error="ModelError: The text is empty, so it has no token to score.")
    assert responses["other"].error is None
