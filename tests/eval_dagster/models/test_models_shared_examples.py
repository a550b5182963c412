"""By default the prompts of a subject share their examples, and the engine computes these once."""

from typing import Any

import pytest
from tiny_models import tiny_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.models.transformers.encoding.tokenization import Codec
from eval_dagster.models.transformers.generation.engine import GenerationEngine
from eval_dagster.models.transformers.network.batching import BatchRunner
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Request, ResponseType, Row
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.samples import build_samples

TOKENIZER = tiny_tokenizer()
CONTEXT, SHOTS, QUESTIONS = 512, 5, 16


class Hills(BaseTask[str]):
    NAME = "Hills"
    DATASET_PATH = "hills"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ExactMatch,)
    SUBJECTS = ("all",)
    STOP_SEQUENCES = ("\n",)
    MAX_TOKENS = 4

    def _get_instruction_text(self, item: Row) -> str:
        return f"a dog ran over the hill number {item['n']} and sat down on the mat\n"

    def _get_ground_truth(self, item: Row) -> str:
        return "yes"


class DrawnByItself(Hills):
    def _sample_fewshot_examples(self, item: Row) -> list[Row]:
        return self.rnd.sample(list(self.dataset["train"]), self.num_fewshot)


def requests_of(task: BaseTask[Any], **settings: Any) -> list[Request]:
    samples = build_samples({"test": [{"n": n} for n in range(QUESTIONS)], "train": [{"n": n} for n in range(100, 400)]}, "all")
    pool = fewshot_pool(task, samples[QUESTIONS:])
    rendering = Rendering(task=task, formatter=ConcatFormatter(), num_fewshot=SHOTS, **settings)
    return [prompt.request for sample in samples[:QUESTIONS] for prompt in render_sample(rendering, sample, pool)]


def share_computed(requests: list[Request]) -> float:
    """Tokens of prompts that a tiny model computes, as a share of those that are asked."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    network = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=len(TOKENIZER), max_position_embeddings=CONTEXT)).eval()
    codec = Codec(TOKENIZER, max_length=CONTEXT, truncate=False)
    engine = GenerationEngine(network, codec, BatchRunner(rows=4, tokens=None), device="cpu", pad_token=1, end_tokens=[1])
    assert all(response.error is None for _, response in engine.respond(requests))
    assert engine.usage.path == "rows"
    return engine.usage.prompt_tokens_computed / engine.usage.prompt_tokens_asked


@pytest.mark.parametrize("task", [Hills(), DrawnByItself()])
def test_the_examples_are_computed_once_by_default(task: BaseTask[Any]) -> None:
    requests = requests_of(task)
    assert len({request.prompt.rpartition("a dog ran")[0] for request in requests}) == 1
    least = (SHOTS + QUESTIONS) / ((SHOTS + 1) * QUESTIONS)
    assert share_computed(requests) < 1.05 * least


@pytest.mark.parametrize(("sets", "most"), [(4, 0.5), ("per_sample", 1.0)])
def test_more_sets_share_less(sets: Any, most: float) -> None:
    default, found = share_computed(requests_of(Hills())), share_computed(requests_of(Hills(), sets=sets))
    assert 1.3 * default < found <= most
