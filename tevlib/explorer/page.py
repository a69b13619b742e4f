"""The explorer as one file: its scripts, style and scene in one HTML page that asks nobody for anything."""

import html
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SCRIPTS = ("flow.js", "verifiers.js", "tree_view.js", "panels.js", "explorer.js")  # in the order that they build on
EXPORT = "\nexport default { render };\n"
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
HOST = """
function standIn(state) {
  const listeners = {};
  return {
    get: (name) => state[name],
    set: (name, value) => {
      const changed = JSON.stringify(state[name]) !== JSON.stringify(value);
      state[name] = value;
      if (changed) for (const listener of listeners["change:" + name] ?? []) listener();
    },
    on: (event, listener) => (listeners[event] ??= new Set()).add(listener),
    off: (event, listener) => listeners[event]?.delete(listener),
    save_changes: () => {},
  };
}
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const state = { ...read("state"), scene: read("scene"), error: "" };
render({ model: standIn(state), el: document.getElementById("explorer") });
"""


@cache
def script() -> str:
    """The explorer's JavaScript: its files one after the other, no module among them imports anything."""
    return "\n".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in SCRIPTS)


@cache
def style() -> str:
    """The explorer's style sheet."""
    return (Path(__file__).parent / "explorer.css").read_text(encoding="utf-8")


def script_json(value: object) -> str:
    """`value` as compact JSON that may stand inside a `<script>` element: no `<`, no line separators."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in ("<", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def one_file_page(scene: Mapping, state: Mapping, title: str = "Draft tree explorer") -> str:
    """An HTML page with the interactive explorer of a `scene` in `state` (trait name -> value).

    The page's own policy forbids every request; hostile text in the scene stays text.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0 auto; padding: 8px; max-width: 1600px; }}
body:has(.tx[data-theme="dark"]) {{ background: #0b0e13; }}
{style()}
</style>
</head>
<body>
<div id="explorer"></div>
<script type="application/json" id="scene">{script_json(scene)}</script>
<script type="application/json" id="state">{script_json(state)}</script>
<script>
{{
{script()}
{HOST}
}}
</script>
</body>
</html>
"""
