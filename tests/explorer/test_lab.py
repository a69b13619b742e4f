"""JupyterLab with a real kernel, in a real Chromium that reaches nothing but this server."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.explorer.made import made_recording
from tevlib.explorer.recording import save_recording
from tevlib.suite.notebook import run_notebook

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent.parent

CELLS = (
    'recording: str = ""  # a file',
    "from pathlib import Path\n\nfrom tevlib.explorer.recording import load_recording\n"
    "from tevlib.explorer.widget import TreeExplorer\n\nexplorer = TreeExplorer(load_recording(recording))\n"
    "calls = Path(recording).with_name('calls.txt')\ncalls.write_text('')\n"
    "explorer.on_change(lambda shown: calls.write_text(f'{calls.read_text()}{shown.selected},'))\nexplorer",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Address and folder of a JupyterLab server; `live.ipynb` there has not run, `ran.ipynb` has."""
    folder = tmp_path_factory.mktemp("lab")
    path = save_recording(made_recording(), folder / "rounds.json")
    first = new_code_cell(CELLS[0].replace('""', repr(str(path))), metadata={"tags": ["parameters"]})
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=[first, new_code_cell(CELLS[1])], metadata=kernel), folder / "live.ipynb")
    environment = os.environ | {
        "JUPYTER_DATA_DIR": str(folder / "data"), "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"), "TEVLIB_HOME": str(folder / "home"),
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    os.environ["TEVLIB_HOME"] = environment["TEVLIB_HOME"]
    run_notebook(folder / "live.ipynb", output=folder / "ran.ipynb", timeout=300, start_timeout=300)
    del os.environ["TEVLIB_HOME"]
    shutil.copy(ROOT / "notebooks" / "11_tree_explorer.ipynb", folder)
    settings = folder / "config" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--port=0", "--ip=127.0.0.1", "--allow-root"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={folder}"]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        yield _address(folder, server), folder
    finally:
        server.terminate()
        server.wait(60)


def _address(folder, server) -> str:
    for _ in range(600):
        found = re.search(r"http://127\.0\.0\.1:\d+", (folder / "server.log").read_text())
        if found:
            try:
                urlopen(found[0] + "/api").read()
                return found[0]
            except OSError:
                pass
        assert server.poll() is None, (folder / "server.log").read_text()
        time.sleep(0.5)
    raise AssertionError((folder / "server.log").read_text())


@pytest.fixture
def open_notebook(browser, lab):
    """A function: a notebook in JupyterLab; `page.outside` lists every request to another host (all are cut off)."""
    address, _ = lab
    contexts = []

    def open_it(name):
        context = browser.new_context(viewport={"width": 1500, "height": 1000})
        contexts.append(context)
        context.set_default_timeout(240_000)
        page = context.new_page()
        page.outside = []

        def gate(route):
            if route.request.url.startswith((address, "data:", "blob:")):
                route.continue_()
            else:
                page.outside.append(route.request.url)
                route.abort()

        page.route("**/*", gate)
        page.goto(f"{address}/lab/tree/{name}?reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        return page

    yield open_it
    for context in contexts:
        context.close()


def restart_and_run_all(page) -> None:
    page.locator(".jp-Notebook .jp-Cell").first.click()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def wait_for(condition) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError("what was waited for did not come")


def test_live_kernel_without_network(lab, open_notebook):
    """The widget renders; a click reaches Python, once, however often the cell was run; nobody else is asked."""
    _, folder = lab
    calls = folder / "calls.txt"
    page = open_notebook("live.ipynb")
    for _ in range(2):
        calls.unlink(missing_ok=True)
        restart_and_run_all(page)
        wait_for(calls.is_file)
    page.locator(".tx [data-node='2']").first.click()
    wait_for(lambda: calls.read_text() != "")
    time.sleep(2)
    assert calls.read_text() == "2,"
    assert page.outside == []


def test_reopened_trusted_and_untrusted(lab, open_notebook):
    """Trusted and with state: the explorer, without a kernel. Untrusted: its picture, as the sanitizer keeps it."""
    _, folder = lab
    notebook = json.loads((folder / "ran.ipynb").read_text())
    page = open_notebook("ran.ipynb")
    picture = page.locator(".jp-OutputArea-output img")
    picture.first.wait_for()
    assert page.locator(".tx").count() == 0
    assert picture.first.evaluate("image => image.naturalWidth") > 300
    from nbformat.sign import NotebookNotary

    trusted = nbformat.from_dict(notebook)
    nbformat.write(trusted, folder / "trusted.ipynb")
    NotebookNotary(data_dir=str(folder / "data")).sign(trusted)
    page = open_notebook("trusted.ipynb")
    page.locator(".tx [data-node='0']").first.wait_for()
    page.locator(".tx [data-node='2']").first.click()
    assert "pinned" in page.locator(".tx-card").first.inner_text()
    assert page.outside == []


def test_reopened_without_its_state(lab, open_notebook):
    """A copy whose widget state was stripped still shows the picture while it is not trusted, as on a review page."""
    _, folder = lab
    bare = json.loads((folder / "ran.ipynb").read_text())
    assert bare["metadata"].pop("widgets")
    (folder / "stateless.ipynb").write_text(json.dumps(bare))
    page = open_notebook("stateless.ipynb")
    picture = page.locator(".jp-OutputArea-output img")
    picture.first.wait_for()
    assert picture.first.evaluate("image => image.naturalWidth") > 300 and page.locator(".tx").count() == 0
    assert page.outside == []


def test_a_prompt_of_ones_own(open_notebook):
    """The form of the shipped notebook: a prompt is typed, the button decodes it, an explorer opens on its rounds."""
    page = open_notebook("11_tree_explorer.ipynb")
    restart_and_run_all(page)
    button = page.get_by_role("button", name="Decode")
    button.wait_for()
    page.get_by_role("textbox", name="prompt").fill("Count from one to five.")
    page.get_by_role("spinbutton", name="max_new_tokens").fill("8")
    page.keyboard.press("Tab")
    shown = page.locator(".tx").count()
    button.click()
    wait_for(lambda: page.locator(".tx").count() > shown or page.locator(".jp-OutputArea-output pre").count() > 2)
    own = page.locator(".tx").last
    own.locator("[data-node='0']").first.wait_for()
    assert "your prompt" in own.inner_text()
    assert page.outside == []


def test_a_new_users_path(open_notebook, picture):
    """Run All on the shipped notebook: where most mass leaves, what would have kept it, both tried."""
    page = open_notebook("11_tree_explorer.ipynb")
    page.keyboard.press("Control+b")  # the file browser goes
    restart_and_run_all(page)
    explorer = page.locator(".tx").first
    explorer.locator("[data-node='0']").first.wait_for()
    explorer.scroll_into_view_if_needed()
    hint = explorer.locator(".tx-hint").inner_text()
    w, gain = re.search(r"w = ([\d.]+).*\(\+([\d.]+)\)", hint).groups()
    explorer.get_by_role("button", name="Pin that node").click()
    assert float(w) == pytest.approx(
        float(explorer.locator(".tx-facts tr").nth(2).locator("td").first.inner_text()), abs=1e-3
    )
    explorer.evaluate("element => element.scrollIntoView({ block: 'start' })")
    picture(page, "explorer_jupyterlab")
    explorer.get_by_role("button", name="Add that token to the tree").click()
    change = re.search(r"\+([\d.]+) by what-if", explorer.locator(".tx-tiles").inner_text())[1]
    assert float(change) == pytest.approx(float(gain), abs=1e-3)
    assert page.outside == []
