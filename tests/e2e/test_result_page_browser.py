"""The page of a result in a real headless Chromium: from the file, in a frame that allows nothing but scripts, and from the report.

Where `EVAL_DAGSTER_SCREENSHOTS` names a folder, the picture of the documentation is written to it.
"""

import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from hostile_texts import HALVES, STORABLE
from playwright.sync_api import Browser, Page, expect
from scripted_nights import Nights

from eval_dagster.gate.judgement import judge
from eval_dagster.pages.report.writing import write_report
from eval_dagster.pages.samples.page import result_page
from eval_dagster.pages.samples.places import page_path
from eval_dagster.results.samples import collect_samples

sys.path.append(str(Path(__file__).parents[1] / "eval_dagster" / "pages"))
from page_contents import result_of, sample_of

pytestmark = pytest.mark.e2e

SCREENSHOTS = os.environ.get("EVAL_DAGSTER_SCREENSHOTS")
CONTRASTS = """(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (colour) => [0.2126, 0.7152, 0.0722].reduce((sum, part, at) => sum + part * linear(colour[at] / 255), 0);
  const ground = (each) => {
    for (; each; each = each.parentElement) {
      const found = rgb(getComputedStyle(each).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const hasText = (each) => [...each.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  const weak = [];
  for (const each of document.querySelectorAll('body *')) {
    if (!each.checkVisibility() || each.disabled || !hasText(each)) continue;
    const [a, b] = [light(rgb(getComputedStyle(each).color)), light(ground(each))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) weak.push([each.className, each.textContent.slice(0, 40), (a + 0.05) / (b + 0.05)]);
  }
  return weak;
})()"""
"""The texts whose contrast with their ground is below 4.5, the least of WCAG 2 AA."""
UNNAMED = """(() => {
  const kinds = 'button, input, select, textarea, [role=img], [role=listbox], [role=option]';
  const hasName = (each) => each.getAttribute('aria-label') || each.innerText?.trim() || each.labels?.length;
  return [...document.querySelectorAll(kinds)].filter((each) => each.checkVisibility() && !hasName(each)).map((each) => each.outerHTML);
})()"""
"""The controls that a screen reader could not name."""
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a night in which one model became worse, in a home with the pages of all results."""
    nights = Nights(tmp_path_factory.mktemp("nights"))
    for _ in range(2):
        nights.run()
    nights.run(shots=2, capitals=0.35, completion=0.5)
    project = nights.project(shots=2)
    return write_report(project, judge(project, "nightly", run_id="gate"))


@pytest.fixture(scope="module")
def home(report: Path) -> Path:
    return report.parents[2]


class Opened:
    """A page, and what the browser said and loaded meanwhile."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.said: list[str] = []
        self.loaded: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: self.said.append(dialog.message))
        page.on("request", lambda request: self.loaded.append(request.url))

    def go(self, path: Path, view: str = "") -> "Opened":
        self.page.goto(path.as_uri() + view)
        self.page.wait_for_selector("body.ready")
        return self

    def shown(self) -> list[str]:
        """The ids of the samples that pass the filters."""
        return list(self.page.evaluate("shown.map((place) => samples[place].sample_id)"))

    def view(self) -> dict[str, str]:
        """The view that the address names."""
        return {name: values[0] for name, values in parse_qs(self.page.evaluate("location.hash.slice(1)")).items()}


OpenIt = Callable[..., Opened]


