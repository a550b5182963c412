"""Encodes prompts with images. Each mark becomes the tokens that the model's processor gives an image.

The values of the images are inputs beside the tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import torch

from eval_dagster.errors import ModelError, PromptTooLongError
from eval_dagster.models.transformers.encoding.tokenization import EncodedChoices, EncodedPrompt, Span, check_continuations, split_choices
from eval_dagster.models.transformers.weights.loading import quiet
from eval_dagster.records import Request


class ProcessorCodec:
    """Encodes requests with images by the processor of a vision-language model. Nothing is truncated: that could cut an image."""

    def __init__(self, processor: Any, *, max_length: int, dtype: torch.dtype):
        """`dtype` is the type of the images' values in the network."""
        self._processor = processor
        self._max_length = max_length
        self._dtype = dtype

    def encode_choices(self, request: Request) -> EncodedChoices:
        """Encode a prompt with images and its choices by the rule of `Codec.encode_choices`.

        Raises `PromptTooLongError` if a choice does not fit the context; `ModelError` without a choice, or if one has no token of its own,
        an image cannot be read, or marks and images differ in number.
        """
        context, choices = split_choices(request)
        images = self._images(request)
        prompt = self._encode(context, images, request)
        wholes = [self._encode(context + choice, images, request) for choice in choices]
        continuations = tuple(whole.tokens[len(prompt.tokens) :] for whole in wholes)
        check_continuations(request, continuations)
        self._check_length(max(len(whole.tokens) for whole in wholes) - 1, "prompt, images and choice")
        spans = []
        for whole, continuation in zip(wholes, continuations, strict=True):
            # Of inputs with one value a token, the last value is removed with the last token.
            shape = (1, len(whole.tokens))
            tensors = {
                name: value[:, :-1] if value.shape[:2] == shape and not name.startswith(("image", "pixel")) else value
                for name, value in whole.tensors.items()
            }
            spans.append(Span(input=whole.tokens[:-1], tokens=continuation, tensors=tensors))
        return prompt, tuple(spans)

    def encode_prompt(self, request: Request, max_tokens: int | None) -> EncodedPrompt:
        """Encode a prompt with images, with room for up to `max_tokens` tokens after it, or for fewer if the context ends.

        Raises `PromptTooLongError` if the prompt leaves no room in the context; `ModelError` if an image cannot be read, or marks and
        images differ in number.
        """
        prompt = self._encode(request.prompt, self._images(request), request)
        self._check_length(len(prompt.tokens) + 1, "prompt, images and one token after them")
        room = self._max_length - len(prompt.tokens)
        return replace(prompt, max_tokens=room if max_tokens is None else min(max_tokens, room))

    def _images(self, request: Request) -> list[Any]:
        mark = image_mark(self._processor)
        marks = request.prompt.count(mark)
        if marks != len(request.images):
            raise ModelError(
                f"The prompt holds {marks} marks {mark!r} and the request {len(request.images)} images; expected one an image."
            )
        return [read_image(png, index) for index, png in enumerate(request.images)]

    def _encode(self, text: str, images: Sequence[Any], request: Request) -> EncodedPrompt:
        with quiet():
            encoded = self._processor(
                text=[text], images=list(images), add_special_tokens=not request.has_special_tokens, return_tensors="pt"
            )
        tokens = tuple(encoded["input_ids"][0].tolist())
        beside = {name: value for name, value in encoded.items() if name not in ("input_ids", "attention_mask")}
        tensors = {name: value.to(self._dtype) if value.is_floating_point() else value for name, value in beside.items()}
        return EncodedPrompt(text=request.prompt, tokens=tokens, truncated=0, tensors=tensors)

    def _check_length(self, needed: int, what: str) -> None:
        excess = needed - self._max_length
        if excess > 0:
            raise PromptTooLongError(
                f"{what} need {needed} tokens, the model's context holds {self._max_length}: {excess} too many; "
                "shorten the prompt: one with images is never truncated."
            )


def image_mark(processor: Any) -> str:
    """The text that stands for an image in a prompt for a processor. Raises `ModelError` if it names none."""
    mark = getattr(processor, "image_token", None)
    if not mark:
        raise ModelError(f"{type(processor).__name__} names no text that stands for an image, so a prompt cannot place one.")
    return str(mark)


def read_image(png: bytes, index: int) -> Any:
    """An image file, read. Raises `ModelError`, naming the image by its index, if it cannot be."""
    try:
        from PIL import Image

        return Image.open(BytesIO(png)).convert("RGB")
    except ImportError as error:
        raise ModelError(f"The package that reads images is missing ({error}). Install it: pip install pillow.") from error
    except Exception as error:
        raise ModelError(f"Image {index} (from 0) of the request cannot be read ({type(error).__name__}: {error}).") from error
