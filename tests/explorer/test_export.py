"""An exported notebook: one file, interactive, offline."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.explorer.made import HOSTILE, made_recording
from tevlib.explorer.widget import STATE, TreeExplorer
from tevlib.report.export import export_notebook, to_html

WIDGETS = "application/vnd.jupyter.widget-state+json"


def executed(*explorers):
    """A notebook as it is saved after running: a view of each explorer and the widgets' state."""
    cells, states = [], {}
    for i, explorer in enumerate(explorers):
        data, _ = explorer._repr_mimebundle_()
        data["application/vnd.jupyter.widget-view+json"] = {"model_id": f"m{i}", "version_major": 2, "version_minor": 0}
        cells.append(new_code_cell("explorer", outputs=[new_output("display_data", data)], execution_count=i + 1))
        state = {name: getattr(explorer, name) for name in (*STATE, "scene")} | {"_esm": "export default {}"}
        states[f"m{i}"] = {"model_name": "AnyModel", "model_module": "anywidget", "state": state}
    return new_notebook(cells=cells, metadata={"widgets": {WIDGETS: {"state": states}}})


def test_explorers_become_frames_and_state_goes():
    """Each explorer is a sandboxed frame; no saved widget state, no other server's name in a script or link."""
    page, explorers = to_html(executed(*(TreeExplorer(made_recording(labels=HOSTILE)) for _ in range(2))), "x")
    assert explorers == 2 and page.count('<iframe sandbox="allow-scripts"') == 2
    assert WIDGETS not in page and "cdnjs" not in page and "unpkg" not in page


def test_an_explorer_without_saved_state_leaves_its_picture():
    """Where the front end kept no state, the still picture stands in its place."""
    notebook = executed(TreeExplorer(made_recording()))
    notebook.metadata.clear()
    page, explorers = to_html(notebook, "x")
    assert explorers == 0 and "<iframe" not in page and "data:image/svg+xml;base64" in page


def test_what_would_be_fetched_is_refused():
    """An output that loads a script from elsewhere is named, and no page is written."""
    output = new_output("display_data", {"text/html": '<script src="https://example.org/d3.js"></script>'})
    with pytest.raises(ValueError, match=r"not be self-contained, it fetches <script src=.https://example.org"):
        to_html(new_notebook(cells=[new_code_cell("x", outputs=[output])]), "x")


@pytest.mark.slow
def test_the_exported_page_works_offline(browser, tmp_path):
    """In a Chromium without network: no request but the file, the trees are there and answer a click."""
    nbformat.write(executed(TreeExplorer(made_recording(labels=HOSTILE))), tmp_path / "ran.ipynb")
    path, explorers = export_notebook(tmp_path / "ran.ipynb", tmp_path / "ran.html")
    assert explorers == 1
    context = browser.new_context(offline=True)
    page = context.new_page()
    requests, problems = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(path.as_uri())
    inside = page.frame_locator("iframe").first
    inside.locator("[data-node='1']").wait_for(timeout=60_000)
    inside.locator("[data-node='1']").click()
    assert "pinned" in inside.locator(".tx-card").inner_text()
    assert [url for url in requests if not url.startswith(("file:", "about:", "data:"))] == [] and problems == []
    context.close()
