"""Fixtures that start real servers and a real browser."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from needs import require
from playwright.sync_api import Browser, Page, expect, sync_playwright
from ui_servers import RunningUi, running_ui

CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PAGE_MS = 90_000
"""What a page may take: the first one waits for the servers' imports, and two cores have other tests to run."""


@pytest.fixture(scope="module")
def start_browser() -> Iterator[Callable[..., Browser]]:
    """A function from more options of the command line to a browser."""
    chromium = require("Chromium")
    with sync_playwright() as playwright, ExitStack() as stack:

        def start(*options: str) -> Browser:
            return stack.enter_context(playwright.chromium.launch(executable_path=chromium, args=[*CHROMIUM_OPTIONS, *options]))

        yield start


@pytest.fixture(scope="module")
def browser(start_browser: Callable[..., Browser]) -> Browser:
    return start_browser()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    expect.set_options(timeout=PAGE_MS)
    page = browser.new_page(viewport={"width": 1400, "height": 800})
    page.set_default_timeout(PAGE_MS)
    yield page
    page.close()


@pytest.fixture(scope="module")
def start_ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunningUi]]:
    """A function from the text of an evals.yaml, and files beside it by name, to the running servers of a home, a new one by default."""
    with ExitStack() as stack:

        def start(config: str, files: dict[str, str] | None = None, home: Path | None = None) -> RunningUi:
            folder = tmp_path_factory.mktemp("checkout")
            for name, text in {"evals.yaml": config, **(files or {})}.items():
                (folder / name).write_text(textwrap.dedent(text))
            return stack.enter_context(running_ui(folder / "evals.yaml", home or folder / "home", folder / "ui.out"))

        yield start
