"""The recording that is shipped, as a reader sees it: the law holds in it, the readme is drawn from it."""

from pathlib import Path

import pytest

from tevlib.explorer.flow import flow
from tevlib.explorer.recording import load_recording
from tevlib.explorer.widget import TreeExplorer
from tevlib.sources.prompts import SUITES

SHIPPED = Path(__file__).parent.parent.parent / "data" / "trees" / "rounds.json.gz"


@pytest.fixture(scope="module")
def shipped():
    return load_recording(SHIPPED)


def test_the_shipped_recording_is_small_and_whole(shipped):
    """Under 1.5 MB; an answer of each suite; at every temperature w sums to 1, and the oracle covers most."""
    assert SHIPPED.stat().st_size < 1_500_000 and TreeExplorer(shipped).size < 2_000_000
    assert [answer["name"].split("/")[0] for answer in shipped["answers"]] == list(SUITES)
    for answer in shipped["answers"]:
        for cycle in answer["rounds"]:
            for stop, temperature in enumerate(shipped["temperatures"]):
                laws = [flow(tree, temperature, stop) for tree in cycle["trees"]]
                for law in laws:
                    assert sum(law.w) == pytest.approx(1, abs=1e-9)
                    assert law.coverage == pytest.approx(law.exit_depth, abs=1e-9)
                if temperature == answer["temperature"]:
                    assert laws[-1].coverage >= laws[0].coverage - 1e-4


@pytest.mark.slow
def test_compare_histogram_and_phone(shipped, open_page, picture):
    """Both trees side by side, the exits of 2,000 plays of each verifier, and the exported page at a phone's width."""
    code = SUITES.index("humaneval")
    names = [tree["name"] for tree in shipped["answers"][code]["rounds"][0]["trees"]]
    trained = names.index("smollm2-135m-exit")
    explorer = TreeExplorer(shipped, theme="light", answer=code, compare=trained)
    page = open_page(explorer, width=1500, height=800, device_scale_factor=1.5)
    assert page.locator(".tx-pane").count() == 2
    page.get_by_role("button", name="Pin that node").click()
    page.wait_for_timeout(500)
    page.evaluate(
        "() => { const [a, b] = document.querySelectorAll('.tx-pane > :last-child'); b.scrollLeft = a.scrollLeft }"
    )
    picture(page.locator(".tx"), "explorer_compare")
    page.get_by_role("button", name="Play each verifier 2000 times").click()
    for key in ("tev", "predraw", "sequential_residual"):
        row = page.locator(f"tr[data-verifier={key}][data-plays='2000']")
        row.wait_for()
        assert float(row.get_attribute("data-p")) > 1e-4
    picture(page.locator(".tx-histogram-box"), "explorer_histogram")
    phone = open_page(
        TreeExplorer(shipped, theme="dark", answer=code), width=390, height=844, has_touch=True, device_scale_factor=2
    )
    phone.get_by_role("button", name="Pin that node").click()
    phone.locator(".tx-hint").evaluate("element => element.scrollIntoView()")
    assert phone.evaluate("() => document.documentElement.scrollWidth") <= 390
    picture(phone, "explorer_phone")
