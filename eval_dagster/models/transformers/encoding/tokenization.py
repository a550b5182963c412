"""Encodes prompts and choices as tokens that fit the context, decodes generated tokens, and cuts long texts into windows.

It also orders prompts so that each shares the longest possible beginning with the last.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from eval_dagster.errors import ModelError, PromptTooLongError
from eval_dagster.records import Request

if TYPE_CHECKING:
    import torch

_TRUNCATION_ROOM = 256
"""New tokens for which a prompt is truncated if the request has no maximum."""
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class EncodedPrompt:
    """An encoded prompt."""

    text: str
    """The request's prompt, or the rest of it after truncation."""
    tokens: tuple[int, ...]
    truncated: int
    """Tokens cut off on the left."""
    tensors: Mapping[str, "torch.Tensor"] = field(default_factory=dict)
    """Inputs beside the tokens: the values of the prompt's images."""
    max_tokens: int = 0
    """Most tokens of a text after it: the maximum of the request, or the rest of the context."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Tokens to score, and the input that predicts them."""

    input: tuple[int, ...]
    """Context and tokens without the last one, which is predicted only."""
    tokens: tuple[int, ...]
    """The tokens to score. The last of them is predicted at the last position of the input."""
    tensors: Mapping[str, "torch.Tensor"] = field(default_factory=dict)
    """Inputs beside the tokens: the values of its images."""

    @property
    def context(self) -> tuple[int, ...]:
        """The tokens before those to score."""
        return self.input[: len(self.input) + 1 - len(self.tokens)]


EncodedChoices = tuple[EncodedPrompt, tuple[Span, ...]]
"""A prompt, and one span a choice."""


class ImageCodec(Protocol):
    """An encoder of requests with images."""

    def encode_choices(self, request: Request) -> EncodedChoices:
        """Encode a prompt with images and its choices."""
        ...

    def encode_prompt(self, request: Request, max_tokens: int | None) -> EncodedPrompt:
        """Encode a prompt with images, with room for up to `max_tokens` tokens after it, by the rule of `Codec.encode_prompt`."""
        ...


def no_images() -> ImageCodec:
    """Raise `ModelError`: a model of text alone got a request with images."""
    raise ModelError("The request has images, and the model takes text alone.")


