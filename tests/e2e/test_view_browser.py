"""The real `eval-dagster view` in a real headless Chromium: from the leaderboard and from a red night down to a sample."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hostile_texts import DANGEROUS, HALVES, STORABLE
from playwright.sync_api import Browser, Page, expect
from scripted_nights import SUITE, Nights
from ui_servers import free_ports, is_open, port_of, until

from eval_dagster.gate.judgement import judge
from eval_dagster.gate.results import write_result
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES

pytestmark = pytest.mark.e2e

SCREENSHOTS = os.environ.get("EVAL_DAGSTER_SCREENSHOTS")
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
PAGES = (
    "/",
    "/leaderboard",
    "/matrix",
    "/history?eval=capitals&model=mine",
    "/compare?eval=arithmetic",
    "/agreement?eval=capitals&model=mine",
    "/calibration?eval=capitals&model=mine",
    "/nights",
    f"/night?suite={SUITE}",
    "/samples?eval=capitals&model=mine",
)


class View:
    """The running command."""

    nights: Nights

    def __init__(self, folder: Path, output: Path) -> None:
        self._output = output
        environment = os.environ | {
            "EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"),
            "EVAL_DAGSTER_HOME": str(folder / "home"),
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        }
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "eval_dagster.cli", "view", "--port", str(free_ports(1)[0])],
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        found = until(lambda: self._ended() or re.search(r"View\s+(http://\S+)", self.printed), 120, lambda: self.printed)
        self.address = found[1]

    @property
    def printed(self) -> str:
        return self._output.read_text("utf-8", errors="replace")

    def _ended(self) -> None:
        assert self.process.poll() is None, self.printed

    def end(self) -> None:
        """Kill it where it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    nights = Nights(tmp_path_factory.mktemp("view"))
    nights.run(other={"sums": 0.5})
    nights.run(shots=2, capitals=0.5, other={"sums": 0.3})
    project = nights.project(shots=2)
    write_result(project.lake, judge(project, SUITE, run_id="gate"))
    publish(project.lake)
    view = View(nights.folder, tmp_path_factory.mktemp("out") / "view.out")
    view.nights = nights
    yield view
    view.end()


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

    def require_quiet(self, view: View) -> None:
        """Nothing was said, and nothing but the server was asked."""
        assert self.said == []
        others = [url for url in self.loaded if urlsplit(url).scheme == "http" and urlsplit(url).netloc != urlsplit(view.address).netloc]
        assert others == []
        assert {urlsplit(url).scheme for url in self.loaded} <= {"http", "data", "blob"}


def opened(browser: Browser, size: str = "desktop", scheme: str = "light") -> Opened:
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light", is_mobile=size == "phone"
    )
    return Opened(context.new_page())


@pytest.mark.long
@pytest.mark.parametrize("size", ["phone", "desktop"])
def test_every_page_fits_and_is_quiet(browser: Browser, view: View, size: str) -> None:
    found = opened(browser, size)
    for path in PAGES:
        found.page.goto(view.address + path)
        assert found.page.evaluate("document.documentElement.scrollWidth") == SIZES[size][0], path
        expect(found.page.get_by_role("heading", level=1)).to_be_visible()
    found.require_quiet(view)
    found.page.context.close()


@pytest.mark.long
def test_from_a_red_night_to_a_flipped_sample(browser: Browser, view: View) -> None:
    found = opened(browser)
    page = found.page
    page.goto(f"{view.address}/night?suite={SUITE}")
    page.locator("article", has_text="capitals · mine · accuracy").get_by_role("link", name="Look at the samples").first.click()
    rows = page.locator("table.samples tbody tr")
    expect(rows.nth(5)).to_be_visible()  # it waits for the page, as a count does not
    expect(rows.first).to_contain_text("▼ worse")
    answers = rows.first.locator("td.texts").all_inner_texts()
    assert answers[1] != answers[2]
    rows.first.get_by_role("link").click()
    expect(page.get_by_role("heading", name="Question")).to_be_visible()
    expect(page.locator(".sides section")).to_have_count(2)
    expect(page.get_by_text("chosen", exact=True)).to_have_count(1)
    found.require_quiet(view)
    page.context.close()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_page_leads_from_what_regressed_to_its_samples(browser: Browser, view: View, scheme: str) -> None:
    """The outcome stands there in words; the history is drawn, with the colours of the page; one link leads to the samples."""
    found = opened(browser, scheme=scheme)
    page = found.page
    page.goto(view.address)
    expect(page.get_by_role("status").first).to_contain_text("✗ regressed")
    picture = page.get_by_role("img", name=re.compile("capitals · mine: accuracy over 2 results")).first
    expect(picture).to_be_visible()
    line = picture.locator("path[stroke='var(--line)']").first
    assert line.evaluate("each => getComputedStyle(each).stroke") == {"light": "rgb(37, 99, 235)", "dark": "rgb(125, 171, 255)"}[scheme]
    page.locator("article", has_text="capitals · mine · accuracy").get_by_role("link", name="Look at the samples").first.click()
    expect(page.locator("table.samples tbody tr").first).to_contain_text("▼ worse")
    found.require_quiet(view)
    page.context.close()


