"""Milliseconds between the frames that a browser draws while a tree of 257 nodes is panned and zoomed.

    python -m benchmarks.explorer_frames

60 frames a second are one every 16.7 ms. Needs Chromium and the test tools.
"""

import itertools
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.explorer.made import made_recording
from tevlib.explorer.widget import TreeExplorer

NODES = 257
WATCH = """() => {
  const scroll = document.querySelector(".tx-scroll");
  const frame = (time) => {
    times.push(time);
    places.add([scroll.scrollLeft, scroll.scrollTop, scroll.firstChild.getBoundingClientRect().width].join());
    requestAnimationFrame(frame);
  };
  window.times = [];
  window.places = new Set();
  requestAnimationFrame(frame);
}"""


def pan(page: Page, x: float, y: float) -> None:
    page.mouse.move(x, y)
    page.mouse.down()
    for i in range(120):
        page.mouse.move(x + 4 * (i % 60) - 120, y + 3 * (i % 40) - 60)
    page.mouse.up()


def zoom(page: Page, x: float, y: float) -> None:
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    for i in range(90):
        page.mouse.wheel(0, -40 if i % 30 < 15 else 40)
    page.keyboard.up("Control")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = TreeExplorer(made_recording(nodes=(NODES,), wide=40)).save_html(Path(folder) / "tree.html")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1500, "height": 1000})
        page.goto(path.as_uri())
        tree = page.locator(".tx-scroll").first
        page.wait_for_selector(f"[data-node='{NODES - 1}']")
        page.evaluate(WATCH)
        box = tree.bounding_box()
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for name, act in {"at rest": lambda *_: page.wait_for_timeout(2000), "panned": pan, "zoomed": zoom}.items():
            page.evaluate("() => { window.times = []; window.places = new Set() }")
            act(page, *middle)
            times = page.evaluate("() => times")
            gaps = sorted(b - a for a, b in itertools.pairwise(times))
            places = page.evaluate("() => places.size")
            print(
                f"{name}: {len(gaps)} frames, median {gaps[len(gaps) // 2]:.1f} ms, "
                f"95% within {gaps[int(0.95 * len(gaps))]:.1f} ms, longest {gaps[-1]:.1f} ms; {places} places and sizes"
            )
        browser.close()


if __name__ == "__main__":
    main()
