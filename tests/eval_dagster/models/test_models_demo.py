"""The real 135M demo model: conversion from GGUF, a committed sample of scores, and lm-evaluation-harness's results.

`demo_logprobs.json` holds log-probabilities of contexts and continuations written for this test. They were computed without this package:
the GGUF file dequantised to float32 by transformers, then one plain, unbatched forward pass a continuation on a CPU.
"""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.records import GenerationSettings, Message, Request, Role

SHARED = Path(os.environ.get("EVAL_DAGSTER_SHARED") or Path(__file__).resolve().parents[4] / "shared")
REFERENCE = SHARED / "reference" / "lm_eval_smollm2_135m.parquet"
SAMPLE = Path(__file__).with_name("demo_logprobs.json")
STOPS = ("Question:", "</s>", "<|im_end|>")
TOLERANCE = 1e-3
BOUND = 1e-4

pytestmark = pytest.mark.model


@pytest.mark.long
def test_the_gguf_file_is_converted_once(demo_handle: TransformersHandle, demo_model: LoadedModel) -> None:
    version = demo_handle.version()
    folder = demo_handle._checkpoint.folder()
    written = (folder / "model.safetensors").stat().st_mtime_ns
    demo_handle.load()
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert demo_handle.version() == version
    assert sorted(path.suffix for path in folder.parent.iterdir() if path.name != "digests.json") == sorted([folder.suffix, ".lock"])