@pytest.mark.long
def test_a_filter_is_chosen_with_the_keyboard_alone(browser: Browser, view: View) -> None:
    found = opened(browser)
    page = found.page
    page.goto(f"{view.address}/samples?eval=capitals&model=mine")
    page.get_by_role("combobox", name="show").focus()
    page.keyboard.type("worse")
    page.keyboard.press("Tab")
    page.get_by_role("searchbox", name="text").focus()
    page.keyboard.type("capital of")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("show=worse.*text=capital"))
    expect(page.get_by_role("combobox", name="show")).to_have_value("worse")
    expect(page.get_by_role("status")).to_contain_text("sample")
    page.context.close()


@pytest.mark.long
def test_the_page_of_a_result_works_from_the_server(browser: Browser, view: View) -> None:
    found = opened(browser)
    page = found.page
    page.goto(f"{view.address}/samples?eval=capitals&model=mine")
    page.get_by_role("link", name="page of this result").click()
    page.wait_for_url(re.compile("/results/capitals/mine/"))
    expect(page.get_by_text("What is the capital of").first).to_be_visible()
    found.require_quiet(view)
    page.context.close()


@pytest.mark.long
def test_pages_open_while_a_run_publishes(browser: Browser, view: View) -> None:
    found = opened(browser)
    found.page.goto(f"{view.address}/history?eval=capitals&model=mine")
    before = found.page.locator("tbody tr").count()
    view.nights.run(shots=2, capitals=0.2, other={"sums": 0.3})
    publish(view.nights.project(shots=2).lake)
    found.page.reload()
    expect(found.page.locator("tbody tr")).to_have_count(before + 1)
    found.require_quiet(view)
    found.page.context.close()


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[View]:
    """The command over two models that answer with what an attacker would."""
    answers = [*STORABLE, *HALVES, "x" * 1_000_000, "</div></main><script>alert(1)</script><iframe src=http://evil.example></iframe>"]
    for name in ("one", "two"):
        code = f"ANSWERS = {answers!r}\nLEFT = ANSWERS * 2\n\ndef answer(request):\n    return LEFT.pop({-1 if name == 'one' else 0})\n"
        (tmp_path / f"{name}.py").write_text(code)
    (tmp_path / "evals.yaml").write_text(
        'models:\n  one: {backend: scripted, function: "one.py:answer"}\n  two: {backend: scripted, function: "two.py:answer"}\n'
        "evals:\n  sums: {task: arithmetic, limit: 15}\n"
    )
    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    list(evaluate(project, [("sums", "one"), ("sums", "two")], stages=set(STAGES), run_id="r", reporter=SilentReporter()))
    publish(project.lake)
    view = View(tmp_path, tmp_path / "view.out")
    yield view
    view.end()


@pytest.mark.long
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_hostile_texts_are_text(browser: Browser, hostile: View, size: str) -> None:
    found = opened(browser, size)
    page, drawn = found.page, []

    def require_text() -> None:
        assert page.evaluate("document.querySelectorAll('script, img, iframe, u, failure, base, object').length") == 0, page.url
        assert page.evaluate("document.documentElement.scrollWidth") == SIZES[size][0], page.url
        drawn.append(page.evaluate("document.body.innerText"))

    page.goto(f"{hostile.address}/compare?eval=sums&a=one&b=two")
    require_text()
    links = set()
    for number in (1, 2):
        page.goto(f"{hostile.address}/samples?eval=sums&model=one&against=two&page={number}")
        require_text()
        links |= set(page.locator("table.samples th a").evaluate_all("links => links.map((each) => each.href)"))
    assert len(links) > 40
    for link in sorted(links):
        page.goto(link)
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        require_text()
    text = "".join(drawn)
    assert not DANGEROUS.search(text)
    for expected in (
        "\\x1b[31mred",
        "\\u202egnp.exe",
        "<script>alert(1)</script>",
        "<iframe src=http://evil.example>",
        "half \\ud83d of one",
    ):
        assert expected in text
    assert "x" * 100_000 in text
    found.require_quiet(hostile)
    page.context.close()


@pytest.mark.long
@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}],
)
def test_foreign_pages_are_refused(view: View, headers: dict[str, str]) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(urllib.request.Request(view.address, headers=headers), timeout=30)
    with refusal.value as answer:
        assert answer.code == 403


@pytest.mark.long
@pytest.mark.skipif(SCREENSHOTS is None, reason="EVAL_DAGSTER_SCREENSHOTS names no folder")
def test_pictures(browser: Browser, view: View) -> None:
    found = opened(browser)
    for path, name in (("/", "view"), ("/compare?eval=capitals&a=mine&b=mine-bf16", "view_compare")):
        found.page.goto(view.address + path)
        found.page.screenshot(path=Path(str(SCREENSHOTS)) / f"{name}.png")
    found.page.goto(f"{view.address}/samples?eval=capitals&model=mine&show=worse")
    found.page.screenshot(path=Path(str(SCREENSHOTS)) / "view_samples.png")
    found.page.context.close()


@pytest.mark.long
def test_ctrl_c_ends_it(view: View) -> None:
    """The last test: it stops the server, also where a connection is still open."""
    port = port_of(view.address)
    connection = urllib.request.urlopen(view.address, timeout=30)
    assert view.interrupt() == 0, view.printed
    connection.close()
    assert not is_open(port)
    assert "Traceback" not in view.printed
