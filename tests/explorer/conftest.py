"""Pages of the explorer in a real Chromium, and pictures of them."""

import os
import time
from pathlib import Path

import pytest


@pytest.fixture
def open_page(browser, tmp_path):
    """A function: the page of a `TreeExplorer` in the browser, offline; every request and every error is noted."""
    contexts = []

    def open_it(explorer, width=1400, height=1000, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True, **options)
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.requests, page.problems = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("console", lambda said: page.problems.append(said.text) if said.type == "error" else None)
        page.goto(explorer.save_html(tmp_path / "explorer.html").as_uri())
        page.wait_for_selector("[data-node='0']")
        return page

    yield open_it
    for context in contexts:
        context.close()


@pytest.fixture
def picture(tmp_path):
    """A function: a screenshot of a page or of a part of it, kept in $TEVLIB_FIGURES (the readme's: figures)."""
    folder = Path(os.environ.get("TEVLIB_FIGURES") or tmp_path)

    def take(part, name):
        path = folder / f"{name}.png"
        time.sleep(0.5)  # scrolling and layout come to rest
        part.screenshot(path=path)
        assert path.stat().st_size > 20_000
        return path

    return take
