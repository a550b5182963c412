"""Tiny randomly initialised networks of many architectures, and how each of them can be scored."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 300
CONTEXT = 512
WINDOW = 16

ORIGINAL = 48
"""Tokens up to which a network of two rotations takes the one; a longer sequence takes the other for all its tokens."""
LONG_ROPE = {
    "original_max_position_embeddings": ORIGINAL,
    "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
}

_SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
_MODERN = {**_SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_OLD = {"vocab_size": VOCABULARY, "n_layer": 3, "n_head": 4}

_OVER_TREE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _MODERN),
    "qwen2": ("qwen2", _MODERN),
    "qwen3": ("qwen3", {**_MODERN, "head_dim": 8}),
    "gemma3": ("gemma3_text", {**_MODERN, "head_dim": 8, "sliding_window": WINDOW, "layer_types": _MIXED}),
    "mistral with a window": ("mistral", {**_MODERN, "sliding_window": WINDOW}),
    "mistral": ("mistral", {**_MODERN, "sliding_window": None}),
    "gpt2": ("gpt2", {**_OLD, "n_embd": 32, "n_positions": CONTEXT}),
    "gpt_neox": ("gpt_neox", {name: value for name, value in _MODERN.items() if name != "num_key_value_heads"}),
    "opt": (
        "opt",
        {
            **{name: value for name, value in _MODERN.items() if name not in ("intermediate_size", "num_key_value_heads")},
            "ffn_dim": 64,
            "word_embed_proj_dim": 32,
        },
    ),
    "phi3": ("phi3", {**_MODERN, "pad_token_id": 0}),
    "olmo2": ("olmo2", _MODERN),
}
_LIMITED: dict[str, tuple[str, dict[str, Any]]] = {"phi3 of two rotations": ("phi3", {**_MODERN, "pad_token_id": 0, **LONG_ROPE})}
_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("bloom", {**_OLD, "hidden_size": 32, "seq_length": CONTEXT}),
    "mamba": ("mamba", {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": VOCABULARY}),
    "lfm2": ("lfm2", {**_MODERN, "layer_types": ["conv", "full_attention", "conv"]}),
    "gpt_neo": (
        "gpt_neo",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": CONTEXT,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
        },
    ),
}
TREE = sorted(_OVER_TREE)
OTHERS = {"bloom": "prefix", "gpt_neo": "prefix", "lfm2": "plain", "mamba": "plain"}
"""Those that do not honour a caller's mask, and the fastest way of scoring that is exact for them."""


def network(name: str) -> Any:
    """A network of large random weights: its scores differ from each other by far more than rounding."""
    kind, settings = (_OVER_TREE | _LIMITED | _OTHERS)[name]
    torch.manual_seed(3)
    built = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings), dtype=torch.float32).eval()
    with torch.no_grad():
        for label, weights in built.named_parameters():
            if weights.dim() == 2 and "A_log" not in label:
                weights.normal_(0, 0.15)
    return built