@pytest.fixture
def open_it(browser: Browser) -> Iterator[OpenIt]:
    contexts = []

    def start(size: str = "desktop", scheme: str = "light", **options: Any) -> Opened:
        width, height = SIZES[size]
        is_phone = size == "phone"
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            is_mobile=is_phone,
            has_touch=is_phone,
            accept_downloads=True,
            **options,
        )
        context.set_default_timeout(20_000)
        expect.set_options(timeout=20_000)
        contexts.append(context)
        return Opened(context.new_page())

    yield start
    for context in contexts:
        context.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A function from samples to the file of their page."""

    def write_it(samples: list[dict[str, Any]], **facts: Any) -> Path:
        path = tmp_path / "samples.html"
        path.write_bytes(result_page(result_of(samples, **facts)))
        return path

    return write_it


def _some(count: int = 40) -> list[dict[str, Any]]:
    """Samples of which every fourth is worse, every tenth better, and a few have an error or are cut off."""
    samples = []
    for number in range(count):
        now, before = ("no", "yes") if number % 4 == 0 else ("yes", "no") if number % 10 == 1 else ("yes", "yes")
        sample = sample_of(number, f"What is the {number}th thing?", f"{now}", f"{before}")
        if number % 13 == 2:
            sample["now"]["finish_reason"] = ["length"]
        if number == 7:
            sample["now"] |= {"error": "TimeoutError: the server did not answer", "scores": {"exact_match": None}}
        samples.append(sample)
    return samples


def _score(sample: dict[str, Any]) -> float | None:
    return sample["now"]["scores"]["exact_match"]


@pytest.mark.long
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_two_clicks_from_the_report_to_both_answers(open_it: OpenIt, report: Path, size: str) -> None:
    opened = open_it(size)
    page = opened.page
    page.goto(report.as_uri())
    card = page.locator("#regressed article", has_text="capitals-completion · mine · exact_match_normalized")
    card.get_by_role("link", name="Look at the samples").click()
    page.wait_for_selector("body.ready")
    if size == "phone":  # the list comes first
        page.locator(".row").first.click()
    before, now = page.locator("#detail .sides > div").all()
    for side in (before, now):
        expect(side.locator(".text")).to_be_in_viewport()
    assert before.locator(".text").inner_text() != now.locator(".text").inner_text()
    expect(page.locator("#detail h2")).to_contain_text("worse")
    assert opened.said == []
    assert all(url.startswith(("file:", "blob:")) for url in opened.loaded)


@pytest.mark.long
def test_a_page_of_the_home_needs_nothing_else(open_it: OpenIt, home: Path) -> None:
    for name in ("capitals", "capitals-completion", "arithmetic"):
        path = page_path(home, name, "mine")
        opened = open_it().go(path)
        expect(opened.page.get_by_role("status").first).to_have_text("180 samples")
        assert opened.loaded == [path.as_uri()]
        assert opened.said == []


@pytest.mark.long
def test_each_kind_of_sample_can_be_chosen(open_it: OpenIt, write: Callable[..., Path]) -> None:
    samples = _some()
    opened = open_it().go(write(samples))
    page, ids = opened.page, lambda test: [each["sample_id"] for each in samples if test(each)]
    kinds = page.get_by_role("group", name="Kind of samples")
    for name, test in {
        "Worse": lambda each: each.get("flip") == "worse" and _score(each) is not None,
        "Better": lambda each: each.get("flip") == "better" and _score(each) is not None,
        "Wrong": lambda each: _score(each) == 0.0,
        "Right": lambda each: _score(each) == 1.0,
        "Errors": lambda each: "error" in each["now"],
        "Cut off": lambda each: "length" in each["now"]["finish_reason"],
        "All": lambda each: True,
    }.items():
        button = kinds.get_by_role("button", name=re.compile(f"{name} "))
        button.click()
        assert opened.shown() == ids(test) != [], name
        assert button.inner_text().split()[-1] == str(len(opened.shown()))
        expect(button).to_have_attribute("aria-pressed", "true")
    page.get_by_label("Subject").select_option("part 1")
    assert opened.shown() == ids(lambda each: each["subject"] == "part 1")
    page.get_by_label("Search").fill("THE 1")
    assert opened.shown() == ids(lambda each: each["subject"] == "part 1" and "the 1" in each["turns"][0][1])
    page.get_by_label("Search").fill("")
    page.get_by_label("Subject").select_option("")
    page.get_by_label("At most so many characters").fill("2")
    assert opened.shown() == ids(lambda each: each["now"].get("error") is None and len(each["now"]["text"][0]) <= 2)
    page.get_by_label("Search").fill("nothing has this")
    expect(page.get_by_text("No sample passes these filters.")).to_be_visible()


@pytest.mark.long
def test_choices_and_confidence(open_it: OpenIt, home: Path) -> None:
    opened = open_it().go(page_path(home, "capitals", "mine"), "#show=worse&sort=confident")
    page = opened.page
    choices = page.locator(".choices > li")
    expect(choices).to_have_count(4)
    gold = page.locator(".choices > li.gold")
    expect(gold).to_contain_text("✓ correct")
    expect(gold).to_contain_text("chosen before")
    expect(page.locator(".choices > li", has_text="chosen now")).to_have_count(1)
    widths = page.locator(".share.now i").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    assert sum(widths) == pytest.approx(100, abs=0.3)
    expect(choices.first.get_by_role("img").first).to_have_attribute("aria-label", re.compile(r"^now: \d"))
    shares = page.evaluate("shown.map((place) => samples[place].confidence)")
    assert shares == sorted(shares, reverse=True)
    page.get_by_label("Confidence of at most so many percent").fill("30.5")
    assert 0 < len(opened.shown()) < len(shares)
    assert max(page.evaluate("shown.map((place) => samples[place].confidence)")) <= 0.305


@pytest.mark.long
def test_other_choices_before_are_not_matched_by_their_place(open_it: OpenIt, write: Callable[..., Path]) -> None:
    samples = [sample_of(number, "Which one?", "", "", choices=["Rome", "Oslo", "Bern"], gold_index=[1]) for number in range(3)]
    for sample, others in zip(samples, (["Oslo", "Rome"], [], None), strict=True):
        sample["now"] = {"logprobs": [-2.0, -0.5, -3.0], "scores": {"exact_match": 1.0}}
        sample["before"] = {"logprobs": [-0.1, -2.0, -4.0][: 3 if others is None else 2], "scores": {"exact_match": 1.0}}
        if others is not None:
            sample["before"]["choices"] = others
    opened = open_it().go(write(samples))
    page = opened.page
    assert page.evaluate("samples.map((each) => each.earlier)") == ["Oslo", "choice 1", "Rome"]
    first, second = page.locator(".choices").all()
    assert (first.locator(".share.now").count(), first.locator(".share.before").count()) == (3, 0)
    expect(first.get_by_text("chosen before")).to_have_count(0)
    expect(second.locator("li")).to_have_count(2)
    expect(second.locator("li", has_text="Oslo")).to_contain_text("chosen before87 %")
    page.evaluate("open(1)")
    expect(page.get_by_text("The choices before are not in the lake.")).to_be_visible()
    expect(page.locator(".share.before")).to_have_count(0)
    page.evaluate("open(2)")
    expect(page.locator(".share.before")).to_have_count(3)
    assert "NaN" not in page.locator("#detail").inner_text()
    assert opened.said == []


def test_each_order(open_it: OpenIt, write: Callable[..., Path]) -> None:
    samples = _some(12)
    for number, sample in enumerate(samples):
        sample["now"] |= {"cost": (number * 7 % 12) / 100, "latency_s": number * 5 % 12, "output_tokens": number * 11 % 12}
    opened = open_it().go(write(samples))
    for order, key in {
        "Highest cost": lambda each: each["now"]["cost"],
        "Slowest": lambda each: each["now"]["latency_s"],
        "Most output tokens": lambda each: each["now"]["output_tokens"],
        "Largest fall first": lambda each: (
            -9
            if each["now"]["scores"]["exact_match"] is None
            else each["before"]["scores"]["exact_match"] - each["now"]["scores"]["exact_match"]
        ),
    }.items():
        opened.page.get_by_label("Sort").select_option(label=order)
        assert opened.shown() == [each["sample_id"] for each in sorted(samples, key=key, reverse=True)], order


def test_what_differs_between_the_answers_is_marked(open_it: OpenIt, write: Callable[..., Path]) -> None:
    before, now = "I think that the capital of Chad is N'Djamena.", "I think that the capital of Chad is surely Bangui."
    opened = open_it().go(write([sample_of(0, "Question?", now, before, gold=before)]))
    sides = opened.page.locator(".sides .text")
    expect(sides.nth(0)).to_have_text(before)
    expect(sides.nth(1)).to_have_text(now)
    assert sides.nth(0).locator("mark").all_inner_texts() == ["N'Djamena"]
    assert sides.nth(1).locator("mark").all_inner_texts() == ["surely Bangui"]
    opened.page.get_by_role("button", name="Mark differences").click()
    expect(opened.page.locator("mark")).to_have_count(0)
    assert opened.view()["marks"] == "false"


@pytest.mark.long
def test_the_exact_prompt_with_its_examples_folded(open_it: OpenIt, home: Path) -> None:
    opened = open_it().go(page_path(home, "arithmetic", "mine"))
    page = opened.page
    examples = page.locator("details", has_text="4 turns of examples before the question")
    assert examples.locator(".text").first.is_hidden()
    examples.locator("summary").click()
    expect(examples.locator(".turn")).to_have_count(4)
    exact = page.locator("details", has_text="The exact text that was sent")
    exact.locator("summary").first.click()
    project = Nights(home.parent).project(shots=2)
    sample = next(each for each in collect_samples(project.lake, "arithmetic", "mine").samples if each["sample_id"] == opened.view()["id"])
    assert exact.locator(".text").first.inner_text() == sample["prompt"]
    other = page.locator("details", has_text="Another prompt was sent before")
    other.locator("summary").click()
    assert other.locator(".text").first.inner_text() == sample["before"]["prompt"]


def test_why_the_score_is_what_it_is(open_it: OpenIt, write: Callable[..., Path]) -> None:
    sample = sample_of(0, "Question?", "no", "yes")
    sample["now"] |= {
        "finish_reason": ["reasoning"],
        "truncated_tokens": 12,
        "score_errors": {"exact_match": "SandboxError: exit status 1\nNameError: x"},
        "items": {"exact_match": '{"judge": "too short"}'},
        "explanations": {
            "exact_match": {
                "answer": ["forty-two", None],
                "judge_prompt": ["Is <b>this</b> right?"],
                "judge_response": ["It is wrong, since <script>alert(1)</script>"],
                "program_output": ["The program took too much time."],
            }
        },
        "reasoning": ["The user wants a word."],
        "raw": ["<think>The user wants a word.</think>no"],
        "tool_calls": [['{"name": "look"}']],
        "prompt_tokens": 1234,
        "latency_s": 0.25,
        "cost": 0.0012,
    }
    opened = open_it().go(write([{**sample, "context": '{"answer_type": "word"}'}]))
    detail = opened.page.locator("#detail")
    for text in (
        "NameError: x",
        '{"judge": "too short"}',
        "The answer that was found (exact_match), now",
        "forty-two",
        "(none was found)",
        "Is <b>this</b> right?",
        "It is wrong, since <script>alert(1)</script>",
        "The program took too much time.",
        "The text ends inside its reasoning",
        "The first 12 tokens of the prompt did not fit",
        "Reasoning now (22 characters)",
        "Calls of tools now",
        "1,234",
        "0.250",
        "$0.00120",
        "What the metrics were given",
    ):
        expect(detail).to_contain_text(text)
    expect(detail.get_by_role("row", name=re.compile("exact_match 1 0 ▼"))).to_be_visible()


def test_a_headline_of_all_samples_together_has_no_filter(open_it: OpenIt, tmp_path: Path) -> None:
    result = result_of(_some())
    [own] = result.metrics
    figures = {**own["now"], "value": 23.5, "ci_low": None}
    bleu = {**own, "metric": "bleu", "has_scores": False, "now": figures, "before": {**figures, "value": 25.0}}
    path = tmp_path / "samples.html"
    path.write_bytes(result_page(replace(result, metrics=[bleu, {**own, "is_headline": False}])))
    opened = open_it().go(path)
    expect(opened.page.locator("#score")).to_have_text("bleu 23.500 −1.500 ▼ from 25.000")
    assert opened.page.locator("#metric option").all_inner_texts() == ["exact_match"]
    opened.page.get_by_role("button", name="Worse").click()
    assert len(opened.shown()) == 10


def test_scores_of_other_samples_are_no_fall(open_it: OpenIt, tmp_path: Path) -> None:
    """As in a night in which most samples are errors."""
    result = result_of(_some())
    [own] = result.metrics
    path = tmp_path / "samples.html"
    path.write_bytes(result_page(replace(result, metrics=[{**own, "now": {**own["now"], "n": 4, "n_errors": 36}}])))
    heading = open_it().go(path).page.locator("#score")
    expect(heading).to_have_text("exact_match 0.500 (0.300 to 0.700) of 4 samples; before 0.750 of 40 · 36 errors")


@pytest.mark.long
def test_keys_alone(open_it: OpenIt, write: Callable[..., Path]) -> None:
    samples = _some()
    opened = open_it().go(write(samples))
    page = opened.page
    press = page.keyboard.press
    press("j")
    press("j")
    press("k")
    assert opened.view()["id"] == samples[1]["sample_id"]
    press("f")
    assert opened.view()["show"] == "worse"
    worse = opened.shown()
    press("f")
    assert opened.view()["show"] == "better"
    press("f")
    assert "show" not in opened.view()
    press("f")
    press("x")
    press("j")
    press("x")
    expect(page.locator("#count")).to_contain_text("2 marked")
    assert page.evaluate("[...marked].map((place) => samples[place].sample_id)") == [worse[0], worse[1]]
    press("/")
    page.keyboard.type("jkx the 12th")
    assert page.get_by_label("Search").input_value() == "jkx the 12th"  # letters are no keys while one types
    press("Escape")
    expect(page.get_by_role("listbox")).to_be_focused()
    page.get_by_label("Search").fill("")
    page.get_by_role("listbox").focus()
    press("End")
    assert opened.view()["id"] == worse[-1]
    expect(page.locator("[role=option][aria-selected=true]")).to_be_in_viewport()
    active = page.get_by_role("listbox").get_attribute("aria-activedescendant")
    assert page.locator(f"#{active}").get_attribute("aria-posinset") == str(len(worse))
    press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert opened.said == []


@pytest.mark.long
def test_a_link_restores_the_view(open_it: OpenIt, write: Callable[..., Path]) -> None:
    path = write(_some())
    first = open_it(permissions=["clipboard-read", "clipboard-write"]).go(path)
    first.page.get_by_role("button", name="Worse").click()
    first.page.get_by_label("Search").fill("8th")
    first.page.get_by_label("Sort").select_option("length")
    first.page.locator(".row").nth(1).click()
    first.page.get_by_role("button", name="Copy link").click()
    expect(first.page.locator("#said")).to_have_text("Link copied")
    link = first.page.evaluate("navigator.clipboard.readText()")
    second = open_it()
    second.page.goto(link)
    second.page.wait_for_selector("body.ready")
    assert second.shown() == first.shown() == ["s000008", "s000028"]
    assert second.view() == first.view()
    assert second.page.get_by_label("Search").input_value() == "8th"
    expect(second.page.locator("#detail h2")).to_contain_text("s000028")
    second.page.evaluate("location.hash = 'show=error'")
    expect(second.page.locator("#detail h2")).to_contain_text("s000007")


def test_samples_leave_the_page_as_they_are(open_it: OpenIt, write: Callable[..., Path], tmp_path: Path) -> None:
    text = "exact \x1b[31m text \u202e of\u2028a model\r\n"
    samples = [sample_of(0, f"What? {text}", text, "yes", examples=[["user", "Example"], ["assistant", "yes"]]), *_some(6)[1:]]
    opened = open_it(permissions=["clipboard-read", "clipboard-write"]).go(write(samples))
    page = opened.page
    page.keyboard.press("c")
    expect(page.locator("#said")).to_have_text("Test case copied")
    case = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert case["messages"] == [
        {"role": "user", "content": "Example"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": f"What? {text}"},
    ]
    assert (case["prompt"], case["gold"], case["answered"]["answer"]) == (samples[0]["prompt"], ["yes"], text)
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download samples.jsonl").click()
    rows = [json.loads(line) for line in Path(download.value.path()).read_text("utf-8").splitlines() if line]
    assert [row["sample_id"] for row in rows] == [each["sample_id"] for each in samples]
    assert rows[0]["now"]["text"] == [text]
    assert rows[0]["prompt"] == samples[0]["prompt"]
    assert page.get_by_role("textbox", name="6 samples as JSONL").input_value().count("\n") == 6
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Mark", exact=False).first.click()
    page.get_by_role("button", name="Export 1 marked").click()
    assert page.get_by_role("textbox", name="1 samples as JSONL").input_value().count("\n") == 1


def test_what_leaves_the_page_tells_that_it_is_cut(open_it: OpenIt, tmp_path: Path) -> None:
    long, head = "x" * 300_000, "y" * 300_000
    samples = [
        sample_of(0, "Short?", "yes", "no"),
        sample_of(1, "Long context?", "yes", "no", context=long),
        sample_of(2, "Long before the question?", "yes", "no", prompt=f"{head}Long before the question?"),
        sample_of(3, "Long examples?", "yes", "no", examples=[["user", long], ["assistant", "yes"]]),
    ]
    path = tmp_path / "samples.html"
    path.write_bytes(result_page(result_of(samples)))
    opened = open_it(permissions=["clipboard-read", "clipboard-write"]).go(path)
    page = opened.page
    assert page.evaluate("samples.map((each) => record(each).texts_cut ?? false)") == [False, True, True, True]
    page.keyboard.press("c")
    expect(page.locator("#said")).to_have_text("Test case copied")
    assert "texts_cut" not in json.loads(page.evaluate("navigator.clipboard.readText()"))
    page.keyboard.press("j")
    page.keyboard.press("c")
    expect(page.locator("#said")).to_have_text("Test case copied")
    page.wait_for_function("async () => JSON.parse(await navigator.clipboard.readText()).sample_id === 's000001'")
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["texts_cut"] is True
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download samples.jsonl").click()
    rows = [json.loads(line) for line in Path(download.value.path()).read_text("utf-8").splitlines() if line]
    assert [row.get("texts_cut", False) for row in rows] == [False, True, True, True]
    expect(page.locator("#notes")).to_contain_text("3 texts of more than 100,000 characters are cut here")


@pytest.mark.long
def test_the_search_finds_all_texts_of_a_sample(open_it: OpenIt, write: Callable[..., Path]) -> None:
    sample = sample_of(0, "Question?", "no", "yes", context='{"unit": "CONTEXTWORD"}', choices=["choiceword", "b"], error="prompterrorword")
    sample["examples"] = [["user", "exampleword"], ["assistant", "yes"]]
    for side, word in (("now", "nowword"), ("before", "beforeword")):
        sample[side] |= {
            "text": ["no", f"second{word}"],
            "raw": [f"raw{word}"],
            "reasoning": [f"reasoning{word}"],
            "tool_calls": [[f"tool{word}"]],
            "error": f"error{word}",
            "score_errors": {"exact_match": f"scoreerror{word}"},
            "items": {"exact_match": f"item{word}"},
        }
    opened = open_it().go(write([sample, sample_of(1, "Another?", "no", "yes")]))
    search = opened.page.get_by_label("Search")
    kinds = ("second", "raw", "reasoning", "tool", "error", "scoreerror", "item")
    for text in (
        "contextWORD",
        "choiceword",
        "prompterror",
        "s000000",
        "part 0",
        *(f"{kind}{side}word" for kind in kinds for side in ("now", "before")),
    ):
        search.fill(text)
        assert opened.shown() == ["s000000"], text
    search.fill("exampleword")
    assert opened.shown() == []


@pytest.mark.long
def test_in_a_frame_that_allows_nothing_but_scripts(open_it: OpenIt, write: Callable[..., Path], tmp_path: Path) -> None:
    content = write(_some()).read_text("utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text("<!doctype html><iframe sandbox='allow-scripts' style='width: 1200px; height: 800px'></iframe>")
    opened = open_it()
    opened.page.goto(frame.as_uri())
    opened.page.evaluate("content => { document.querySelector('iframe').srcdoc = content }", content)
    inner = opened.page.frame_locator("iframe")
    inner.get_by_role("button", name="Worse").click()
    expect(inner.locator("#count")).to_have_text("10 of 40 samples")
    inner.locator(".row").nth(2).click()
    expect(inner.locator("#detail h2")).to_contain_text("s000008")
    inner.get_by_role("button", name="Copy as a test case").click()
    field = inner.get_by_role("textbox", name="Test case")
    expect(field).to_be_focused()  # the clipboard is refused, so that the text is there, selected
    assert json.loads(field.input_value())["sample_id"] == "s000008"
    assert field.evaluate("each => each.selectionEnd - each.selectionStart === each.value.length")
    inner.get_by_role("button", name="Close").click()
    inner.get_by_role("button", name="Export").click()
    assert inner.get_by_role("textbox", name="10 samples as JSONL").input_value().count("\n") == 10
    assert [each for each in opened.said if "clipboard" not in each.lower()] == []


@pytest.mark.long
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_hostile_texts_are_text(open_it: OpenIt, write: Callable[..., Path], size: str) -> None:
    texts = [*STORABLE, *HALVES, "x" * 1_000_000, "</script><script>alert(1)</script>", "a b " * 30_000]
    samples = [
        sample_of(number, text, text, f"{text} else", gold=text, choices=[text, "b"], context=text, subject=text, error=text)
        for number, text in enumerate(texts)
    ]
    for sample in samples:
        sample["now"] |= {"reasoning": [sample["gold"][0]], "logprobs": [-1.0, -2.0], "score_errors": {"exact_match": sample["gold"][0]}}
        sample["sample_id"] += sample["gold"][0][:300]
    opened = open_it(size).go(write(samples, notes=tuple(STORABLE)))
    page = opened.page
    elements = page.evaluate("document.querySelectorAll('script, img, iframe, a, b:not(.figures b, #score b)').length")
    for number in range(len(samples)):
        page.evaluate("number => open(number)", number)
        page.evaluate("document.querySelectorAll('#detail details').forEach((each) => { each.open = true })")
        assert page.evaluate("document.querySelectorAll('script, img, iframe, a, b:not(.figures b, #score b)').length") == elements
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    drawn = page.evaluate("samples.map((each, at) => { open(at); return document.body.innerText }).join('')")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]", drawn)
    assert "\\x1b[31mred" in drawn
    assert "\\u202egnp.exe" in drawn
    assert "<script>alert(1)</script>" in drawn
    assert opened.said == []


@pytest.mark.long
def test_ten_thousand_samples(open_it: OpenIt, write: Callable[..., Path]) -> None:
    path = write(_many(10_000))
    assert path.stat().st_size < 20_000_000
    opened = open_it().go(path)
    page = opened.page
    took = page.evaluate("performance.now()")
    while not page.evaluate("samples.every((each) => each.text !== undefined)"):  # until the search is ready
        page.wait_for_timeout(50)
    times = page.evaluate(
        """[['q', 'engine'], ['show', 'worse'], ['sort', 'length'], ['subject', 'part 1'], ['q', 'no such text']].map(([name, value]) => {
            state[name] = value; const start = performance.now(); change(); return performance.now() - start })"""
    )
    slack = 4  # other programs use the cores of a machine that tests
    assert took < 3000 * slack
    assert max(times) < 100 * slack


@pytest.mark.long
def test_twenty_thousand_rows_are_drawn_as_they_are_seen(open_it: OpenIt, write: Callable[..., Path]) -> None:
    opened = open_it().go(write(_many(20_000, words=4), total=50_000))
    page = opened.page
    expect(page.get_by_role("note")).to_contain_text("This page holds 20,000 of 50,000 samples")
    expect(page.get_by_role("note")).to_contain_text(
        "eval-dagster samples trivia mine --at 2026-03-02T05:00:00 --against mine@2026-03-01T05:00:00 --all"
    )
    expect(page.locator(".row").first).to_have_attribute("aria-setsize", "20000")
    frames = page.evaluate(
        """new Promise((done) => { const list = $('list'), costs = []; let step = 0;
            const next = () => { if (step++ === 120) return done(costs); list.scrollTop = step * 10600;
                const start = performance.now(); draw(); costs.push(performance.now() - start); requestAnimationFrame(next) }; next() })"""
    )
    frames.sort()
    assert frames[60] < 16
    assert page.locator("#space > *").count() < 60
    page.get_by_role("listbox").focus()
    page.keyboard.press("End")
    expect(page.locator("#detail h2")).to_contain_text("s019999")
    expect(page.locator("[role=option][aria-selected=true]")).to_be_in_viewport()


def _many(count: int, words: int = 110) -> list[dict[str, Any]]:
    draw = random.Random(0)
    known = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(2, 11))) for _ in range(5_000)] + ["engine"] * 50
    return [
        sample_of(
            number,
            " ".join(draw.choices(known, k=words // 2)),
            now := " ".join(draw.choices(known, k=words)),
            before,
            gold=draw.choice([now, before]),
        )
        for number, before in enumerate(" ".join(draw.choices(known, k=words)) for _ in range(count))
    ]


@pytest.mark.long
@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_on_their_ground(open_it: OpenIt, home: Path, size: str, scheme: str) -> None:
    opened = open_it(size, scheme).go(page_path(home, "capitals", "mine"), "#show=worse")
    page = opened.page
    if size == "phone":
        page.locator(".row").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == SIZES[size][0]
    assert page.evaluate(CONTRASTS) == []
    assert page.evaluate(UNNAMED) == []


@pytest.mark.long
def test_picture_for_the_documentation(open_it: OpenIt, home: Path, tmp_path: Path) -> None:
    folder = Path(SCREENSHOTS).resolve() if SCREENSHOTS else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    page = open_it().go(page_path(home, "capitals", "mine"), "#show=worse").page
    page.screenshot(path=folder / "samples.png")
    assert (folder / "samples.png").stat().st_size > 20_000
