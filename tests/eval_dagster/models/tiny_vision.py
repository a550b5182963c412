"""Tiny randomly initialised vision-language models, saved to folders."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    PreTrainedTokenizerFast,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from eval_dagster.models.transformers.weights.loading import quiet

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}MARK{% else %}{{ part['text'] }}{% endif %}{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
    "initializer_range": 0.3,
}


def png(colour: str, size: tuple[int, int] = (20, 12)) -> bytes:
    """A PNG file of one colour."""
    file = BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def save_idefics3(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Four tokens an image, between tokens that mark it; a mask of its pixels goes in beside their values."""
    images = Idefics3ImageProcessorPil(size={"longest_edge": 16}, max_image_size={"longest_edge": 16}, do_image_splitting=False)
    processor = Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=TEMPLATE.replace("MARK", "<image>"))
    config = Idefics3Config(
        image_token_id=processor.image_token_id,
        scale_factor=2,
        pad_token_id=1,
        text_config={"model_type": "llama", "vocab_size": len(tokenizer), **_TEXT},
        vision_config=_VISION,
    )
    _save(Idefics3ForConditionalGeneration(config), processor, folder)


def save_gemma3(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Four tokens an image, which see each other: what kind each token is goes in beside them."""
    special = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer.add_special_tokens({"additional_special_tokens": list(special.values())})
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", extra_special_tokens=special
    )
    images = Gemma3ImageProcessorPil(size={"height": 16, "width": 16})
    processor = Gemma3Processor(images, wrapped, image_seq_length=4, chat_template=TEMPLATE.replace("MARK", "<start_of_image>"))
    config = Gemma3Config(
        boi_token_index=wrapped.convert_tokens_to_ids(special["boi_token"]),
        eoi_token_index=wrapped.convert_tokens_to_ids(special["eoi_token"]),
        image_token_id=wrapped.convert_tokens_to_ids(special["image_token"]),
        mm_tokens_per_image=4,
        text_config={"vocab_size": len(wrapped), "head_dim": 8, **_TEXT},
        vision_config=_VISION,
    )
    network = Gemma3ForConditionalGeneration(config)
    # Zero at first, which would make all images equal.
    torch.nn.init.normal_(network.model.multi_modal_projector.mm_input_projection_weight)
    _save(network, processor, folder)


SAVERS: dict[str, Callable[[PreTrainedTokenizerFast, Path], None]] = {"idefics3": save_idefics3, "gemma3": save_gemma3}


def save(kind: str, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    """Save a tiny model of an architecture."""
    torch.manual_seed(3)
    with quiet():
        SAVERS[kind](tokenizer, folder)
    return folder


def _save(network: Any, processor: Any, folder: Path) -> None:
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
