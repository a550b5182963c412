from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import named_values, response_kind
from eval_dagster.metrics.ifeval import (
    IFEVAL_METRICS,
    KINDS,
    InstLevelLooseAcc,
    InstLevelStrictAcc,
    PromptLevelLooseAcc,
    PromptLevelStrictAcc,
    followed,
)
from eval_dagster.records import Completion, MetricContext
from eval_dagster.stages.scores import score_response, statistic_names

NO_COMMA = ("punctuation:no_comma", {})
QUOTED = ("startend:quotation", {})
WORDS = ("length_constraints:number_words", {"num_words": 3, "relation": "at least"})
JSON = ("detectable_format:json_format", {})
PARAGRAPHS = ("length_constraints:number_paragraphs", {"num_paragraphs": 1})
# Of google/IFEval's table: every row has every argument, most of them null.
NULLS = dict.fromkeys(["num_words", "relation", "keywords", "num_paragraphs", "letter", "let_relation"])


def row(*instructions: tuple[str, Any]) -> dict[str, Any]:
    return {
        "key": 1000,
        "prompt": "Write.",
        "instruction_id_list": [kind for kind, _ in instructions],
        "kwargs": [{**NULLS, **arguments} for _, arguments in instructions],
    }


def answer(text: str, *instructions: tuple[str, Any]) -> Completion:
    return Completion(completion_text=text, row=row(*instructions))


def test_the_four_values_bear_the_names_of_the_harness() -> None:
    assert [metric.NAME for metric in IFEVAL_METRICS] == [
        "prompt_level_strict_acc",
        "inst_level_strict_acc",
        "prompt_level_loose_acc",
        "inst_level_loose_acc",
    ]
    assert {response_kind(metric) for metric in IFEVAL_METRICS} == {Completion}


def test_a_prompt_counts_where_all_its_instructions_are_followed() -> None:
    assert PromptLevelStrictAcc().calculate(answer('"one two three"', NO_COMMA, QUOTED, WORDS)) == 1
    assert PromptLevelStrictAcc().calculate(answer('"one two"', NO_COMMA, QUOTED, WORDS)) == 0
    assert followed(answer('"one, two"', NO_COMMA, QUOTED, WORDS)) == [False, True, False]
    # The same kind twice counts twice: "at least once, less than three times".
    twice = [("keywords:frequency", {"keyword": "a", "frequency": n, "relation": r}) for n, r in [(1, "at least"), (3, "less than")]]
    assert followed(answer("a b", *twice)) == [True, True]
    assert followed(answer("a a a", *twice)) == [True, False]


def test_instructions_of_all_prompts_weigh_alike() -> None:
    # 3 of 3 and 0 of 1: 3/4 of all instructions; the mean of the prompts' parts would be 1/2.
    answers = [answer('"one two three"', NO_COMMA, QUOTED, WORDS), answer("one", QUOTED)]
    statistics = [named_values(InstLevelStrictAcc.NAME, InstLevelStrictAcc().calculate(each)) for each in answers]
    sums = np.array([sum(each[name] for each in statistics) for name in statistic_names(InstLevelStrictAcc)])
    assert sums.tolist() == [3, 4]
    assert InstLevelStrictAcc.aggregate(sums) == 0.75
    assert InstLevelStrictAcc.aggregate(np.array([[3.0, 4.0], [0.0, 2.0]])).tolist() == [0.75, 0]
    assert np.isnan(InstLevelStrictAcc.aggregate(np.zeros(2)))


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ('Sure, here it is:\n{"a": 1}', JSON),
        ('{"a": 1}\nHope it helps!', JSON),
        ('Sure, here it is:\n{"a": 1}\nHope it helps!', JSON),
        ('**{"a": 1}**', JSON),
        ('Sure:\n**{"a": 1}**\nHope it helps!', JSON),
        ('Sure, here it is:\n"Hello"', QUOTED),
        ('**"Hello"**', QUOTED),
        ("***\none\n***\ntwo", PARAGRAPHS),
    ],
)
def test_what_is_followed_loosely_alone(text: str, instruction: tuple[str, Any]) -> None:
    assert PromptLevelStrictAcc().calculate(answer(text, instruction)) == 0
    assert PromptLevelLooseAcc().calculate(answer(text, instruction)) == 1
    assert InstLevelLooseAcc().calculate(answer(text, instruction)) == {"followed": 1, "instructions": 1}


def test_loosely_no_more_than_one_line_is_left_out_at_either_end() -> None:
    assert PromptLevelLooseAcc().calculate(answer('Sure.\nHere it is:\n{"a": 1}', JSON)) == 0
    assert PromptLevelLooseAcc().calculate(answer('__{"a": 1}__', JSON)) == 0


def test_loosely_each_instruction_may_have_its_own_variation() -> None:
    # Without the first line there is no comma and are no three words; with it there are both.
    both = answer("Sure, here:\ntwo", NO_COMMA, WORDS)
    assert followed(both) == [False, True]
    assert followed(both, loose=True) == [True, True]
    assert PromptLevelLooseAcc().calculate(both) == 1


