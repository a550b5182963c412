"""The page of a result as bytes: what it holds, how large it is, and what it lets a browser do."""

import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from page_contents import content_of, result_of, sample_of

from eval_dagster.pages.samples.page import page_policy, result_page


def test_what_samples_share_is_there_once() -> None:
    examples = [["user", "An example. " * 50], ["assistant", "yes"]]
    samples = [sample_of(number, f"Question {number}?", "yes", "no", examples=examples) for number in range(50)]
    content = content_of(result_page(result_of(samples)))
    assert content["examples"] == [examples]
    assert (content["heads"], content["tails"]) == (["Instructions.\n\n"], ["\nAnswer:"])
    for packed, sample in zip(content["samples"], samples, strict=True):
        head, tail = packed["prompt"]
        assert content["heads"][head] + packed["turns"][0][1] + content["tails"][tail] == sample["prompt"]
        assert packed["now"] == sample["now"]


@pytest.mark.long
def test_ten_thousand_samples_are_less_than_20_mb() -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(2, 11))) for _ in range(20_000)]
    text = [" ".join(draw.choices(words, k=110)) for _ in range(20_000)]
    samples = [sample_of(number, " ".join(draw.choices(words, k=60)), text[number], text[-number]) for number in range(10_000)]
    page = result_page(result_of(samples))
    assert len(content_of(page)["samples"]) == 10_000
    assert len(page) < 20_000_000


def test_long_texts_are_cut_and_the_page_tells_it() -> None:
    page = result_page(result_of([sample_of(0, "Question?", "x" * 1_000_000, "no")]))
    content = content_of(page)
    [text] = content["samples"][0]["now"]["text"]
    assert text == "x" * 100_000 + "… [1,000,000 characters]"
    assert content["notes"] == ["1 texts of more than 100,000 characters are cut here; the lake has them whole"]
    many = [sample_of(number, "Question?", f"{number} " + "x" * 90_000, "no") for number in range(1_000)]
    content = content_of(result_page(result_of(many)))
    assert max(len(each["now"]["text"][0]) for each in content["samples"]) < 20_100
    assert content["notes"] == ["1,000 texts of more than 20,000 characters are cut here; the lake has them whole"]


def test_every_text_counts_for_the_size_of_the_page() -> None:
    """Each kind of text alone is too much: 300 texts of 4,000 characters in a page of 1 MB."""
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz .", k=4_000)) for _ in range(300)]
    places: dict[str, Callable[[str], dict[str, Any]]] = {
        "context": lambda text: {"context": text},
        "examples": lambda text: {"examples": [["user", text], ["assistant", "yes"]]},
        "choices": lambda text: {"choices": [text, "no"]},
        "gold": lambda text: {"gold": [text]},
        "head": lambda text: {"prompt": f"{text}\n\nQuestion?\nAnswer:"},
        "items": lambda text: {"now": {"text": ["yes"], "items": {"exact_match": text}}},
        "score errors": lambda text: {"now": {"text": ["yes"], "score_errors": {"exact_match": text}}},
        "items before": lambda text: {"before": {"text": ["yes"], "items": {"exact_match": text}}},
        "choices before": lambda text: {"before": {"text": ["yes"], "choices": [text]}},
    }
    for name, more in places.items():
        samples = [sample_of(number, "Question?", "yes", "no") | more(text) for number, text in enumerate(texts)]
        page = result_page(result_of(samples), 1_000_000)
        assert len(page) < 1_000_000, name
        content = content_of(page)
        assert content["notes"] == ["300 texts of more than 1,000 characters are cut here; the lake has them whole"], name
        assert all(each["texts_cut"] for each in content["samples"]), name


def test_a_text_that_is_in_the_page_once_counts_once() -> None:
    examples = [["user", "x" * 90_000], ["assistant", "yes"]]
    samples = [sample_of(number, f"{number} " + "y" * 50_000, "yes", "no", examples=examples) for number in range(1_000)]
    content = content_of(result_page(result_of(samples)))  # 50 million characters; with each prompt again they were 100 million
    assert content["notes"] == []
    assert not any("texts_cut" in each for each in content["samples"])


def test_texts_that_need_more_bytes_than_prose_are_cut_more() -> None:
    draw = random.Random(0)
    samples = [
        sample_of(number, "Question?", "".join(chr(draw.randrange(0x4E00, 0x9FFF)) for _ in range(900)), "no") for number in range(600)
    ]
    page = result_page(result_of(samples), 800_000)  # 540,000 characters of 3 bytes
    assert len(page) < 800_000
    assert content_of(page)["notes"] == ["600 texts of more than 200 characters are cut here; the lake has them whole"]


def test_ids_are_never_cut() -> None:
    sample = sample_of(0, "x" * 2_000, "yes", "no") | {"sample_id": "i" * 1_500, "subject": "s" * 1_500}
    [packed] = content_of(result_page(result_of([sample]), 1))["samples"]
    assert (packed["sample_id"], packed["subject"]) == ("i" * 1_500, "s" * 1_500)
    assert packed["turns"][0][1] == "x" * 200 + "… [2,000 characters]"


def test_values_without_a_form_in_json() -> None:
    sample = sample_of(0, "Question \ud83d?", "yes", "no", choices=["yes", "no"])
    sample["now"]["logprobs"] = [-math.inf, -0.5]
    [packed] = content_of(result_page(result_of([sample])))["samples"]
    assert packed["now"]["logprobs"] == [None, -0.5]
    assert packed["turns"] == [["user", "Question \ud83d?"]]


def test_no_text_of_a_sample_is_in_the_page_as_markup() -> None:
    hostile = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
    page = result_page(result_of([sample_of(0, hostile, hostile, "no", subject=hostile)])).decode()
    assert "alert(" not in page
    assert re.findall("<script[^>]*>", page) == ['<script type="text/plain" id="data">', "<script>"]


def test_the_policy_admits_the_page_s_own_script_alone() -> None:
    policy = page_policy()
    assert policy.startswith("default-src 'none'; ")
    assert re.search("script-src 'sha256-[A-Za-z0-9+/=]{44}';", policy)
    assert policy.count("'unsafe-inline'") == 1  # of styles