class Codec:
    """Encodes requests for one tokenizer and one context length."""

    def __init__(self, tokenizer: Any, *, max_length: int, truncate: bool, images: Callable[[], ImageCodec] = no_images):
        """`images` gives the encoder of requests with images, or raises `ModelError` if there is none."""
        self.tokenizer = tokenizer
        self.max_length = max_length
        self._truncate = truncate
        self._images = images

    def encode_choices(self, request: Request) -> EncodedChoices:
        """Encode a prompt and its choices by the rule of lm-evaluation-harness.

        White space at the end of the prompt moves to the front of each choice. Prompt and choice are encoded together; the choice's
        tokens are those after the first `len(encode(prompt))`. A prompt without a token is the model's prefix token.

        Raises `PromptTooLongError` if a choice does not fit the context, and truncation is off or would leave no prompt; `ModelError`
        without choices, or if one has no token of its own.
        """
        context, choices = split_choices(request)
        if request.images:
            return self._images().encode_choices(request)
        special = not request.has_special_tokens
        prompt, *wholes = self._encode([context, *(context + choice for choice in choices)], add_special_tokens=special)
        if context and prompt:
            pairs = [(whole[: len(prompt)], whole[len(prompt) :]) for whole in wholes]
        else:
            # The prompt is empty or has no token.
            prefix = self._prefix_token()
            prompt, wholes = (prefix,), self._encode(choices, add_special_tokens=False)
            pairs = [(prompt, whole[1:] if whole[:1] == prompt else whole) for whole in wholes]
        check_continuations(request, [continuation for _, continuation in pairs])
        cut = max(0, max(len(head) + len(tail) - 1 for head, tail in pairs) - self.max_length)
        if cut and not (self._truncate and cut < min(len(head) for head, _ in pairs)):
            raise self._too_long("prompt and choice", cut)
        return self._prompt(request, prompt, cut), tuple(Span(input=(*head[cut:], *tail[:-1]), tokens=tail) for head, tail in pairs)

    def encode_prompt(self, request: Request, max_tokens: int | None) -> EncodedPrompt:
        """Encode a prompt with room for up to `max_tokens` tokens after it; without a maximum, for as many as the context holds.

        With truncation, the prompt is cut so that `max_tokens` fit (256 without a maximum), if that leaves any of the prompt. Otherwise
        `max_tokens` is an upper bound: a text ends if the context ends, which has room for at least one token.

        Raises `PromptTooLongError` if the prompt leaves no room in the context, and truncation is off or would leave no prompt.
        """
        if request.images:
            return self._images().encode_prompt(request, max_tokens)
        (tokens,) = self._encode([request.prompt], add_special_tokens=not request.has_special_tokens)
        tokens = tokens or (self._prefix_token(),)
        wanted = min(_TRUNCATION_ROOM, self.max_length // 2) if max_tokens is None else max_tokens
        excess = max(0, len(tokens) + wanted - self.max_length)
        room = self.max_length - len(tokens)
        most = self.max_length if max_tokens is None else max_tokens
        if self._truncate and excess < len(tokens):
            return replace(self._prompt(request, tokens, excess), max_tokens=min(most, room + excess))
        if room < 1:
            remedies = ("lower `generation.max_tokens` of this model",) if self._truncate else ()
            raise self._too_long("prompt and one token after it", 1 - room, *remedies)
        return replace(self._prompt(request, tokens, 0), max_tokens=min(most, room))

    def encode_text(self, text: str) -> tuple[int, tuple[int, ...]]:
        """Encode a text to be scored as a whole: the token to start it with, and its own tokens.

        A text that already begins with the starting token does not get it twice. Raises `ModelError` if the tokenizer has no such token.
        """
        prefix = self._prefix_token()
        (tokens,) = self._encode([text], add_special_tokens=False)
        return prefix, tokens[1:] if tokens[:1] == (prefix,) else tokens

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens, special tokens left out unless they are asked for."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=not special, clean_up_tokenization_spaces=False))

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[tuple[int, ...]]:
        # `verbose` would warn of texts longer than the tokenizer believes the context to be.
        encoded = self.tokenizer(list(texts), add_special_tokens=add_special_tokens, return_attention_mask=False, verbose=False)
        return [tuple(tokens) for tokens in encoded["input_ids"]]

    def _prefix_token(self) -> int:
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        raise ModelError("Nothing stands before the first token, and the tokenizer has neither a bos nor an eos token to start with.")

    def _too_long(self, what: str, excess: int, *remedies: str) -> PromptTooLongError:
        even = ", even without any prompt" if self._truncate else ""
        last = "" if self._truncate else ", or set `truncate: true` for this model"
        return PromptTooLongError(
            f"{what} need {self.max_length + excess} tokens, the model's context holds {self.max_length}: {excess} too many{even}; "
            f"{', or '.join((*remedies, 'shorten the prompt (`num_fewshot` of the eval)'))}{last}."
        )

    def _prompt(self, request: Request, tokens: tuple[int, ...], cut: int) -> EncodedPrompt:
        kept = tokens[cut:]
        # Decoded with its special tokens, since it shows the exact input of the model.
        text = str(self.tokenizer.decode(list(kept), clean_up_tokenization_spaces=False)) if cut else request.prompt
        return EncodedPrompt(text=text, tokens=kept, truncated=cut)


def split_choices(request: Request) -> tuple[str, list[str]]:
    """A request's prompt without the white space at its end, and its choices with it. Raises `ModelError` if there are none."""
    context = request.prompt.rstrip()
    space = request.prompt[len(context) :]
    if not request.choices:
        raise ModelError("The request has an empty list of choices; at least one is needed to score.")
    return context, [space + choice for choice in request.choices]


def check_continuations(request: Request, continuations: Sequence[Sequence[int]]) -> None:
    """Raise `ModelError` for a choice that has no token of its own."""
    for choice, continuation in zip(request.choices or (), continuations, strict=True):
        if not continuation:
            raise ModelError(f"The choice {choice!r} has no token of its own after this prompt, so it has no log-probability.")


def rolling_windows(prefix: int, tokens: Sequence[int], length: int) -> tuple[Span, ...]:
    """Cut a text into windows that score each of its tokens once, by the rule of lm-evaluation-harness.

    A window has `length` tokens: as many as the model's context holds. The first one begins with `prefix`, the token before the text. Each
    later one begins with the token before those that it scores, the last one with as many earlier tokens as fit.
    """
    windows = []
    for start in range(0, len(tokens), length):
        scored = tuple(tokens[start : start + length])
        end = start + len(scored)
        given = (prefix, *tokens[: end - 1]) if start == 0 else tuple(tokens[end - 1 - length : end - 1])
        windows.append(Span(input=given, tokens=scored))
    return tuple(windows)


def by_prefix(items: Sequence[Item], tokens: Callable[[Item], Sequence[int]]) -> list[Item]:
    """Order items as a walk through the tree of their tokens, with the longest branch first.

    Then a cache of the previous item is enough to compute each node of the tree once, and neighbouring items have about the same length.
    Items with equal tokens keep their order.
    """
    prompts = [tuple(tokens(item)) for item in items]
    order = sorted(range(len(items)), key=prompts.__getitem__)
    shared = [0, *(common_prefix(prompts[one], prompts[other]) for one, other in pairwise(order))]
    lengths = [len(prompts[index]) for index in order]
    ranges, walk = [range(len(order))] if items else [], list[int]()
    while ranges:
        part = ranges.pop()
        if len(part) == 1:
            walk.append(part.start)
            continue
        depth = min(shared[part.start + 1 : part.stop])
        cuts = [part.start, *(place for place in part[1:] if shared[place] == depth), part.stop]
        branches = [range(start, stop) for start, stop in pairwise(cuts)]
        # A prompt that ends where the others branch comes before them, because it is computed on the way.
        branches.sort(key=lambda branch: (lengths[branch.start] > depth, -max(lengths[place] for place in branch)))
        ranges += reversed(branches)
    return [items[order[place]] for place in walk]


def common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens at the front of two sequences that are the same."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
