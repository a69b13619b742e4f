"""The report: every table and figure of a profile on one page that asks nobody for anything."""

import re
import shutil
from html.parser import HTMLParser

import pytest

from tevlib import cli
from tevlib.report.figures.draw import FIGURES, draw_figures
from tevlib.report.page import page, write_report
from tevlib.suite.profile import load_profile
from tevlib.suite.records import outcome, record_path, write_failure


class Fetched(HTMLParser):
    """Addresses that a page would fetch, its tags, and whether every one that was opened was closed."""

    def __init__(self, text):
        super().__init__()
        self.fetched, self.tags, self.open = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "srcset", "data", "poster")]
        self.fetched += [value for name, value in attrs if name == "href" and not value.startswith("#")]
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def spoilable(reported, tmp_path, monkeypatch):
    """The profile's path, in a copy of the results folder that a test may spoil."""
    home, profile = reported
    shutil.copytree(home / "data", tmp_path / "home" / "data")
    monkeypatch.setenv("TEVLIB_HOME", str(tmp_path / "home"))
    return profile


@pytest.fixture(scope="module")
def built(reported, tmp_path_factory):
    """Outcomes of the finished profile, its figures, drawn once, and its page."""
    home, profile = reported
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEVLIB_HOME", str(home))
        outcomes = [outcome(cell) for cell in load_profile(profile)]
        figures = draw_figures(outcomes, profile, tmp_path_factory.mktemp("figures"))
    return outcomes, figures, page(outcomes, figures, profile)


def test_a_run_ends_with_every_table_and_figure_on_one_page(spoilable, tmp_path, capsys):
    """`run` of a finished profile computes nothing and writes tables, figures and page; `report` the same bytes."""
    assert cli.main(["run", "--profile", spoilable]) == 0
    said = capsys.readouterr().out
    path = tmp_path / "home" / "runs" / "tiny" / "report.html"
    assert "0 cells run" in said and str(path) in said and all(name in said for name in FIGURES)
    text = path.read_text(encoding="utf-8")
    assert all(f'id="table{number}"' in text and f"Table {number}" in text for number in range(1, 6))
    for name in FIGURES:
        assert f'id="figure-{name}"' in text
        assert (tmp_path / "home" / "figures" / "tiny" / f"{name}.pdf").is_file()
    assert text.count("data:image/svg+xml;base64,") == len(FIGURES)
    for words in ("ours - paper", "nothing is missing", "Over 4: none", "records", "hardware", "torch", "commit"):
        assert words in text, words
    other = tmp_path / "elsewhere" / "again.html"
    assert cli.main(["report", "--profile", spoilable, "--output", str(other)]) == 0
    assert other.read_bytes() == path.read_bytes()


def test_nothing_is_fetched_and_nothing_runs(built):
    """No script, no style sheet, font or picture from anywhere, and the page's own policy would forbid it."""
    text = built[2]
    found = Fetched(text)
    assert found.open == [] and not found.tags & {"script", "link", "iframe", "object", "embed", "form"}
    assert len(found.fetched) == len(FIGURES)
    assert all(address.startswith("data:image/svg+xml;base64,") for address in found.fetched)
    assert not re.search(r"url\(|@import", text) and "default-src 'none'" in text


def test_hostile_text_is_escaped(spoilable, built):
    """A suite's file name that is HTML stays text wherever it is shown, in errors too."""
    outcomes, figures, _ = built
    bad = [{"status": "failed", "cell": outcomes[0]["cell"], "error": "</td><script>alert(2)</script>"}, *outcomes[1:]]
    text = page(bad, figures, "<b>.yaml")
    assert "<img src=x" not in text and "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "<script" not in text and "&lt;script&gt;alert(2)" in text and "<b>" not in text
    assert Fetched(text).open == []


def test_failed_and_missing_cells_say_so_and_how_to_fill_them(spoilable, built):
    """A failed cell is `failed` in its table, with its error; what was not run is `not run`; the command is there."""
    cells = load_profile(spoilable)
    first, *_, last = (cell for cell in cells if cell.table == "table4")
    record_path(first).unlink()
    write_failure(record_path(first), {"error": "boom: out of memory"})
    record_path(last).unlink()
    text = page([outcome(cell) for cell in cells], built[1], spoilable)
    assert '<td class="failed">failed</td>' in text and '<td class="not-run">not run</td>' in text
    assert "boom: out of memory" in text
    assert re.search(r"python -m tevlib run --profile \S*tiny\.yaml --tables 4", text)


def test_cells_over_four_are_marked(built):
    """A mean block length five standard errors from its ceiling is marked in the audit and counted above it."""
    outcomes, figures, text = built
    wrong = next(o for o in outcomes if o["cell"]["table"] == "table4")
    spoilt = [
        o | {"metrics": o["metrics"] | {"audit_z": -5.25}} if o.get("hash") == wrong["hash"] else o for o in outcomes
    ]
    marked = page(spoilt, figures, "tiny.yaml")
    assert '<td class="marked">no †</td>' in marked and "Over 4: 1, marked below" in marked
    assert "-5.25" in marked and "<details open>" in marked
    assert "no †" not in text and "<details open>" not in text


def test_records_that_do_not_go_together_do_not_take_the_page_with_them(built):
    """A table of two machines is refused, in words, at its place; the rest of the page is there."""
    outcomes, figures, _ = built
    mixed = [
        o | {"device": {"name": f"cpu {i}", "threads": 1}} if o["cell"]["table"] == "table4" else o
        for i, o in enumerate(outcomes)
    ]
    text = page(mixed, figures, "tiny.yaml")
    assert "table 4 needs one machine" in text and 'id="table5"' in text


def test_an_empty_results_folder_gives_a_page_of_gaps(reported, tmp_path, monkeypatch):
    """Before anything was run the report says so, cell by cell, and how to run it."""
    monkeypatch.setenv("TEVLIB_HOME", str(tmp_path / "nothing"))
    report = write_report(reported[1])
    text = report.path.read_text(encoding="utf-8")
    assert "0 records" in text and "No decode cell is finished yet" in text and "No record yet" in text
    assert sum(figure.paths is None for figure in report.figures) == len(FIGURES) - 2
    assert "not drawn: budgets" in str(report)


def test_a_browser_fetches_nothing_and_a_phone_needs_no_sideways_scrolling(browser, built, tmp_path):
    """In Chromium: the page itself is the only request, no error, and at 390 pixels only the boxes scroll sideways."""
    path = tmp_path / "report.html"
    path.write_text(built[2], encoding="utf-8")
    for width, scheme in ((390, "dark"), (1400, "light")):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        tab = context.new_page()
        requests, problems = [], []
        tab.on("request", lambda request, seen=requests: seen.append(request.url))
        tab.on("pageerror", lambda error, seen=problems: seen.append(str(error)))
        tab.on("console", lambda said, seen=problems: seen.append(said.text))
        tab.goto(path.as_uri())
        tab.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()] and problems == []
        assert tab.evaluate("() => document.documentElement.scrollWidth") <= width
        pictures = "() => [...document.images].every(one => one.complete && one.naturalWidth > 300)"
        assert tab.evaluate(pictures) and tab.evaluate("() => document.images.length") == len(FIGURES)
        ground = tab.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        context.close()
