"""Tiny randomly initialised models and their tokenizer."""

from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eval_dagster.models.transformers.handle import TransformersHandle

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
        # It encodes positions as a bias of the attention, so the prefix tree cannot score it.
        bloom = BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=vocabulary, seq_length=CONTEXT, bos_token_id=0, eos_token_id=1)
        return BloomForCausalLM(bloom)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    # Large initial weights: the texts then vary, and scores are far from equal.
    llama = LlamaConfig(
        **sizes, vocab_size=vocabulary, max_position_embeddings=CONTEXT, initializer_range=0.3, bos_token_id=0, eos_token_id=1
    )
    return LlamaForCausalLM(llama)


OpenTiny = Callable[..., TransformersHandle]
