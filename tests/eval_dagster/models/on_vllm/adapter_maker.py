"""Random LoRA adapters, and models with their weights added."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

RANK, ALPHA = 8, 32
TARGETS = ("q_proj", "v_proj")


def write_adapter(base: Path, folder: Path, *, seed: int, rank: int = RANK) -> Path:
    """Write an adapter for a Llama in a folder, in the layout of peft."""
    draw = torch.Generator().manual_seed(seed)
    parts = {}
    for name, weights in load_file(base / "model.safetensors").items():
        if any(f".{target}." in name for target in TARGETS):
            path = f"base_model.model.{name.removesuffix('.weight')}"
            parts[f"{path}.lora_A.weight"] = torch.randn(rank, weights.shape[1], generator=draw) * 0.02
            parts[f"{path}.lora_B.weight"] = torch.randn(weights.shape[0], rank, generator=draw) * 0.02
    folder.mkdir(parents=True)
    save_file(parts, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": ALPHA,
        "target_modules": list(TARGETS),
        "bias": "none",
        "lora_dropout": 0.0,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    return folder


def write_merged(base: Path, adapter: Path, folder: Path) -> Path:
    """Write a copy of a model with an adapter's weights added: W + B A alpha / rank."""
    folder.mkdir(parents=True)
    weights, parts = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    scale = ALPHA / json.loads((adapter / "adapter_config.json").read_text("utf-8"))["r"]
    for name in weights:
        path = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{path}.lora_A.weight" in parts:
            added = parts[f"{path}.lora_B.weight"] @ parts[f"{path}.lora_A.weight"] * scale
            weights[name] = (weights[name].float() + added).to(weights[name].dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for file in base.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    return folder
