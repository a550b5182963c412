"""The rule by which a prompt and its choices become tokens."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from eval_dagster.errors import ModelError, PromptTooLongError
from eval_dagster.models.base import cut_at_stop
from eval_dagster.models.transformers.encoding.tokenization import Codec, Span
from eval_dagster.records import Request

VOCABULARY = {"a": 0, "b": 1, "c": 2, " ": 3, "\n": 4, "<s>": 5, "</s>": 6, "bc": 7, " c": 8, "ab": 9, "abc": 10}
MERGES = [("b", "c"), (" ", "c"), ("a", "b"), ("ab", "c")]


def codec(bos: str | None = "<s>", *, max_length: int = 50, truncate: bool = False) -> Codec:
    """A tokenizer of letters in which `bc`, ` c`, `ab` and `abc` merge."""
    tokenizer = Tokenizer(models.BPE(VOCABULARY, MERGES))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token="</s>")
    return Codec(fast, max_length=max_length, truncate=truncate)


def request(prompt: str, *choices: str, **fields: Any) -> Request:
    return Request(request_id="r", prompt=prompt, choices=choices, **fields)


def test_trailing_white_space_moves_to_the_choice() -> None:
    moved = codec().encode_choices(request("a ", "c"))
    prompt, (span,) = moved
    assert prompt.tokens == (0,)
    assert span.tokens == (8,)
    assert moved == codec().encode_choices(request("a ", "c", has_special_tokens=True))
    assert span == codec().encode_choices(request("a", " c"))[1][0]


def test_a_newline_moves_as_well() -> None:
    _, (span,) = codec().encode_choices(request("a\n", "b"))
    assert span.tokens == (4, 1)


def test_tokens_that_merge_at_the_border_are_not_taken_from_the_prompt() -> None:
    # `cb` + `ca` is encoded c, bc, a: the prompt's two tokens (c, b) leave only `a`, although the choice alone has two.
    _, (span,) = codec().encode_choices(request("cb", "ca"))
    assert span == Span(input=(2, 7), tokens=(0,))


def test_a_choice_that_merges_into_the_prompt_entirely_is_an_error() -> None:
    with pytest.raises(ModelError, match="no token of its own"):
        codec().encode_choices(request("b", "c"))


@pytest.mark.parametrize(("bos", "prefix"), [("<s>", 5), (None, 6)])
@pytest.mark.parametrize("prompt", ["", "  "])
def test_an_empty_prompt_is_the_prefix_token(bos: str | None, prefix: int, prompt: str) -> None:
    encoded, (span,) = codec(bos).encode_choices(request(prompt, "ba"))
    assert encoded.tokens == (prefix,)
    assert span.input[0] == prefix
    assert span.tokens[-2:] == (1, 0)


def test_a_prefix_token_in_the_choice_is_not_doubled() -> None:
    _, (span,) = codec().encode_choices(request("", "<s>a"))
    assert span == Span(input=(5,), tokens=(0,))


def test_duplicate_choices_stay() -> None:
    assert len(codec().encode_choices(request("a", " c", " c"))[1]) == 2


@pytest.mark.parametrize(("asked", "given"), [(3, 3), (4, 4), (5, 4), (32_768, 4)])
def test_a_text_may_have_what_is_asked_for_or_what_the_context_leaves(asked: int, given: int) -> None:
    encoded = codec(max_length=10).encode_prompt(Request(request_id="r", prompt="acacac"), asked)
    assert (encoded.truncated, encoded.max_tokens) == (0, given)


@pytest.mark.parametrize(("context", "truncated", "room"), [(10, 0, 4), (7, 0, 1)])
def test_without_a_maximum_a_text_may_fill_the_context(context: int, truncated: int, room: int) -> None:
    encoded = codec(max_length=context).encode_prompt(Request(request_id="r", prompt="acacac"), None)
    assert (encoded.truncated, encoded.max_tokens) == (truncated, room)
    with pytest.raises(PromptTooLongError, match="one token after it need 7 tokens, the model's context holds 6: 1 too many"):
        codec(max_length=6).encode_prompt(Request(request_id="r", prompt="acacac"), None)


def test_without_a_maximum_truncation_makes_room_for_256_tokens_or_half_the_context() -> None:
    short, long = (Request(request_id="r", prompt="ac" * count) for count in (3, 400))
    assert codec(max_length=1024, truncate=True).encode_prompt(short, None).max_tokens == 1024 - 6
    cut = codec(max_length=1024, truncate=True).encode_prompt(long, None)
    assert (len(cut.tokens), cut.truncated, cut.max_tokens) == (768, 32, 256)
    cut = codec(max_length=8, truncate=True).encode_prompt(short, None)
    assert (len(cut.tokens), cut.truncated, cut.max_tokens) == (4, 2, 4)


def test_a_prompt_that_leaves_room_for_one_token_is_the_longest() -> None:
    plain = Request(request_id="r", prompt="acacac")
    assert codec(max_length=7).encode_prompt(plain, 5).max_tokens == 1
    with pytest.raises(PromptTooLongError, match="one token after it need 7 tokens, the model's context holds 6: 1 too many"):
        codec(max_length=6).encode_prompt(plain, 5)
    with pytest.raises(PromptTooLongError, match=r"lower `generation[.]max_tokens`"):
        codec(max_length=6, truncate=True).encode_prompt(plain, 6)


def test_truncation_makes_room_for_all_new_tokens_where_that_leaves_a_prompt() -> None:
    plain = Request(request_id="r", prompt="acacac")
    cut = codec(max_length=10, truncate=True).encode_prompt(plain, 5)
    assert (cut.tokens, cut.truncated, cut.text) == ((2, 0, 2, 0, 2), 1, "cacac")
    assert cut.max_tokens == 5
    whole = codec(max_length=10, truncate=True).encode_prompt(plain, 10)
    assert (whole.truncated, whole.max_tokens) == (0, 4)


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [("a\n\nQ: b", ("Q:", "\n\n"), ("a", True)), ("a", ("b", ""), ("a", False)), ("Stop", ("Stop",), ("", True)), ("", (), ("", False))],
)
def test_a_text_ends_before_the_first_stop_sequence(text: str, stops: tuple[str, ...], expected: tuple[str, bool]) -> None:
    assert cut_at_stop(text, stops) == expected


def test_a_prompt_of_which_the_tokenizer_leaves_nothing_is_an_empty_one() -> None:
    dropping = codec()
    dropping.tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    for choice in ("b", "ba", "\u200bba"):
        found, empty = (dropping.encode_choices(request(prompt, choice)) for prompt in ("\u200b", ""))
        assert found[1] == empty[1]
        assert found[0].tokens == (5,)
