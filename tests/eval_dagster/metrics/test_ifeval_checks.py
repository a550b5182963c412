"""Each kind of instruction of IFEval, followed and not.

The expected values are worked out by hand from the description of the instruction and from what the authors' program
(google-research, instruction_following_eval) is known to count; many arguments are those of rows of google/IFEval.
"""

from typing import Any

import langdetect
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.metrics.ifeval import KINDS, Instruction, followed, variations
from eval_dagster.records import Completion

ENGLISH = "the quick brown fox jumps over the lazy dog and runs into the forest"
AT_LEAST, LESS_THAN = "at least", "less than"

CASES: dict[str, list[tuple[dict[str, Any], str, bool]]] = {
    "keywords:existence": [
        ({"keywords": ["mom", "mother"]}, "Mothers", False),
        ({"keywords": ["mom", "mother"]}, "MOM! Mothers", True),
        # As it stands: a period is no wildcard.
        ({"keywords": ["a.b"]}, "axb", False),
        ({"keywords": ["c++"]}, "C++ it is", True),
    ],
    "keywords:frequency": [
        ({"keyword": "war", "frequency": 3, "relation": AT_LEAST}, "War, war, warm", True),
        ({"keyword": "war", "frequency": 4, "relation": AT_LEAST}, "War, war, warm", False),
        ({"keyword": " war ", "frequency": 3, "relation": LESS_THAN}, "War, war, warm", False),
        ({"keyword": "photography", "frequency": 1, "relation": LESS_THAN}, "none", True),
    ],
    "keywords:forbidden_words": [
        ({"forbidden_words": ["rock", "can"]}, "A rocket and a canyon", True),
        ({"forbidden_words": ["rock", "can"]}, "You CAN.", False),
        ({"forbidden_words": ["c++"]}, "I like C++.", False),
        ({"forbidden_words": ["cat"]}, "cat_s", True),
    ],
    "keywords:letter_frequency": [
        ({"letter": "t", "let_frequency": 2, "let_relation": LESS_THAN}, "a quiz: Two", True),
        ({"letter": "T", "let_frequency": 2, "let_relation": LESS_THAN}, "That", False),
        ({"letter": "#", "let_frequency": 4, "let_relation": AT_LEAST}, "#a #b #c #d", True),
        ({"letter": "#", "let_frequency": 4, "let_relation": AT_LEAST}, "#a #b #c d", False),
    ],
    "language:response_language": [
        ({"language": "en"}, ENGLISH, True),
        ({"language": "de"}, ENGLISH, False),
        ({"language": "de"}, "Der schnelle braune Fuchs springt über den faulen Hund und läuft davon.", True),
        ({"language": "kn"}, "ಹೌದು, ಹ್ಯಾಂಬರ್ಗರ್ ಒಂದು ಸ್ಯಾಂಡ್‌ವಿಚ್ ಆಗಿದೆ.", True),
        ({"language": "mr"}, "हे एक साधे वाक्य आहे आणि ते मराठीत लिहिले आहे.", True),
        # Nothing tells the language of numbers: the text counts as following.
        ({"language": "fr"}, "1 + 1 = 2", True),
    ],
    "length_constraints:number_sentences": [
        ({"num_sentences": 3, "relation": AT_LEAST}, "One is here. Is two? Three!", True),
        ({"num_sentences": 3, "relation": LESS_THAN}, "One is here. Is two? Three!", False),
        # Neither a title, an initial, a number nor an ellipsis inside a sentence ends it.
        ({"num_sentences": 2, "relation": LESS_THAN}, "Dr. J. Smith of the U.S. Army paid 3.50 on Jan. 5 at 5 p.m. or ... later.", True),
        ({"num_sentences": 2, "relation": AT_LEAST}, 'He said "Stop." Then he left', True),
        # The program takes this abbreviation for an end.
        ({"num_sentences": 2, "relation": AT_LEAST}, "Use a tool, e.g. a saw.", True),
        # Lines without marks are one sentence.
        ({"num_sentences": 2, "relation": LESS_THAN}, "one\ntwo\n\nthree", True),
    ],
    "length_constraints:number_paragraphs": [
        ({"num_paragraphs": 2}, "one\n***\ntwo", True),
        ({"num_paragraphs": 2}, "***\none *** two\n***\n", True),
        ({"num_paragraphs": 3}, "one\n***\n***\ntwo", False),
        ({"num_paragraphs": 2}, "one\n***\n***\ntwo", False),
        ({"num_paragraphs": 1}, "one\n\ntwo", True),
        ({"num_paragraphs": 2}, "one\n***\ntwo\n***\nthree", False),
    ],
    "length_constraints:number_words": [
        ({"num_words": 4, "relation": AT_LEAST}, "don't stop now", True),
        ({"num_words": 4, "relation": LESS_THAN}, "don't stop now", False),
        ({"num_words": 2, "relation": LESS_THAN}, "— façade_1 …", True),
    ],
    "length_constraints:nth_paragraph_first_word": [
        ({"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "President"}, "One\n\npresident's two", True),
        ({"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "president"}, "One\n\npresident two", False),
        ({"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "president"}, "One\n\npresident two", False),
        ({"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "weekend"}, '"Weekend, she said\nand left"', True),
        ({"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "week"}, "weekend", False),
        ({"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "weekend"}, "'Weekend' was", True),
        # The empty third part is not counted, but has a place.
        ({"num_paragraphs": 3, "nth_paragraph": 3, "first_word": "c"}, "a\n\nb\n\n\n\nc", False),
        ({"num_paragraphs": 1, "nth_paragraph": 2, "first_word": "a"}, "a", False),
    ],
    "detectable_content:number_placeholders": [
        ({"num_placeholders": 2}, "Dear [name], at [address]", True),
        ({"num_placeholders": 2}, "Dear [name], at [address", False),
        ({"num_placeholders": 2}, "[[name]]", False),
        ({"num_placeholders": 1}, "[na\nme]", False),
    ],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, "Bye\n\np. s. One more", True),
        ({"postscript_marker": "P.S."}, "Bye\n\nPS: One more", False),
        ({"postscript_marker": "P.P.S"}, "Bye\nP.P.S One more", True),
        ({"postscript_marker": "P.P.S"}, "Bye\nP.S. One more", False),
    ],
    "detectable_format:number_bullet_lists": [
        ({"num_bullets": 2}, "List:\n* one\n  - two\n** no bullet **", True),
        ({"num_bullets": 2}, "* one\n* two\n* three", False),
        ({"num_bullets": 1}, "*one* word", True),
        ({"num_bullets": 1}, "a * b", False),
    ],
    "detectable_format:constrained_response": [
        ({}, "I think: My answer is maybe.", True),
        ({}, "My answer is yes", False),
        ({}, "my answer is no.", False),
    ],
    "detectable_format:number_highlighted_sections": [
        ({"num_highlights": 3}, "*one* and **two** and *three*", True),
        ({"num_highlights": 3}, "**one** and **two**", False),
        ({"num_highlights": 1}, "* one\n* two", False),
        ({"num_highlights": 1}, "****** ** **", False),
    ],
    "detectable_format:multiple_sections": [
        ({"section_spliter": "SECTION", "num_sections": 2}, "SECTION 1\na\nSECTION 2\nb", True),
        ({"section_spliter": "SECTION", "num_sections": 2}, "Section 1\na\nSection 2\nb", False),
        ({"section_spliter": " Day ", "num_sections": 2}, "Day 1 Day10", True),
        ({"section_spliter": "Day", "num_sections": 1}, "Day one", False),
    ],
    "detectable_format:json_format": [
        ({}, '{"a": [1, 2]}', True),
        ({}, ' ```json\n{"a": 1}\n```\n', True),
        ({}, '```\n{"a": 1}\n```', True),
        ({}, '```JSON\n{"a": 1}```', True),
        ({}, 'Here: {"a": 1}', False),
        ({}, "{'a': 1}", False),
    ],
    "detectable_format:title": [
        ({}, "<<poem of joy>>\nRoses", True),
        ({}, "<< >>\n<<>>", False),
        ({}, "<<poem\nof joy>>", False),
        ({}, "<poem>", False),
        ({}, "<<<>>>", False),
    ],
    "combination:two_responses": [
        ({}, "one\n******\ntwo", True),
        ({}, "******one******two******", True),
        ({}, "one\n******\none ", False),
        ({}, "one ****** ****** two", False),
        ({}, "one ****** two ****** three", False),
        ({}, "one *** two", False),
    ],
    "combination:repeat_prompt": [
        ({"prompt_to_repeat": "Write a poem. "}, "\nwrite a Poem. Roses", True),
        ({"prompt_to_repeat": " Write a poem.\n"}, "Write a poem. Roses", True),
        ({"prompt_to_repeat": "Write a poem."}, "Sure! Write a poem. Roses", False),
    ],
    "startend:end_checker": [
        ({"end_phrase": "Peace! "}, 'So long. peace!"\n', True),
        ({"end_phrase": "peace!"}, "So long. PEACE!", True),
        ({"end_phrase": "Peace!"}, "So long. Peace! Bye", False),
    ],
    "startend:quotation": [({}, ' "Hi" ', True), ({}, '""', True), ({}, '"', False), ({}, "“Hi”", False), ({}, '"Hi', False)],
    "change_case:capital_word_frequency": [
        # As nltk parts words: HELLO, I, NASA, COVID-19, DO and N'T are capital, 2020, Hello and the punctuation are not.
        ({"capital_frequency": 6, "capital_relation": AT_LEAST}, "HELLO, I: NASA, COVID-19 DON'T Hello 2020", True),
        ({"capital_frequency": 7, "capital_relation": AT_LEAST}, "HELLO, I: NASA, COVID-19 DON'T Hello 2020", False),
        ({"capital_frequency": 1, "capital_relation": LESS_THAN}, "None here", True),
    ],
    "change_case:english_capital": [
        ({}, ENGLISH.upper(), True),
        ({}, ENGLISH, False),
        ({}, "DER SCHNELLE BRAUNE FUCHS SPRINGT ÜBER DEN FAULEN HUND UND LÄUFT DAVON.", False),
        ({}, "123", False),
    ],
    "change_case:english_lowercase": [
        ({}, ENGLISH, True),
        ({}, ENGLISH.capitalize(), False),
        ({}, "der schnelle braune fuchs springt über den faulen hund und läuft davon.", False),
    ],
    "punctuation:no_comma": [({}, "One; two، three，", True), ({}, "One, two", False)],
}


@pytest.mark.parametrize(("kind", "arguments", "text", "expected"), [(kind, *case) for kind, cases in CASES.items() for case in cases])
def test_an_instruction_is_followed_or_not(kind: str, arguments: dict[str, Any], text: str, expected: bool) -> None:
    row = {"instruction_id_list": [kind], "kwargs": [arguments]}
    assert followed(Completion(completion_text=text, row=row)) == [expected]


def test_every_kind_is_tried_both_ways() -> None:
    assert CASES.keys() == KINDS.keys()
    assert len(KINDS) == 25
    assert [kind for kind, cases in CASES.items() if {expected for *_, expected in cases} != {True, False}] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_blank_text_follows_nothing(kind: str) -> None:
    arguments = CASES[kind][0][0]
    assert not Instruction(kind, arguments).is_followed_by("")
    assert not Instruction(kind, arguments).is_followed_by(" \n\t")


def test_the_language_of_a_text_is_the_same_every_time() -> None:
    # The detector draws at random: unseeded it finds now the one, now another.
    state = langdetect.DetectorFactory.seed
    for text, code in (("hello", "fi"), ("I am", "it"), ("Hej hej", "sk")):
        assert len({Instruction("language:response_language", {"language": code}).is_followed_by(text) for _ in range(20)}) == 1
    # Somebody else's draws are left alone.
    assert langdetect.DetectorFactory.seed is state is None


ALPHABET = st.sampled_from([*"aA.,!?*-<>[]\"'#1_ \n\té你\ud800", "***", "******", "P.S.", "Section 1"])
TEXTS = st.lists(ALPHABET, max_size=30).map("".join)


@pytest.mark.parametrize(
    ("kind", "arguments", "more", "less"),
    [
        ("keywords:frequency", {"keyword": "a"}, "frequency", "relation"),
        ("keywords:letter_frequency", {"letter": "a"}, "let_frequency", "let_relation"),
        ("length_constraints:number_words", {}, "num_words", "relation"),
        ("length_constraints:number_sentences", {}, "num_sentences", "relation"),
        ("change_case:capital_word_frequency", {}, "capital_frequency", "capital_relation"),
    ],
)
@given(text=TEXTS.filter(str.strip), count=st.integers(0, 12))
def test_at_least_and_less_than_exclude_each_other(
    kind: str, arguments: dict[str, Any], more: str, less: str, text: str, count: int
) -> None:
    at_least = Instruction(kind, {**arguments, more: count, less: AT_LEAST}).is_followed_by(text)
    less_than = Instruction(kind, {**arguments, more: count, less: LESS_THAN}).is_followed_by(text)
    assert at_least is not less_than
    # More of it is asked for: whoever does not have as many does not have more.
    assert at_least or not Instruction(kind, {**arguments, more: count + 1, less: AT_LEAST}).is_followed_by(text)


@given(text=TEXTS)
def test_the_variations_of_a_text(text: str) -> None:
    found = variations(text)
    assert found[0] == text
    assert len(found) == len(set(found)) <= 8
    assert all(set(each) <= set(text) and len(each) <= len(text) for each in found)
    # Whatever varies, its form without asterisks is there, too.
    assert {each.replace("*", "") for each in found} <= set(found)


def test_the_eight_variations() -> None:
    assert variations("Sure:\n*one*\ntwo\nBye*") == [
        "Sure:\n*one*\ntwo\nBye*",
        "Sure:\none\ntwo\nBye",
        "*one*\ntwo\nBye*",
        "one\ntwo\nBye",
        "Sure:\n*one*\ntwo",
        "Sure:\none\ntwo",
        "*one*\ntwo",
        "one\ntwo",
    ]
    assert variations("one line") == ["one line", ""]
    # What is left has no white space around it.
    assert variations("Sure:\n\n one \n\nBye") == ["Sure:\n\n one \n\nBye", "one \n\nBye", "Sure:\n\n one", "one"]