@given(text=st.text(alphabet='a,*\n" {}1:-é\ud800'), instructions=st.lists(st.sampled_from([NO_COMMA, QUOTED, WORDS, JSON]), min_size=1))
def test_values_agree_whatever_the_text(text: str, instructions: list[tuple[str, Any]]) -> None:
    response = answer(text, *instructions)
    strict, loose = followed(response), followed(response, loose=True)
    assert len(strict) == len(loose) == len(instructions)
    assert all(one <= other for one, other in zip(strict, loose, strict=True))
    assert PromptLevelStrictAcc().calculate(response) == float(all(strict)) <= PromptLevelLooseAcc().calculate(response)
    assert InstLevelStrictAcc().calculate(response) == {"followed": sum(strict), "instructions": len(instructions)}
    # The order of the instructions does not matter, and one that is given twice is followed twice.
    assert followed(answer(text, *reversed(instructions))) == strict[::-1]
    assert followed(answer(text, *instructions, *instructions)) == strict * 2


def test_the_context_is_as_good_as_the_row() -> None:
    context = MetricContext(**row(QUOTED))
    assert followed(Completion(completion_text='"Hi"', context=context, row={"question": "?"})) == [True]


def test_counts_of_a_table_with_nulls_are_floats() -> None:
    paragraphs = ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2.0, "nth_paragraph": 2.0, "first_word": "b"})
    assert followed(answer("a\n\nb", paragraphs, ("detectable_format:number_bullet_lists", {"num_bullets": 0.0}))) == [True, True]


def changed(**fields: Any) -> dict[str, Any]:
    return {**row(NO_COMMA, WORDS), **fields}


@pytest.mark.parametrize("metric", IFEVAL_METRICS)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "there is no 'instruction_id_list'"),
        ({"instruction_id_list": ["punctuation:no_comma"]}, "there is no 'kwargs'"),
        (changed(instruction_id_list=[]), r"'instruction_id_list' is \[\]; expected a list of at least one id"),
        (changed(instruction_id_list="punctuation:no_comma"), "'instruction_id_list' is 'punctuation:no_comma'; expected a list"),
        (changed(kwargs=[{}]), "expected a list of 2, one mapping for each"),
        (changed(kwargs=[{}, None]), r"instruction 2 \(length_constraints:number_words\) has the arguments None; expected a mapping"),
        (row(("punctuation:no_colon", {})), "instruction 1 is 'punctuation:no_colon', which is not known; expected one of change_case:"),
        (row((None, {})), "instruction 1 is None, which is not known"),
        (row(NO_COMMA, (WORDS[0], {"num_words": 3})), r"instruction 2 \(.*number_words\) lacks 'relation'; expected 'less than' or"),
        (row((WORDS[0], {**WORDS[1], "relation": "at most"})), "has relation = 'at most'; expected 'less than' or 'at least'"),
        (row((WORDS[0], {**WORDS[1], "num_words": "3"})), "has num_words = '3'; expected a whole number, 0 or more"),
        (row((WORDS[0], {**WORDS[1], "num_words": 2.5})), "has num_words = 2.5; expected a whole number"),
        (row((WORDS[0], {**WORDS[1], "num_words": float("nan")})), "has num_words = nan; expected a whole number"),
        (row((WORDS[0], {**WORDS[1], "num_words": -1})), "has num_words = -1; expected a whole number, 0 or more"),
        (row((WORDS[0], {**WORDS[1], "num_words": True})), "has num_words = True; expected a whole number"),
        (row((NO_COMMA[0], {"num_words": 3})), "has 'num_words', which it does not take; expected no arguments"),
        (row((WORDS[0], {**WORDS[1], "letter": "a"})), "has 'letter', which it does not take; expected 'num_words', 'relation'"),
        (row(("keywords:existence", {"keywords": "cat"})), "has keywords = 'cat'; expected a list of texts"),
        (row(("keywords:existence", {"keywords": []})), r"has keywords = \[\]; expected a list of texts"),
        (row(("startend:end_checker", {"end_phrase": " "})), "has end_phrase = ' '; expected a text"),
        (row(("language:response_language", {"language": "tlh"})), "has language = 'tlh'; expected the code of a language"),
        (
            row(("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 1, "nth_paragraph": 0, "first_word": "a"})),
            "has nth_paragraph = 0; expected a whole number, 1 or more",
        ),
    ],
)
def test_a_malformed_row_says_what_is_wrong(metric: Any, fields: dict[str, Any], message: str) -> None:
    # Not even a blank text, which follows nothing, hides it.
    for text in ("one two three", ""):
        with pytest.raises(DataError, match=message):
            metric().calculate(Completion(completion_text=text, row=fields))


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(DataError) as caught:
        followed(answer("a", ("x:y", {})))
    assert [kind for kind in KINDS if kind not in str(caught.value)] == []


def test_a_malformed_row_becomes_an_error_of_its_sample() -> None:
    scores = score_response(IFEVAL_METRICS, [answer("a", ("x:y", {}))], None)
    assert [score.metric for score in scores] == [metric.NAME for metric in IFEVAL_METRICS]
    assert all(score.value is None and str(score.error).startswith("DataError: instruction 1 is 'x:y'") for score in scores)
