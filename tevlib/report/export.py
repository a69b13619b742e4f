"""A notebook as one HTML file that works offline: its explorers stay interactive, nothing is fetched.

nbconvert's own page for a notebook with widgets wants two servers and is blank without them. Here every explorer's
output becomes the one-file page of its saved state in a sandboxed frame; other widgets show the still form they left.
"""

import html
import re
from collections.abc import Mapping
from pathlib import Path

from tevlib.explorer.page import one_file_page
from tevlib.suite.notebook import notebook_path, run_notebook
from tevlib.suite.paths import home

VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
FRAME_HEIGHT = 1180  # pixels: a whole explorer at a laptop's width
FETCHED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)\s*=\s*["']?(?:https?:)?//[^>]*>""", re.I)


def export_notebook(name_or_path: str | Path, output: Path | str | None = None) -> tuple[Path, int]:
    """The path of the HTML file written, and how many explorers in it are interactive.

    A notebook without outputs is run first. `output` defaults to `runs/<name>.html`. Raises ValueError for an unknown
    notebook and for a page that would fetch something (naming what), NotebookFailed where running it failed.
    """
    import nbformat

    path = notebook_path(name_or_path)
    notebook = nbformat.read(path, as_version=4)
    if not any(cell.get("outputs") for cell in notebook.cells):
        notebook = nbformat.read(run_notebook(path), as_version=4)
    page, explorers = to_html(notebook, path.stem)
    output = Path(output or home() / "runs" / f"{path.stem}.html")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page, encoding="utf-8")
    return output, explorers


def to_html(notebook, title: str) -> tuple[str, int]:
    """The executed notebook as a self-contained page, and the number of interactive explorers in it."""
    from nbconvert import HTMLExporter

    states = notebook.metadata.pop("widgets", {}).get(STATE, {}).get("state", {})
    explorers = 0
    for cell in notebook.cells:
        for found in cell.get("outputs", []):
            view = found.get("data", {}).pop(VIEW, None)
            state = states.get(view["model_id"], {}).get("state", {}) if view else {}
            if "scene" in state:
                found["data"] = {"text/html": frame(state)}
                explorers += 1
    exporter = HTMLExporter(embed_images=True, mathjax_url="", require_js_url="", jquery_url="", mermaid_js_url="")
    page, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": title}})
    page = re.sub(r'<script[^>]*src=""[^>]*>\s*</script>', "", page)
    page = re.sub(r'<script type="module">(?:(?!</script>).)*?mermaid.*?</script>', "", page, flags=re.S)
    fetched = FETCHED.search(page)
    if fetched:
        raise ValueError(f"the page would not be self-contained, it fetches {fetched[0][:200]}")
    return page, explorers


def frame(state: Mapping) -> str:
    """A sandboxed frame with the one-file page of an explorer's saved state."""
    shown = {
        name: value for name, value in state.items() if not name.startswith("_") and name not in ("scene", "layout")
    }
    page = one_file_page(state["scene"], shown)
    return (
        f'<iframe sandbox="allow-scripts" title="Draft tree explorer" srcdoc="{html.escape(page)}" '
        f'style="width:100%;height:{FRAME_HEIGHT}px;border:0"></iframe>'
    )