@pytest.mark.long
def test_the_chat_template_of_the_gguf_file(demo_handle: TransformersHandle) -> None:
    prompt = demo_handle.apply_chat_template(
        [Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Hi"), Message(Role.ASSISTANT, "Hello")]
    )
    assert prompt == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello"


@pytest.mark.long
@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch has no oneDNN")
def test_its_linear_layers_are_packed(demo_model: LoadedModel) -> None:
    assert demo_model.usage()[0].layers.startswith("211 packed by oneDNN")


@pytest.mark.long
def test_a_committed_sample_of_log_probabilities(demo_model: LoadedModel) -> None:
    sample = json.loads(SAMPLE.read_text("utf-8"))
    requests = [
        Request(request_id=str(index), prompt=item["context"], choices=tuple(item["continuations"])) for index, item in enumerate(sample)
    ]
    answered = 0
    for request, response in demo_model.respond(requests):
        item = sample[int(request.request_id)]
        assert response.error is None
        assert response.logprobs == pytest.approx(item["logprobs"], abs=TOLERANCE)
        assert list(response.argmax_logits_eq_gold) == item["is_greedy"]
        answered += 1
    assert answered == len(sample)


@pytest.mark.long
def test_no_score_depends_on_its_company_by_more_than_the_bound(demo_model: LoadedModel) -> None:
    """Alone, or beside the others over one tree: in float32 a log-probability is the same to `BOUND`, and so is what is greedy."""
    sample = json.loads(SAMPLE.read_text("utf-8"))[::3]
    requests = [
        Request(request_id=str(index), prompt=item["context"], choices=tuple(item["continuations"])) for index, item in enumerate(sample)
    ]
    assert demo_model.usage()[0].path == "tree"
    together = {request.request_id: response for request, response in demo_model.respond(requests)}
    for request in requests:
        ((_, alone),) = demo_model.respond([request])
        beside = together[request.request_id]
        assert alone.argmax_logits_eq_gold == beside.argmax_logits_eq_gold
        for one, other in zip(alone.token_logprobs, beside.token_logprobs, strict=True):
            assert one == pytest.approx(other, abs=BOUND, rel=0)


def reference() -> pd.DataFrame:
    if not REFERENCE.is_file():
        pytest.skip(
            f"no {REFERENCE}: the results of lm-evaluation-harness are not part of the repository (EVAL_DAGSTER_SHARED names their folder)"
        )
    return pd.read_parquet(REFERENCE)


@pytest.mark.long
def test_log_probabilities_and_accuracies_equal_lm_evaluation_harness(demo_model: LoadedModel) -> None:
    rows = reference().query("task != 'gsm8k'").sort_values(["task", "doc_index", "choice"])
    groups = {f"{task}/{index}": group for (task, index), group in rows.groupby(["task", "doc_index"])}
    requests = [Request(request_id=name, prompt=group.context.iloc[0], choices=tuple(group.continuation)) for name, group in groups.items()]
    compared = 0
    for request, response in demo_model.respond(requests):
        group = groups[request.request_id]
        assert response.logprobs == pytest.approx(group.logprob.tolist(), abs=TOLERANCE), request.request_id
        assert list(response.argmax_logits_eq_gold) == group.is_greedy.tolist(), request.request_id
        assert response.logprobs.index(max(response.logprobs)) == group.logprob.tolist().index(group.logprob.max())
        compared += len(group)
    assert compared == len(rows) == 640


@pytest.mark.long
def test_greedy_texts_equal_lm_evaluation_harness(demo_model: LoadedModel, demo_handle: TransformersHandle) -> None:
    rows = reference().query("task == 'gsm8k'")
    settings = GenerationSettings(max_tokens=128, stop_sequences=STOPS)
    requests = [Request(request_id=str(row.doc_index), prompt=row.context, generation=settings) for row in rows.itertuples()]
    expected = dict(zip(rows.doc_index.astype(str), rows.continuation, strict=True))
    answers = {request.request_id: response for request, response in demo_model.respond(requests)}
    assert len(answers) == len(rows) == 16
    folder = demo_handle._checkpoint.folder()
    for name, response in answers.items():
        assert response.error is None
        if response.text[0] != expected[name]:
            assert gap_where_they_part(folder, response.input, response.text[0], expected[name]) < TOLERANCE, name


def gap_where_they_part(folder: Path, prompt: str, text: str, expected: str) -> float:
    """Difference of the two best logits at the first token in which two continuations differ."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ours, theirs = tokenizer.encode(prompt + text), tokenizer.encode(prompt + expected)
    pairs = zip(ours, theirs, strict=False)
    part = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))
    with torch.no_grad():
        best = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([ours[:part]])).logits[0, -1].topk(2).values
    return float(best[0] - best[1])


SHOTS = """Question: A baker has 12 trays with 9 rolls each and sells 47 rolls. How many rolls are left?
Answer: There are 12 * 9 = 108 rolls, and 108 - 47 = 61 are left. #### 61

Question: Tom reads 14 pages a day for 3 weeks. How many pages does he read?
Answer: Three weeks are 3 * 7 = 21 days. Tom reads 14 * 21 = 294 pages. #### 294

"""
QUESTIONS = (
    "A farmer has 17 cows and buys 3 times as many sheep. How many animals are there?",
    "Anna runs 4 km on each weekday and 10 km on Sunday. How far does she run in 5 weeks?",
    "A box holds 24 pencils. How many boxes are needed for 500 pencils?",
    "Ben is 7 years older than Lea. Together they are 31. How old is Lea?",
    "A train goes 90 km an hour for 2 hours and 60 km an hour for 3 hours. How far does it go?",
    "A shirt costs $40 and is sold at a discount of 15%. What does it cost now?",
    "There are 28 children, and a quarter of them play chess. How many do not?",
    "Eggs cost $3 a dozen. What do 60 eggs cost?",
)


@pytest.mark.long
def test_texts_that_share_their_examples_equal_those_of_padded_batches(demo_model: LoadedModel, demo_handle: TransformersHandle) -> None:
    settings = GenerationSettings(max_tokens=24, stop_sequences=("\n\n",))
    requests = [
        Request(request_id=str(index), prompt=f"{SHOTS}Question: {question}\nAnswer:", generation=settings)
        for index, question in enumerate(QUESTIONS)
    ]
    before = demo_model.usage()[1]
    answers = {request.request_id: response for request, response in demo_model.respond(requests)}
    after = demo_model.usage()[1]
    assert after.path == "rows", after.reason
    asked = after.prompt_tokens_asked - before.prompt_tokens_asked
    assert after.prompt_tokens_computed - before.prompt_tokens_computed < 0.4 * asked
    padded = demo_handle.load()
    padded._generator._is_checked, padded._generator.usage.path = True, "padded"
    for request, response in padded.respond(requests):
        mine = answers[request.request_id]
        assert (mine.error, response.error) == (None, None)
        if mine.output_tokens != response.output_tokens:
            folder = demo_handle._checkpoint.folder()
            assert gap_where_they_part(folder, request.prompt, mine.text[0], response.text[0]) < TOLERANCE, request.request_id
