"""A report as a phone and a desktop show it, in a real headless Chromium, from the file alone.

Where `EVAL_DAGSTER_SCREENSHOTS` names a folder, the picture of the documentation is written to it.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from scripted_nights import Nights

from eval_dagster.gate.judgement import judge
from eval_dagster.pages.report.writing import write_report

pytestmark = pytest.mark.e2e

SCREENSHOTS = os.environ.get("EVAL_DAGSTER_SCREENSHOTS")
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
LEAST_PIXELS = {"text": 12, "picture": 8}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a night in which one model became worse at two evals; a third model cannot be loaded."""
    nights = Nights(tmp_path_factory.mktemp("nights"), with_gone=True)
    for _ in range(2):
        nights.run(other={"sums": 0.5})
    nights.run(shots=2, capitals=0.3, completion=0.5, other={"sums": 0.3})
    project = nights.project(shots=2)
    return write_report(project, judge(project, "nightly", run_id="gate"))


class Opened:
    """A page, and what the browser said and loaded meanwhile."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.loaded: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.loaded.append(request.url))
        page.goto(path.as_uri())


@pytest.fixture
def open_report(browser: Browser, report: Path) -> Iterator[Callable[..., Opened]]:
    pages: list[Page] = []

    def open_it(size: str, scheme: str = "light") -> Opened:
        width, height = SIZES[size]
        is_phone = size == "phone"
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            device_scale_factor=2 if is_phone else 1,
            is_mobile=is_phone,
            has_touch=is_phone,
        )
        pages.append(context.new_page())
        return Opened(pages[-1], report)

    yield open_it
    for page in pages:
        page.context.close()


@pytest.mark.long
@pytest.mark.parametrize("size", ["phone", "desktop"])
def test_it_fits_and_needs_nothing_else(open_report: Callable[..., Opened], size: str, report: Path) -> None:
    opened = open_report(size)
    page = opened.page
    verdict = page.get_by_role("status")
    expect(verdict).to_contain_text("2 of 9 results regressed: capitals on mine")
    expect(verdict).to_be_in_viewport(ratio=1)
    _open_all(page)
    assert page.evaluate("document.documentElement.scrollWidth") == SIZES[size][0]
    assert page.evaluate("[...document.querySelectorAll('.wide')].filter(each => each.scrollWidth > each.clientWidth).length") == 0
    widths = page.evaluate(
        "[...document.querySelectorAll('#leaderboard svg')].map(bar => bar.clientWidth / bar.closest('.card').clientWidth)"
    )
    assert min(widths) > (0.8 if size == "phone" else 0.3)
    assert opened.loaded == [report.as_uri()]
    assert opened.said == []


@pytest.mark.long
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_flipped_samples_can_be_read(open_report: Callable[..., Opened], size: str) -> None:
    page = open_report(size).page
    page.get_by_role("link", name=re.compile(r"\d+ samples flipped")).first.click()
    group = page.locator("#flips-capitals-mine-accuracy")
    expect(group.get_by_role("heading", level=3)).to_be_in_viewport()
    sample = group.locator(".sample").first
    expect(sample).to_contain_text("What is the capital of")
    baseline, now = sample.locator(".sides > div").all()
    expect(baseline).to_contain_text("baseline answered")
    expect(now).to_contain_text("now it answers")
    assert baseline.locator(".text").inner_text() != now.locator(".text").inner_text()
    left, right = _box(baseline), _box(now)
    if size == "phone":
        assert (left["x"], left["width"]) == (right["x"], right["width"])
        assert right["y"] >= left["y"] + left["height"]
    else:
        assert left["y"] == right["y"]
        assert right["x"] >= left["x"] + left["width"]
    for text in sample.locator(".text, .label").all():
        assert float(text.evaluate("each => parseFloat(getComputedStyle(each).fontSize)")) >= LEAST_PIXELS["text"]


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_pictures_can_be_read(open_report: Callable[..., Opened], size: str) -> None:
    page = open_report(size).page
    pictures = page.locator("#history svg")
    expect(pictures).to_have_count(6)
    boxes = "[...document.querySelectorAll('figure svg text')].map(each => each.getBoundingClientRect())"
    heights = page.evaluate(f"{boxes}.map(box => Math.min(box.width, box.height))")  # some are turned
    assert len(heights) > 30
    assert min(heights) >= LEAST_PIXELS["picture"]
    assert page.get_by_role("img", name=re.compile("capitals · mine: accuracy over 3 results.*it left its band on")).count() == 2


def test_what_a_model_wrote_stays_text(open_report: Callable[..., Opened]) -> None:
    opened = open_report("desktop")
    opened.page.on("dialog", lambda dialog: opened.said.append(dialog.message))
    _open_all(opened.page)
    expect(opened.page.get_by_text("<script>alert(1)</script>").first).to_be_visible()
    assert opened.page.locator("script").count() == 0
    assert opened.said == []


@pytest.mark.long
def test_the_dark_has_colours_of_its_own(open_report: Callable[..., Opened]) -> None:
    light, dark = (open_report("desktop", scheme).page for scheme in ("light", "dark"))
    for selector, name in (("body", "backgroundColor"), ("body", "color"), ("figure svg path[stroke*='--line']", "stroke")):
        values = [page.locator(selector).last.evaluate(f"each => getComputedStyle(each).{name}") for page in (light, dark)]
        assert values[0] != values[1], (selector, name)


@pytest.mark.long
def test_picture_for_the_readme(open_report: Callable[..., Opened], tmp_path: Path) -> None:
    folder = Path(SCREENSHOTS).resolve() if SCREENSHOTS else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    page = open_report("desktop").page
    page.set_viewport_size({"width": 1180, "height": 1000})
    page.screenshot(path=folder / "report.png")
    assert (folder / "report.png").stat().st_size > 20_000


def _open_all(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")


def _box(element: Locator) -> dict[str, float]:
    box = element.bounding_box()
    assert box is not None
    return {name: float(value) for name, value in box.items()}
