"""A Llama of a stated size with random weights, in safetensors: the shape is what costs time, and no download is needed."""

import hashlib
import json
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

SHAPES = {
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    # As Llama 3.2 1B, Llama 3.2 3B and Llama 3.1 8B, but for the vocabulary, which is that of the tokenizer.
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8},
    "3b": {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
}
"""Sizes by name."""

_CONTEXT = 8192


def config_of(shape: str, vocabulary: int) -> LlamaConfig:
    """The configuration of a shape for a vocabulary of so many tokens."""
    return LlamaConfig(
        **SHAPES[shape], vocab_size=vocabulary, max_position_embeddings=_CONTEXT, tie_word_embeddings=shape in ("tiny", "1b", "3b")
    )


def parameters_of(shape: str, vocabulary: int) -> int:
    """The number of weights, without drawing one."""
    with torch.device("meta"):
        network = LlamaForCausalLM(config_of(shape, vocabulary))
    return sum(weights.numel() for weights in network.parameters())


def random_model(shape: str, dtype: str, tokenizer_folder: Path, cache: Path) -> Path:
    """The folder of a model with the tokenizer of another one. It is made once and kept in `cache`."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    config = config_of(shape, len(tokenizer))
    key = hashlib.sha256(json.dumps([config.to_dict(), dtype], sort_keys=True).encode()).hexdigest()[:12]
    folder = cache / f"random-{shape}-{dtype}-{key}"
    if folder.is_dir():
        return folder
    made = folder.with_name(f".{folder.name}")
    shutil.rmtree(made, ignore_errors=True)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    network.save_pretrained(made)
    # The sides need the memory of the GPU.
    del network
    torch.cuda.empty_cache()
    tokenizer.save_pretrained(made)
    made.rename(folder)
    return folder
