from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from eval_dagster.errors import DataError
from eval_dagster.records import Grammar, ModelResponse
from eval_dagster.tasks.doc import Doc, SamplingMethod, grammar_of

CITIES = ["Lima", "Quito", "Bogotá"]


def test_what_a_doc_leaves_open() -> None:
    doc = Doc("Capital of Peru?", CITIES, 0)
    assert (doc.instruction, doc.images, doc.specific, doc.unconditioned_query, doc.original_query) == (None,) * 5
    assert (doc.id, doc.task_name, doc.fewshot_samples, doc.sampling_methods, doc.fewshot_sorting_class) == ("", "", [], [], None)
    assert (doc.generation_size, doc.stop_sequences, doc.use_logits, doc.num_samples, doc.generation_grammar) == (
        None,
        None,
        False,
        1,
        None,
    )


@pytest.mark.parametrize(
    ("choices", "gold_index", "indices", "golds"),
    [
        (CITIES, 1, [1], ["Quito"]),
        (CITIES, [0, 2], [0, 2], ["Lima", "Bogotá"]),
        (["Lima", "Lima"], [0, 1], [0, 1], ["Lima", "Lima"]),
        ([], 0, [0], []),
        ([], [], [], []),
    ],
)
def test_golds(choices: list[str], gold_index: Any, indices: list[int], golds: list[str]) -> None:
    doc = Doc(query="?", choices=choices, gold_index=gold_index)
    assert doc.gold_indices == indices
    assert doc.get_golds() == golds


def test_golds_of_other_positions() -> None:
    doc = Doc("?", CITIES, 0)
    assert doc.get_golds(2) == ["Bogotá"]
    assert doc.get_golds([1, 2]) == ["Quito", "Bogotá"]


def test_docs_share_no_lists() -> None:
    first, second = Doc("?", CITIES, 0), Doc("?", CITIES, 0)
    first.fewshot_samples.append(second)
    first.sampling_methods.append(SamplingMethod.LOGPROBS)
    assert (second.fewshot_samples, second.sampling_methods) == ([], [])


def test_sampling_methods_may_be_their_names() -> None:
    methods: Any = ["GENERATIVE", SamplingMethod.PERPLEXITY]
    assert Doc("?", [], 0, sampling_methods=methods).sampling_methods == [SamplingMethod.GENERATIVE, SamplingMethod.PERPLEXITY]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query": None}, r"a Doc has the query None and the choices \['Lima'"),
        ({"choices": ["Lima", 3]}, r"expected a text and a list of texts"),
        ({"gold_index": 3}, r"a Doc has the gold_index 3; expected positions of its 3 choices, from 0"),
        ({"gold_index": -1}, r"a Doc has the gold_index -1"),
        ({"gold_index": [0, 5]}, r"a Doc has the gold_index \[0, 5\]"),
        ({"gold_index": "Lima"}, r"a Doc has the gold_index 'Lima'"),
        ({"num_samples": 0}, r"a Doc has num_samples 0; expected 1 at least"),
    ],
)
def test_what_is_wrong_with_a_doc_is_told_where_it_is_made(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Doc(**{"query": "?", "choices": CITIES, "gold_index": 0, **fields})


class _Given(BaseModel):
    type: str
    value: Any


@pytest.mark.parametrize(
    ("given", "grammar"),
    [
        (None, None),
        (Grammar(kind="regex", value="a+"), Grammar(kind="regex", value="a+")),
        ({"type": "regex", "value": "[0-9]+"}, Grammar(kind="regex", value="[0-9]+")),
        ({"type": "json", "value": {"type": "object", "a": 1}}, Grammar(kind="json_schema", value='{"a": 1, "type": "object"}')),
        (_Given(type="json", value='{"type": "null"}'), Grammar(kind="json_schema", value='{"type": "null"}')),
    ],
)
def test_grammars(given: Any, grammar: Grammar | None) -> None:
    assert grammar_of(given) == grammar


@pytest.mark.parametrize("given", ["[0-9]+", {"type": "lark", "value": "x"}, {"type": "regex", "value": 3}, {"value": "x"}])
def test_a_grammar_that_is_not_understood_is_refused(given: Any) -> None:
    with pytest.raises(DataError, match=r"the generation grammar .* is not understood; expected {'type': 'json'"):
        grammar_of(given)


def test_a_response_knows_its_final_text() -> None:
    response = ModelResponse(text=["<think>Peru borders Chile.</think>\nLima", "Quito"], output_tokens=[[1, 2], [3]])
    assert response.final_text == response.text
    assert response.text_post_processed is None
    before = replace(response)
    assert response.post_process() is response.post_process() is response
    assert response.text_post_processed == response.final_text == ["Lima", "Quito"]
    assert response.reasonings == ["Peru borders Chile.", None]
    assert replace(response, text_post_processed=None, reasonings=()) == before


def test_other_tags_of_reasoning() -> None:
    response = ModelResponse(text=["[r]so[/r] Lima"]).post_process(("[r]", "[/r]"))
    assert (response.final_text, response.reasonings) == (["Lima"], ["so"])


def test_reasoning_that_the_prompt_opened() -> None:
    response = ModelResponse(input="Capital of Peru?\n<think>\n", text=["Near the coast.</think>Lima"]).post_process()
    assert (response.final_text, response.reasonings) == (["Lima"], ["Near the coast."])


def test_what_a_response_leaves_open() -> None:
    response = ModelResponse()
    assert (response.input, response.text_post_processed, response.logits, response.unconditioned_logprobs) == (None,) * 4
    assert not any([response.input_tokens, response.text, response.output_tokens, response.logprobs, response.argmax_logits_eq_gold])
    assert (response.truncated_tokens_count, response.padded_tokens_count) == (0, 0)
